"""Turns with tools: what the model is shown, what a client gets, what is held."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.engine import KVEngine
from engine.errors import InvalidRequest, SessionDiverged
from engine.runner import ModelRunner
from engine.transcript import canonical_calls, transcript_digests
from engine.types import Message, Sampling, ToolUse
from tests.engine.conftest import MakeEngine
from tests.engine.support import check_engine, state_of
from tests.engine.tool_support import (
    ASKED,
    AUTO,
    CALL,
    CLOCK,
    END,
    FULL,
    TOOLS,
    WEATHER,
    Script,
    answer,
    ask,
    engine_with,
    rendered,
)
from tests.support.protocol_model import CHAT_TEMPLATE, byte_tokenizer


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    return make_engine(tiny, FULL)


def test_a_call_is_shown_read_and_continued(engine: KVEngine, script: Script) -> None:
    script(f"Let me look.<tool_call>{CALL}</tool_call>")
    content, _, (call,), done = answer(ask(engine, ASKED, tools=AUTO))
    assert content == "Let me look."
    assert call["name"] == "weather"
    assert json.loads(call["arguments"]) == {"when": "today", "city": "Oslo"}
    assert done.finish_reason == "tool_calls"
    plain: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in ASKED]
    assert done.usage.prompt_tokens == len(rendered(plain, prompt=True))

    # the client sends the call back as its library wrote it: keys in another order
    given = json.dumps({"city": "Oslo", "when": "today"})
    sent = Message(
        "assistant",
        content,
        tool_calls=json.dumps(
            [
                {
                    "function": {"arguments": given, "name": "weather"},
                    "id": call["id"],
                    "type": "function",
                }
            ],
            sort_keys=True,
            separators=(",", ":"),
        ),
    )
    result = Message("tool", "Rain.", tool_call_id=call["id"])
    # definitions in another order of keys are the same tools
    again = json.dumps([{k: tool[k] for k in sorted(tool)} for tool in (WEATHER, CLOCK)])
    digests = transcript_digests([*ASKED, sent, result], again)
    match = engine.match("", None, digests)
    assert (match.session_id, match.base, match.known) == ("s", "current", 3)
    script("Rain in Oslo.")
    content, _, calls, done = answer(ask(engine, (result,), known=3, tools=AUTO))
    assert (content, calls, done.finish_reason) == ("Rain in Oslo.", [], "stop")
    # nothing but the last sampled token, its closing and the result is new
    new = len("\n") + len("tool\nRain.\nassistant\n") + 3
    assert done.usage.prompt_tokens - done.usage.cached_tokens == 1 + new


def test_without_a_choice_of_tools_tags_are_text(engine: KVEngine, script: Script) -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    for tools in (None, ToolUse(TOOLS, "none")):
        script(text)
        session = "plain" if tools is None else "none"
        content, _, calls, done = answer(ask(engine, ASKED, tools=tools, session=session))
        assert (content, calls, done.finish_reason) == (text, [], "stop")


def test_one_call_at_a_time_ends_with_the_first(
    engine: KVEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = list(byte_tokenizer()(f"<tool_call>{CALL}", add_special_tokens=False)["input_ids"])
    monkeypatch.setattr("engine.answering.draw", lambda *_: planned.pop(0))
    tools = ToolUse(TOOLS, parallel=False)
    _, _, calls, done = answer(ask(engine, ASKED, tools=tools))
    assert len(calls) == 1 and done.finish_reason == "tool_calls" and not planned
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    assert text.endswith(f"assistant\n<tool_call>{CALL}</tool_call><|im_end|>\n")


def test_tools_are_shown_once_however_many_messages_the_system_sends(
    engine: KVEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred schemas beside each of thousands of messages would take hours."""
    rendered_with: list[bool] = []
    tokenizer = engine.chat.tokenizer
    render = tokenizer.apply_chat_template

    def counted(messages: Any, tools: Any = None, **settings: Any) -> Any:
        rendered_with.append(tools is not None and tools[0]["function"]["name"] == "weather")
        return render(messages, tools=tools, **settings)

    monkeypatch.setattr(tokenizer, "apply_chat_template", counted)
    head = tuple(Message("system", f"Rule {n}.") for n in range(10))
    pairs = (Message("developer", "Now."), Message("user", "Well?"), Message("assistant", "Yes."))
    script("ok")
    ask(engine, (*head, *pairs * 5, Message("system", "End."), *ASKED[1:]), tools=AUTO)
    sent = [*head, *pairs * 5, Message("system", "End."), *ASKED[1:]]
    plain = [{"role": m.role, "content": m.content} for m in sent]
    prompt = rendered(plain, prompt=True)
    assert list(state_of(engine, "s").tokens)[: len(prompt)] == prompt
    # the first message, and the first that is not the system's with what is before it
    assert sum(rendered_with) == 3
    script("ok")
    ask(engine, (Message("system", "More."), Message("user", "Well?")), known=len(sent) + 1)
    assert sum(rendered_with) == 3


