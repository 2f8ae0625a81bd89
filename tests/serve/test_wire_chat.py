"""What a chat request may say: every supported field, every refusal with its ``param``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from engine.errors import InvalidRequest
from engine.transcript import chain_digests
from engine.types import Message, PlanSegment, ToolUse
from serve.wire.chat import ChatBody, ChatCall, parse_chat
from serve.wire.fields import USUAL_VALUES, WITHOUT_EFFECT
from serve.wire.validation import parse_object

USER = {"role": "user", "content": "Hello"}


def parse(*, header: str | None = None, **fields: Any) -> ChatCall:
    body = {"model": "m", "messages": [USER], **fields}
    raw = json.dumps(body).encode()
    return parse_chat(parse_object(raw), session_header=header, max_messages=50)


def refusal(*, header: str | None = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(header=header, **fields)
    return caught.value


def test_defaults() -> None:
    call = parse()
    assert call.messages == (Message("user", "Hello"),)
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (1024, 1.0, 1.0)
    assert (sampling.seed, sampling.stop, sampling.logprobs) == (None, (), False)
    assert not (call.stream or call.append or call.include_usage or call.return_token_ids)
    assert call.session_id is None and call.policy is None
    assert call.plan.plan is None and call.plan.segments is None


def test_all_supported_fields() -> None:
    call = parse(
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-(2**63),
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=20,
        ignore_eos=True,
    )
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.0, 0.5)
    assert (sampling.seed, sampling.stop) == (-(2**63), ("a", "b"))
    assert (sampling.logprobs, sampling.top_logprobs, sampling.ignore_eos) == (True, 20, True)
    assert call.stream and call.include_usage


def test_a_number_without_a_fraction_is_an_integer() -> None:
    floats = {"max_tokens": 7.0, "seed": -3.0, "top_logprobs": 2e0, "logprobs": True, "n": 1.0}
    pace = {"step": 7.0, "plan": {"7": [1.0]}, "segments": [{"messages": [0.0], "readers": [9.0]}]}
    whole = {"max_tokens": 7, "seed": -3, "top_logprobs": 2, "logprobs": True}
    plan = {"step": 7, "plan": {"7": [1]}, "segments": [{"messages": [0], "readers": [9]}]}
    assert parse(**floats, pace=pace) == parse(**whole, pace=plan)
    assert refusal(max_tokens=7.5).param == "max_tokens"
    assert refusal(seed=2.0**63).param == "seed"
    assert refusal(pace={"step": 0.0}).param == "pace.step"


def test_one_stop_string() -> None:
    assert parse(stop="END").sampling.stop == ("END",)


def test_null_means_default() -> None:
    names = ("stream", "stream_options", "max_tokens", "temperature", "seed", "stop", "pace")
    assert parse(**dict.fromkeys(names), unheard_of=None) == parse()


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_fields_without_effect_are_accepted(name: str) -> None:
    assert parse(**{name: {"any": "thing"}}) == parse()


@pytest.mark.parametrize("name", sorted(USUAL_VALUES))
def test_usual_values_are_accepted_and_others_refused(name: str) -> None:
    for value in (*USUAL_VALUES[name], None):
        assert parse(**{name: value}) == parse()
    error = refusal(**{name: ["something else"]})
    assert (error.param, error.code) == (name, "unsupported_value")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"n": True}, "n", "unsupported_value"),
        ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_value"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        ({"store": True}, "store", "unsupported_value"),
        ({"unheard_of": 1}, "unheard_of", "unknown_parameter"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "0.5"}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
        ({"stop": ""}, "stop.0", "invalid_value"),
        ({"stop": [1]}, "stop.0", "invalid_value"),
        ({"logprobs": 5}, "logprobs", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        (
            {"stream": True, "stream_options": {"more": 1}},
            "stream_options.more",
            "unknown_parameter",
        ),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hello"}, "messages", "invalid_value"),
        ({"messages": [USER] * 51}, "messages", "invalid_value"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages.1.role", None),
        ({"messages": [USER, {"role": "user"}]}, "messages.1", "invalid_value"),
        ({"messages": [USER, {"content": "x"}]}, "messages.1.role", "missing_required_parameter"),
        ({"messages": [USER, {**USER, "content": 5}]}, "messages.1.content", "invalid_value"),
        ({"messages": [{**USER, "prefix": True}]}, "messages.0.prefix", "unknown_parameter"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "invalid_value"),
        ({"model": None}, "model", "invalid_value"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert code is None or error.code == code
    assert param.split(".")[0] in error.message


@pytest.mark.parametrize("number", ["1e999", "-1e400"])
def test_a_number_without_a_float_is_refused_where_it_is(number: str) -> None:
    tools = """[{"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "parameters": {"maximum": NUMBER}}}]"""
    text = '{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}'
    body = parse_object(text.replace("TOOLS", tools).replace("NUMBER", number).encode())
    with pytest.raises(InvalidRequest, match="too large") as caught:
        parse_chat(body, max_messages=50)
    assert caught.value.param == "tools.1"


def test_missing_model_and_messages() -> None:
    for name in ("model", "messages"):
        body: dict[str, Any] = {"model": "m", "messages": [USER]}
        del body[name]
        with pytest.raises(InvalidRequest) as caught:
            parse_chat(body, max_messages=9)
        assert (caught.value.param, caught.value.code) == (name, "missing_required_parameter")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b"\xff{}",
        b"[1]",
        b'"text"',
        b'{"a": "\\ud800"}',
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_bodies_that_are_not_json_objects(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(raw)
    assert caught.value.code == "invalid_json"


# ---- messages -----------------------------------------------------------------------------------


def message(**fields: Any) -> Message:
    return parse(messages=[fields]).messages[0]


def test_text_parts_are_joined() -> None:
    parts = [
        {"type": "text", "text": "one ", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
    ]
    assert message(role="user", content=parts) == Message("user", "one two")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x"}},
        {"type": "text"},
        {"type": "text", "text": 1},
        {"type": "text", "text": "x", "more": 1},
        "bare",
    ],
)
def test_other_parts_are_refused(part: object) -> None:
    messages = [USER, USER, USER, {"role": "user", "content": [part]}]
    assert refusal(messages=messages).param == "messages.3.content"


def test_an_answer_sent_back_as_the_client_library_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert message(**dumped) == Message("assistant", "Hi")


def test_tool_calls_are_canonical() -> None:
    function = {"arguments": '{"b": 1}', "name": "f"}
    one = message(role="assistant", tool_calls=[{"id": "c", "function": function, "index": 0}])
    two = message(
        role="assistant",
        content=None,
        tool_calls=[{"type": "function", "function": function, "id": "c"}],
    )
    assert one == two
    assert one.content == ""
    assert json.loads(one.tool_calls or "")[0]["function"] == function
    assert list(chain_digests([one])) == list(chain_digests([two]))


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ('{"b": 1, "a": {"d": [2, 1], "c": null}}', '{"a": {"c": null, "d": [2, 1]}, "b": 1}'),
        ('{"a":{"d":[2,1],"c":null},"b":1}', '{"a": {"c": null, "d": [2, 1]}, "b": 1}'),
        ('\n{ "caf\\u00e9" : true }', '{"café": true}'),
        ("", ""),
        ("{'a': 1}", "{'a': 1}"),
        ('{"a": 1', '{"a": 1'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        # JavaScript writes 5.0 as 5, -0.0 as 0 and 1e2 as 100
        ('{"a":5.0,"b":-0.0,"c":1e2}', '{"a": 5, "b": 0, "c": 100}'),
        ('{"a": 9007199254740992.0, "b": 0.5}', '{"a": 9007199254740992.0, "b": 0.5}'),
        # half a character stays as it is: no tokenizer takes it
        ('{"b":"\\ud83d","a":1}', '{"b":"\\ud83d","a":1}'),
        ('{"b":"\\ud83d\\ude00","a":1}', '{"a": 1, "b": "😀"}'),
        ("1" * 5000, "1" * 5000),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_tool_arguments_are_the_same_in_any_order_and_spacing(written: str, canonical: str) -> None:
    function = {"name": "f", "arguments": written}
    sent = message(role="assistant", tool_calls=[{"id": "c", "function": function}])
    assert json.loads(sent.tool_calls or "")[0]["function"]["arguments"] == canonical


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, None),
        ({"tool_choice": "auto", "parallel_tool_calls": True, "tools": []}, None),
        ({"tool_choice": "none"}, ToolUse("", "none")),
        ({"tool_choice": "required"}, ToolUse("", "required")),
        ({"parallel_tool_calls": False}, ToolUse("", parallel=False)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            ToolUse("", "required", "f"),
        ),
    ],
)
def test_appended_messages_choose_among_the_tools_of_their_session(
    fields: dict[str, Any], meant: ToolUse | None
) -> None:
    assert parse(pace={"mode": "append"}, **fields).tools == meant


