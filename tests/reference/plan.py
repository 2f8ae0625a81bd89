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


def resolved(
    spans: Sequence[Span], plan: Steps | None, segments: Segments | None, first: int
) -> tuple[dict[int, list[int]], list[tuple[list[int], list[int]]], int]:
    """What of a request's ``plan`` and ``segments`` makes sense, and how many references do not.

    ``spans``: the transcript with the request's messages; ``first``: step of the first of them.
    """
    newest, existing = spans[-1].step, {span.step for span in spans}
    steps: dict[int, list[int]] = {}
    parts: list[tuple[list[int], list[int]]] = []
    wrong = 0
    for reader, read in (plan or {}).items():
        for step in read:
            if first <= reader > step and (step in existing or step > newest):
                steps.setdefault(reader, []).append(step)
            else:
                wrong += 1
    for messages, readers_ in segments or ():
        for message in messages:
            for reader in readers_:
                known = 0 <= message < len(spans)
                # a reader that has not come yet comes after everything there is
                if (
                    known
                    and reader >= first
                    and (reader >= newest or reader >= spans[message].step)
                ):
                    parts.append(([message], [reader]))
                else:
                    wrong += 1
    return steps, parts, wrong


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
