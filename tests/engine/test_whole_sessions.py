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

from engine.runner import ModelRunner
from tests.engine.families import make_exact
from tests.engine.recorded import Turn, compare, densely, recorded
from tests.engine.support import RANGE, tiny_llama
from tests.reference.dense import DenseModel
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import Model, ReferenceSession
from tests.support.scale import scaled

TEXT = st.text("abcdefgh .\n", min_size=1, max_size=40)
STEPS = st.integers(1, 9)
PLANS = st.dictionaries(STEPS, st.lists(STEPS, max_size=3).map(tuple), max_size=4)
SEGMENT = st.tuples(*[st.lists(st.integers(0, n), min_size=1, max_size=3) for n in (11, 9)])
SEGMENTS = st.lists(SEGMENT.map(lambda part: (tuple(part[0]), tuple(part[1]))), max_size=4)
KINDS = ["h2o", "plan_aware", "plan_aware", "additive", "snapkv", "streaming", "none"]


@st.composite
def rules(draw: Any) -> Rules:
    kind = draw(st.sampled_from(KINDS))
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
    for number in range(draw(st.integers(2, 5))):
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
    max_examples=scaled(14),
    phases=[Phase.explicit, Phase.generate],  # whole sessions shrink for longer than a test may run
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@RANDOM
@given(rules(), turns())
def test_a_session_is_the_naive_pace_and_one_dense_forward(
    tiny: ModelRunner, naive: Model, dense: DenseModel, rules: Rules, turns: list[Turn]
) -> None:
    with recorded(tiny, rules) as session:
        reference = ReferenceSession(naive, rules)
        compare(session, reference, turns)
        densely(session, dense)
        event(f"{rules.retention} {rules.foresight} L{rules.limit is not None}")
        event(f"evictions {min(len(reference.evictions), 3)}")
        event(f"renumbers {min(reference.renumbers, 3)}")
        event(f"redone {any(turn.redo for turn in turns)}")