def test_tool_result() -> None:
    assert message(role="tool", content="42", tool_call_id="c") == Message(
        "tool", "42", tool_call_id="c"
    )


# ---- pace ---------------------------------------------------------------------------------------


def test_plan_keys_become_integers() -> None:
    call = parse(
        pace={
            "session_id": "s-17",
            "mode": "append",
            "policy": "h2o",
            "step": 7,
            "plan": {"7": [1, 3], "9": []},
            "segments": [{"messages": [1, 2], "readers": [7, 9]}],
            "strict": True,
            "return_token_ids": True,
        }
    )
    assert call.plan.plan == {7: (1, 3), 9: ()}
    assert call.plan.segments == (PlanSegment((1, 2), (7, 9)),)
    assert (call.plan.step, call.plan.strict) == (7, True)
    assert (call.session_id, call.append, call.policy) == ("s-17", True, "h2o")
    assert call.return_token_ids


@pytest.mark.parametrize(
    ("pace", "param"),
    [
        ({"stepp": 1}, "pace.stepp"),
        ({"step": 0}, "pace.step"),
        ({"step": "7"}, "pace.step"),
        ({"mode": "resume"}, "pace.mode"),
        ({"policy": "../x"}, "pace.policy"),
        ({"plan": {"x": [1]}}, "pace.plan"),
        ({"plan": {"-1": [1]}}, "pace.plan"),
        ({"plan": {"07": [1]}}, "pace.plan"),
        ({"plan": {"7": 1}}, "pace.plan.7"),
        ({"plan": {"7": [0]}}, "pace.plan.7.0"),
        ({"plan": {"7": [True]}}, "pace.plan.7.0"),
        ({"segments": [{"messages": [-1], "readers": [1]}]}, "pace.segments.0.messages.0"),
        ({"segments": [{"messages": [1]}]}, "pace.segments.0.readers"),
        # messages that nobody reads, and readers that read nothing, could be millions
        ({"segments": [{"messages": [*range(1000)], "readers": []}] * 101}, "pace.segments"),
        ({"segments": [{"messages": [], "readers": [*range(1, 1001)]}] * 101}, "pace.segments"),
        # small bodies that would make the engine hold a hundred million pairs
        ({"plan": {str(n): [1] * 1000 for n in range(2, 103)}}, "pace.plan"),
        (
            {"segments": [{"messages": [*range(10_000)], "readers": [*range(1, 10_001)]}]},
            "pace.segments",
        ),
        ({"strict": 1}, "pace.strict"),
        ("s-1", "pace"),
    ],
)
def test_pace_refusals(pace: object, param: str) -> None:
    assert refusal(pace=pace).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"pace": {"segments": [{"messages": ["x"] * 100, "readers": [0] * 100}] * 100}},
        {"pace": {"plan": {str(n): ["x"] * 1000 for n in range(1, 10)}}},
        {"pace": {f"k{n}": 1 for n in range(10_000)}},
        {"messages": [{f"k{n}": 1 for n in range(10_000)}]},
        {"messages": [{"role": "assistant", "tool_calls": [1] * 10_000}]},
        {"messages": [1] * 10_000},
    ],
)
def test_a_body_full_of_mistakes_is_refused_for_a_few(fields: dict[str, Any]) -> None:
    # each complaint takes hundreds of bytes, and a body has room for millions of mistakes
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate({"model": "m", "messages": [USER], **fields})
    assert caught.value.error_count() <= 20


def test_session_id_precedence() -> None:
    body = {"pace": {"session_id": "b"}, "session_id": "c", "prompt_cache_key": "d"}
    assert parse(header="a", **body).session_id == "a"
    assert parse(**body).session_id == "b"
    del body["pace"]
    assert parse(**body).session_id == "c"
    del body["session_id"]
    assert parse(**body).session_id == "d"


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "x" * 129, "a\n"])
def test_session_ids_are_checked_wherever_they_come_from(bad: str) -> None:
    assert refusal(header=bad).param == "X-Session-Id"
    assert refusal(pace={"session_id": bad}).param == "pace.session_id"
    assert refusal(session_id=bad).param == "session_id"
    assert refusal(prompt_cache_key=bad).param == "prompt_cache_key"


def test_a_cache_key_beside_a_session_id_may_be_any_text() -> None:
    assert parse(session_id="s", prompt_cache_key="two words").session_id == "s"
    assert parse(header="h", prompt_cache_key="two words").session_id == "h"
    assert refusal(header="h", session_id="two words").param == "session_id"
    assert refusal(header="h", pace={"session_id": "two words"}).param == "pace.session_id"


def test_the_longest_session_id() -> None:
    assert parse(header="aZ0_.:-" + "x" * 121).session_id is not None
