"""The coding task: what it samples and asks, and which checks right and wrong answers pass.

Wrong answers are right ones with one thing changed; the checks each has to lose follow from the
amounts' kinds (``below``: between two quanta, nearer to the lower one; ``tie_even``: in the middle,
the lower one being an even multiple; …), not from running the code.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import pytest

from bench import sandbox
from bench.coding import checks
from bench.coding.recall import facts, missing_facts
from bench.coding.reference import reference_answer
from bench.coding.spec import ROUNDINGS, CodingSpec, Rounding, amounts, fee, sample_spec
from bench.runner import BenchRun
from bench.sandbox import SandboxError
from bench.sessions import template_fingerprint
from bench.tasks import ProbeScore, load_task, revealed
from bench.tasks.coding import TASK
from tests.bench.runs import Silent, make_source, small_plan
from tests.support.scale import scaled

SEEDS = range(30)
PROBES = {probe.name: probe for probe in TASK.probes(TASK.specification(0))}
BELOW, ABOVE = {"below_1", "below_2"}, {"above_1", "above_2"}
TIES = {"tie_even", "tie_odd"}
ALL = BELOW | ABOVE | TIES | {"capped"}
MODULE = {"definitions", "fees", "total", "status", "duplicate"}


def first_spec(rounding: Rounding) -> CodingSpec:
    return next(spec for spec in map(sample_spec, range(1000)) if spec.rounding == rounding)


def score(spec: CodingSpec, probe: str, answer: str) -> ProbeScore:
    return TASK.score(spec.model_dump(), PROBES[probe], answer, {})


def test_thirty_seeds_give_thirty_specifications_within_the_papers_ranges() -> None:
    specs = [sample_spec(seed) for seed in SEEDS]
    assert len(set(specs)) == 30
    assert specs == [sample_spec(seed) for seed in SEEDS]
    for spec in map(sample_spec, range(300)):
        assert 17 <= spec.fee_bps <= 49 and 300 <= spec.fee_cap <= 900
        assert spec.quantum in (5, 10, 25) and spec.rounding in ROUNDINGS
        values = TASK.forbidden(spec.model_dump())
        assert len(set(values)) == len(values) == 19


def test_no_probe_reveals_a_sampled_value_and_every_definition_states_its_own() -> None:
    for seed in SEEDS:
        spec = TASK.specification(seed)
        values = TASK.forbidden(spec)
        for probe in TASK.probes(spec):
            assert revealed(probe, values) == []
        stated = "\n".join(TASK.definitions(spec))
        assert all(re.search(rf"\b{re.escape(value)}\b", stated) for value in values)
        assert revealed(PROBES["p1"], ["minor", "dataclass"]) == [
            "minor",
            "dataclass",
        ]  # it does look


def test_the_amounts_are_what_their_kinds_say() -> None:
    for spec in map(sample_spec, range(100)):
        unit = 10_000 * spec.quantum
        found = dict(amounts(spec))
        assert found.keys() == ALL and len(set(found.values())) == 7
        parts = {kind: divmod(value * spec.fee_bps, unit) for kind, value in found.items()}
        assert all(0 < 2 * parts[kind][1] < unit for kind in BELOW)
        assert all(unit < 2 * parts[kind][1] for kind in ABOVE)
        assert all(2 * parts[kind][1] == unit for kind in TIES)
        assert (parts["tie_even"][0] % 2, parts["tie_odd"][0] % 2) == (0, 1)
        assert all((parts[kind][0] + 1) * spec.quantum <= spec.fee_cap for kind in ALL - {"capped"})
        assert parts["capped"][0] * spec.quantum > spec.fee_cap
        assert {fee(spec, found["capped"])} == {spec.fee_cap}


def test_reference_answers_pass_every_check_and_hold_all_25_facts() -> None:
    counts = {"p1": (7, 5), "p2": (3, 6), "p3": (5, 14)}
    # the module holds both functions; each alone costs a process more
    judged = [(seed, "p3") for seed in SEEDS]
    judged += [(seed, probe) for seed in SEEDS[: scaled(8)] for probe in ("p1", "p2")]

    def judge(which: tuple[int, str]) -> ProbeScore:
        spec = sample_spec(which[0])
        return score(spec, which[1], reference_answer(spec, which[1]))

    with ThreadPoolExecutor(2) as pool:
        for (_, probe), found in zip(judged, pool.map(judge, judged), strict=True):
            checked, known = counts[probe]
            assert astuple(found) == (checked, checked, (), known, known, (), "pass")


WRONG_FEES: dict[str, tuple[Rounding, str, str, set[str]]] = {
    "half up for half even": ("ROUND_HALF_EVEN", "_HALF_EVEN", "_HALF_UP", {"tie_even"}),
    "half down for half even": ("ROUND_HALF_EVEN", "_HALF_EVEN", "_HALF_DOWN", {"tie_odd"}),
    "half even for half up": ("ROUND_HALF_UP", "_HALF_UP", "_HALF_EVEN", {"tie_even"}),
    "up for half up": ("ROUND_HALF_UP", "ROUND_HALF_UP", "ROUND_UP", BELOW),
    "down for half down": ("ROUND_HALF_DOWN", "_HALF_DOWN", "_DOWN", ABOVE),
    "up for half down": ("ROUND_HALF_DOWN", "_HALF_DOWN", "_UP", BELOW | TIES),
    "down for up": ("ROUND_UP", "ROUND_UP", "ROUND_DOWN", BELOW | ABOVE | TIES),
    "up for down": ("ROUND_DOWN", "ROUND_DOWN", "ROUND_UP", BELOW | ABOVE | TIES),
    "no cap": ("ROUND_UP", r"min\((.*), .*\)", r"\1", {"capped"}),
    "cap as floor": ("ROUND_UP", "min", "max", BELOW | ABOVE | TIES | {"capped"}),
    "a float": ("ROUND_UP", r"return (.*)", r"return float(\1)", ALL),
    "a Decimal": ("ROUND_UP", r"int\((.*)\) \*", r"\1 *", ALL - {"capped"}),
    "a string": ("ROUND_UP", r"return (.*)", r"return str(\1)", ALL),
    "nothing": ("ROUND_UP", "return ", "", ALL),
    "another field": ("ROUND_UP", r"entry\.\w+", "entry.status", ALL),
    "an unknown field": ("ROUND_UP", r"entry\.\w+", "entry.amount", ALL),
    "cut off": ("ROUND_UP", r"\(int.*", "(int", ALL),
    "floats, ties to even": (
        "ROUND_HALF_UP",
        r"parts = .*\n.*",
        "rounded = round(entry.{f_amt} * {fee_bps} / 10000 / {quantum})",
        {"tie_even"},
    ),
    "floats, rounded as asked": (
        "ROUND_HALF_UP",
        r"parts = .*\n.*",
        "rounded = entry.{f_amt} * {fee_bps} / 10000 / {quantum} + 0.5",
        set(),
    ),
}


@pytest.mark.parametrize("name", WRONG_FEES)
def test_a_wrong_fee_loses_exactly_its_checks(name: str) -> None:
    rounding, old, new, lost = WRONG_FEES[name]
    spec = first_spec(rounding)
    changed = _changed(spec, "p1", old, new)
    assert set(score(spec, "p1", changed).failed) == lost


def test_a_fee_without_its_quantum_loses_what_is_between_two_quanta() -> None:
    spec = first_spec("ROUND_UP")
    near = {k for k, a in amounts(spec) if -(-a * spec.fee_bps // 10_000) % spec.quantum == 0}
    changed = reference_answer(spec, "p1").replace(f" / {spec.quantum}", "")
    changed = changed.replace(f" * {spec.quantum}", "")
    found = score(spec, "p1", changed)
    assert set(found.failed) == ALL - near - {"capped"} and len(found.failed) >= 4
    assert (found.missing, found.outcome) == (("quantum",), "forgetting")


LOOP = r"    for entry.*\n.*\n"
WRONG_SETTLES = {
    "no look for duplicates": (r"    if len.*\n.*\n", "", {"duplicate"}),
    "another code": ("{dup_code}", "4000", {"duplicate"}),
    "the code as text": ("{dup_code}", "'{dup_code}'", {"duplicate"}),
    "another exception": ("{err}", "ValueError", {"duplicate"}),
    "status not set": (LOOP, "", {"status"}),
    "status of one": ("for entry in entries:", "for entry in entries[:1]:", {"status"}),
    "voided": (r"{s_done}\b", "{s_void}", {"status"}),
    "an invented state": (r"{s_done}\b", "DONE", {"total", "status"}),
    "the state's value": (r"{status_cls}\.{s_done}", "'{v_done}'", set()),
    "fees forgotten": (r" - fee_for\(entry\)", "", {"total"}),
    "fees only": (r"entry\.{f_amt} - ", "", {"total"}),
    "fees of the last": (r"entries\)\n```", "entries[-1:])\n```", {"total"}),
    "currency for reference": ("{f_ref}", "{f_ccy}", {"total", "status"}),
    "amount for reference": ("{f_ref}", "{f_amt}", {"total", "status"}),
    "its own fee_for": ("def settle", "def fee_for(entry):\n    return 0\n\n\ndef settle", set()),
    "its own exception": ("def settle", "class {err}(Exception):\n    pass\n\n\ndef settle", set()),
    "not there": ("def settle", "def settled", {"total", "status", "duplicate"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SETTLES)
def test_a_wrong_settle_loses_exactly_its_checks(name: str) -> None:
    old, new, lost = WRONG_SETTLES[name]
    spec = sample_spec(3)
    assert set(score(spec, "p2", _changed(spec, "p2", old, new)).failed) == lost


WRONG_MODULES = {
    "another rate": (r"{fee_name} = \d+", "{fee_name} = 51", {"definitions", "fees", "total"}),
    "another class": ("class {cls}", "class Entry", MODULE),
    "fields in another order": (
        r"(    {f_ref}: str\n)(    {f_amt}: int\n)", r"\2\1", {"definitions"},
    ),
    "another default": (r"status: str = .*", "status: str = 'open'", {"definitions"}),
    "no default": (r"status: str = .*", "status: str", MODULE),
    "code not kept": (r"        self\.code = code\n", "", {"definitions", "duplicate"}),
    "another settled value": ("{v_done}", "settled", {"definitions", "status"}),
    "another voided value": ("{v_void}", "void", {"definitions"}),
    "no fee_for": ("def fee_for", "def fee_of", {"fees", "total", "status"}),
    "no import": (r"from dataclasses.*\nfrom decimal.*\n", "", set()),  # the prelude has it
    "something else unimported": ("def settle", "SEEN = defaultdict(int)\n\ndef settle", MODULE),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_MODULES)
def test_a_wrong_module_loses_exactly_its_checks(name: str) -> None:
    old, new, lost = WRONG_MODULES[name]
    spec = sample_spec(5)
    assert set(score(spec, "p3", _changed(spec, "p3", old, new)).failed) == lost


def test_failures_are_told_apart_by_what_the_answer_recalls() -> None:
    spec = first_spec("ROUND_HALF_UP")
    right = reference_answer(spec, "p1")
    assert score(spec, "p1", right.replace("min(", "max(")).outcome == "coding_error"
    assert score(spec, "p1", right.replace("HALF_UP", "UP")).outcome == "forgetting"
    by_value = right.replace(f"{spec.cls}.{spec.fee_name}", str(spec.fee_bps))
    found = score(spec, "p1", by_value)
    assert (found.outcome, found.missing) == ("pass", ("fee_constant",))


@pytest.mark.parametrize("seed", range(5))
def test_recall_misses_exactly_the_fact_that_is_taken_out(seed: int) -> None:
    spec = sample_spec(seed)
    assert sum(len(facts(spec, probe)) for probe in PROBES) == 25
    for probe in PROBES:
        answer = reference_answer(spec, probe)
        for name, pattern in facts(spec, probe).items():
            assert name in missing_facts(spec, probe, re.sub(pattern, "…", answer))[1]
        longer = re.sub(r"\b(\w+)\b", r"x\1y", answer)
        assert missing_facts(spec, probe, longer)[1] == list(facts(spec, probe))
    elsewhere = f"{spec.fee_name} = 1\n{spec.fee_bps}"
    assert "fee_constant" in missing_facts(spec, "p3", elsewhere)[1]  # not its value


def test_the_quantum_is_no_part_of_another_number() -> None:
    spec = next(spec for spec in map(sample_spec, range(99)) if spec.quantum == 10)
    for text in ("10000", "10_000", "0.10", "10.5", "110", "x10"):
        assert "quantum" in missing_facts(spec, "p1", text)[1], text
    for text in ("Decimal(10)", "Decimal('10')", "10.0", "x*10.", "10\n"):
        assert "quantum" not in missing_facts(spec, "p1", text)[1], text


def test_the_task_is_found_by_its_name() -> None:
    assert load_task("coding") is TASK


def test_results_of_other_checks_have_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = template_fingerprint(TASK)
    assert before == template_fingerprint(TASK)
    monkeypatch.setattr(checks, "PRELUDE", checks.PRELUDE + "import math\n")
    assert template_fingerprint(TASK) != before


def test_a_run_whose_answers_cannot_be_checked_ends_before_the_model_is_loaded(
    protocol_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [{"layout": "single", "tokens": 9000}]
    plan = small_plan(protocol_model, task="coding", sessions=sessions)
    run = BenchRun(plan, stdlib=make_source(tmp_path / "source"))
    monkeypatch.setattr(sandbox, "_CHILD", tmp_path / "none.py")
    monkeypatch.setattr(run, "_engine", lambda: pytest.fail("the model was loaded"))
    with pytest.raises(SandboxError, match="did not start"):
        run.run(tmp_path / "out.jsonl", Silent())


def _changed(spec: CodingSpec, probe: str, old: str, new: str) -> str:
    values = spec.model_dump()
    filled = [re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]), text) for text in (old, new)]
    answer = reference_answer(spec, probe)
    changed = re.sub(filled[0], filled[1], answer)
    assert changed != answer, filled
    return changed
