"""The extra field ``pace`` of a request, and where a session's id comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from engine.errors import InvalidRequest
from engine.types import PlanSegment, PlanUpdate
from serve.wire.validation import WHOLE, Wire, refuse

SESSION_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
MAX_PLAN_ENTRIES = 10_000
# What is read times who reads it, in one plan or in all its segments: the engine holds each pair.
MAX_PLAN_PAIRS = 100_000
MAX_NUMBER = 10**9

_STEP_KEY = re.compile(r"[1-9][0-9]{0,8}")

_FEW = Field(max_length=MAX_PLAN_ENTRIES, fail_fast=True)

Step = Annotated[int, Field(ge=1, le=MAX_NUMBER), WHOLE]
Index = Annotated[int, Field(ge=0, le=MAX_NUMBER), WHOLE]
Steps = Annotated[list[Step], _FEW]
Indices = Annotated[list[Index], _FEW]


def _integer_keys(value: object) -> object:
    """JSON objects have string keys; steps are integers."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not isinstance(key, str) or not _STEP_KEY.fullmatch(key):
            raise refuse("the keys must be step numbers from 1, written as strings")
    return {int(key): steps for key, steps in value.items()}


class SegmentBody(Wire):
    """Messages (0-based in the whole transcript) and the steps that will read them."""

    messages: Indices
    readers: Steps


class PaceBody(Wire):
    """What a request says about its session and its plan (all optional)."""

    session_id: str | None = None
    mode: Literal["transcript", "append"] = "transcript"
    policy: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")] | None = None
    step: Step | None = None
    plan: (
        Annotated[
            dict[int, Steps],
            Field(max_length=MAX_PLAN_ENTRIES),
            BeforeValidator(_integer_keys),
        ]
        | None
    ) = None
    segments: Annotated[list[SegmentBody], _FEW] | None = None
    strict: bool = False
    return_token_ids: bool = False

    @field_validator("plan")
    @classmethod
    def _few_reads(cls, plan: dict[int, list[int]] | None) -> dict[int, list[int]] | None:
        _check_pairs(sum(map(len, (plan or {}).values())))
        return plan

    @field_validator("segments")
    @classmethod
    def _few_readers(cls, segments: list[SegmentBody] | None) -> list[SegmentBody] | None:
        # the messages of a segment nobody reads cost too
        _check_pairs(
            sum(max(len(item.messages), 1) * max(len(item.readers), 1) for item in segments or ())
        )
        return segments

    def check_session(self, session_id: str, param: str) -> None:
        """Raise InvalidRequest, naming ``param``, when another session than the path's is named."""
        if self.session_id not in (None, session_id):
            check_session_id(self.session_id, param)
            raise InvalidRequest(
                f"Invalid value for '{param}': the path names '{session_id}'.", param=param
            )

    def update(self) -> PlanUpdate:
        """The engine's form of plan, segments and step."""
        return PlanUpdate(
            plan=None
            if self.plan is None
            else {step: tuple(reads) for step, reads in self.plan.items()},
            segments=None
            if self.segments is None
            else tuple(
                PlanSegment(messages=tuple(item.messages), readers=tuple(item.readers))
                for item in self.segments
            ),
            step=self.step,
            strict=self.strict,
        )


def _check_pairs(count: int) -> None:
    if count > MAX_PLAN_PAIRS:
        raise refuse(f"it names {count} pairs of reader and read; at most {MAX_PLAN_PAIRS} work")


def check_session_id(value: object, param: str) -> str:
    """``value`` as a session id.

    Raises:
        InvalidRequest: it is not 1–128 of the characters ``A-Z a-z 0-9 _ . : -``.
    """
    if not isinstance(value, str) or not SESSION_ID.fullmatch(value):
        raise InvalidRequest(
            f"Invalid value for '{param}': a session id is 1 to 128 of the characters "
            "A-Z a-z 0-9 _ . : -",
            param=param,
        )
    return value


def choose_session_id(header: str | None, body: Mapping[str, Any]) -> str | None:
    """The session a request names, or None.

    The first of: header ``X-Session-Id``, ``pace.session_id``, ``session_id``,
    ``prompt_cache_key``. The first three are checked even when they are not used;
    ``prompt_cache_key`` is OpenAI's and may be any text beside one of them.

    Raises:
        InvalidRequest: one of them is no session id.
    """
    pace = body.get("pace")
    candidates = (
        # HTTP servers hand over the white space behind a value
        (header and header.strip(" \t"), "X-Session-Id"),
        (pace.get("session_id") if isinstance(pace, Mapping) else None, "pace.session_id"),
        (body.get("session_id"), "session_id"),
    )
    named = [check_session_id(value, param) for value, param in candidates if value is not None]
    key = body.get("prompt_cache_key")
    if named or key is None:
        return named[0] if named else None
    return check_session_id(key, "prompt_cache_key")
