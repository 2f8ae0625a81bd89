"""The agent's plan: which later steps read which earlier messages, and what that protects.

Next use is not stored with tokens (DESIGN §3.5): selection asks for the protected intervals
at a step and looks tokens up by logical position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import InvalidRequest
from engine.log import ForkableLog
from engine.retention import NO_USE
from engine.types import PlanUpdate


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Tokens [start, end) of one message, the step it belongs to and the chained digest of the
    transcript up to it. ``reasoning``: digest of its reasoning, empty when it has none."""

    start: int
    end: int
    role: str
    step: int
    digest: bytes
    reasoning: bytes = b""


@dataclass(frozen=True, slots=True)
class StepStart:
    """First message of a step (index into the messages)."""

    step: int
    message: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Tokens [start, end) that ``next_use`` reads next."""

    start: int
    end: int
    next_use: int


Readers = Mapping[int, tuple[int, ...]]
MOST_UNRESOLVED = 100
"""Unresolved references that are named; a plan may hold a thousand times as many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Rising reading steps, by step read and by message index read. Immutable."""

    by_step: Readers = field(default_factory=dict)
    by_message: Readers = field(default_factory=dict)

    def update(
        self, change: PlanUpdate, first: int, starts: ForkableLog[StepStart], messages: int
    ) -> tuple[Plan, list[str]]:
        """The plan after a request.

        Args:
            change: parts left None stay as they are.
            first: step of the request's first message; steps before it are past.
            starts: steps of the transcript with this request.
            messages: messages the transcript holds with this request.

        Returns:
            The new plan and the references that cannot be resolved, as readable texts, the
            first ``MOST_UNRESOLVED`` of them and how many more there are.

        Raises:
            InvalidRequest: ``change.strict`` and something is unresolved.
        """
        unresolved: list[str] = []
        by_step, by_message = self.by_step, self.by_message
        if change.plan is not None:
            reads = ((step, reader) for reader, steps in change.plan.items() for step in steps)
            by_step = _collect(reads, first, starts, unresolved)
        param = "pace.plan" if unresolved else "pace.segments"
        if change.segments is not None:
            pairs = ((m, r) for s in change.segments for m in s.messages for r in s.readers)
            by_message = _collect_messages(pairs, first, starts, messages, unresolved)
        if len(unresolved) > MOST_UNRESOLVED:
            more = len(unresolved) - MOST_UNRESOLVED
            unresolved[MOST_UNRESOLVED:] = [f"and {more} more"]
        if unresolved and change.strict:
            raise InvalidRequest(
                f"{param} cannot be resolved: {'; '.join(unresolved)}", param=param
            )
        return Plan(by_step, by_message), unresolved

    def pruned(self, current: int) -> Plan:
        """Without readers before ``current``: they protect nothing any more."""
        return Plan(_drop_past(self.by_step, current), _drop_past(self.by_message, current))


def _collect(
    pairs: Iterable[tuple[int, int]],
    first: int,
    starts: ForkableLog[StepStart],
    unresolved: list[str],
) -> dict[int, tuple[int, ...]]:
    found: dict[int, set[int]] = {}
    for step, reader in pairs:
        if reader < first:
            unresolved.append(f"step {reader} is past and cannot read step {step}")
        elif step >= reader:
            unresolved.append(f"step {reader} cannot read step {step}: it is not earlier")
        elif len(starts) and step <= starts[-1].step and _step_index(starts, step) is None:
            unresolved.append(f"step {reader} cannot read step {step}: it does not exist")
        else:
            found.setdefault(step, set()).add(reader)
    return {step: tuple(sorted(readers)) for step, readers in found.items()}


def _collect_messages(
    pairs: Iterable[tuple[int, int]],
    first: int,
    starts: ForkableLog[StepStart],
    messages: int,
    unresolved: list[str],
) -> dict[int, tuple[int, ...]]:
    found: dict[int, set[int]] = {}
    newest = starts[-1].step if len(starts) else 0
    for message, reader in pairs:
        if not 0 <= message < messages:
            unresolved.append(f"message {message} does not exist: the transcript has {messages}")
        elif reader < first:
            unresolved.append(f"step {reader} is past and cannot read message {message}")
        elif reader < newest and reader < (step := _step_of(starts, message)):
            unresolved.append(
                f"step {reader} cannot read message {message}: it belongs to step {step}"
            )
        else:
            found.setdefault(message, set()).add(reader)
    return {message: tuple(sorted(readers)) for message, readers in found.items()}


def _drop_past(readers: Readers, current: int) -> Readers:
    if all(steps[-1] >= current for steps in readers.values()):
        return readers
    return {key: steps for key, steps in readers.items() if steps[-1] >= current}


def next_reader(readers: Sequence[int], step: int) -> int:
    """Smallest of the rising ``readers`` that is ≥ ``step``; ``NO_USE`` when there is none."""
    at = bisect_left(readers, step)
    return readers[at] if at < len(readers) else NO_USE


def readers_of(plan: Plan, message: int, step: int) -> list[int]:
    """Rising steps that read a message of ``step``."""
    return sorted({*plan.by_step.get(step, ()), *plan.by_message.get(message, ())})


def _step_of(starts: ForkableLog[StepStart], message: int) -> int:
    """Step of an existing message."""
    return starts[bisect_right(starts, message, key=lambda item: item.message) - 1].step


def _step_index(starts: ForkableLog[StepStart], step: int) -> int | None:
    at = bisect_left(starts, step, key=lambda item: item.step)
    return at if at < len(starts) and starts[at].step == step else None


def step_messages(
    starts: ForkableLog[StepStart], messages: ForkableLog[MessageSpan], step: int
) -> range:
    """Indices of the messages of ``step``; empty when the step does not exist (yet)."""
    at = _step_index(starts, step)
    if at is None:
        return range(0)
    end = starts[at + 1].message if at + 1 < len(starts) else len(messages)
    return range(starts[at].message, end)


def protected(
    plan: Plan, starts: ForkableLog[StepStart], messages: ForkableLog[MessageSpan], step: int
) -> list[Interval]:
    """Intervals with a next use at ``step``, in logical order, disjoint. O(plan)."""
    uses: dict[int, int] = {}
    for read, readers in plan.by_step.items():
        use = next_reader(readers, step)
        if use < NO_USE:
            for index in step_messages(starts, messages, read):
                uses[index] = min(use, uses.get(index, NO_USE))
    for index, readers in plan.by_message.items():
        use = next_reader(readers, step)
        if use < NO_USE and index < len(messages):
            uses[index] = min(use, uses.get(index, NO_USE))
    return [Interval(messages[i].start, messages[i].end, use) for i, use in sorted(uses.items())]


def next_use(intervals: Sequence[Interval], logical: Tensor) -> Tensor:
    """Next use of each token, int64 like ``logical`` (any shape)."""
    if not intervals:
        return torch.full_like(logical, NO_USE)
    device = logical.device
    starts = torch.tensor([i.start for i in intervals], device=device)
    ends = torch.tensor([i.end for i in intervals], device=device)
    uses = torch.tensor([i.next_use for i in intervals], device=device)
    at = (torch.searchsorted(starts, logical, right=True) - 1).clamp_(min=0)
    inside = (logical >= starts[at]) & (logical < ends[at])
    return torch.where(inside, uses[at], NO_USE)


def needed_now(
    plan: Plan, starts: ForkableLog[StepStart], messages: ForkableLog[MessageSpan], step: int
) -> list[Interval]:
    """Earlier spans that ``step`` itself reads (the set N_t of the paper, §2)."""
    found = protected(plan, starts, messages, step)
    own = step_messages(starts, messages, step)
    first = messages[own.start].start if len(own) else None
    return [i for i in found if i.next_use == step and (first is None or i.start < first)]


def residency(intervals: Sequence[Interval], logical: Tensor) -> float | None:
    """Needed tokens resident ÷ needed tokens, minimum over layers (paper §2).

    ``intervals``: disjoint, in logical order; ``logical``: ``[L, N]``. None when nothing is
    needed.
    """
    total = sum(i.end - i.start for i in intervals)
    if total == 0:
        return None
    present = (next_use(intervals, logical) < NO_USE).sum(dim=1)
    return float(present.min()) / total


def rotary_gap(
    intervals: Sequence[Interval], logical: Tensor, physical: Tensor, query: int
) -> int | None:
    """Largest distance, over layers and needed spans, from physical position ``query`` to the
    first resident token of the span (paper §2). None when nothing needed is resident."""
    # the largest over spans is the one of the smallest position needed
    inside = next_use(intervals, logical) < NO_USE
    first = int(torch.where(inside, physical, NO_USE).min())
    return None if first == NO_USE else query - first
