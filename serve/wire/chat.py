"""The body of ``POST /v1/chat/completions`` as the engine's nouns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from engine.errors import InvalidRequest
from engine.types import Message, PlanUpdate, Sampling, ToolUse
from serve.wire.fields import drop_neutral
from serve.wire.messages import WireMessage
from serve.wire.plan import PaceBody, choose_session_id
from serve.wire.tools import ToolChoice, Tools, tool_use
from serve.wire.validation import WHOLE, Wire, refuse, validate

DEFAULT_MAX_TOKENS = 1024
MAX_STOPS = 4

Stop = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]


class StreamOptions(Wire):
    """``continuous_usage_stats`` and ``include_obfuscation`` are accepted without effect."""

    include_usage: bool = False
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ChatBody(Wire):
    """The fields that take effect. Null means: the default."""

    model: str
    messages: Annotated[list[WireMessage], Field(min_length=1, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stop: list[Stop] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    ignore_eos: bool | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    pace: PaceBody | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        stops = [value] if isinstance(value, str) else value
        if isinstance(stops, list) and len(stops) > MAX_STOPS:
            raise refuse(f"at most {MAX_STOPS} stop strings are supported")
        return stops

    def sampling(self) -> Sampling:
        """How the answer is drawn, defaults filled in."""
        limit = self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS
        return Sampling(
            max_tokens=limit,
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            seed=self.seed,
            stop=tuple(self.stop or ()),
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            ignore_eos=bool(self.ignore_eos),
        )


KNOWN_FIELDS = frozenset(ChatBody.model_fields)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A validated chat request. ``session_id`` None: the engine finds or makes one."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    plan: PlanUpdate
    session_id: str | None
    policy: str | None
    append: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    tools: ToolUse | None = None


def parse_chat(
    body: Mapping[str, Any], *, session_header: str | None = None, max_messages: int
) -> ChatCall:
    """Validate a request body.

    Args:
        body: the JSON object.
        session_header: value of ``X-Session-Id``, or None.
        max_messages: longest transcript accepted.

    Raises:
        InvalidRequest: naming the field at fault in ``param``.
    """
    check_message_count(body, max_messages)
    chat = validate(ChatBody, drop_neutral(body, KNOWN_FIELDS))
    _check_combinations(chat)
    pace = chat.pace or PaceBody()
    return ChatCall(
        model=chat.model,
        messages=tuple(message.canonical() for message in chat.messages),
        sampling=chat.sampling(),
        plan=pace.update(),
        session_id=choose_session_id(session_header, body),
        policy=pace.policy,
        append=pace.mode == "append",
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        return_token_ids=pace.return_token_ids,
        tools=tool_use(
            chat.tools, chat.tool_choice, chat.parallel_tool_calls, pace.mode == "append"
        ),
    )


def check_message_count(body: Mapping[str, Any], limit: int) -> None:
    """Refuse a transcript of more than ``limit`` messages before validating each."""
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > limit:
        raise InvalidRequest(
            f"Invalid value for 'messages': {len(messages)} messages; at most {limit} are "
            "accepted in one request. With pace.mode 'append' only the new ones are sent.",
            param="messages",
        )


def _check_combinations(chat: ChatBody) -> None:
    """Rules between fields; written out here so that ``param`` names one field."""
    if chat.top_logprobs and not chat.logprobs:
        raise InvalidRequest(
            "Invalid value for 'top_logprobs': it needs 'logprobs': true.", param="top_logprobs"
        )
    if chat.stream_options is not None and not chat.stream:
        raise InvalidRequest(
            "Invalid value for 'stream_options': it needs 'stream': true.", param="stream_options"
        )
    both = (chat.max_tokens, chat.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidRequest(
            "Invalid value for 'max_tokens': it differs from 'max_completion_tokens'; "
            "send one of them.",
            param="max_tokens",
        )
