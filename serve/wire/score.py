"""``POST /v1/sessions/{id}/score``: body and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from engine.types import ScoreRequest, ScoreResult
from serve.wire.chat import check_message_count
from serve.wire.messages import WireMessage
from serve.wire.plan import PaceBody
from serve.wire.validation import Wire, validate

MAX_CONTINUATIONS = 64


class ScoreBody(Wire):
    """New messages, and the answers to score after them."""

    messages: Annotated[list[WireMessage], Field(min_length=1, fail_fast=True)]
    continuations: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=1, max_length=MAX_CONTINUATIONS),
    ]
    model: str | None = None
    pace: PaceBody | None = None


def parse_score(
    body: Mapping[str, Any], *, session_id: str, namespace: str, max_messages: int
) -> tuple[ScoreRequest, str | None]:
    """The engine's request, and the model named (or None).

    Raises:
        InvalidRequest: naming the field at fault.
    """
    check_message_count(body, max_messages)
    score = validate(ScoreBody, body)
    pace = score.pace or PaceBody()
    pace.check_session(session_id, "pace.session_id")
    request = ScoreRequest(
        session_id=session_id,
        messages=tuple(message.canonical() for message in score.messages),
        continuations=tuple(score.continuations),
        namespace=namespace,
        policy=pace.policy,
        plan=pace.update(),
    )
    return request, score.model


def score_answer(session_id: str, result: ScoreResult) -> dict[str, Any]:
    """The answer's body; log-probabilities are natural."""
    return {
        "object": "session.score",
        "session_id": session_id,
        "continuations": [
            {
                "token_ids": list(item.token_ids),
                "tokens": list(item.tokens),
                "logprobs": list(item.logprobs),
            }
            for item in result.continuations
        ],
        "residency": result.residency,
        "rotary_gap": result.rotary_gap,
    }
