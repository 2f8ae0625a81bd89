"""Whole sessions drawn at random, of every policy, against the references of ``tests/reference``.

Each turn is compared with a naive PACE: what every eviction kept, positions, scores, logits,
figures. Then all that was computed in the session is computed again, in one dense forward that
knows nothing but the recorded schedule and keep sets.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from engine.policies import retention_names
from engine.runner import ModelRunner
from tests.engine.families import make_exact
from tests.engine.recorded import Turn, compare, densely, recorded
from tests.engine.support import RANGE, runner_for, tiny_llama
from tests.reference.dense import DenseModel
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import Model, ReferenceSession
from tests.support.scale import scaled

TEXT = st.text("abcdefgh .\n", min_size=12, max_size=40) | st.just("a")
STEPS = st.integers(1, 9)
PLANS = st.dictionaries(STEPS, st.lists(STEPS, max_size=3).map(tuple), max_size=4)
SEGMENT = st.tuples(*[st.lists(st.integers(0, n), min_size=1, max_size=3) for n in (11, 9)])
SEGMENTS = st.lists(SEGMENT.map(lambda part: (tuple(part[0]), tuple(part[1]))), max_size=4)
KINDS = [*retention_names(), "additive"]


@st.composite
def rules(draw: Any, kind: str) -> Rules:
    sinks, recent = draw(st.integers(0, 5)), draw(st.integers(0, 14))
    budget = draw(st.integers(sinks + recent + 8, 60))
    interval = draw(st.integers(1, 12))
    chunk = draw(st.sampled_from([1, 3, 8, 17, 40, 90]))
    if kind == "none":
        budget = 900
    slack = draw(st.sampled_from([None, 0, 1, 30]))
    limit = None if slack is None else budget + interval + chunk + slack
    each = kind == "streaming" and limit is not None
    return Rules(
        "plan_aware" if kind == "additive" else kind,
        *(budget, sinks, recent, interval, chunk, limit),
        foresight="additive" if kind == "additive" else "strict",
        renumber="eviction" if each else "limit",
    )


@st.composite
def turns(draw: Any) -> list[Turn]:
    made: list[Turn] = []
    for number in range(draw(st.integers(3, 5))):
        messages = [("system", draw(TEXT))] if number == 0 and draw(st.booleans()) else []
        for more in range(draw(st.sampled_from([1, 1, 3]))):  # steps; several arrive in bulk
            if more:
                messages.append(("assistant", draw(TEXT)))
            # a turn may go on with a step instead of beginning one
            begins = number == 0 or more > 0 or draw(st.integers(0, 3)) > 0
            messages.append(("user" if begins else "tool", draw(TEXT)))
            if draw(st.integers(0, 4)) == 4:
                messages.append(("tool", draw(TEXT)))
        plan = draw(st.none() | PLANS)
        segments = draw(st.none() | SEGMENTS)
        skip = draw(st.sampled_from([0, 0, 0, 1, 3]))
        answer = draw(st.integers(1, 14))
        made.append(Turn(messages, answer, plan, segments, skip=skip))
        if number and draw(st.integers(0, 3)) == 3:  # regenerated, or edited
            edited = made[-1].messages if draw(st.booleans()) else [("user", draw(TEXT))]
            made.append(Turn(edited, draw(st.integers(1, 14)), draw(st.none() | PLANS), redo=True))
    return made


@pytest.fixture(scope="module")
def naive() -> DenseLlama:
    return DenseLlama(tiny_llama(), RANGE)


@pytest.fixture(scope="module")
def dense() -> DenseModel:
    model = tiny_llama()
    model.set_attn_implementation("eager")
    make_exact(model)  # eager attention goes through float32
    return DenseModel(model)


RANDOM = settings(
    derandomize=True,
    deadline=None,
    max_examples=scaled(3),
    phases=[Phase.explicit, Phase.generate],  # whole sessions shrink for longer than a test may run
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(0)  # as long as PACE_SCALE asks for
@pytest.mark.parametrize("kind", KINDS)
@RANDOM
@given(st.data(), turns())
def test_a_session_is_the_naive_pace_and_one_dense_forward(
    kind: str, tiny: ModelRunner, naive: Model, dense: DenseModel, data: Any, turns: list[Turn]
) -> None:
    drawn = data.draw(rules(kind))
    with recorded(tiny, drawn) as session:
        reference = ReferenceSession(naive, drawn)
        compare(session, reference, turns)
        densely(session, dense)
    for what, count in (
        ("evictions", len(reference.evictions)),
        ("renumbers", reference.renumbers),
        ("redone", sum(turn.redo for turn in turns)),
    ):
        event(f"{what}: {min(count, 3)}")  # --hypothesis-show-statistics


ALIKE = [Turn([("user", "abcdefgh " * 7)], 4)] * 6


@pytest.mark.parametrize("chunk", [17, 48])
def test_equal_scores_keep_the_newer_token_in_a_session(chunk: int) -> None:
    """Queries that are 0 give every key the same, to the last bit."""
    indifferent, twin = tiny_llama(), tiny_llama()
    for model in (indifferent, twin):
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    rules = Rules("snapkv", 40, 2, 4, 8, chunk, limit=100)
    with recorded(runner_for(indifferent), rules) as session:
        reference = ReferenceSession(DenseLlama(twin, RANGE), rules)
        compare(session, reference, ALIKE)
    ties = 0
    for _, layers in reference.evictions:
        for layer in layers:
            kept = {layer.scores[i] for i in layer.stay}
            ties += any(layer.scores[i] in kept for i in range(5, 40) if i not in layer.stay)
    assert ties > 20, "equal scores were to be lost and kept"


SCRATCH = [
    Rules("plan_aware", 40, 2, 8, 6, 24, limit=70),
    Rules("snapkv", 40, 2, 8, 6, 40),
    Rules("streaming", 40, 2, 8, 6, 24, limit=70, renumber="eviction"),
]
SHORT = [
    Turn([("system", "be brief"), ("user", "a key is ab. " * 3)], 5, {2: (1,), 4: (1, 2)}),
    Turn([("user", "the cab had a flag")], 5),
    Turn([("user", "g fed ha"), ("assistant", "ab"), ("user", "cd"), ("tool", "e")], 5),
    Turn([("user", "edited")], 5, {5: (3,)}, [((1,), (4,))], redo=True),
    # a message that its own step reads is not one that the step needs from before
    Turn([("user", "ab?")], 3, None, [((1, 7), (4,))]),
]


@pytest.mark.parametrize("rules", SCRATCH, ids=lambda r: r.retention)
def test_pace_without_a_cache_is_pace(tiny: ModelRunner, dense: DenseModel, rules: Rules) -> None:
    """Everything is computed again for every chunk and every decoded token; scores are sums over
    the columns of the attention matrix."""
    with recorded(tiny, rules) as session:
        reference = ReferenceSession(dense, rules)
        compare(session, reference, SHORT)
    assert reference.evicted > 2 * rules.budget
    assert rules.limit is None or reference.renumbers > 1
