"""A client that resends its transcript, and what each of its turns must compute and say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from openai import OpenAI

from tests.support.local_server import LocalServer
from tests.support.tool_clients import joined
from tests.support.transcript import CALL, CALL_END, Drawn, encode, token_log

ANSWER = 10
"""Tokens of an answer, unless a test says otherwise."""

_serial = itertools.count()


@dataclass(frozen=True)
class Given:
    """An answer as the client got it."""

    message: dict[str, Any]
    ids: list[int]
    logprobs: list[float]
    finish: str
    usage: Any

    @property
    def text(self) -> str:
        """Its content."""
        return self.message["content"] or ""


@dataclass(frozen=True)
class Held:
    """A transcript the session holds, what was drawn in it, and its tokens with KV."""

    messages: tuple[dict[str, Any], ...] = ()
    drawn: Mapping[int, Drawn] = field(default_factory=dict)
    written: int = 0


class Conversation:
    """A client of one session, and what each of its turns must compute.

    Args:
        way: "named" and "unnamed" resend everything, with a session id or without; "append"
            sends new messages only.
    """

    def __init__(
        self, server: LocalServer, openai: OpenAI, stock: Any, way: str, stream: bool
    ) -> None:
        self.server, self._openai, self._stock, self._stream = server, openai, stock, stream
        number = next(_serial)
        self._append = way == "append"
        self.pace = {} if way == "unnamed" else {"session_id": f"r-{number}"}
        if way == "append":
            self.pace["mode"] = "append"
        # told apart by their first message where no id does
        self.opening = f"{number} speaks"
        self.before, self.now = Held(), Held()
        self.tools: list[Any] | None = None
        self.exact = True  # nothing was evicted: the stock model says the same

    def say(self, text: str, **fields: Any) -> Given:
        """The next user message."""
        return self._turn(self.now, ({"role": "user", "content": text},), fields)

    def redo(self, *messages: dict[str, Any], **fields: Any) -> Given:
        """Another end of the transcript: other messages in place of the last turn's."""
        return self._turn(self.before, messages, fields)

    def leave(self, text: str) -> None:
        """Ask, and go away at the first piece of the answer."""
        messages = self._to_send(self.now, ({"role": "user", "content": text},))
        stream = self._create(messages, {"max_tokens": 9000, "stream": True})
        next(stream)
        stream.close()
        self.server.wait_idle()
        self.server.passed.take()

    def preview(self, **fields: Any) -> Given:
        """What the first answer will be; leaves no trace."""
        name = f"preview-{next(_serial)}"
        messages = [{"role": "user", "content": self.opening}]
        pace = {**self.pace, "session_id": name, "mode": "transcript"}
        given = self._ask(messages, {"pace": pace, **fields})
        self.server.engine.delete("", name)
        return given

    def give(self, result: str, **fields: Any) -> Given:
        """The same result for all calls of the last answer."""
        calls = self.now.messages[-1]["tool_calls"]
        new = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
        return self._turn(self.now, tuple(new), fields)

    def _turn(self, base: Held, new: tuple[dict[str, Any], ...], fields: dict[str, Any]) -> Given:
        self.server.passed.take()
        given = self._ask(self._to_send(base, new), fields)
        passed = self.server.passed.take()
        tokenizer = self.server.tokenizer
        messages = (*base.messages, *new)
        prompt = token_log(tokenizer, messages, base.drawn, tools=self.tools)
        forced = fields.get("tool_choice") not in (None, "auto", "none")
        if forced:
            prompt += encode(tokenizer, CALL)
        decoded = given.ids[:-1]
        assert passed == prompt[base.written :] + decoded
        usage = given.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(given.ids))
        prefilled = len(passed) - len(decoded)
        assert usage.prompt_tokens_details.cached_tokens == len(prompt) - prefilled
        if self.exact:
            assert given.logprobs == pytest.approx(self._expected(prompt, given.ids), abs=1e-4)
        # a call that the server ended has no closing tag of its own
        ended = given.finish == "tool_calls" and not tokenizer.decode(given.ids).count(CALL_END)
        drawn = Drawn(given.ids, CALL if forced else "", CALL_END if ended else "")
        self.before = base
        self.now = Held(
            (*messages, _written_again(given.message)),
            {**base.drawn, len(messages): drawn},
            len(prompt) + len(decoded),
        )
        return given

    def _to_send(self, base: Held, new: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return list(new if self._append else base.messages + new)

    def _ask(self, messages: list[dict[str, Any]], fields: dict[str, Any]) -> Given:
        if not self._stream:
            answer = self._create(messages, fields)
            (choice,) = answer.choices
            return _given(choice.message.model_dump(), [choice], answer.usage)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = self._create(messages, fields | options)
        return _given(joined(chunks), [chunk.choices[0] for chunk in chunks], last.usage)

    def _create(self, messages: Any, fields: dict[str, Any]) -> Any:
        settings: dict[str, Any] = {
            "model": "protocol",
            "temperature": 0,
            "max_tokens": ANSWER,
            "logprobs": True,
        }
        if self.tools:
            settings["tools"] = self.tools
        settings |= fields
        pace = {"return_token_ids": True, **settings.pop("pace", self.pace)}
        extra = {"pace": pace, "ignore_eos": settings.pop("ignore_eos", True)}
        return self._openai.chat.completions.create(messages=messages, extra_body=extra, **settings)

    @torch.inference_mode()
    def _expected(self, prompt: list[int], ids: list[int]) -> list[float]:
        logits = self._stock(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        rows = logits.double().log_softmax(-1)
        return [float(row[token]) for row, token in zip(rows, ids, strict=True)]


def _given(message: dict[str, Any], choices: list[Any], usage: Any) -> Given:
    tokens = [token for choice in choices for token in getattr(choice, "token_ids", ())]
    logprobs = [entry.logprob for c in choices if c.logprobs for entry in c.logprobs.content]
    return Given(message, tokens, logprobs, choices[-1].finish_reason, usage)


def _written_again(message: dict[str, Any]) -> dict[str, Any]:
    """The message as a client sends it back that keeps a call's arguments as an object."""
    again: dict[str, Any] = {"role": "assistant", "content": message["content"]}
    calls = []
    for call in message.get("tool_calls") or ():
        function = dict(call["function"])
        try:
            arguments = dict(reversed(json.loads(function["arguments"]).items()))
            function["arguments"] = json.dumps(arguments, indent=1)
        except ValueError:
            pass  # it was cut off: the client keeps the text
        calls.append({"id": call["id"], "type": "function", "function": function})
    return again | ({"tool_calls": calls} if calls else {})
