"""Whether a session's state is whole: row, positions, spans and counts agree (DESIGN §3)."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import torch

from engine.sessions import Session
from engine.state import OPEN_END, SessionState

log = logging.getLogger(__name__)


def check_integrity(state: SessionState) -> None:
    """Raise AssertionError with the state's problems, if there are any."""
    found = state_problems(state)
    if found:
        raise AssertionError("; ".join(found))


def integrity_report(session: Session) -> dict[str, Any]:
    """``ok`` and ``problems`` (texts) of the committed state and the one before the last turn.

    Call under the engine's lock: committed states are not written to, but their rows are freed.
    """
    problems = _guarded(session.state)
    if session.previous is not None:
        problems += [f"before the last turn: {text}" for text in _guarded(session.previous)]
    return {"ok": not problems, "problems": problems}


def state_problems(state: SessionState) -> list[str]:
    """What is broken, as short texts; empty when nothing is. O(row + messages)."""
    return [*_log_problems(state), *_count_problems(state), *_row_problems(state)]


def _guarded(state: SessionState) -> list[str]:
    """A state may be so broken that looking at it fails: that is a result too."""
    try:
        return state_problems(state)
    except Exception as error:
        log.exception("an integrity check failed")
        return [f"the check failed: {type(error).__name__}"]


def _log_problems(state: SessionState) -> list[str]:
    """Messages cover the token log, and steps are numbered as their messages say."""
    spans, steps = list(state.messages), list(state.steps)
    ends = [span.end for span in spans]
    if ends and ends[-1] == OPEN_END:  # the answer of a running turn
        ends[-1] = len(state.tokens)
    starts = [span.start for span in spans]
    first = [i for i, span in enumerate(spans) if i == 0 or span.step != spans[i - 1].step]
    readers = [*state.plan.by_step.values(), *state.plan.by_message.values()]
    return _broken(
        {
            "the messages do not cover the tokens": [0, *ends] == [*starts, len(state.tokens)],
            "a message ends before it starts": all(
                start <= end for start, end in zip(starts, ends, strict=True)
            ),
            "the steps of the messages fall": all(a.step <= b.step for a, b in pairwise(spans)),
            "the list of steps is not that of the messages": [
                (start.step, start.message) for start in steps
            ]
            == [(spans[i].step, i) for i in first],
            "the readers of the plan do not rise": all(
                a < b for each in readers for a, b in pairwise(each)
            ),
        }
    )


def _count_problems(state: SessionState) -> list[str]:
    """Tokens written, evicted and resident, and the shift of positions."""
    policy, held, next_position = state.policy, state.resident, state.written - state.shift
    return _broken(
        {
            "more is written than there are tokens": 0 <= state.written <= len(state.tokens),
            "evicted and resident tokens are not those written": state.evicted + held
            == state.written,
            "the next position is out of range": held <= next_position <= policy.position_range,
            "the shift is negative": state.shift >= 0,
            "positions were shifted without a renumber": state.shift == 0 or state.renumbers > 0,
            "the row is as full as at an eviction": held <= policy.capacity
            and (policy.retention == "none" or held < policy.capacity),
        }
    )


def _row_problems(state: SessionState) -> list[str]:
    row, policy, written = state.row, state.policy, state.written
    if row is None:
        return []
    found = _broken({"the row has another capacity": row.capacity == policy.capacity})
    found += row.problems(state.table)
    n = row.length
    if n == 0 or n > row.capacity:
        return found
    logical, physical = row.logical[:, :n], row.physical[:, :n]
    sinks = policy.sinks if policy.retention != "none" else n
    newest = max(policy.recent, 1) if policy.retention != "none" else n
    newest = min(newest, n)
    recent = torch.arange(written - newest, written, device=logical.device)
    oldest = torch.arange(min(sinks, n), device=logical.device)
    next_position = written - state.shift
    return found + _broken(
        {
            "a sink is missing": bool((logical[:, : len(oldest)] == oldest).all()),
            # without a recent window even the newest token may go
            "a token of the recent window is missing": policy.recent == 0 < state.evicted
            or bool((logical[:, n - newest :] == recent).all()),
            "a token is resident that was not written": int(logical.max()) < written,
            "a position is not below the next one": int(physical.max()) < next_position,
            "a position is larger than the token's index": bool((physical <= logical).all()),
            "a score is negative": bool((row.score[:, :n] >= 0).all()),
        }
    )


def _broken(checks: dict[str, bool]) -> list[str]:
    return [problem for problem, holds in checks.items() if not holds]
