"""Playing: forks change nothing, and what is measured is what the rows hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bench.runner
from bench.player import Player, _logprob, shared_tokens
from bench.results import ProbeResult
from bench.runner import BenchRun, Group
from bench.sessions import Session
from bench.tasks import Probe, ProbeScore, Target
from bench.tasks.facts import Facts
from engine.engine import KVEngine
from engine.errors import CapacityExceeded, EngineFailure
from engine.flow import Writer
from engine.state import SessionState
from engine.types import LedgerEvent, Message, ScoredContinuation, ScoreRequest, ScoreResult
from tests.bench.runs import make_source, small_plan, small_run

FACTS = 4
# room for what the plan protects: definitions of about 110 tokens
ROOM = {"budget": 800, "position_limit": 900}
ARMS = [
    {"name": "pace", "policy": "pace", "set": ROOM},
    "streaming",
    {"name": "half", "policy": "pace", "set": ROOM, "plan": {"recall": 0.5}},
]


class Few(Facts):
    """Four of the ten facts."""

    def specification(self, seed: int) -> Mapping[str, Any]:
        return dict(list(super().specification(seed).items())[:FACTS])


@pytest.fixture(scope="module")
def run(protocol_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchRun]:
    source = make_source(tmp_path_factory.mktemp("filler"))
    sessions = [{"layout": "distance", "tokens": 3000, "distances": [600, 1800]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.runner, "load_task", lambda name: Few())
        yield small_run(small_plan(protocol_model, arms=ARMS, sessions=sessions), source)


@pytest.fixture(scope="module")
def engine(run: BenchRun) -> Iterator[KVEngine]:
    made = run._engine()
    yield made
    made.close()


class Rows:
    """Copies, for each step, of what its last prompt token saw: all positions, per layer."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Tensor, Tensor, list[Any]]] = {}

    def after_chunk(self, state: SessionState, first: int, raw: Tensor, value: Tensor) -> None:
        row, count = state.row, raw.shape[2]
        assert row is not None
        if first + count < len(state.tokens):
            return
        fresh = first + torch.arange(count).expand(row.logical.shape[0], count)
        logical = torch.cat((row.logical[:, : row.length], fresh), dim=1).clone()
        physical = torch.cat((row.physical[:, : row.length], fresh - state.shift), dim=1).clone()
        # later calls of the step are those of decoded tokens
        self.seen.setdefault(state.step, (logical, physical, list(state.messages)))


def recomputed(rows: Rows, step: int, read: int) -> dict[str, Any]:
    """ρ, Δ and the composition, from positions and messages alone, in plain loops."""
    logical, physical, messages = rows.seen[step]
    spans = [(m.start, m.end) for m in messages if m.step == read]
    needed = {position for start, end in spans for position in range(start, end)}
    own = min(m.start for m in messages if m.step == step)
    last = int(logical.max())
    resident, gaps, sums = [], [], dict.fromkeys(("sink", "needed", "recent", "other_old"), 0)
    for row, places in zip(logical.tolist(), physical.tolist(), strict=True):
        held = [place for position, place in zip(row, places, strict=True) if position in needed]
        resident.append(len(held) / len(needed))
        gaps += [places[-1] - place for place in held]
        for rank, position in enumerate(row):
            newest = rank >= len(row) - 128 or position >= own
            kind = "sink" if position < 4 else "needed" if position in needed else "other_old"
            sums["recent" if kind == "other_old" and newest else kind] += 1
    layers = logical.shape[0]
    assert last == int(logical[0, -1])
    return {
        "residency": min(resident),
        "rotary_gap": max(gaps, default=None),
        "composition": {name: count / layers for name, count in sums.items()},
    }