@pytest.mark.parametrize(
    ("text", "stop", "arguments", "finish"),
    [
        (f"<tool_call>{CALL}</tool_call>", "Oslo", '{"when": "today", "city": "', "stop"),
        ('<tool_call>{"name": "weather", "arguments": {"x": [', None, '{"x": [', "stop"),
        (f"<tool_call>{CALL}</tool_call>", "</tool_call>", None, "tool_calls"),
        # the arguments are whole, though the object around them is not
        (f"<tool_call>{CALL[:-1]}</tool_call>", None, None, "tool_calls"),
    ],
)
def test_only_a_whole_call_is_to_be_made(
    text: str,
    stop: str | None,
    arguments: str | None,
    finish: str,
    engine: KVEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [*byte_tokenizer()(text, add_special_tokens=False)["input_ids"], END]
    monkeypatch.setattr("engine.answering.draw", lambda *_: ids.pop(0))
    sampling = Sampling(max_tokens=200, temperature=0, stop=(stop,) if stop else ())
    _, _, (call,), done = answer(ask(engine, ASKED, tools=AUTO, sampling=sampling))
    assert call["arguments"] == (arguments or json.dumps(json.loads(CALL)["arguments"]))
    assert done.finish_reason == finish


def test_a_turn_without_tools_may_still_choose_among_the_sessions(
    engine: KVEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    script(text)
    ask(engine, ASKED, tools=AUTO)
    script(text)
    content, _, calls, _ = answer(ask(engine, ASKED[1:], tools=ToolUse("", "none")))
    assert (content, calls) == (text, [])
    script(f"{text}{text}")
    _, _, calls, _ = answer(ask(engine, ASKED[1:], tools=ToolUse("")))
    assert [call["name"] for call in calls] == ["weather", "weather"]
    for session, name, why in (
        ("s", "fly", "has no tool 'fly'"),
        ("without tools", "weather", "has no tool 'weather'"),
        ("without tools", None, "has no tools"),
    ):
        with pytest.raises(InvalidRequest, match=why) as caught:
            ask(engine, ASKED, tools=ToolUse("", "required", name), session=session)
        assert caught.value.param == "tool_choice"
    for without in (ToolUse("", "none"), ToolUse("", parallel=False)):
        script(text)
        content, *_ = answer(ask(engine, ASKED, tools=without, session="without tools"))
        assert content == text
    monkeypatch.undo()
    _, _, (call,), done = answer(ask(engine, ASKED[1:], tools=ToolUse("", "required", "clock")))
    assert (call["name"], done.finish_reason) == ("clock", "tool_calls")
    assert list(json.loads(call["arguments"])) == ["utc"]


def test_other_tools_contradict_the_session(engine: KVEngine, script: Script) -> None:
    script("hi")
    ask(engine, ASKED, tools=AUTO)
    transcript = [*ASKED, Message("assistant", "hi"), Message("user", "and?")]
    for tools in (None, json.dumps([WEATHER])):
        with pytest.raises(SessionDiverged) as caught:
            engine.match("", "s", transcript_digests(transcript, tools))
        assert caught.value.param == "tools"
        assert engine.match("", None, transcript_digests(transcript, tools)).base == "new"
    other = transcript_digests(transcript[3:], json.dumps([CLOCK]))
    with pytest.raises(SessionDiverged) as caught:
        engine.match("", "s", other, append=True)
    assert caught.value.param == "tools"
    # append need not repeat them
    assert engine.match("", "s", transcript_digests(transcript[3:]), append=True).known == 3
    script(f"<tool_call>{CALL}</tool_call>")
    _, _, calls, _ = answer(ask(engine, (Message("user", "and?"),), known=3))
    assert [call["name"] for call in calls] == ["weather"]


def test_a_model_without_a_tool_template_refuses_tools(tiny: ModelRunner) -> None:
    template = CHAT_TEMPLATE.replace("if tools", "if false").replace("tools and", "false and")
    engine = engine_with(tiny, template)
    with pytest.raises(InvalidRequest, match="model 'tiny'") as caught:
        ask(engine, ASKED, tools=AUTO)
    assert caught.value.param == "tools"
    assert engine.sessions(None) == []
    engine.close()
    check_engine(engine)


@pytest.mark.parametrize(
    "arguments",
    ["", "no JSON", '{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}', "[[]]", "5"],
)
def test_a_call_of_a_transcript_may_have_any_arguments(
    arguments: str, engine: KVEngine, script: Script
) -> None:
    """What another model wrote; the template shows text that has no value as it is."""
    call = Message("assistant", "", tool_calls=canonical_calls([("i", "weather", arguments)]))
    messages = (*ASKED, call, Message("tool", "Rain.", tool_call_id="i"))
    script("Rain.")
    answer(ask(engine, messages, tools=AUTO))
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    shown = arguments if arguments in ("[[]]", "5") else json.dumps(arguments)
    assert f'"arguments": {shown}' in text
    ahead = (*messages, Message("assistant", "Rain."), Message("user", "Sure?"))
    assert engine.match("", None, transcript_digests(ahead, TOOLS)).known == 5
