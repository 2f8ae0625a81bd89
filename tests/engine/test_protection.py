"""What a plan guarantees when it asks for more than fits, and how long it holds."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import engine.flow
from engine.config import CachePolicy, EngineConfig, PolicyConfig
from engine.engine import KVEngine
from engine.retention import NO_USE, Candidates
from engine.runner import ModelRunner
from engine.types import Message, PlanSegment, PlanUpdate, ScoreRequest, TurnRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import GREEDY, kept, outcome, policy_config, request, state_of
from tests.reference.retention import Rules
from tests.reference.session import message_tokens

# quota of the plan: 80 - 4 - 12 - 10 = 54 tokens
RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
POLICIES = {"test": policy_config(RULES)}
SOON, LATE = "the code is 4711 and the ship Aurora", "the fee is 23.5 and the port 8080 now"


def tokens_of(engine: KVEngine, name: str, message: int) -> set[int]:
    span = engine.session("", name)["spans"][message]
    return set(range(span["start"], span["end"]))


def resident(engine: KVEngine, name: str, message: int) -> int:
    """Tokens of a message that every layer holds at least."""
    tokens = tokens_of(engine, name, message)
    return min(len(tokens & set(layer)) for layer in kept(state_of(engine, name).row))


def filler(step: int) -> str:
    return f"filler {step} " * 9


@pytest.mark.parametrize("first_is_sooner", [True, False])
def test_of_two_spans_that_do_not_both_fit_the_one_needed_sooner_stays(
    first_is_sooner: bool, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Whichever was written first. The other one has what is left, and its turn comes."""
    engine = make_engine(tiny, POLICIES)
    readers = (6, 9) if first_is_sooner else (9, 6)
    assert len(message_tokens("user", SOON)) + len(message_tokens("user", LATE)) > 54 + 4
    segments = tuple(PlanSegment((at,), (r,)) for at, r in zip((0, 1), readers, strict=True))
    got = outcome(engine.run(request("s", SOON, LATE, plan=PlanUpdate(segments=segments))))
    sooner = 0 if first_is_sooner else 1
    displaced = got.done.pace.displaced
    for step in range(3, 9):
        got = outcome(engine.run(request("s", filler(step))))
        displaced += got.done.pace.displaced
        whole = len(tokens_of(engine, "s", sooner))
        if step <= 6:
            assert resident(engine, "s", sooner) == whole
            assert resident(engine, "s", 1 - sooner) < len(tokens_of(engine, "s", 1 - sooner))
            assert resident(engine, "s", 1 - sooner) > 5
        if step == 6:
            assert got.done.pace.residency == 1.0
            left = resident(engine, "s", 1 - sooner)
        if step > 6:  # what was lost does not come back, and what was left is now protected
            assert resident(engine, "s", 1 - sooner) == left
    assert displaced > 0
    assert resident(engine, "s", sooner) < len(tokens_of(engine, "s", sooner))


Seen = list[tuple[Candidates, list[list[int]]]]


