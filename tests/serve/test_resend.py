"""A client sends its whole transcript again: nothing is computed twice, and nothing is lost.

What passes the embedding in a turn is compared, id by id, with what DESIGN §3.8 says of it: the
tokens of the new messages, and before them what the last turn left without KV, which is its
last sampled token and the closing its answer lacked. The log-probabilities are compared with
those of the stock model, given the same tokens at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI
from transformers import LlamaForCausalLM

from tests.support.local_server import LocalServer, local_server
from tests.support.transcript import CLOSING, token_log

ANSWER = 10
_serial = itertools.count()


@pytest.fixture(scope="module")
def server(protocol_model: Path) -> Iterator[LocalServer]:
    with local_server(protocol_model) as made:
        yield made


@pytest.fixture(scope="module")
def stock(protocol_model: Path) -> Any:
    """The model as transformers runs it."""
    return LlamaForCausalLM.from_pretrained(protocol_model).eval()


@pytest.fixture(scope="module")
def openai(server: LocalServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


@dataclass(frozen=True)
class Given:
    """An answer as the client got it."""

    text: str
    ids: list[int]
    logprobs: list[float]
    finish: str
    usage: Any


@dataclass(frozen=True)
class Held:
    """A transcript the session holds, what was drawn in it, and its tokens with KV."""

    messages: tuple[dict[str, Any], ...] = ()
    drawn: Mapping[int, list[int]] = field(default_factory=dict)
    written: int = 0


class Conversation:
    """A client of one session, and what each of its turns must compute.

    Args:
        way: "named" and "unnamed" resend everything, with a session id or without; "append"
            sends new messages only.
    """

    def __init__(
        self, server: LocalServer, openai: OpenAI, stock: Any, way: str, stream: bool
    ) -> None:
        self.server, self._openai, self._stock, self._stream = server, openai, stock, stream
        number = next(_serial)
        self._append = way == "append"
        self._pace = {} if way == "unnamed" else {"session_id": f"r-{number}"}
        if way == "append":
            self._pace["mode"] = "append"
        # told apart by their first message where no id does
        self.opening = f"{number} speaks"
        self.before, self.now = Held(), Held()
        self.exact = True  # nothing was evicted: the stock model says the same

    def say(self, text: str, **fields: Any) -> Given:
        """The next user message."""
        return self._turn(self.now, ({"role": "user", "content": text},), fields)

    def redo(self, *messages: dict[str, Any], **fields: Any) -> Given:
        """Another end of the transcript: other messages in place of the last turn's."""
        return self._turn(self.before, messages, fields)

    def leave(self, text: str) -> None:
        """Ask, and go away at the first piece of the answer."""
        messages = self._to_send(self.now, ({"role": "user", "content": text},))
        stream = self._create(messages, {"max_tokens": 9000, "stream": True})
        next(stream)
        stream.close()
        self.server.wait_idle()
        self.server.passed.take()

    def preview(self, **fields: Any) -> Given:
        """What the first answer will be; leaves no trace."""
        name = f"preview-{next(_serial)}"
        messages = [{"role": "user", "content": self.opening}]
        given = self._ask(messages, {"pace": {"session_id": name}, **fields})
        self.server.engine.delete("", name)
        return given

    def _turn(self, base: Held, new: tuple[dict[str, Any], ...], fields: dict[str, Any]) -> Given:
        self.server.passed.take()
        given = self._ask(self._to_send(base, new), fields)
        passed = self.server.passed.take()
        messages = (*base.messages, *new)
        prompt = token_log(self.server.tokenizer, messages, base.drawn)
        decoded = given.ids[:-1]
        assert passed == prompt[base.written :] + decoded
        usage = given.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(given.ids))
        prefilled = len(passed) - len(decoded)
        assert usage.prompt_tokens_details.cached_tokens == len(prompt) - prefilled
        if self.exact:
            assert given.logprobs == pytest.approx(self._expected(prompt, given.ids), abs=1e-4)
        self.before = base
        self.now = Held(
            (*messages, {"role": "assistant", "content": given.text}),
            {**base.drawn, len(messages): given.ids},
            len(prompt) + len(decoded),
        )
        return given

    def _to_send(self, base: Held, new: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return list(new if self._append else base.messages + new)

    def _ask(self, messages: list[dict[str, Any]], fields: dict[str, Any]) -> Given:
        if not self._stream:
            answer = self._create(messages, fields)
            return _given([answer], [answer.choices[0]], answer.usage)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = self._create(messages, fields | options)
        return _given(chunks, [choice for chunk in chunks for choice in chunk.choices], last.usage)

    def _create(self, messages: Any, fields: dict[str, Any]) -> Any:
        settings: dict[str, Any] = {
            "model": "protocol",
            "temperature": 0,
            "max_tokens": ANSWER,
            "logprobs": True,
        }
        settings |= fields
        pace = {"return_token_ids": True, **settings.pop("pace", self._pace)}
        extra = {"pace": pace, "ignore_eos": settings.pop("ignore_eos", True)}
        return self._openai.chat.completions.create(messages=messages, extra_body=extra, **settings)

    @torch.inference_mode()
    def _expected(self, prompt: list[int], ids: list[int]) -> list[float]:
        logits = self._stock(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        rows = logits.double().log_softmax(-1)
        return [float(row[token]) for row, token in zip(rows, ids, strict=True)]


def _given(parts: list[Any], choices: list[Any], usage: Any) -> Given:
    stream = parts[0].object == "chat.completion.chunk"
    texts = [(choice.delta if stream else choice.message).content or "" for choice in choices]
    tokens = [token for choice in choices for token in getattr(choice, "token_ids", ())]
    logprobs = [entry.logprob for c in choices if c.logprobs for entry in c.logprobs.content]
    return Given("".join(texts), tokens, logprobs, choices[-1].finish_reason, usage)


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
    """The token with which the template closes an answer, drawn by the model."""
    closing = chat.server.tokenizer.convert_tokens_to_ids(CLOSING)
    fields = {"temperature": 2, "max_tokens": 24, "ignore_eos": False}
    ends = (seed for seed in range(99) if chat.preview(seed=seed, **fields).ids[-1] == closing)
    given = chat.say(chat.opening, seed=next(ends), **fields)
    assert (given.finish, given.ids[-1]) == ("stop", closing)
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
