"""What a demo session measured, and its summary per policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

WINDOW = 3
"""Filler turns that make up "after the budget filled" and "at the end"."""


@dataclass(frozen=True, slots=True)
class AskedFact:
    """A question for one fact.

    ``recalled``: the answer's text holds the true value. ``logprob``: natural log-probability
    of all tokens of the true value behind the answer's opening words. ``residency``,
    ``rotary_gap``: as the server gave them for the asking turn, or None.
    """

    key: str
    value: str
    answer: str
    recalled: bool
    logprob: float
    residency: float | None
    rotary_gap: int | None


@dataclass(frozen=True, slots=True)
class FillerTurn:
    """Computing time (s) of a filler turn and the tokens it added, from its ledger event.

    ``seconds``: the session's own share of the packed forwards, its evictions and renumbers.
    ``evicted``: tokens it evicted; the first turn that evicts is the one that fills the budget.
    """

    tokens: int
    seconds: float
    evicted: int

    @classmethod
    def from_event(cls, data: Mapping[str, Any]) -> FillerTurn:
        """From the data of a ledger's ``turn`` event."""
        times = data["times"]
        return cls(
            tokens=data["new_tokens"] + data["completion_tokens"],
            seconds=times["forward_s"] + times["evict_s"] + times["renumber_s"],
            evicted=data["evicted"],
        )


@dataclass(frozen=True, slots=True)
class SessionResult:
    """One session, played to its end. Sizes in tokens and bytes."""

    session_id: str
    seed: int
    policy: str
    tokens: int
    facts: tuple[AskedFact, ...]
    fillers: tuple[FillerTurn, ...]
    renumbers: int
    kv_bytes: int
    full_kv_bytes: int

    @property
    def filled(self) -> tuple[FillerTurn, ...]:
        """The filler turns after the one that filled the budget."""
        first = next((i for i, turn in enumerate(self.fillers) if turn.evicted), len(self.fillers))
        return self.fillers[first + 1 :]


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """All sessions of a policy. ``recalled`` and ``asked`` are sums, the rest means: over the
    questions (``logprob``, ``residency``, ``rotary_gap``), over the sessions (``renumbers`` and
    bytes), over the tokens of ``WINDOW`` filler turns of each session (times, ms). None: nothing
    to average."""

    recalled: int
    asked: int
    logprob: float | None
    residency: float | None
    rotary_gap: float | None
    renumbers: float | None
    kv_bytes: int
    full_kv_bytes: int
    ms_per_token_first: float | None
    ms_per_token_last: float | None


def value_logprob(tokens: Sequence[str], logprobs: Sequence[float], value: str) -> float:
    """Sum of ``logprobs`` over the last ``tokens`` that spell ``value``.

    The scored text is the answer's opening followed by the value, so the value's tokens are the
    last ones; the space before it may be part of its first token.
    """
    spelled, total = "", 0.0
    for token, logprob in zip(reversed(tokens), reversed(logprobs), strict=True):
        if len(spelled.strip()) >= len(value):
            break
        spelled, total = token + spelled, total + logprob
    return total


def summarize(results: Iterable[SessionResult]) -> dict[str, PolicySummary]:
    """Summary by policy, in the order the policies first come."""
    by_policy: dict[str, list[SessionResult]] = {}
    for result in results:
        by_policy.setdefault(result.policy, []).append(result)
    return {policy: _summary(sessions) for policy, sessions in by_policy.items()}


def to_json(summaries: Mapping[str, PolicySummary]) -> dict[str, Any]:
    """``{"policies": {name: summary}}``, ready for ``json.dumps``."""
    return {"policies": {policy: asdict(summary) for policy, summary in summaries.items()}}


def _summary(sessions: Sequence[SessionResult]) -> PolicySummary:
    facts = [fact for session in sessions for fact in session.facts]
    return PolicySummary(
        recalled=sum(fact.recalled for fact in facts),
        asked=len(facts),
        logprob=_mean((fact.logprob for fact in facts), 4),
        residency=_mean((fact.residency for fact in facts), 4),
        rotary_gap=_mean((fact.rotary_gap for fact in facts), 1),
        renumbers=_mean((session.renumbers for session in sessions), 1),
        kv_bytes=round(fmean(session.kv_bytes for session in sessions)),
        full_kv_bytes=round(fmean(session.full_kv_bytes for session in sessions)),
        ms_per_token_first=_ms_per_token(session.filled[:WINDOW] for session in sessions),
        ms_per_token_last=_ms_per_token(session.filled[-WINDOW:] for session in sessions),
    )


def _mean(values: Iterable[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), digits) if known else None


def _ms_per_token(windows: Iterable[Sequence[FillerTurn]]) -> float | None:
    turns = [turn for window in windows for turn in window]
    tokens = sum(turn.tokens for turn in turns)
    return round(1000 * sum(turn.seconds for turn in turns) / tokens, 3) if tokens else None
