"""The plan's meaning, token by token (paper §2, §3.1; DESIGN §3.1, §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of one message of ``step``."""

    start: int
    end: int
    role: str
    step: int


Steps = Mapping[int, Sequence[int]]
"""Reading step → steps it reads, as in a request's ``plan``."""
Segments = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(messages, reading steps), as in a request's ``segments``."""


def readers(spans: Sequence[Span], plan: Steps, segments: Segments, message: int) -> set[int]:
    """All steps that read a message."""
    found = {reader for reader, read in plan.items() if spans[message].step in read}
    for messages, steps in segments:
        if message in messages:
            found |= set(steps)
    return found


def next_use(
    spans: Sequence[Span], plan: Steps, segments: Segments, token: int, step: int
) -> int | None:
    """Smallest reading step ≥ ``step`` of the message that holds ``token``."""
    for message, span in enumerate(spans):
        if span.start <= token < span.end:
            later = [r for r in readers(spans, plan, segments, message) if r >= step]
            return min(later, default=None)
    return None


def needed(spans: Sequence[Span], plan: Steps, segments: Segments, step: int) -> list[Span]:
    """Messages of earlier steps that ``step`` reads."""
    return [
        span
        for message, span in enumerate(spans)
        if span.step < step and step in readers(spans, plan, segments, message)
    ]


def residency(wanted: Sequence[Span], logical: Sequence[Sequence[int]]) -> float | None:
    """Needed tokens resident ÷ needed tokens, minimum over layers; None: nothing is needed."""
    tokens = {token for span in wanted for token in range(span.start, span.end)}
    if not tokens:
        return None
    return min(len(tokens & set(layer)) for layer in logical) / len(tokens)


def rotary_gap(
    wanted: Sequence[Span],
    logical: Sequence[Sequence[int]],
    physical: Sequence[Sequence[int]],
    query: int,
) -> int | None:
    """Largest distance from ``query`` back to the first resident token of a needed span."""
    gaps = []
    for of_layer, at in zip(logical, physical, strict=True):
        for span in wanted:
            places = [p for m, p in zip(of_layer, at, strict=True) if span.start <= m < span.end]
            if places:
                gaps.append(query - places[0])
    return max(gaps, default=None)
