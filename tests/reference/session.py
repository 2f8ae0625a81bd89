"""A whole session by hand: ChatML token log, schedule, renumbering, eviction, greedy answers.

Works on byte tokens: a message's tokens are the bytes of its text between special tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tests.reference import plan as plans
from tests.reference.llama import LayerCache
from tests.reference.plan import Segments, Span, Steps
from tests.reference.retention import Rules, kept

START, END = 257, 258  # <|im_start|>, <|im_end|> of the byte tokenizer
NEWLINE = ord("\n")


def opening(role: str) -> list[int]:
    """Tokens that open a message."""
    return [START, *role.encode(), NEWLINE]


def message_tokens(role: str, text: str) -> list[int]:
    """All tokens of a message."""
    return [*opening(role), *text.encode(), END, NEWLINE]


class Model(Protocol):
    """What a session writes to: ``DenseLlama``, ``StockModel``."""

    layers: int

    def write(
        self,
        caches: Sequence[LayerCache],
        tokens: Sequence[int],
        logical: int,
        physical: int,
        observe: int | None = None,
    ) -> Tensor: ...


@dataclass
class Answered:
    """What a turn gave: sampled tokens, logits per written token, cache figures."""

    tokens: list[int]
    logits: Tensor
    residency: float | None
    rotary_gap: int | None
    evicted: int
    renumbers: int
    displaced: int
    unresolved: int


@dataclass(frozen=True)
class LayerEviction:
    """One layer at one eviction: all candidates and the indices of those that stay."""

    logical: list[int]
    scores: list[float]
    uses: list[int | None]
    stay: list[int]


@dataclass
class ReferenceSession:
    """Turns on a constant budget, with every rule written out (DESIGN §3.5, §3.6, §3.8)."""

    model: Model
    rules: Rules
    tokens: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    plan: Steps = field(default_factory=dict)
    segments: Segments = ()
    written: int = 0
    shift: int = 0
    evicted: int = 0
    renumbers: int = 0
    evictions: list[tuple[int, list[LayerEviction]]] = field(default_factory=list)
    """(step, layers) of each."""
    before: ReferenceSession | None = None
    """The session as it was before its last turn."""

    def __post_init__(self) -> None:
        self.caches = [LayerCache() for _ in range(self.model.layers)]

    @property
    def logical(self) -> list[list[int]]:
        """Logical positions held, per layer."""
        return [[e.logical for e in cache.entries] for cache in self.caches]

    @property
    def physical(self) -> list[list[int]]:
        """Physical positions held, per layer."""
        return [[e.physical for e in cache.entries] for cache in self.caches]

    @property
    def scores(self) -> list[list[float]]:
        """Attention received so far, per layer."""
        return [[float(e.score) for e in cache.entries] for cache in self.caches]

    def turn(
        self,
        messages: Sequence[tuple[str, str]],
        max_tokens: int,
        plan: Steps | None = None,
        segments: Segments | None = None,
        step: int | None = None,
    ) -> Answered:
        """Write ``messages`` (role, text) and answer greedily. User messages count steps; the last
        one takes ``step``, if given. A new plan takes the place of the one before."""
        self.before = None
        self.before = self._copy()
        evicted, renumbers, evictions = self.evicted, self.renumbers, len(self.evictions)
        unresolved = self._add(messages, plan, segments, step)
        logits = self._prompt()
        figures = self._figures
        answer: list[int] = []
        while not answer or (answer[-1] != END and len(answer) < max_tokens):
            if answer:
                logits.append(self._write(answer[-1:], measure=None))
            answer.append(int(logits[-1][-1].argmax()))
            self.tokens.append(answer[-1])
            self._extend_last()
        self.tokens += [NEWLINE] if answer[-1] == END else [END, NEWLINE]
        self._extend_last()
        displaced = sum(
            max(
                sum(use is not None for i, use in enumerate(layer.uses) if i not in layer.stay)
                for layer in layers
            )
            for _, layers in self.evictions[evictions:]
        )
        done = self.evicted - evicted, self.renumbers - renumbers, displaced, unresolved
        return Answered(answer, torch.cat(logits), *figures, *done)

    def undo(self) -> None:
        """Go back to before the last turn."""
        assert self.before is not None, "only one turn can be undone"
        vars(self).update(vars(self.before))

    def score(self, messages: Sequence[tuple[str, str]], continuation: list[int]) -> list[float]:
        """Log-probability of each token of an answer that begins like this; changes nothing."""
        fork = self._copy()
        fork._add(messages)
        logits = fork._prompt()[-1][-1:]
        fork.tokens += continuation
        fork._extend_last()
        rows = [logits]
        for start in range(0, len(continuation) - 1, self.rules.chunk):
            end = min(start + self.rules.chunk, len(continuation) - 1)
            rows.append(fork._write(continuation[start:end], measure=None))
        chances = torch.cat(rows).log_softmax(-1)
        return [float(chances[i, token]) for i, token in enumerate(continuation)]

    def _copy(self) -> ReferenceSession:
        entries = [[copy.copy(entry) for entry in cache.entries] for cache in self.caches]
        twin = copy.copy(self)
        twin.caches = [LayerCache(each) for each in entries]
        # what is in them is never changed, only replaced
        twin.tokens, twin.spans = self.tokens[:], self.spans[:]
        twin.evictions = self.evictions[:]
        return twin

    def _add(
        self,
        messages: Sequence[tuple[str, str]],
        plan: Steps | None = None,
        segments: Segments | None = None,
        step: int | None = None,
    ) -> int:
        """Append messages and replace the plan; returns how much of it makes no sense."""
        current, first = self.spans[-1].step if self.spans else 0, len(self.spans)
        users = [at for at, (role, _) in enumerate(messages) if role == "user"]
        for at, (role, text) in enumerate(messages):
            current += role == "user"
            if step is not None and users and at == users[-1]:
                current = step
            self._open(role, current, message_tokens(role, text))
        steps, parts, wrong = plans.resolved(self.spans, plan, segments, self.spans[first].step)
        self.plan = self.plan if plan is None else steps
        self.segments = self.segments if segments is None else parts
        self._open("assistant", current, opening("assistant"))
        return wrong

    def _prompt(self) -> list[Tensor]:
        logits = []
        while self.written < len(self.tokens):
            chunk = self.tokens[self.written :][: self.rules.chunk]
            logits.append(self._write(chunk, measure=self.written + len(chunk)))
        return logits

    def _open(self, role: str, step: int, tokens: list[int]) -> None:
        start = len(self.tokens)
        self.tokens += tokens
        self.spans.append(Span(start, len(self.tokens), role, step))

    def _extend_last(self) -> None:
        last = self.spans[-1]
        self.spans[-1] = Span(last.start, len(self.tokens), last.role, last.step)

    def _step_of(self, token: int) -> int:
        return next(span.step for span in self.spans if span.start <= token < span.end)

    def _write(self, tokens: list[int], measure: int | None) -> Tensor:
        rules, count = self.rules, len(tokens)
        due = rules.limit is not None and self.written - self.shift + count > rules.limit
        held = [entry.physical for entry in self.caches[0].entries]
        if due or (rules.renumber == "eviction" and self.written - self.shift != len(held)):
            for cache in self.caches:
                for position, entry in enumerate(cache.entries):
                    entry.physical = position
            self.shift = self.written - len(self.caches[0].entries)
            self.renumbers += 1
        first = self.written - self.shift
        logits = self.model.write(self.caches, tokens, self.written, first, rules.observe)
        self.written += count
        if measure == len(self.tokens):
            wanted = plans.needed(self.spans, self.plan, self.segments, self.spans[-1].step)
            query = first + count - 1
            self._figures = (
                plans.residency(wanted, self.logical),
                plans.rotary_gap(wanted, self.logical, self.physical, query),
            )
        if rules.retention != "none":
            size = len(self.caches[0].entries)
            if size >= rules.budget + rules.interval:
                self._evict(self._step_of(self.written - 1))
                self.evicted += size - len(self.caches[0].entries)
        return logits

    def _evict(self, step: int) -> None:
        layers = []
        for cache in self.caches:
            logical, scores = (
                [e.logical for e in cache.entries],
                [float(e.score) for e in cache.entries],
            )
            uses = [
                plans.next_use(self.spans, self.plan, self.segments, token, step)
                for token in logical
            ]
            stay = kept(self.rules, logical, scores, uses, step)
            cache.entries = [cache.entries[i] for i in stay]
            layers.append(LayerEviction(logical, scores, uses, stay))
        self.evictions.append((step, layers))
