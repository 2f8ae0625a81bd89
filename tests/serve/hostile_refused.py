"""Hostile requests that are refused, each with status, ``param`` and code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.serve.hostile import (
    CALL,
    CALLED,
    HI,
    INVALID,
    KNOWN,
    MISSING,
    RESULT,
    UNKNOWN,
    UNSUPPORTED,
    Case,
    raw_body,
    refused,
    refused_message,
    say,
)

NOT_A_STRING = (5, True, {}, [])


def bodies() -> Iterator[Case]:
    """What is no JSON object."""
    good = say()
    for name, body in {
        "nothing": b"",
        "white space": b" \n",
        "half of it": good[: len(good) // 2],
        "a list": b"[]",
        "null": b"null",
        "a number": b"1",
        "a string": b'"{}"',
        "two objects": good + good,
        "something behind": good + b"}",
        "a comma too many": good[:-1] + b",}",
        "a comment": b"/* hi */" + good,
        "single quotes": good.replace(b'"', b"'"),
        "bare keys": good.replace(b'"model"', b"model"),
        "NaN": say(temperature=float("nan")),
        "Infinity": say(temperature=float("inf")),
        "-Infinity": say(temperature=float("-inf")),
        "a leading zero": good.replace(b'"max_tokens": 2', b'"max_tokens": 02'),
        "a plus sign": good.replace(b'"max_tokens": 2', b'"max_tokens": +2'),
        "a hexadecimal number": good.replace(b'"max_tokens": 2', b'"max_tokens": 0x2'),
        "no digit behind the point": good.replace(b'"max_tokens": 2', b'"max_tokens": 2.'),
        "a raw line break in a string": good.replace(b'"hi"', b'"h\ni"'),
        "a raw null byte in a string": good.replace(b'"hi"', b'"h\x00i"'),
        "half a surrogate pair": good.replace(b'"hi"', b'"\\ud83d"'),
        "the other half": good.replace(b'"hi"', b'"\\ude00"'),
        "a bad escape": good.replace(b'"hi"', b'"\\x41"'),
        "half an escape": good.replace(b'"hi"', b'"\\u00"'),
        "Latin-1": good.replace(b'"hi"', b'"\xe9"'),
        "an overlong slash": good.replace(b'"hi"', b'"\xc0\xaf"'),
        "a surrogate in UTF-8": good.replace(b'"hi"', b'"\xed\xa0\x80"'),
        "a cut character": good.replace(b'"hi"', b'"\xf0\x9f\x98"'),
        "UTF-16": good.decode().encode("utf-16"),
        "too deep": b'{"user":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "a form": b"model=default&messages=hi",
        "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    }.items():
        yield raw_body(name, body)


def fields() -> Iterator[Case]:
    """One field is wrong."""
    for value in (None, *NOT_A_STRING):
        yield refused({"model": value}, "model")
    for name in ("", "gpt-4", "Default", "default ", "../default", "x" * 10_000):
        yield refused({"model": name}, "model", "model_not_found", 404)
    for name in ("model", "messages"):
        body = {key: value for key, value in json.loads(say()).items() if key != name}
        yield Case(f"{name} is missing", 400, name, MISSING, body=json.dumps(body).encode())
    for value in (None, {}, "hi", 5, []):
        yield refused({"messages": value}, "messages")
    for field, values in WRONG.items():
        for value in values:
            yield refused({field: value}, field)
    for field, values in NOT_SUPPORTED.items():
        for value in values:
            yield refused({field: value}, field, UNSUPPORTED)
    for name in ("foo", "Model", "max-tokens", "temperature ", "", "ключ", "prompt", "messages[]"):
        yield refused({name: 1}, name, UNKNOWN)
    yield refused({"stop": ["a", ""]}, "stop.1")
    yield refused({"stop": ["a", None]}, "stop.1")
    yield refused({"stop": [["a"]]}, "stop.0")
    yield refused({"max_completion_tokens": 3}, "max_tokens")
    yield refused({"stream_options": {"include_usage": True}}, "stream_options")
    yield refused({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", UNKNOWN)
    yield refused({"logprobs": False, "top_logprobs": 1}, "top_logprobs")
    yield refused({"logprobs": True, "top_logprobs": 21}, "top_logprobs")
    yield refused({"messages": [HI] * 2001}, "messages")


WRONG: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 2.1, "1", True, [], 1e300),
    "top_p": (0, -1, 1.1, "1", False),
    "max_tokens": (0, -1, 1.5, "2", True, 2**31, 10**400, []),
    "max_completion_tokens": (0, "2", False),
    "seed": (1.5, "1", True, 2**63, -(2**63) - 1, 1e19),
    "stop": ({}, 5, ["a", "b", "c", "d", "e"]),
    "logprobs": (1, "yes", []),
    "top_logprobs": (-1, "5", 1.5),
    "stream": (1, "true", {}),
    "stream_options": ([], True, "usage"),
    "ignore_eos": (1, "no"),
    "session_id": ("", "a b", "a/b", "ä", "x" * 129, "a\n", 5),
    "prompt_cache_key": ("", "two words", 5),
    "pace": ([], "s-1", 5),
    "tools": ({}, "f", 5),
    "parallel_tool_calls": (1, "yes"),
}
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (0, 2, "1", True, 1.5),
    "presence_penalty": (1, -2, "0"),
    "frequency_penalty": (0.1, False),
    "logit_bias": ({"1": 1}, []),
    "response_format": ({"type": "json_object"}, "text", {}),
    "store": (True, 0),
    "modalities": (["audio"], "text", []),
    "functions": ([{"name": "f"}], {}),
    "function_call": ({"name": "f"},),
    "top_k": (5,),
    "min_p": (0.1,),
    "repetition_penalty": (1.1, True),
    "echo": (True,),
    "best_of": (2,),
    "verbosity": ("low",),
    "continue_final_message": (True,),
}


def messages() -> Iterator[Case]:
    """One message is wrong."""
    for message in (None, 1, "hi", [], True):
        yield refused_message(message, None)
    yield refused_message({}, "role", MISSING)
    yield refused_message({"content": "x"}, "role", MISSING)
    for role in (None, "", "USER", "function", "robot", 5, ["user"]):
        yield refused_message({"role": role, "content": "x"}, "role")
    for role in ("user", "system", "developer"):
        yield refused_message({"role": role}, None)
        yield refused_message({"role": role, "content": None}, None)
    for content in (5, True, {}, {"type": "text", "text": "x"}, [None], ["x"], [1], [[]]):
        yield refused_message({"role": "user", "content": content}, "content")
    for part in ({"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": 5}):
        yield refused_message({"role": "user", "content": [part]}, "content")
    for kind in ("image_url", "input_audio", "file", "video_url", "refusal", "", None):
        part = {"type": kind, "text": "x"}
        yield refused_message({"role": "user", "content": [part]}, "content", UNSUPPORTED)
    more = {"type": "text", "text": "x", "more": 1}
    yield refused_message({"role": "user", "content": [more]}, "content", UNSUPPORTED)
    for key in ("prefix", "Role", "", "cache_control"):
        yield refused_message({**HI, key: True}, key, UNKNOWN)
    yield refused_message({**HI, "name": 5}, "name")
    yield refused_message({**HI, "tool_calls": [CALL]}, None)
    yield refused_message({**HI, "reasoning_content": "hm"}, None)
    yield refused_message({"role": "tool", "content": "x"}, None)
    yield refused_message({"role": "tool", "content": "x", "tool_call_id": ""}, None)
    yield refused_message({**RESULT, "tool_call_id": 5}, "tool_call_id")
    yield refused_message({**CALLED, "tool_calls": {}}, "tool_calls")
    yield refused_message({**CALLED, "tool_calls": [5]}, "tool_calls.0")
    yield refused_message({**CALLED, "function_call": {"name": "f"}}, "function_call")
    yield refused_message({**CALLED, "audio": {"id": "a"}}, "audio")
    for change, param, code in (
        ({"id": 5}, "id", INVALID),
        ({"type": "custom"}, "type", INVALID),
        ({"function": "f"}, "function", INVALID),
        ({"function": {"name": "f"}}, "function.arguments", MISSING),
        ({"function": {"arguments": "{}"}}, "function.name", MISSING),
        ({"function": {"name": "f", "arguments": {}}}, "function.arguments", INVALID),
        ({"more": 1}, "more", UNKNOWN),
    ):
        yield refused_message(
            {**CALLED, "tool_calls": [{**CALL, **change}]}, f"tool_calls.0.{param}", code
        )


def pace() -> Iterator[Case]:
    """The extra field and its sessions."""
    for value, param, code in (
        ({"stepp": 1}, "stepp", UNKNOWN),
        ({"session_id": "a b"}, "session_id", INVALID),
        ({"session_id": 5}, "session_id", INVALID),
        ({"mode": "resume"}, "mode", INVALID),
        ({"policy": "../x"}, "policy", INVALID),
        ({"policy": "none-such"}, "policy", INVALID),
        ({"policy": 5}, "policy", INVALID),
        ({"step": 0}, "step", INVALID),
        ({"step": 1.5}, "step", INVALID),
        ({"step": "1"}, "step", INVALID),
        ({"step": 10**9 + 1}, "step", INVALID),
        ({"plan": []}, "plan", INVALID),
        ({"plan": {"x": [1]}}, "plan", INVALID),
        ({"plan": {"0": [1]}}, "plan", INVALID),
        ({"plan": {"1.0": [1]}}, "plan", INVALID),
        ({"plan": {"7": 1}}, "plan.7", INVALID),
        ({"plan": {"7": ["1"]}}, "plan.7.0", INVALID),
        ({"plan": {"7": [0]}}, "plan.7.0", INVALID),
        ({"plan": {str(n): [1] * 200 for n in range(2, 1000)}}, "plan", INVALID),
        ({"plan": {"1": [7]}, "strict": True}, "plan", INVALID),
        ({"segments": {}}, "segments", INVALID),
        ({"segments": [{"messages": [0]}]}, "segments.0.readers", MISSING),
        ({"segments": [{"messages": [-1], "readers": [1]}]}, "segments.0.messages.0", INVALID),
        ({"segments": [{"messages": [9], "readers": [1]}], "strict": True}, "segments", INVALID),
        ({"strict": "yes"}, "strict", INVALID),
        ({"return_token_ids": 1}, "return_token_ids", INVALID),
    ):
        yield refused({"pace": value}, f"pace.{param}", code)
    known = {"session_id": KNOWN}
    other = {**known, "mode": "append", "policy": "pace"}
    yield refused({"pace": other}, "pace.policy", "policy_mismatch", 409)
    later = [{"role": "assistant", "content": "I never said that"}, HI]
    yield refused({"messages": [HI, *later], **known}, "messages.1", "session_diverged", 409)
    yield refused({"messages": [*later, *later], **known}, "messages.0", "session_diverged", 409)
    yield refused({"messages": [HI], **known}, "messages", "session_diverged", 409)
    append = {**known, "mode": "append", "step": 1}
    yield refused({"pace": append}, "pace.step")
    long = [{"role": "user", "content": "x" * 9000}]
    full = {"messages": long, "pace": {"policy": "full"}}
    yield refused(full, "messages", "context_length_exceeded")
    for name in ("", "a b", "a/b", "x" * 129, "a,b", '"a"'):
        header = {"X-Session-Id": name}
        yield Case(f"header {header}", 400, "X-Session-Id", INVALID, body=say(), headers=header)
