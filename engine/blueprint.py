"""A new plan for a session between two turns."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from engine.errors import InvalidRequest, PolicyMismatch, SessionBusy
from engine.plan import Plan
from engine.report import plan_json
from engine.sessions import Session
from engine.types import PlanUpdate


def set_plan(session: Session, change: PlanUpdate, policy: str | None) -> dict[str, Any]:
    """Put what ``change`` gives in the place of the session's plan; parts it leaves out stay.

    Steps and messages are those committed; the last step can still read (tool results belong to
    it). The state before the last turn gets the same parts: a turn that is redone later goes by
    the plan given last. Call under the engine's lock.

    Returns:
        ``session_id``, ``step`` (the committed one), ``plan`` as ``plan_json`` and ``unresolved``.

    Raises:
        SessionBusy: a turn runs.
        PolicyMismatch: ``policy`` is not the session's.
        InvalidRequest: ``change.strict`` and something cannot be resolved; nothing has changed.
    """
    if session.task is not None:
        raise SessionBusy(f"session {session.session_id!r} is running a turn")
    if policy is not None and policy != session.policy.name:
        raise PolicyMismatch(
            f"session {session.session_id!r} has the policy {session.policy.name!r}, for life",
            param="policy",
        )
    state, previous = session.state, session.previous
    where = (state.step, state.steps, len(state.messages))
    of_steps, no_steps = Plan().update(PlanUpdate(plan=change.plan), *where)
    of_messages, no_messages = Plan().update(PlanUpdate(segments=change.segments), *where)
    unresolved = no_steps + no_messages
    if unresolved and change.strict:
        raise InvalidRequest(
            f"the blueprint cannot be resolved: {'; '.join(unresolved)}",
            param="plan" if no_steps else "segments",
        )

    def changed(plan: Plan) -> Plan:
        return Plan(
            plan.by_step if change.plan is None else of_steps.by_step,
            plan.by_message if change.segments is None else of_messages.by_message,
        )

    # committed states are values: the new ones take their place
    session.state = replace(state, plan=changed(state.plan))
    if previous is not None:
        session.previous = replace(previous, plan=changed(previous.plan))
    session.history.replan(session.state)
    session.last_used = time.time()
    return {
        "session_id": session.session_id,
        "step": session.state.step,
        "plan": plan_json(session.state.plan),
        "unresolved": unresolved,
    }
