"""Turns with tools and reasoning: what the model is shown, what a client gets, what is held."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from engine.engine import KVEngine
from engine.errors import InvalidRequest, ReasoningDiverged, SessionDiverged
from engine.runner import ModelRunner
from engine.transcript import canonical_calls, reasoning_digest, transcript_digests
from engine.types import Message, Sampling, TextDelta, ToolUse, TurnDone, TurnEvent, TurnRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import build_engine, check_engine, policy_config, state_of
from tests.reference.retention import Rules
from tests.support.protocol_model import CHAT_TEMPLATE, byte_tokenizer

FULL = {"test": policy_config(Rules("none", 1700, 0, 0, 1, 256, 2048))}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather somewhere.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Lima"]},
                "when": {"$ref": "#/$defs/day"},
            },
            "required": ["city", "when"],
            "additionalProperties": False,
            "$defs": {"day": {"enum": ["today", "tomorrow"]}},
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"utc": {"type": "boolean"}},
            "required": ["utc"],
            "additionalProperties": False,
        },
    },
}
TOOLS = json.dumps([WEATHER, CLOCK])
AUTO = ToolUse(TOOLS)
ASKED = (Message("system", "Help."), Message("user", "Weather in Oslo?"))
CALL = '{"name": "weather", "arguments": {"when": "today", "city": "Oslo"}}'
END = 258
Script = Callable[[str], None]


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    return make_engine(tiny, FULL)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """``script(text)``: the model will "sample" this text and its end token."""
    planned: list[int] = []
    monkeypatch.setattr("engine.answering.draw", lambda *_: planned.pop(0))
    tokenizer = byte_tokenizer()
    yield lambda text: planned.extend(
        [*tokenizer(text, add_special_tokens=False)["input_ids"], END]
    )
    assert not planned, "the engine drew fewer tokens than the test planned"


def ask(engine: KVEngine, messages: tuple[Message, ...], **fields: Any) -> list[TurnEvent]:
    sampling = fields.pop("sampling", Sampling(max_tokens=200, temperature=0))
    session = fields.pop("session", "s")
    return engine.run(TurnRequest(session, messages, sampling=sampling, **fields))


def answer(events: list[TurnEvent]) -> tuple[str, str, list[dict[str, str]], TurnDone]:
    """Content, reasoning, calls and the last event, as a client puts them together."""
    deltas = [event for event in events if isinstance(event, TextDelta)]
    calls: list[dict[str, str]] = []
    for piece in [piece for delta in deltas for piece in delta.tool_calls]:
        if piece.call_id is not None:
            calls.append({"id": piece.call_id, "name": piece.name or "", "arguments": ""})
        calls[piece.index]["arguments"] += piece.arguments
    done = events[-1]
    assert isinstance(done, TurnDone)
    content = "".join(delta.text for delta in deltas)
    return content, "".join(delta.reasoning for delta in deltas), calls, done


def rendered(messages: list[dict[str, Any]], prompt: bool, tools: Any = None) -> list[int]:
    """The whole transcript by the tokenizer alone."""
    tokenizer = byte_tokenizer()
    text = tokenizer.apply_chat_template(
        messages, tools=tools or [WEATHER, CLOCK], tokenize=False, add_generation_prompt=prompt
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


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


@pytest.mark.parametrize("name", [None, "clock", "weather"])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_required_call_follows_the_schema(
    engine: KVEngine, name: str | None, temperature: float
) -> None:
    """The random model would never call by itself; its arguments are valid all the same."""
    tools = ToolUse(TOOLS, "required", name)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in (WEATHER, CLOCK)}
    for seed in range(4):
        session = f"{name}-{temperature}-{seed}"
        sampling = Sampling(max_tokens=200, temperature=temperature, seed=seed)
        events = ask(engine, ASKED, session=session, tools=tools, sampling=sampling)
        content, _, (call,), done = answer(events)
        assert content == "" and done.finish_reason == "tool_calls"
        assert call["name"] in ({name} if name else schemas)
        jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
        # the log is what the template makes of the transcript with this call
        text = byte_tokenizer().decode(list(state_of(engine, session).tokens))
        ended = text.rsplit("assistant\n", 1)[1]
        assert ended.startswith("<tool_call>{") and ended.endswith("}</tool_call><|im_end|>\n")


def test_a_required_call_can_be_cut_off_by_its_length(engine: KVEngine) -> None:
    tools = ToolUse(TOOLS, "required", "clock")
    sampling = Sampling(max_tokens=38, temperature=0)
    _, _, (call,), done = answer(ask(engine, ASKED, tools=tools, sampling=sampling))
    assert done.finish_reason == "length" and call["name"] == "clock"
    with pytest.raises(ValueError):
        json.loads(call["arguments"])
    # and the session goes on
    sent = Message("user", "Go on.")
    assert answer(ask(engine, (sent,), known=3, tools=AUTO))[3].usage.cached_tokens > 0


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


def tool_with(parameters: dict[str, Any]) -> ToolUse:
    """A required call of a tool with these parameters."""
    function = {"name": "f", "parameters": parameters}
    return ToolUse(json.dumps([{"type": "function", "function": function}]), "required")


@pytest.mark.parametrize(
    "parameters",
    [
        # x is a, a is b, b is a
        {
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        # an object that holds an object like itself
        {"properties": {"x": {"$ref": "#"}}},
    ],
)
def test_a_schema_nothing_satisfies_fails_its_turn(
    parameters: dict[str, Any], engine: KVEngine
) -> None:
    """Found only while the call is written; never given out as a call that ends in the middle."""
    schema = {"type": "object", "required": ["x"], **parameters}
    with pytest.raises(InvalidRequest, match="cannot be forced") as caught:
        ask(engine, ASKED, tools=tool_with(schema))
    assert caught.value.param == "tools"
    assert len(caught.value.message.splitlines()) == 1  # none of the grammar's state
    assert engine.sessions(None) == []


@pytest.mark.parametrize("seed", [6, 7])
@pytest.mark.parametrize("parameters", [{}, {"properties": {"x": {"enum": ["a", "b"]}}}])
def test_required_arguments_are_an_object_whatever_the_schema_says(
    parameters: dict[str, Any], seed: int, engine: KVEngine
) -> None:
    free = parameters | {"additionalProperties": False} if parameters else {}
    sampling = Sampling(max_tokens=200, temperature=1.0, seed=seed)
    _, _, (call,), done = answer(ask(engine, ASKED, tools=tool_with(free), sampling=sampling))
    assert done.finish_reason == "tool_calls"
    assert json.loads(call["arguments"]) in ({}, {"x": "a"}, {"x": "b"})


def test_a_schema_that_cannot_be_enforced_is_refused(engine: KVEngine) -> None:
    broken = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "no"}}}}
    definitions = json.dumps([{"type": "function", "function": broken}])
    with pytest.raises(InvalidRequest, match="cannot be forced") as caught:
        ask(engine, ASKED, tools=ToolUse(definitions, "required"))
    assert caught.value.param == "tools"
    assert engine.sessions(None) == []


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


def engine_with(runner: ModelRunner, template: str) -> KVEngine:
    """An engine whose tokenizer has another chat template."""
    engine = build_engine(runner, FULL)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    engine.chat = type(engine.chat)(tokenizer, frozenset({END}))
    return engine


def test_a_model_without_a_tool_template_refuses_tools(tiny: ModelRunner) -> None:
    template = CHAT_TEMPLATE.replace("if tools", "if false").replace("tools and", "false and")
    engine = engine_with(tiny, template)
    with pytest.raises(InvalidRequest, match="model 'tiny'") as caught:
        ask(engine, ASKED, tools=AUTO)
    assert caught.value.param == "tools"
    assert engine.sessions(None) == []
    engine.close()
    check_engine(engine)


THINKING = CHAT_TEMPLATE.replace(
    "(message.content or '') }}",
    "('<think>\n' + message.reasoning_content + '\n</think>\n\n' if message.reasoning_content"
    " else '') + (message.content or '') }}",
)


def test_reasoning_is_given_apart_and_matched_when_it_comes_back(
    tiny: ModelRunner, script: Script
) -> None:
    engine = engine_with(tiny, THINKING)
    script("<think>\nThey ask.\n</think>\n\nYes.")
    content, reasoning, _, done = answer(ask(engine, ASKED))
    assert (content, reasoning) == ("Yes.", "They ask.")
    # from the byte that completes the opening tag to the one before the closing tag is complete
    assert done.usage.reasoning_tokens == len(">\nThey ask.\n</think")
    ahead = [*ASKED, Message("assistant", "Yes."), Message("user", "Sure?")]
    back = [*ASKED, Message("assistant", "Yes.", reasoning="They ask.\n"), Message("user", "Sure?")]
    for transcript in (ahead, back):
        assert engine.match("", "s", transcript_digests(transcript)).known == 3
    changed = ((2, reasoning_digest("They beg.")),)
    with pytest.raises(ReasoningDiverged) as caught:
        ask(engine, (ahead[3],), known=3, returned=changed)
    assert caught.value.param == "messages.2.reasoning_content"
    script("Sure.")
    same = ((2, reasoning_digest("They ask.\n")),)
    _, _, _, done = answer(ask(engine, (ahead[3],), known=3, returned=same))
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    assert "<think>\nThey ask.\n</think>\n\nYes.<|im_end|>\n<|im_start|>user\nSure?" in text
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


def test_reasoning_of_a_new_transcript_reaches_the_template(
    tiny: ModelRunner, script: Script
) -> None:
    engine = engine_with(tiny, THINKING)
    script("ok")
    past = Message("assistant", "Yes.", reasoning="They ask.")
    ask(engine, (*ASKED, past, Message("user", "Sure?")))
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    assert "assistant\n<think>\nThey ask.\n</think>\n\nYes.<|im_end|>" in text
    engine.close()
    check_engine(engine)


def test_an_answer_whose_prompt_opens_the_reasoning(tiny: ModelRunner, script: Script) -> None:
    opened = THINKING.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    # every answer of the transcript begins so too, or the template would not be prefix-stable
    opened = opened.replace(
        "('<think>\n' + message.reasoning_content + '\n</think>\n\n' if message.reasoning_content"
        " else '')",
        "('<think>\n' + (message.reasoning_content or '') if message.role == 'assistant' else '')",
    )
    engine = engine_with(tiny, opened)
    script("Hm.\n</think>\nYes.")
    content, reasoning, _, _ = answer(ask(engine, ASKED))
    assert (content, reasoning) == ("Yes.", "Hm.")
    engine.close()
    check_engine(engine)
