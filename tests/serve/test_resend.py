"""A client sends its whole transcript again: nothing is computed twice, and nothing is lost.

What passes the embedding in a turn is compared, id by id, with what DESIGN §3.8 says of it: the
tokens of the new messages, and before them what the last turn left without KV, which is its
last sampled token and the closing its answer lacked. The log-probabilities are compared with
those of the stock model, given the same tokens at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from transformers import LlamaForCausalLM

from engine.config import PolicyConfig
from tests.support.conversation import Conversation
from tests.support.local_server import LocalServer, drawing, local_server
from tests.support.tool_clients import TOOLS
from tests.support.transcript import CLOSING

ROOMY = PolicyConfig(name="roomy", retention="none", budget=1024, position_limit=None)


@pytest.fixture(scope="module")
def server(protocol_model: Path) -> Iterator[LocalServer]:
    with local_server(protocol_model, ROOMY) as made:
        yield made


@pytest.fixture(scope="module")
def stock(protocol_model: Path) -> Any:
    """The model as transformers runs it."""
    return LlamaForCausalLM.from_pretrained(protocol_model).eval()


@pytest.fixture(scope="module")
def openai(server: LocalServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


WAYS = ("named", "unnamed", "append")
Talk = Callable[..., Conversation]


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def talk(request: pytest.FixtureRequest, server: LocalServer, openai: OpenAI, stock: Any) -> Talk:
    """Begins a conversation in one of ``WAYS``."""
    return lambda way: Conversation(server, openai, stock, way, request.param)


@pytest.fixture(params=WAYS)
def chat(request: pytest.FixtureRequest, talk: Talk) -> Conversation:
    """A conversation in which nothing was said yet."""
    return talk(request.param)


@pytest.fixture(params=WAYS[:2])
def resending(request: pytest.FixtureRequest, talk: Talk) -> Conversation:
    """A conversation whose client sends everything again."""
    return talk(request.param)


def goes_on(chat: Conversation) -> None:
    for text in ("And then?", "I see: ünïcödé."):
        chat.say(text)


def test_length(chat: Conversation) -> None:
    for text in (chat.opening, "More", ""):
        assert chat.say(text).finish == "length"
    goes_on(chat)


def test_one_token(chat: Conversation) -> None:
    assert len(chat.say(chat.opening, max_tokens=1).ids) == 1
    goes_on(chat)


def test_stop_string(chat: Conversation) -> None:
    while not (stops := re.findall(r"(?<=..)[\x21-\x7e]{2}", whole := chat.preview().text)):
        chat.opening += "."
    stop = stops[0]
    given = chat.say(chat.opening, stop=[stop])
    assert (given.finish, given.text) == ("stop", whole[: whole.index(stop)])
    goes_on(chat)


def test_end_token(chat: Conversation) -> None:
    """The token with which the template closes an answer."""
    with drawing(chat.server, "Well." + CLOSING):
        given = chat.say(chat.opening, ignore_eos=False)
    closing = chat.server.tokenizer.convert_tokens_to_ids(CLOSING)
    assert (given.finish, given.text, given.ids[-1]) == ("stop", "Well.", closing)
    goes_on(chat)


@pytest.mark.parametrize("place", [0, 6])
def test_another_end_token(chat: Conversation, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """One that is no part of the template; at place 0 it leaves the answer empty."""
    ids = chat.preview().ids
    end = ids[place]
    monkeypatch.setattr(chat.server.engine.chat, "stop_ids", frozenset({end}))
    given = chat.say(chat.opening, ignore_eos=False)
    assert (given.finish, given.ids) == ("stop", ids[: ids.index(end) + 1])
    monkeypatch.undo()
    goes_on(chat)


@pytest.mark.parametrize("empty", [None, [], ""], ids=repr)
def test_an_empty_answer(
    resending: Conversation, monkeypatch: pytest.MonkeyPatch, empty: object
) -> None:
    """Clients send one back in several ways."""
    end = resending.preview().ids[0]
    monkeypatch.setattr(resending.server.engine.chat, "stop_ids", frozenset({end}))
    assert resending.say(resending.opening, ignore_eos=False).text == ""
    monkeypatch.undo()
    resending.now.messages[-1]["content"] = empty
    goes_on(resending)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_regenerated(resending: Conversation) -> None:
    resending.say(resending.opening)
    first = resending.say("Again?")
    again = resending.redo(user("Again?"), temperature=2, seed=1)
    assert again.ids != first.ids
    resending.redo(user("Again?"), temperature=2, seed=2)
    goes_on(resending)


def test_the_first_turn_regenerated(talk: Talk) -> None:
    chat = talk("named")
    chat.say(chat.opening)
    chat.redo(user(chat.opening))
    goes_on(chat)


@pytest.mark.parametrize("times", [1, 2])
def test_edited_last_message(resending: Conversation, times: int) -> None:
    resending.say(resending.opening)
    resending.say("A question")
    for number in range(times):
        resending.redo(user(f"A better question, the {number}th"))
    goes_on(resending)


def test_back_to_what_was_edited(resending: Conversation) -> None:
    """The answer that was thrown away comes back: it counts as text that the client wrote."""
    resending.say(resending.opening)
    resending.say("A question", max_tokens=1)
    thrown = resending.now.messages[-2:]
    resending.redo(user("A better question"))
    resending.redo(*thrown, user("I take it back"))
    goes_on(resending)


def test_an_edited_answer(resending: Conversation) -> None:
    """What the model said was changed: its turn is computed again, with the new words."""
    resending.say(resending.opening)
    resending.say("Who are you?")
    resending.redo(user("Who are you?"), {"role": "assistant", "content": "Me."}, user("Oh."))
    goes_on(resending)


@pytest.mark.parametrize("times", [1, 2])
def test_cancelled(chat: Conversation, times: int) -> None:
    chat.say(chat.opening)
    for _ in range(times):
        chat.leave("Something long")
    goes_on(chat)
    chat.leave("And once more")
    chat.say("Something else")


def test_evicted(chat: Conversation) -> None:
    """Far beyond the budget: what is not resident any more is not computed again either."""
    chat.exact = False
    for number in range(8):
        chat.say(f"{chat.opening}, and so on: {number} " + "and more " * 5)
    session = chat.server.engine.sessions(None)[-1]
    assert session["resident_tokens"] < chat.now.written / 2
    chat.say("The end", stop=["x"])
    goes_on(chat)


FORECAST = {"type": "function", "function": {"name": "forecast"}}
CALL = '{"name": "forecast", "arguments": {"city": "Oslo", "days": 2}}'


@pytest.fixture
def calling(chat: Conversation) -> Conversation:
    """A conversation with tools, which no other policy here has the budget for."""
    chat.tools = TOOLS
    chat.pace["policy"] = ROOMY.name
    chat.say(chat.opening)
    return chat


def test_a_required_call(calling: Conversation) -> None:
    for choice in (FORECAST, "required"):
        given = calling.say("Rain?", tool_choice=choice, max_tokens=90)
        assert given.finish == "tool_calls" and given.message["content"] is None
        calling.give("Rain.")
    goes_on(calling)


@pytest.mark.parametrize("limit", [4, 40])
def test_a_required_call_cut_off(calling: Conversation, limit: int) -> None:
    """Before its name is known, and in its arguments."""
    given = calling.say("Rain?", tool_choice=FORECAST, max_tokens=limit)
    assert given.finish == "length"
    assert bool(given.message.get("tool_calls")) == (limit == 40)
    goes_on(calling)


@pytest.mark.parametrize(("count", "parallel"), [(1, True), (2, True), (2, False)])
def test_calls_of_its_own(calling: Conversation, count: int, parallel: bool) -> None:
    """Text, then calls, of which one may be too many."""
    text = "Let me look.\n" + "\n".join([f"<tool_call>{CALL}</tool_call>"] * count)
    with drawing(calling.server, text + CLOSING):
        given = calling.say("Rain?", parallel_tool_calls=parallel, max_tokens=200, ignore_eos=False)
    calls = given.message["tool_calls"]
    assert (given.finish, given.text) == ("tool_calls", "Let me look.")
    assert len(calls) == (count if parallel else 1)
    assert {json.dumps(json.loads(c["function"]["arguments"])) for c in calls} == {
        '{"city": "Oslo", "days": 2}'
    }
    calling.give("Rain.")
    goes_on(calling)


def test_a_result_given_again(resending: Conversation) -> None:
    resending.tools = TOOLS
    resending.pace["policy"] = ROOMY.name
    resending.say(resending.opening, tool_choice=FORECAST, max_tokens=90)
    resending.give("Rain.")
    (call,) = resending.before.messages[-1]["tool_calls"]
    again = {"role": "tool", "tool_call_id": call["id"], "content": "Snow."}
    resending.redo(again)
    goes_on(resending)
