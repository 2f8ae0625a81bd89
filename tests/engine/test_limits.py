"""Sessions that reach the end of what they may hold: said at admission, or a short answer."""

from __future__ import annotations

import pytest

from engine.config import PolicyConfig, RopeConfig
from engine.engine import KVEngine
from engine.errors import ContextLengthExceeded
from engine.runner import ModelRunner
from engine.types import Sampling, ScoreRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    Outcome,
    outcome,
    policy_config,
    request,
    runner_for,
    state_of,
    tiny_llama,
)
from tests.reference.retention import Rules

LONG = Sampling(max_tokens=1000, temperature=0.0, ignore_eos=True)
FULL = policy_config(Rules("none", 150, 0, 0, 1, 32), "full")
FRAME = 6 + 2 + 11  # bytes around a user message: opening, closing, opening of the answer


def ask(engine: KVEngine, text: str, tokens: int | None = None) -> Outcome:
    sampling = LONG if tokens is None else Sampling(tokens, temperature=0.0, ignore_eos=True)
    return outcome(engine.run(request("s", text, sampling=sampling)))


def as_written(factor: float) -> tuple[ModelRunner, PolicyConfig]:
    """A model of 96 positions and H2O on positions as written, stretched ``factor`` times."""
    rope = RopeConfig(type="yarn", factor=factor) if factor > 1 else RopeConfig()
    rules = Rules("h2o", 40, 4, 8, 8, 16)
    return runner_for(tiny_llama(max_position_embeddings=96)), policy_config(rules, rope=rope)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_positions_as_written_end_at_the_scaled_range(
    factor: float, make_engine: MakeEngine
) -> None:
    """The last position is used; the answer ends there; the next turn is an error."""
    runner, policy = as_written(factor)
    engine = make_engine(runner, {"test": policy})
    end = int(96 * factor)
    got = ask(engine, "a" * 20)
    state = state_of(engine, "s")
    assert got.done.finish_reason == "length"
    assert state.written == end and int(state.active_row().physical.max()) == end - 1
    # the last token was sampled from the last position, and cannot be written any more
    assert got.done.usage.completion_tokens == end - (20 + FRAME) + 1
    for _ in range(2):
        with pytest.raises(ContextLengthExceeded) as caught:
            ask(engine, "b")
        assert caught.value.code == "context_length_exceeded"
        assert (caught.value.limit, caught.value.asked) == (end, len(state.tokens) + 1 + FRAME)
        assert state_of(engine, "s") is state


def test_a_prompt_that_cannot_fit_is_refused_before_anything_changes(
    make_engine: MakeEngine,
) -> None:
    runner, policy = as_written(1.0)
    engine = make_engine(runner, {"test": policy})
    with pytest.raises(ContextLengthExceeded):
        ask(engine, "a" * (96 - FRAME + 1))
    assert len(engine.store.table) == 0 and engine.stats()["forwards_total"] == 0
    got = ask(engine, "a" * (96 - FRAME))  # the last length that fits
    assert (got.done.usage.prompt_tokens, got.done.usage.completion_tokens) == (96, 1)
    assert got.done.finish_reason == "length"


def test_bounded_positions_never_end(make_engine: MakeEngine) -> None:
    """The same model, many times its range: positions stay below the limit."""
    runner = runner_for(tiny_llama(max_position_embeddings=96))
    rules = Rules("h2o", 40, 4, 8, 8, 16, limit=64)
    engine = make_engine(runner, {"test": policy_config(rules)})
    for _ in range(3):
        assert ask(engine, "a" * 50, tokens=150).done.usage.completion_tokens == 150
    state = state_of(engine, "s")
    assert state.written > 6 * 96
    assert int(state.active_row().physical[:, : state.resident].max()) < 64


def test_full_ends_at_its_budget(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"full": FULL})
    assert ask(engine, "a" * 60, tokens=20).done.finish_reason == "length"
    state = state_of(engine, "s")
    with pytest.raises(ContextLengthExceeded) as caught:
        ask(engine, "b" * 100)
    assert (caught.value.limit, caught.value.asked) == (150, len(state.tokens) + 100 + FRAME)
    assert state_of(engine, "s") is state
    got = ask(engine, "b" * 10)
    assert got.done.finish_reason == "length" and got.done.usage.completion_tokens < 40
    assert state_of(engine, "s").written == state_of(engine, "s").resident == 150
    with pytest.raises(ContextLengthExceeded):
        ask(engine, "c")


def test_a_session_ends_at_max_session_tokens(make_engine: MakeEngine) -> None:
    runner = runner_for(tiny_llama(max_position_embeddings=96))
    policy = policy_config(Rules("h2o", 40, 4, 8, 8, 16, limit=64))
    engine = make_engine(runner, {"test": policy}, max_session_tokens=200)
    assert engine.max_session_tokens == 200
    assert ask(engine, "a" * 60, tokens=10).done.usage.completion_tokens == 10
    with pytest.raises(ContextLengthExceeded) as caught:
        ask(engine, "b" * 100)
    assert caught.value.limit == 200
    got = ask(engine, "b" * 10)
    assert got.done.finish_reason == "length"
    prompt = got.done.usage.prompt_tokens
    assert prompt + got.done.usage.completion_tokens == 200
    state = state_of(engine, "s")
    with pytest.raises(ContextLengthExceeded):
        ask(engine, "c")
    assert state_of(engine, "s") is state


def test_a_regenerated_turn_gets_the_room_of_the_one_it_replaces(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, {"full": FULL})
    ask(engine, "a" * 20, tokens=5)
    ask(engine, "b" * 10)
    with pytest.raises(ContextLengthExceeded):
        ask(engine, "c")
    redo = request("s", "c" * 10, base="previous", known=2, sampling=LONG)
    assert outcome(engine.run(redo)).done.finish_reason == "length"


def test_scoring_counts_the_longest_continuation(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, {"full": FULL})
    ask(engine, "a" * 20, tokens=5)
    held = len(state_of(engine, "s").tokens)
    messages = request("s", "q").messages
    # the last token of a continuation is never written
    room = 150 - held - 1 - FRAME
    engine.score(ScoreRequest("s", messages, ("x" * room, "y")))
    with pytest.raises(ContextLengthExceeded):
        engine.score(ScoreRequest("s", messages, ("y", "x" * (room + 2))))
