"""DESIGN §3.8: a turn costs its new tokens, and a session of turns is one long prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine.transcript import chain_digests
from engine.types import ChunkDone, Message, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    Recorder,
    outcome,
    policy_config,
    request,
    runner_for,
    state_of,
    tiny_llama,
)
from tests.reference.retention import Rules
from tests.reference.session import END, NEWLINE, message_tokens, opening

ENDOFTEXT = 256
FULL = Rules("none", budget=1500, sinks=0, recent=0, interval=1, chunk=48)
Script = Callable[[list[int]], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """``script(tokens)``: the model will "sample" these, in this order."""
    planned: list[int] = []
    monkeypatch.setattr("engine.answering.draw", lambda *_: planned.pop(0))
    yield planned.extend
    assert not planned, "the engine drew fewer tokens than the test planned"


def byte_ids(text: str) -> list[int]:
    return list(text.encode())


# name: sampled tokens, sampling, text given, finish reason, tokens that close the answer
ENDINGS = {
    "length": ("hello", Sampling(max_tokens=5), "hello", "length", [END, NEWLINE]),
    "one token": ("h", Sampling(max_tokens=1), "h", "length", [END, NEWLINE]),
    "end token": ("hey\x00", Sampling(max_tokens=9), "hey", "stop", [NEWLINE]),
    "end token at once": ("\x00", Sampling(max_tokens=9), "", "stop", [NEWLINE]),
    "other end token": ("hey\x01", Sampling(max_tokens=9), "hey", "stop", [END, NEWLINE]),
    "stop string": ("one, two", Sampling(stop=(" tw",)), "one,", "stop", [END, NEWLINE]),
    "ignored end token": (
        "a\x00b\x00",
        Sampling(max_tokens=4, ignore_eos=True),
        "ab",
        "length",
        [NEWLINE],
    ),
}


def sampled(name: str) -> list[int]:
    """The tokens of an ending; \\x00 and \\x01 stand for the two end tokens."""
    stand_ins = {0: END, 1: ENDOFTEXT}
    text = ENDINGS[name][0]
    ids = [stand_ins.get(byte, byte) for byte in text.encode()]
    return ids[: text.index(" tw") + 3] if name == "stop string" else ids


def test_turns_of_every_ending_are_one_prefill_of_the_whole_log(
    script: Script, make_engine: MakeEngine
) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = [END, ENDOFTEXT]
    runner = runner_for(model)
    recorder = Recorder(runner)
    engine = make_engine(runner, {"test": policy_config(FULL)})
    log, history, unwritten = [], [], 0
    for turn, (name, (_, sampling, text, finish, closing)) in enumerate(ENDINGS.items()):
        script(sampled(name))
        messages = [("user", f"question {turn} " * (turn + 1))]
        if turn == 0:
            messages.insert(0, ("system", "be brief"))
        if turn == 3:
            messages.append(("tool", "42"))
        cached = len(log) - unwritten
        got = outcome(engine.run(request("s", *messages, sampling=sampling)))
        assert (got.text, got.done.finish_reason) == (text, finish), name
        for role, content in messages:
            log += message_tokens(role, content)
        log += opening("assistant")
        usage = got.done.usage
        assert usage.prompt_tokens == len(log)
        assert usage.completion_tokens == len(got.token_ids) == len(sampled(name))
        log += sampled(name) + closing
        assert usage.cached_tokens == cached
        unwritten = 1 + len(closing)  # no forward has seen the last sampled token and the closing
        assert list(state_of(engine, "s").tokens) == log
        history += [Message(*message) for message in messages] + [Message("assistant", text)]
        assert state_of(engine, "s").digest == list(chain_digests(history))[-1]
    written = state_of(engine, "s").written
    with torch.inference_mode():
        expected = tiny_llama()(torch.tensor([log[:written]]), use_cache=False).logits[0]
    torch.testing.assert_close(recorder.take(), expected, rtol=1e-10, atol=1e-10)


def test_a_turn_is_cut_every_chunk_from_its_first_token(
    script: Script, make_engine: MakeEngine
) -> None:
    runner = runner_for(tiny_llama(layers=1))
    recorder = Recorder(runner)
    engine = make_engine(runner, {"test": policy_config(FULL)})
    for text, answer, chunks in [
        ("a" * (96 - 19), "xyz", [48, 48]),
        # the last sampled token and <|im_end|>\n of the first turn come first
        ("b" * (49 - 19 - 3), "xyz", [48, 1]),
        ("c", "x", [23]),
    ]:
        script(byte_ids(answer))
        events = engine.run(request("s", text, sampling=Sampling(max_tokens=len(answer))))
        batches = [batch for (batch,) in recorder.batches]
        assert batches == chunks + [1] * (len(answer) - 1)
        recorder.batches.clear()
        progress = [(e.done, e.total) for e in events if isinstance(e, ChunkDone)]
        total = sum(chunks)
        assert progress == [(sum(chunks[: n + 1]), total) for n in range(len(chunks))]
    schedules = [e.data["schedule"] for e in engine.events("", "s") if e.kind == "turn"]
    assert schedules == [[[48, 2], [1, 2]], [[48, 1], [1, 3]], [[23, 1]]]


def test_spans_of_messages_cover_the_log(script: Script, make_engine: MakeEngine) -> None:
    engine = make_engine(runner_for(tiny_llama(layers=1)), {"test": policy_config(FULL)})
    expected, at = [], 0
    for turn in (1, 2):
        messages = [("system", "s")] if turn == 1 else []
        messages += [("user", "one"), ("user", "two"), ("tool", "three")]
        script([*byte_ids("ok"), END])
        engine.run(request("s", *messages))
        for role, text in [*messages, ("assistant", "ok")]:
            step = expected[-1]["step"] if expected else 0
            size = len(message_tokens(role, text))
            expected.append(
                {
                    "message": len(expected),
                    "start": at,
                    "end": at + size,
                    "role": role,
                    "step": step + (role == "user"),
                }
            )
            at += size
    summary = engine.session("", "s")
    assert summary["spans"] == expected
    assert (summary["tokens"], summary["messages"], summary["step"]) == (at, len(expected), 4)


class Counting:
    """A tokenizer that adds up the text it renders, tokenizes and decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: str, **settings: Any) -> Any:
        self.characters += len(text)
        return self.tokenizer(text, **settings)

    def apply_chat_template(self, messages: list[Any], **settings: Any) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, **settings)
        self.characters += len(text)
        return text

    def decode(self, ids: Any, **settings: Any) -> str:
        text: str = self.tokenizer.decode(ids, **settings)
        self.characters += len(text)
        return text


def test_a_turn_costs_its_new_tokens_however_long_the_session_is(make_engine: MakeEngine) -> None:
    runner = runner_for(tiny_llama(layers=1))
    rules = Rules("plan_aware", 40, 2, 8, 8, 16, limit=64)
    engine = make_engine(runner, {"test": policy_config(rules)})
    counting = engine.chat.tokenizer = Counting(engine.chat.tokenizer)
    recorder = Recorder(runner)
    costs = []
    for _ in range(30):
        before = counting.characters
        recorder.works.clear()
        sampling = Sampling(6, temperature=0, ignore_eos=True)
        engine.run(request("s", "the same each time", sampling=sampling))
        tokens = sum(len(work.tokens) for work in recorder.works)
        costs.append((counting.characters - before, tokens))
    assert state_of(engine, "s").written > 1000
    characters, tokens = zip(*costs[1:], strict=True)
    assert len(set(tokens)) == 1
    assert max(characters) < 2 * min(characters) < 1000
