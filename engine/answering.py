"""One answer while it is generated: which token comes next, what the client gets of it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from engine.answer import Answer
from engine.answer_parts import AnswerParts
from engine.chat import ChatFormat
from engine.forced_call import ForcedCall
from engine.sampling import CounterRng, draw
from engine.types import FinishReason, Message, Sampling, TextDelta, ToolUse


class Answering:
    """Draws tokens and turns them into deltas until ``finish`` says why it ended."""

    def __init__(
        self,
        chat: ChatFormat,
        sampling: Sampling,
        tools: ToolUse | None,
        forced: ForcedCall | None,
        rng: CounterRng,
    ) -> None:
        """
        Args:
            tools: those of the turn, when it may call some.
            forced: the grammar of a call whose opening ends the prompt, or None.
            rng: of the session; a ``sampling.seed`` goes before it.
        """
        self._chat = chat
        self._sampling = sampling
        self._forced = forced
        self._rng = rng if sampling.seed is None else CounterRng(sampling.seed)
        self._answer = Answer(chat.tokenizer, sampling, chat.stop_ids)
        self._parts = AnswerParts.of(chat, tools)
        self._opening = chat.tools.opening if forced is not None and chat.tools else ""
        self._ends_in_call = False
        self.reasoning_tokens = 0

    @property
    def tokens(self) -> list[int]:
        """The tokens drawn so far."""
        return self._answer.tokens

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer ended; None while it goes on."""
        finish, parts = self._answer.finish, self._parts
        # a call that a stop string cut in two is none to be made
        made = bool(parts.calls) and not parts.cut_off
        return "tool_calls" if finish == "stop" and made else finish

    def draw(self, logits: Tensor) -> int:
        """The next token id, from ``logits`` ``[V]``."""
        allowed = logits if self._forced is None else self._forced.allowed(logits)
        return draw(allowed, self._sampling, self._rng)

    def push(self, token: int, logits: Tensor, room: bool) -> TextDelta | None:
        """Add the token drawn from ``logits``. See ``Answer.push``."""
        answer, parts = self._answer, self._parts
        delta = answer.push(token, logits, room)
        if self._forced is not None and answer.finish is None:
            self._forced.accept(token)
            if self._forced.complete:
                self._ends_in_call = True
                delta = answer.end(delta)
        if delta is None:
            return None
        part = parts.take(self._opening + delta.text, final=answer.finish is not None)
        self._opening = ""
        self.reasoning_tokens += len(delta.token_ids) if parts.thinking else 0
        if parts.ended and answer.finish is None:
            self._ends_in_call = True
            delta = answer.end(delta)
        return replace(
            delta, text=part.content, reasoning=part.reasoning, tool_calls=tuple(part.calls)
        )

    def message(self) -> Message:
        """The answer as the client was given it."""
        return self._parts.message()

    def closing(self) -> list[int]:
        """Token ids that end the message behind the tokens drawn."""
        closing = self._chat.closing_after(self.tokens[-1])
        if self._ends_in_call and self._chat.tools is not None:
            return self._chat.encode(self._chat.tools.ending) + closing
        return closing
