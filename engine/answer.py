"""The answer being generated: text as it becomes final, stop strings, log-probabilities."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.sampling import log_probabilities
from engine.types import FinishReason, Sampling, TextDelta, TokenLogprob, TopLogprob

_INCOMPLETE = "�"
_CHARACTER_BYTES = 4  # of the longest character in UTF-8


class Answer:
    """Takes sampled tokens one by one; gives out text that no later token can change.

    Text is held back while its last character is incomplete or while it could be the
    beginning of a stop string.
    """

    def __init__(self, tokenizer: Any, sampling: Sampling, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._stop_ids = frozenset() if sampling.ignore_eos else stop_ids
        self._bytes = {char: byte for byte, char in bytes_to_unicode().items()}
        self.tokens: list[int] = []
        self.text = ""
        self.finish: FinishReason | None = None
        self._given = 0
        self._decoded_to = 0
        self._context_from = 0
        self._held_tokens: list[int] = []
        self._held_logprobs: list[TokenLogprob] = []

    def push(self, token: int, logits: Tensor, room: bool = True) -> TextDelta | None:
        """Add a sampled token; sets ``finish`` when the answer ends with it.

        Args:
            logits: ``[V]`` the token was drawn from.
            room: another token could be written after this one.

        Returns:
            What the client can be given now, None when everything is held back.
        """
        self.tokens.append(token)
        self._held_tokens.append(token)
        if self._sampling.logprobs:
            self._held_logprobs.append(self._logprob(token, logits))
        if token in self._stop_ids:
            self._decode(final=True, end=len(self.tokens) - 1)
            self.finish = "stop"
        else:
            full = len(self.tokens) >= self._sampling.max_tokens or not room
            self._decode(final=full, end=len(self.tokens))
            if full:
                self.finish = "length"
        self._cut_at_stop()
        return self._give()

    def end(self, given: TextDelta | None) -> TextDelta:
        """End the answer here. Returns ``given``, the last delta, and what was held back."""
        self._decode(final=True, end=len(self.tokens))
        self.finish = "stop"
        rest = self._give() or TextDelta("")
        if given is None:
            return rest
        return TextDelta(
            given.text + rest.text, given.token_ids + rest.token_ids, given.logprobs + rest.logprobs
        )

    def _decode(self, final: bool, end: int) -> None:
        """Append the text of tokens up to ``end`` that is complete (all of it when final)."""
        decode = self._tokenizer.decode
        known = decode(self.tokens[self._context_from : self._decoded_to], skip_special_tokens=True)
        whole = decode(self.tokens[self._context_from : end], skip_special_tokens=True)
        if whole.endswith(_INCOMPLETE) and not final:
            # at most three bytes wait for the rest of their character: what is before the
            # tokens that may hold them is final, unless a character goes across the cut
            end -= _CHARACTER_BYTES - 1
            if end - self._decoded_to < _CHARACTER_BYTES:
                return
            complete = decode(self.tokens[self._context_from : end], skip_special_tokens=True)
            if not whole.startswith(complete):
                return
            whole = complete
        self.text += whole[len(known) :]
        self._context_from, self._decoded_to = self._decoded_to, end

    def _cut_at_stop(self) -> None:
        # what was given out cannot hold the beginning of a stop string: it was held back
        places = [self.text.find(stop, self._given) for stop in self._sampling.stop]
        found = [at for at in places if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.finish = "stop"

    def _give(self) -> TextDelta | None:
        safe = len(self.text) if self.finish else len(self.text) - self._possible_stop()
        text = self.text[self._given : safe]
        if not text and not self.finish:
            return None
        self._given = safe
        delta = TextDelta(text, tuple(self._held_tokens), tuple(self._held_logprobs))
        self._held_tokens, self._held_logprobs = [], []
        return delta

    def _possible_stop(self) -> int:
        """Characters at the end that may turn into a stop string."""
        longest = 0
        for stop in self._sampling.stop:
            for size in range(min(len(stop) - 1, len(self.text) - self._given), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _logprob(self, token: int, logits: Tensor) -> TokenLogprob:
        values = log_probabilities(logits)
        best = values.topk(self._sampling.top_logprobs) if self._sampling.top_logprobs else None
        top = []
        if best is not None:
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                text, raw = self._token_text(index)
                top.append(TopLogprob(text, index, value, raw))
        text, raw = self._token_text(token)
        return TokenLogprob(text, token, float(values[token]), raw, tuple(top))

    def _token_text(self, token: int) -> tuple[str, tuple[int, ...]]:
        """Text of one token and its UTF-8 bytes (exact for byte-level vocabularies)."""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        text: str = self._tokenizer.decode([token])
        if piece is not None and _INCOMPLETE in text and all(c in self._bytes for c in piece):
            return text, tuple(self._bytes[c] for c in piece)
        return text, tuple(text.encode())
