"""Watches a client's session at the model's embedding: what each of its turns computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.local_server import LocalServer
from tests.support.transcript import CLOSING, token_log


class SessionWatch:
    """Knows what a session of the only client of ``server`` must compute, turn by turn.

    Args:
        longest: most tokens an answer may have.
        template: more arguments for the chat template, such as ``tools``.
    """

    def __init__(self, server: LocalServer, longest: int, **template: Any) -> None:
        self._server = server
        self._longest = longest
        self._template = template
        self._messages: list[Mapping[str, Any]] = []
        self._drawn: dict[int, list[int]] = {}
        self._written = 0
        self._text: str | None = None
        self.drawn_texts: list[str] = []
        server.passed.take()

    def turn(self, new: Sequence[Mapping[str, Any]], text: str | None) -> list[int]:
        """Check the turn that has just ended.

        Args:
            new: the messages it brought.
            text: the answer as the client shows it; None when it shows none.

        Returns:
            What passed the embedding.
        """
        passed = self._server.passed.take()
        assert passed, "nothing was computed"
        if self._messages:  # the last sampled token passes first; now the last answer is complete
            drawn = self._drawn[len(self._messages) - 1]
            drawn.append(passed[0])
            self._check_text(drawn)
        self._messages += new
        log = token_log(self._server.tokenizer, self._messages, self._drawn, **self._template)
        prefilled = len(log) - self._written
        assert passed[:prefilled] == log[self._written :]
        decoded = passed[prefilled:]
        assert len(decoded) < self._longest
        self._written = len(log) + len(decoded)
        self._drawn[len(self._messages)] = decoded
        self._messages.append({"role": "assistant"})
        self._text = text
        return passed

    def _check_text(self, drawn: list[int]) -> None:
        """What the client shows is what was drawn, without special tokens."""
        tokenizer = self._server.tokenizer
        ended = drawn[-1] == tokenizer.convert_tokens_to_ids(CLOSING)
        said = tokenizer.decode(drawn[: len(drawn) - ended], skip_special_tokens=True)
        assert self._text in (None, said)