@pytest.mark.parametrize("arm", range(len(ARMS)))
def test_measures_equal_those_recomputed_from_the_exact_rows(
    arm: int, run: BenchRun, engine: KVEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows()
    engine.writer = Writer(blocks=rows)
    chosen = run.plan.arms[arm]
    session = next(g for g in run.groups() if g.arm == chosen).sessions[1]
    scored: list[tuple[Message, ...]] = []
    score = engine.score

    def scoring(request: ScoreRequest) -> ScoreResult:
        scored.append(request.messages)
        found = score(request)
        # under the true needs another set is protected than under the arm's plan
        return replace(found, composition={**found.composition, "highest_unprotected_score": 0.0})

    monkeypatch.setattr(engine, "score", scoring)
    turns: dict[int, Mapping[str, Any]] = {}
    events = engine.events

    def listening(*args: Any, **more: Any) -> list[LedgerEvent]:
        found = events(*args, **more)
        turns.update((event.step, event.data) for event in found if event.kind == "turn")
        return found

    monkeypatch.setattr(engine, "events", listening)
    (played,) = Player(engine, run.task, chosen).play([session])
    assert len(played.probes) == FACTS
    tokens = {ask.messages: ask.tokens for ask in session.asks}
    expected_tokens = sum(tokens.values()) + sum(tokens[messages] for messages in scored)
    assert Group(chosen, (session,)).tokens[0] == expected_tokens
    for probe in played.probes:
        (read,) = session.graph[probe.step]
        expected = recomputed(rows, probe.step, read)
        assert probe.composition is not None
        assert probe.composition.model_dump() == pytest.approx(expected["composition"])
        assert probe.residency == pytest.approx(expected["residency"])
        assert probe.rotary_gap == expected["rotary_gap"]
        highest = turns[probe.step]["composition"]["highest_unprotected_score"]
        assert probe.highest_unprotected_score == highest > 0
    mean = sum(probe.residency or 0 for probe in played.probes) / FACTS
    if chosen.name == "pace":
        assert mean == 1
    if chosen.name == "half":
        assert mean < 0.8, "true needs count, not those of the plan"
    if chosen.name == "streaming":
        assert mean == 0


def test_sessions_that_begin_alike_give_what_each_gives_alone(
    run: BenchRun, engine: KVEngine
) -> None:
    engine.writer = Writer()
    group = next(group for group in run.groups() if group.arm.name == "pace")
    tokens: list[int] = []
    together = list(Player(engine, run.task, group.arm, tokens.append).play(group.sessions))
    alone = [
        played
        for session in group.sessions
        for played in Player(engine, run.task, group.arm).play([session])
    ]
    assert {p.session.distance: p.probes for p in together} == {
        p.session.distance: p.probes for p in alone
    }
    assert any(played.shared_s > 0 for played in together)
    assert all(played.shared_s == 0 for played in alone)
    read, written = shared_tokens(group.sessions)
    assert sum(tokens) == pytest.approx(read + written, rel=0.15)
    assert read < sum(shared_tokens([session])[0] for session in group.sessions)
    assert engine.sessions(None) == []


def test_a_session_that_was_dropped_to_make_room_does_not_begin_anew(
    run: BenchRun, engine: KVEngine
) -> None:
    engine.writer = Writer()
    group = next(group for group in run.groups() if group.arm.name == "pace")

    def drop(tokens: int) -> None:
        held = [session["session_id"] for session in engine.sessions("")]
        if len(held) > 1 and held[0].endswith("-1"):
            engine.delete("", held[0])

    with pytest.raises(CapacityExceeded, match=r"arm pace, 3000 tokens.*--only distance="):
        list(Player(engine, run.task, group.arm, drop).play(group.sessions))
    assert engine.sessions(None) == []


def test_the_error_of_a_first_turn_is_what_one_is_told(
    run: BenchRun, engine: KVEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request: object) -> None:
        raise EngineFailure("no first turn")

    monkeypatch.setattr(engine, "run", fails)
    group = run.groups()[0]
    with pytest.raises(EngineFailure, match="no first turn"):
        list(Player(engine, run.task, group.arm).play(group.sessions))


def test_a_target_is_measured_on_all_the_tokens_that_spell_it(engine: KVEngine) -> None:
    target = Target("Zoë Ö", opening="It is ")  # a token is a byte: two of its characters are two
    ids = engine.chat.encode(target.opening + target.text)
    texts = tuple(engine.chat.tokenizer.decode([one]) for one in ids)
    scored = ScoredContinuation(tuple(ids), texts, tuple(-float(n) for n in range(len(ids))))
    found = _logprob(target, scored, engine.chat.tokenizer.decode)
    count = len(target.text.encode())
    assert found.tokens == count and found.sum == sum(scored.logprobs[-count:])


class Chained:
    """A task whose second probe is a step of the session and needs the first's answer."""

    name = "chained"
    topic = ()

    def specification(self, seed: int) -> Mapping[str, Any]:
        return {"word": f"w{seed}x"}

    def system(self, spec: Mapping[str, Any]) -> str:
        return "system"

    def definitions(self, spec: Mapping[str, Any]) -> list[str]:
        return [f"The word is {spec['word']}.", "Nothing else, after <step 1>."]

    def probes(self, spec: Mapping[str, Any]) -> list[Probe]:
        target = Target(spec["word"], opening="It is ")
        return [
            Probe("first", "Say the word of <step 1>.", (0,), False, (target,), 5),
            Probe("second", "Say it again.", (0,), False, (), 6, after=("first",)),
        ]

    def forbidden(self, spec: Mapping[str, Any]) -> list[str]:
        return [spec["word"]]

    def score(
        self, spec: Mapping[str, Any], probe: Probe, answer: str, earlier: Mapping[str, str]
    ) -> ProbeScore:
        self.earlier = dict(earlier)
        return ProbeScore(0, 1, ("c",), 0, 1, ("f",), "forgetting")


def test_committed_probes_are_steps_that_later_ones_read(
    run: BenchRun, engine: KVEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows()
    engine.writer = Writer(blocks=rows)
    task = Chained()
    monkeypatch.setattr(bench.runner, "load_task", lambda name: task)
    sessions = [{"layout": "single", "tokens": 4000}]
    plan = run.plan.model_copy(update={"task": "chained"})
    plan = type(plan).model_validate(plan.model_dump() | {"sessions": sessions})
    other = small_run(plan, run.pool.folder)
    session: Session = other.groups()[0].sessions[0]
    (played,) = Player(engine, task, plan.arms[0]).play([session])
    first, second = played.probes
    steps = sorted(session.graph)
    definition = session.graph[steps[0]][0]
    assert session.graph == {steps[0]: (definition,), steps[1]: (definition, steps[0])}
    asked = next(ask for ask in session.asks if ask.step == steps[0])
    assert asked.messages[-1].content.endswith(f"Say the word of step {definition}.")
    assert task.earlier == {"first": first.answer} and first.completion_tokens == 5
    assert second.prompt_tokens > first.prompt_tokens + first.completion_tokens
    assert _texts(first) == [session.spec["word"]] and _texts(second) == []
    # the second needs what the first one answered, which is resident
    _, _, messages = rows.seen[steps[1]]
    needed = sum(m.end - m.start for m in messages if m.step in session.graph[steps[1]])
    assert second.residency == 1 and second.composition is not None
    assert second.composition.needed == needed


def _texts(probe: ProbeResult) -> list[str]:
    return [target.text for target in probe.targets]
