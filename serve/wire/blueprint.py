"""The body of ``PUT /v1/sessions/{id}/blueprint``: the object that ``pace`` of a chat is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest
from engine.types import PlanUpdate
from serve.wire.plan import PaceBody
from serve.wire.validation import UNSUPPORTED, validate


def parse_blueprint(body: Mapping[str, Any], session_id: str) -> tuple[PlanUpdate, str | None]:
    """The engine's form of the plan, and the policy named (or None).

    ``mode`` and ``return_token_ids`` are about a turn's messages and answer, so they change
    nothing here. ``step`` would number a user message, and there is none.

    Raises:
        InvalidRequest: naming the field at fault; ``session_id`` when it is not the path's.
    """
    blueprint = validate(PaceBody, body)
    blueprint.check_session(session_id, "session_id")
    if blueprint.step is not None:
        raise InvalidRequest(
            "Unsupported value for 'step': it numbers a user message, and a blueprint brings none; "
            "send it with the chat request.",
            param="step",
            code=UNSUPPORTED,
        )
    return blueprint.update(), blueprint.policy
