"""The plan inside turns: transcripts in bulk, protection, what cannot be resolved."""

from __future__ import annotations

import random

import pytest

from engine.errors import InvalidRequest
from engine.runner import ModelRunner
from engine.types import PlanSegment, PlanUpdate, Sampling, ScoreRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    RANGE,
    kept,
    outcome,
    policy_config,
    request,
    state_of,
    tiny_llama,
)
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession, message_tokens

RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
POLICIES = {"test": policy_config(RULES)}
Turn = list[tuple[str, str]]


def new_reference() -> ReferenceSession:
    return ReferenceSession(DenseLlama(tiny_llama(), RANGE), RULES)


def bulk(steps: int, seed: int) -> Turn:
    """A transcript of ``steps`` steps that ends with a user message."""
    draw = random.Random(seed)
    messages = [("system", "be brief")]
    for step in range(1, steps + 1):
        messages.append(("user", "".join(draw.choices("abcdefgh .\n", k=draw.randint(5, 60)))))
        if step % 3 == 0:
            messages.append(("tool", "result"))
        if step < steps:
            messages.append(("assistant", "".join(draw.choices("xyz ", k=12))))
    return messages


def test_steps_advance_inside_a_transcript_that_arrives_in_bulk(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Readers inside the transcript protect until their step is written, later ones beyond."""
    engine, reference = make_engine(tiny, POLICIES), new_reference()
    messages, plan = bulk(8, seed=1), {4: (1,), 6: (2, 3), 8: (6,), 9: (5,)}
    update = PlanUpdate(plan=plan)
    got = outcome(engine.run(request("s", *messages, plan=update)))
    expected = reference.turn(messages, max_tokens=8, plan=plan)
    assert got.done.pace.unresolved == ()
    assert kept(state_of(engine, "s").row) == reference.logical
    assert kept(state_of(engine, "s").row, "physical") == reference.physical
    assert list(got.token_ids) == expected.tokens
    steps = [event.step for event in engine.events("", "s") if event.kind == "eviction"]
    assert steps == [step for step, _ in reference.evictions]
    assert len(set(steps)) >= 5, "evictions were to happen in many steps"
    by_step = {step: layers[0].uses for step, layers in reference.evictions}
    assert 4 in by_step[3] and 4 in by_step[4] and 4 not in by_step[5]


def test_a_planned_span_stays_whole_until_its_last_reader(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """The same session without the plan loses part of it, so it was the plan that kept it."""
    engine = make_engine(tiny, POLICIES)
    fact = "the code is 4711, the ship is the Aurora"
    span = set(range(len(message_tokens("user", fact))))
    plans = {"planned": (PlanSegment((0,), (3, 5)),), "unplanned": ()}
    for name, segments in plans.items():
        engine.run(request(name, fact, plan=PlanUpdate(segments=segments)))

    def resident(name: str) -> int:
        return min(len(span & set(layer)) for layer in kept(state_of(engine, name).row))

    for step in range(2, 7):
        for name in plans:
            got = outcome(engine.run(request(name, f"filler {step} " * 12)))
            rho = got.done.pace.residency
            assert rho == (1.0 if name == "planned" and step in (3, 5) else None)
        if step <= 5:
            assert resident("planned") == len(span), f"step {step}"
    assert resident("unplanned") < len(span)
    protected = {
        event.step: event.data["kept_protected"]
        for event in engine.events("", "planned")
        if event.kind == "eviction"
    }
    assert all(min(protected[step]) > 30 for step in (2, 3, 4, 5))
    assert max(protected[6]) == 0
    assert engine.session("", "planned")["plan"] == {"steps": {}, "messages": {}}


def test_a_step_given_by_the_client_is_the_one_the_plan_counts(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    first = outcome(engine.run(request("s", "one", plan=PlanUpdate(plan={9: (4,)}, step=4))))
    assert first.done.pace.step == 4
    for step, residency in ((7, None), (9, 1.0)):
        got = outcome(engine.run(request("s", "two", plan=PlanUpdate(step=step))))
        assert (got.done.pace.step, got.done.pace.residency) == (step, residency)
    before = state_of(engine, "s")
    with pytest.raises(InvalidRequest, match=r"pace\.step 9 must be at least 10"):
        engine.run(request("s", "three", plan=PlanUpdate(step=9)))
    assert state_of(engine, "s") is before


def test_unresolved_references_are_in_the_answer_or_refused(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    plan = {7: (1,), 3: (5,)}
    got = outcome(engine.run(request("s", "one", plan=PlanUpdate(plan=plan))))
    assert got.done.pace.unresolved == ("step 3 cannot read step 5: it is not earlier",)
    before = state_of(engine, "s")
    with pytest.raises(InvalidRequest):
        engine.run(request("s", "two", plan=PlanUpdate(plan=plan, strict=True)))
    assert state_of(engine, "s") is before and before.plan.by_step == {1: (7,)}


def test_scores_are_taken_under_the_plan_they_come_with(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Residency and rotary gap of a score are those the same turn would have."""
    engine = make_engine(tiny, POLICIES)
    update = PlanUpdate(plan={3: (1,)})
    engine.run(request("s", "a fact to remember", plan=update))
    engine.run(request("s", "filler " * 30))
    ask = request(
        "s", "what was it?", sampling=Sampling(max_tokens=6, temperature=0.0, logprobs=True)
    )
    scored = engine.score(ScoreRequest("s", ask.messages, ("some words", "x")))
    got = outcome(engine.run(ask))
    assert (scored.residency, scored.rotary_gap) == (
        got.done.pace.residency,
        got.done.pace.rotary_gap,
    )
    assert scored.residency == 1.0