@pytest.fixture
def selections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Every selection: candidates and what stays."""
    seen: Seen = []
    select: Callable[[CachePolicy, Candidates], torch.Tensor] = engine.flow.select_keep

    def watched(policy: CachePolicy, candidates: Candidates) -> torch.Tensor:
        keep = select(policy, candidates)
        seen.append((candidates, keep.tolist()))
        return keep

    monkeypatch.setattr(engine.flow, "select_keep", watched)
    yield seen


def test_the_reserve_goes_by_score_whatever_the_plan_asks_for(
    selections: Seen, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """The plan reads two steps of three again, three times the budget: beyond its 54 tokens the 10
    best of all others stay, some that nobody planned among them."""
    made = make_engine(tiny, POLICIES)
    read = [step for step in range(1, 19) if step % 3]
    texts = [filler(step)[:24] for step in range(1, 19)]
    made.run(request("s", *texts, plan=PlanUpdate(plan={20: tuple(read)})))
    assert sum(len(tokens_of(made, "s", step - 1)) for step in read) > 3 * RULES.budget
    made.run(request("s", "what is asked now is not planned " * 3))
    starved = saved = 0
    quota = RULES.budget - RULES.sinks - RULES.recent - RULES.reserve
    for candidates, keep in selections:
        for layer, stay in enumerate(keep):
            logical = candidates.logical[layer].tolist()
            scores, uses = candidates.score[layer].tolist(), candidates.next_use[layer].tolist()
            free = [i for i in range(len(logical) - RULES.recent) if logical[i] >= RULES.sinks]
            by_score = sorted(free, key=lambda i: (-scores[i], -i))
            planned = [i for i in by_score if uses[i] < NO_USE]  # all by the same step
            others = [i for i in by_score if i not in planned[:quota]][: RULES.reserve]
            assert set(others) <= set(stay)
            if len(planned) >= quota + RULES.reserve:  # without a reserve these would be all
                starved += 1
                saved += sum(uses[i] == NO_USE for i in others)
    assert starved > 10, "the plan was to want all of the budget"
    assert saved > starved, "of what is not planned something was to stay"


def test_protection_ends_when_the_last_readers_step_has_passed(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """A step of several turns, a tool call each, reads it in all of them; readers that are not
    the last end nothing. Without the plan the same session loses it."""
    engine = make_engine(tiny, POLICIES)
    plans = {"planned": (PlanSegment((0,), (3, 5)),), "unplanned": ()}
    for name, segments in plans.items():
        engine.run(request(name, SOON, plan=PlanUpdate(segments=segments)))
    whole = len(tokens_of(engine, "planned", 0))
    turns = [(2, "user"), (3, "user"), (3, "tool"), (3, "tool"), (4, "user")]
    turns += [(5, "user"), (5, "tool"), (5, "tool"), (5, "tool")]
    for step, role in turns:
        for name in plans:
            got = outcome(engine.run(request(name, (role, filler(step)))))
            assert got.done.pace.step == step and got.done.pace.evicted > 30
            reads = name == "planned" and step in (3, 5)
            assert got.done.pace.residency == (1.0 if reads else None)
        assert resident(engine, "planned", 0) == whole, f"step {step}, {role}"
    assert resident(engine, "unplanned", 0) < whole
    # its scores of so many steps may keep it; against what is planned now they do not
    engine.run(request("planned", filler(6), plan=PlanUpdate(plan={9: (6,)})))
    assert resident(engine, "planned", 0) < whole
    assert engine.session("", "planned")["plan"] == {"steps": {"6": [9]}, "messages": {}}


FACT = "The deploy key of the server is tango-42."
ASKED = "What is the deploy key of the server? Answer with the key only."
BUDGET, CHUNK = 384, 128


@pytest.mark.timeout(300)
def test_a_question_is_not_starved_by_a_plan_three_times_the_budget(smollm2: Path) -> None:
    """A fact in the message that asks for it, outside of the recent window and cut into chunks, is
    as well known under the plan as without one."""
    rules = Rules("plan_aware", BUDGET, 4, 48, 32, CHUNK, limit=640)
    policies: dict[str, PolicyConfig] = {"pace": policy_config(rules, "pace")}
    config = EngineConfig(model=str(smollm2), default_policy="pace", threads=2)
    made = KVEngine.from_config(config, policies)
    threads = torch.get_num_threads()
    try:
        text = inspect.getsource(json)
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        ids = tokenizer(text)["input_ids"]
        history = [tokenizer.decode(ids[at : at + 160]) for at in range(0, 8 * 160, 160)]
        between = tokenizer.decode(tokenizer(inspect.getsource(random))["input_ids"][:250])
        question = Message("user", f"{FACT}\n\n{between}\n\n{ASKED}")
        messages = tuple(Message("user", part) for part in history)
        made.run(TurnRequest("s", messages, sampling=GREEDY))
        found = {}
        for name, plan in (("unplanned", {}), ("planned", {12: tuple(range(1, 9))})):
            ask = ScoreRequest("s", (question,), ("tango-42",), plan=PlanUpdate(plan=plan))
            (scored,) = made.score(ask).continuations
            found[name] = sum(scored.logprobs)
    finally:
        made.close()
        torch.set_num_threads(threads)
    assert found["planned"] > found["unplanned"] - 0.3, found
