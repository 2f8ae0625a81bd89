"""What readers see of a session: summaries, spans, and the ledger's turn event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from engine.flow import TurnRecord
from engine.history import StepRow
from engine.plan import Plan, Readers, next_reader
from engine.pool import KVPool
from engine.residents import Residents
from engine.sessions import Session
from engine.turn import RunningTurn
from engine.types import PaceInfo, Usage


def summarize(session: Session, pool: KVPool) -> dict[str, Any]:
    """Counts of a session's committed state. Sizes in tokens and bytes, times in Unix seconds."""
    state, last = session.state, session.history.last
    policy = state.policy
    kv_bytes = sum(pool.row_bytes(row.capacity) for row in session.rows)
    if session.task is not None:  # the turn's fork
        kv_bytes += pool.row_bytes(policy.capacity) + pool.buffer_bytes(policy.capacity)
    return {
        "session_id": session.session_id,
        "namespace": session.namespace,
        "policy": session.policy.name,
        "status": "idle" if session.task is None else "running",
        "turns": session.turns,
        "step": state.step,
        "messages": len(state.messages),
        "tokens": len(state.tokens),
        "written_tokens": state.written,
        "resident_tokens": state.resident,
        "evicted_tokens": state.evicted,
        "renumbers": state.renumbers,
        "next_position": state.written - state.shift,
        # raw keys, values and indices of the session's states, and what a running turn takes
        "kv_bytes": kv_bytes,
        "full_kv_bytes": len(state.tokens) * pool.shape.token_bytes,
        "residency": None if last is None else last.residency,
        "rotary_gap": None if last is None else last.rotary_gap,
        "sizes": {
            "budget": policy.budget,
            "capacity": policy.capacity,
            "sinks": policy.sinks,
            "recent": policy.recent,
            "reserve": policy.reserve,
            "position_limit": policy.position_limit,
        },
        "created": session.created,
        "last_used": session.last_used,
    }


def describe(session: Session, pool: KVPool, spans: int = 1000) -> dict[str, Any]:
    """``summarize`` plus policy sizes, plan and the newest ``spans`` message spans."""
    state = session.state
    count = len(state.messages)
    first = max(0, count - spans)
    return {
        **summarize(session, pool),
        "policy_settings": state.policy.model_dump(),
        "plan": plan_json(state.plan),
        "spans": [
            {
                "message": first + offset,
                "start": span.start,
                "end": span.end,
                "role": span.role,
                "step": span.step,
            }
            for offset, span in enumerate(state.messages[first:count])
        ],
        "previous_turn_kept": session.previous is not None,
    }


MOST_PLAN_PAIRS = 20_000
"""Pairs of reader and read that an answer shows: with the longest numbers 0.5 MB."""


def plan_json(plan: Plan) -> dict[str, Any]:
    """Steps and messages that are read, each with its rising reading steps; of a plan of more than
    ``MOST_PLAN_PAIRS`` the first, and how many ``more`` there are."""
    found: dict[str, Any] = {}
    room, more = MOST_PLAN_PAIRS, 0
    for name, read in (("steps", plan.by_step), ("messages", plan.by_message)):
        found[name] = {}
        for key, readers in read.items():
            if shown := list(readers[:room]):
                found[name][str(key)] = shown
            room -= len(shown)
            more += len(readers) - len(shown)
    return found | ({"more": more} if more else {})


def pace_info(turn: RunningTurn) -> PaceInfo:
    """The answer's ``pace`` object of a turn that ends now."""
    state, record = turn.state, turn.record
    return PaceInfo(
        session_id=turn.session_id,
        step=state.step,
        resident_tokens=state.resident,
        residency=record.residency,
        rotary_gap=record.rotary_gap,
        evicted=record.evicted,
        restored=0,
        renumbers=record.renumbers,
        displaced=record.displaced,
        unresolved=turn.unresolved,
    )


def turn_event(turn: RunningTurn, usage: Usage, finish: str) -> dict[str, Any]:
    """Data of the ledger's turn event. Times in seconds; ``forward_s`` is the turn's share (by
    tokens) of the forwards it was packed into."""
    now, record, state = time.perf_counter(), turn.record, turn.state
    return {
        "prompt_tokens": usage.prompt_tokens,
        "new_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "restored_tokens": 0,
        "resident_tokens": state.resident,
        "evicted": record.evicted,
        "renumbers": record.renumbers,
        "displaced": record.displaced,
        "residency": record.residency,
        "rotary_gap": record.rotary_gap,
        "composition": record.composition,
        "finish_reason": finish,
        "schedule": record.schedule,
        "times": {
            "queued_s": turn.started - turn.admitted,
            "prefill_s": turn.prompted - turn.started,
            "decode_s": now - turn.prompted,
            "forward_s": turn.task.seconds,
            "evict_s": record.evict_s,
            "renumber_s": record.renumber_s,
        },
    }


def turn_counts(record: TurnRecord, usage: Usage) -> dict[str, float]:
    """What a committed turn adds to the engine's counters."""
    return {
        "turns": 1,
        "prompt_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "evicted_tokens": record.evicted,
        "renumbers": record.renumbers,
        "displaced_tokens": record.displaced,
    }


def step_row(
    turn: RunningTurn, event: Mapping[str, Any], residents: Residents, pool: KVPool
) -> StepRow:
    """Figures of a turn that ends now, from its ledger ``event`` and what it leaves resident.

    ``kv_bytes``: the state's row; ``full_kv_bytes``: keys and values of all its tokens. The scores
    are those of the turn's last eviction: the lowest over layers of those kept, and the highest
    over layers of those that neither class nor plan protects.
    """
    eviction = turn.record.last_eviction or {}
    kept = [score for score in eviction.get("lowest_kept_score", ()) if score is not None]
    free = [score for score in eviction.get("highest_unprotected_score", ()) if score is not None]
    return StepRow(
        step=residents.step,
        turn=residents.turn,
        at=residents.at,
        first=len(turn.origin.messages),
        end=residents.messages,
        resident=residents.count,
        kv_bytes=pool.row_bytes(turn.state.policy.capacity),
        full_kv_bytes=residents.tokens * pool.shape.token_bytes,
        by_class=residents.by_class(),
        lowest_kept_score=min(kept, default=None),
        highest_unprotected_score=max(free, default=None),
        times=tuple(event["times"].items()),
        time=time.time(),
        unresolved=turn.unresolved[:MOST_UNRESOLVED],
        read_steps=_read_at(residents.plan.by_step, residents.step),
        read_messages=_read_at(residents.plan.by_message, residents.step),
        **{name: event[name] for name in _OF_EVENT},
    )


def _read_at(readers: Readers, step: int) -> tuple[int, ...]:
    """What ``step`` reads, the last ``MOST_READ`` of it."""
    read = (key for key, steps in readers.items() if next_reader(steps, step) == step)
    return tuple(sorted(read)[-MOST_READ:])


MOST_UNRESOLVED, MOST_READ = 20, 1000
"""Unresolved references, and steps and messages read, that the row of a turn names."""
_OF_EVENT = (
    "evicted",
    "renumbers",
    "displaced",
    "residency",
    "rotary_gap",
    "new_tokens",
    "cached_tokens",
    "restored_tokens",
    "completion_tokens",
)
