"""Sessions: the same for every arm, different for every seed, and silent about the answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.arms import plan_of
from bench.filler import Filler, SourcePool, token_ends
from bench.plan import BenchPlan, PlanNoise
from bench.sessions import Session, SessionBuilder, template_fingerprint
from bench.tasks import Probe, load_task, number_steps, revealed, task_names
from bench.tasks.facts import Facts
from engine.chat import ChatFormat
from engine.errors import ConfigError
from tests.bench.runs import make_source, small_plan
from tests.support.protocol_model import byte_tokenizer


def build(tmp_path: Path, task: Any = None, **changes: Any) -> list[Session]:
    source = make_source(tmp_path / "source", files=40)
    return built(small_plan(tmp_path, **changes), source, task)


def built(plan: BenchPlan, source: Path, task: Any = None) -> list[Session]:
    tokenizer = byte_tokenizer()
    filler = Filler(SourcePool(source), token_ends(tokenizer))
    chat = ChatFormat(tokenizer)
    builder = SessionBuilder(plan, task or load_task(plan.task), chat, filler)
    return [
        session
        for group in plan.sessions
        for seed in plan.seeds
        for session in builder.sessions(group, seed)
    ]


@pytest.mark.parametrize("name", task_names())
def test_thirty_seeds_are_thirty_tasks_whose_probes_reveal_nothing(name: str) -> None:
    task = load_task(name)
    specs = [task.specification(seed) for seed in range(30)]
    assert len({repr(spec) for spec in specs}) == 30
    assert specs[3] == task.specification(3)
    for spec in specs:
        definitions = " ".join(task.definitions(spec))
        assert all(value in definitions for value in task.forbidden(spec))
        for probe in task.probes(spec):
            assert not revealed(probe, task.forbidden(spec))
            assert all(0 <= index < len(task.definitions(spec)) for index in probe.reads)


def test_a_probe_that_reveals_a_value_is_found_and_refused(tmp_path: Path) -> None:
    shown = Probe("p", "the port 2100, in <step 3>", (0,), True, (), 4)
    assert revealed(shown, ["2100", "210", "3", "port 2"]) == ["2100"]

    class Leaky(Facts):
        def probes(self, spec: Any) -> list[Probe]:
            first, *others = super().probes(spec)
            return [replace(first, prompt=f"Is it {self.forbidden(spec)[0]}?"), *others]

    with pytest.raises(ConfigError, match="shows the sampled value"):
        build(tmp_path, Leaky())


def test_a_session_has_its_length_and_its_distance(tmp_path: Path) -> None:
    near, far = build(tmp_path)
    for session, distance in ((near, 600), (far, 1800)):
        committed = [ask for ask in session.asks if not ask.forked]
        # the template's own: "<|im_start|>", the role, two line breaks and "<|im_end|>"
        length = sum(ask.tokens + 11 + ask.answer + 2 for ask in committed)
        assert abs(length - 3800) < 60
        defines = next(i for i, ask in enumerate(committed) if ask.defines)
        behind = sum(ask.tokens + 11 + ask.answer + 2 for ask in committed[defines:])
        stated = committed[defines].messages[:-1]
        behind -= sum(len(m.content) + len(m.role) + 4 for m in stated)
        assert abs(behind - distance) < 600 / 2
    texts = [message.content for ask in far.asks for message in ask.messages]
    assert len(texts) == len(set(texts))


def test_steps_are_numbered_once_and_the_graph_names_them(tmp_path: Path) -> None:
    for session in build(tmp_path, sessions=[{"layout": "single", "tokens": 7000}]):
        users = [m.content for ask in session.asks for m in ask.messages if m.role == "user"]
        numbers = [int(re.match(r"STEP (\d+): ", text)[1]) for text in users]  # type: ignore[index]
        assert numbers == list(range(1, len(users) + 1))
        by_step = dict(zip(numbers, users, strict=True))
        assert len(session.graph) == 10
        for step, (read,) in session.graph.items():
            asked = re.search(r"What is the (.+)\?", by_step[step])[1]  # type: ignore[index]
            assert f"The {asked} is" in by_step[read] and read < step
        assert all("def part_" in by_step[step] for step in session.filler_steps)


def test_checksums_tell_every_difference(tmp_path: Path) -> None:
    first = build(tmp_path / "a")
    again = build(tmp_path / "b")
    other = build(tmp_path / "c", seeds=[2])
    sums = [session.checksum for session in first]
    assert sums == [session.checksum for session in again]
    assert len({*sums, *(session.checksum for session in other)}) == 4
    for path in (tmp_path / "a" / "source").iterdir():
        path.write_text(path.read_text().replace("value *", "value +"))
    changed = built(small_plan(tmp_path), tmp_path / "a" / "source")
    assert not {session.checksum for session in changed} & set(sums)


def test_the_fingerprint_changes_with_any_wording() -> None:
    class Other(Facts):
        def __init__(self, method: str) -> None:
            self.method = method

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name != "method" and name == super().__getattribute__("method"):
                return lambda spec: _edited(found(spec))
            return found

    def _edited(value: Any) -> Any:
        if isinstance(value, str):
            return f"{value} "
        first, *others = value
        if isinstance(first, Probe):
            return [replace(first, prompt=f"{first.prompt} "), *others]
        return [f"{first} ", *others]

    prints = [template_fingerprint(Facts())]
    prints += [
        template_fingerprint(Other(method))
        for method in ("system", "definitions", "replies", "probes")
    ]
    assert len(set(prints)) == 5 and prints[0] == template_fingerprint(Facts())


def test_step_names_become_numbers() -> None:
    text = "as in <step 2>, not <step 1>; <steps> stay"
    assert number_steps(text, [11, 17]) == "as in step 17, not step 11; <steps> stay"


def test_noisy_plans_lack_and_invent_as_many_edges_as_stated(tmp_path: Path) -> None:
    (session,) = build(tmp_path, sessions=[{"layout": "single", "tokens": 7000}])
    truth = {(step, read) for step, reads in session.graph.items() for read in reads}
    assert plan_of(session, None) == session.graph
    before = truth
    for recall in (0.9, 0.7, 0.5, 0.0):
        plan = plan_of(session, PlanNoise(recall=recall))
        edges = {(step, read) for step, reads in plan.items() for read in reads}
        assert edges <= before and len(edges) == recall * 10
        before = edges
    plan = plan_of(session, PlanNoise(recall=0.8, precision=0.5))
    edges = {(step, read) for step, reads in plan.items() for read in reads}
    assert len(edges & truth) == 8 and len(edges - truth) == 8
    assert all(read in session.filler_steps and read < step for step, read in edges - truth)
    assert plan == plan_of(session, PlanNoise(recall=0.8, precision=0.5))
