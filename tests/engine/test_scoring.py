"""Continuations scored on a fork have the log-probabilities of the stock model."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InvalidRequest, PaceError
from engine.runner import ModelRunner
from engine.types import PlanUpdate, ScoreRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    RANGE,
    policy_config,
    request,
    state_of,
    tiny_llama,
)
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession, message_tokens, opening

CHUNK = 16
FULL = policy_config(Rules("none", 600, 0, 0, 1, CHUNK), "full")
# one token, a chunk less one, a chunk, one and two more, several chunks
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 3 * CHUNK + 1)


def test_scores_are_the_stock_models(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"full": FULL})
    engine.run(request("s", "a first turn"))
    held = list(state_of(engine, "s").tokens)
    texts = tuple(("some words, " * 9)[:length] for length in LENGTHS)
    result = engine.score(ScoreRequest("s", request("s", "and?").messages, texts))
    prompt = held + message_tokens("user", "and?") + opening("assistant")
    model = tiny_llama()
    for text, scored in zip(texts, result.continuations, strict=True):
        ids = list(text.encode())
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0]
        rows = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        expected = rows.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        assert scored.token_ids == tuple(ids)
        assert "".join(scored.tokens) == text
        assert scored.logprobs == pytest.approx(expected, abs=1e-9)
    assert (result.residency, result.rotary_gap) == (None, None)


def test_scores_under_eviction_are_those_of_the_reference(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Prompt and continuations evict and renumber; each starts from the same prompt."""
    rules = Rules("plan_aware", 60, 4, 16, 8, CHUNK, limit=84)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    reference = ReferenceSession(DenseLlama(tiny_llama(), RANGE), rules)
    plan = {2: (1,), 3: (2,)}
    engine.run(request("s", "x" * 50, plan=PlanUpdate(plan=plan)))
    reference.turn([("user", "x" * 50)], 8, plan)
    question = "what was it? " * 4
    texts = tuple(("some words, " * 9)[:length] for length in LENGTHS)
    result = engine.score(ScoreRequest("s", request("s", question).messages, texts))
    for text, scored in zip(texts, result.continuations, strict=True):
        expected = reference.score([("user", question)], list(text.encode()))
        assert scored.logprobs == pytest.approx(expected, abs=1e-9)
    answered = reference.turn([("user", question)], 1)
    assert (result.residency, result.rotary_gap) == (answered.residency, answered.rotary_gap)
    assert answered.residency is not None and answered.evicted > 0 and answered.renumbers > 0


@pytest.mark.parametrize(
    ("texts", "param"), [((), "continuations"), (("fine", ""), "continuations.1")]
)
def test_nothing_to_score_is_refused(
    texts: tuple[str, ...], param: str, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, {"full": FULL})
    engine.run(request("s", "one"))
    with pytest.raises(InvalidRequest) as caught:
        engine.score(ScoreRequest("s", request("s", "q").messages, texts))
    assert caught.value.param == param


def test_the_smallest_pool_can_score(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    least = make_engine(tiny, {"full": FULL}).store.pool.session_bytes(FULL.budget or 0, True)
    engine = make_engine(tiny, {"full": FULL}, pool_bytes=least)
    for text in ("one", "two"):
        engine.run(request("s", text))
    result = engine.score(ScoreRequest("s", request("s", "q").messages, ("answer",)))
    assert len(result.continuations[0].logprobs) == len("answer")


def test_scoring_ends_when_the_engine_closes(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"full": FULL})
    engine.run(request("s", "one"))
    engine.close()
    with pytest.raises(PaceError):
        engine.score(ScoreRequest("s", request("s", "q").messages, ("answer",)))
