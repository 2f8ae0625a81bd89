"""An answer's text is split into reasoning, content and calls, however it arrives in pieces."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.answer_parts import AnswerParts, tool_names

THINKS = {"thinks": True}
OPENED = {"thinks": True, "opens_thinking": True}
TAGGED = {"tagged_calls": True}
BARE = {"bare_calls": ("f", "g")}
ONE = {"tagged_calls": True, "one_call": True}
DEEP = '{"name": "f", "extra": ' + "[" * 100_000 + "]" * 100_000 + "}"
NESTED = '{"a": {"b": ["}", "\\"]{"]}, "c": "</tool_call>"}'

# name: settings, text, reasoning, content, calls as (name, arguments)
CASES: dict[str, tuple[dict[str, Any], str, str, str, list[tuple[str, str]]]] = {
    "plain": ({}, " a <tool_call> b\n", "", " a <tool_call> b\n", []),
    "thought": (THINKS, "<think>\nwhy\n\nnot\n</think>\n\nyes\n", "why\n\nnot", "yes\n", []),
    "space before the thought": (THINKS, "\n <think>x</think>y", "x", "y", []),
    "no thought": (THINKS, "<thin air", "", "<thin air", []),
    "a tag later is text": (THINKS, "so <think>x</think>", "", "so <think>x</think>", []),
    "an unfinished thought": (THINKS, "<think>on and on </thi", "on and on </thi", "", []),
    "an empty thought": (THINKS, "<think>\n\n</think>\n\nhi", "", "hi", []),
    "an opened thought": (OPENED, "well\n</think>ok", "well", "ok", []),
    "only a tag": (THINKS, "<think>", "", "", []),
    "half a tag": (THINKS, "<thi", "", "<thi", []),
    "a call": (
        TAGGED,
        'Let me see. \n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n',
        "",
        "Let me see.",
        [("f", '{"x": 1}')],
    ),
    "calls only": (
        TAGGED,
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>'
        '{"name":"g","arguments":{"a":[1,2]}}</tool_call>',
        "",
        "",
        [("f", "{}"), ("g", '{"a":[1,2]}')],
    ),
    "text behind a call": (
        TAGGED,
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n done ',
        "",
        "done ",
        [("f", "{}")],
    ),
    "brackets and tags in strings": (
        TAGGED,
        f'<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>',
        "",
        "",
        [("f", NESTED)],
    ),
    "arguments first": (
        TAGGED,
        '<tool_call>{"arguments": {"x": {"y": 1}}, "name": "f"}</tool_call>',
        "",
        "",
        [("f", '{"x": {"y": 1}}')],
    ),
    "arguments as text": (
        TAGGED,
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        "",
        "",
        [("f", '{"x": 1}')],
    ),
    "no arguments": (TAGGED, '<tool_call>{"name": "f"}</tool_call>', "", "", [("f", "{}")]),
    "more keys": (
        TAGGED,
        '<tool_call>{"name": "f", "arguments": {"x": 1}, "id": "7"}</tool_call>',
        "",
        "",
        [("f", '{"x": 1}')],
    ),
    "a call cut off in its arguments": (
        TAGGED,
        '<tool_call>{"name": "f", "arguments": {"x": "un',
        "",
        "",
        [("f", '{"x": "un')],
    ),
    "a call cut off before its name": (
        TAGGED,
        'a <tool_call>{"na',
        "",
        'a <tool_call>{"na',
        [],
    ),
    "no object": (
        TAGGED,
        "a\n<tool_call>f(x)</tool_call>",
        "",
        "a\n<tool_call>f(x)</tool_call>",
        [],
    ),
    "no name": (
        TAGGED,
        '<tool_call>{"x": 1}</tool_call>!',
        "",
        '<tool_call>{"x": 1}</tool_call>!',
        [],
    ),
    "a name that is no JSON": (
        TAGGED,
        '<tool_call>{"name": "f\\q", "arguments": {"x": 1}}</tool_call>',
        "",
        '<tool_call>{"name": "f\\q", "arguments": {"x": 1}}</tool_call>',
        [],
    ),
    "a name with a line break": (
        TAGGED,
        '<tool_call>{"name": "f\n", "arguments": {"x": 1}}</tool_call>',
        "",
        '<tool_call>{"name": "f\n", "arguments": {"x": 1}}</tool_call>',
        [],
    ),
    "deeper than can be read": (TAGGED, f"<tool_call>{DEEP}", "", f"<tool_call>{DEEP}", []),
    "an object in an object first": (
        TAGGED,
        '<tool_call>{"x": {"name": 1}, "name": "f", "arguments": {"y": 2}}</tool_call>',
        "",
        "",
        [("f", '{"y": 2}')],
    ),
    "brackets that do not match": (
        TAGGED,
        '<tool_call>{"name": "f"]</tool_call>',
        "",
        '<tool_call>{"name": "f"]</tool_call>',
        [],
    ),
    # halves of surrogate pairs cannot be sent as UTF-8
    "half a character in a name": (
        TAGGED,
        '<tool_call>{"name": "f\\ud800", "arguments": {"x": "\\ud800"}}</tool_call>',
        "",
        "",
        [("f?", '{"x": "\\ud800"}')],
    ),
    "half a character in arguments read at the end": (
        TAGGED,
        '<tool_call>{"arguments": {"x": "\\udfff"}, "name": "f"}</tool_call>',
        "",
        "",
        [("f", '{"x": "?"}')],
    ),
    "half a character in arguments as text": (
        TAGGED,
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": \\"\\udfff\\"}"}</tool_call>',
        "",
        "",
        [("f", '{"x": "?"}')],
    ),
    "a number without a float, arguments first": (
        TAGGED,
        '<tool_call>{"arguments": {"x": 1e999}, "name": "f"}</tool_call>',
        "",
        '<tool_call>{"arguments": {"x": 1e999}, "name": "f"}</tool_call>',
        [],
    ),
    "no closing tag": (TAGGED, '<tool_call>{"name": "f"} so', "", "so", [("f", "{}")]),
    "thought, text and call": (
        THINKS | TAGGED,
        '<think>hm <tool_call></think> ok <tool_call>{"name": "f"}</tool_call>',
        "hm <tool_call>",
        "ok",
        [("f", "{}")],
    ),
    "only one call": (
        ONE,
        'a<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>b',
        "",
        "a",
        [("f", "{}")],
    ),
    "a bare call": (BARE, ' {"name": "f", "parameters": {"x": 1}}', "", "", [("f", '{"x": 1}')]),
    "bare calls": (
        BARE,
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": "z"}}',
        "",
        "",
        [("f", "{}"), ("g", '{"y": "z"}')],
    ),
    "a list of calls": (
        BARE,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        "",
        "",
        [("f", '{"x": 1}'), ("g", "{}")],
    ),
    "a bare call of no tool is an answer": (
        BARE,
        '{"name": "Paul", "parameters": {"x": 1}} ',
        "",
        '{"name": "Paul", "parameters": {"x": 1}} ',
        [],
    ),
    "an answer in JSON": (BARE, ' [{"x": 1}, 2]', "", ' [{"x": 1}, 2]', []),
    "an answer in text": (BARE, "[TOOL f] hi ", "", "[TOOL f] hi ", []),
    "text behind a bare call": (BARE, '{"name": "f"}\n\nthere', "", "there", [("f", "{}")]),
}


def split(settings: dict[str, Any], pieces: list[str]) -> AnswerParts:
    """Feed ``pieces``; check that what was given out adds up to what is said at the end."""
    parts = AnswerParts(**settings)
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        part = parts.take(piece, final=number == len(pieces) - 1)
        content += part.content
        reasoning += part.reasoning
        for delta in part.calls:
            f"{delta.name}{delta.arguments}".encode()  # as it is sent
            if delta.call_id is not None:
                assert delta.index == len(calls) and delta.name
                calls.append({"id": delta.call_id, "name": delta.name, "arguments": ""})
            calls[delta.index]["arguments"] += delta.arguments
    assert (content, reasoning) == (parts.content, parts.reasoning)
    assert [(c["id"], c["name"], c["arguments"]) for c in calls] == [
        (c.call_id, c.name, c.arguments) for c in parts.calls
    ]
    return parts


@pytest.mark.parametrize(
    ("settings", "text", "reasoning", "content", "calls"), CASES.values(), ids=CASES
)
def test_whole_and_character_by_character(
    settings: dict[str, Any],
    text: str,
    reasoning: str,
    content: str,
    calls: list[tuple[str, str]],
) -> None:
    for pieces in ([text], list(text), [*text, ""]):
        parts = split(settings, pieces)
        assert parts.content == content
        assert parts.reasoning == reasoning
        assert [(call.name, call.arguments) for call in parts.calls] == calls


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.data())
def test_pieces_make_no_difference(data: st.DataObject) -> None:
    words = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {',
        '"x": "}"',
        "}}",
        "}",
        "{",
        "[",
        "]",
        ";",
        "\n",
        " ",
        "a",
        '"',
        "\\",
        "<",
        "[TOOL_CALLS]",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=14)))
    form = data.draw(
        st.sampled_from([THINKS, OPENED, TAGGED, BARE, THINKS | TAGGED, ONE, THINKS | BARE])
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = split(form, [text]), split(form, pieces)
    assert (cut.content, cut.reasoning) == (whole.content, whole.reasoning)
    assert [(c.name, c.arguments) for c in cut.calls] == [
        (c.name, c.arguments) for c in whole.calls
    ]


def test_arguments_are_given_out_as_they_come() -> None:
    parts = AnswerParts(tagged_calls=True)
    assert not parts.take('<tool_call>{"name": "write", "arg').calls
    (first,) = parts.take('uments": {"text": "long').calls
    (second,) = parts.take(' and longer"').calls
    assert (first.name, first.arguments) == ("write", '{"text": "long')
    assert second.call_id is None and second.arguments == ' and longer"'


def test_a_long_call_costs_what_its_length_is() -> None:
    """A file of a megabyte that the model writes: a cost with the square of it takes minutes."""
    text = '<tool_call>{"name": "write", "arguments": {"text": "' + "line\\n" * 200_000 + '"}}'
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    parts = AnswerParts(tagged_calls=True)
    begun = time.process_time()
    given = "".join(d.arguments for piece in pieces for d in parts.take(piece).calls)
    assert time.process_time() - begun < 10
    assert json.loads(given) == {"text": "line\n" * 200_000}


def test_ids_are_nine_letters_or_digits_and_differ() -> None:
    ids = []
    for _ in range(50):
        parts = AnswerParts(tagged_calls=True)
        parts.take('<tool_call>{"name": "f"}</tool_call>', final=True)
        ids.append(parts.calls[0].call_id)
    assert len(set(ids)) == 50
    assert all(len(i) == 9 and i.isascii() and i.isalnum() for i in ids)


def test_the_message_holds_what_was_given_out() -> None:
    parts = AnswerParts(thinks=True, tagged_calls=True)
    parts.take('<think>w</think>t<tool_call>{"name": "f", "arguments": {"b":1,"a":2}}', final=True)
    message = parts.message()
    assert (message.role, message.content, message.reasoning) == ("assistant", "t", "w")
    (call,) = json.loads(message.tool_calls or "")
    assert call["id"] == parts.calls[0].call_id and call["type"] == "function"
    assert call["function"] == {"name": "f", "arguments": '{"a": 2, "b": 1}'}


def test_names_of_tools() -> None:
    assert tool_names('[{"type": "function", "function": {"name": "f"}}]') == ["f"]
