"""What may be pooled and what may not, and what the refusal says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.merge import merge
from bench.results import ResultError, read_results, write_results
from serve.cli import main
from tests.bench.support import POLICIES, session

A, B = Path("a.jsonl"), Path("b.jsonl")


def test_lines_come_out_ordered_and_identical_ones_once() -> None:
    lines = [session(arm, seed, (7, 3, 5)) for seed in (2, 1) for arm in ("pace", "h2o")]
    again = lines[0].model_copy(update={"timing": {"wall_s": 3.0}})
    merged = merge({A: lines[:2], B: [*lines[2:], again]})
    assert [(one.seed, one.arm) for one in merged] == [
        (1, "h2o"), (1, "pace"), (2, "h2o"), (2, "pace"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"template_fingerprint": "t2"},
            "coding: template fingerprint: 't1' in a.jsonl, 't2' in b",
        ),
        ({"dtype": "float32"}, "dtype: 'bfloat16' in a.jsonl, 'float32' in b.jsonl"),
        ({"engine": {"greedy": False}}, "engine setting greedy: True in a.jsonl, False in b.jsonl"),
        ({"engine": {}}, "names of engine settings: ['greedy'] in a.jsonl, [] in b.jsonl"),
        (
            {"policy": POLICIES["pace"] | {"budget": 512}},
            "arm pace: policy setting budget: 2048 in a.jsonl, 512 in b.jsonl",
        ),
        (
            {"seed": 1, "arm": "h2o", "prompts_checksum": "others"},
            "seed 1: prompts checksum: 'prompts of 1' in a.jsonl, 'others' in b.jsonl",
        ),
    ],
)
def test_what_differs_is_refused_and_named(change: dict[str, Any], said: str) -> None:
    policy = {"policy": POLICIES["h2o"]} if change.get("arm") == "h2o" else {}
    other = session("pace", 2, (7, 3, 5)).model_dump() | change | policy
    with pytest.raises(ResultError, match="cannot be pooled") as caught:
        merge(
            {A: [session("pace", 1, (7, 3, 5))], B: [type(session("pace", 1, (7, 3, 5)))(**other)]}
        )
    assert said in caught.value.message
    assert caught.value.message.count("  - ") == 1


def test_two_results_of_one_session_and_arm_are_refused() -> None:
    with pytest.raises(ResultError, match="disagree") as caught:
        merge({A: [session("pace", 1, (7, 3, 5))], B: [session("pace", 1, (7, 3, 4))]})
    assert "seed 1, arm pace" in caught.value.message and "differ in probes" in caught.value.message


def test_other_models_tasks_lengths_and_distances_are_no_difference() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"model": "mistral-7b", "dtype": "float32", "engine": {}},
        {"task": "facts", "template_fingerprint": "t2"},
        {"session_tokens": 300_000, "prompts_checksum": "longer"},
        {"layout": "distance", "distance": 2000, "prompts_checksum": "nearer"},
    ]
    lines = [session("pace", 1, (7, 3, 5), **other) for other in others]
    assert len(merge({A: lines})) == 5


def test_the_command_writes_a_new_file_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, out = (tmp_path / name for name in ("one.jsonl", "two.jsonl", "out.jsonl"))
    write_results(one, [session("pace", 1, (7, 3, 5))])
    write_results(two, [session("pace", 2, (7, 3, 5), template_fingerprint="t2")])
    command = ["bench", "merge", str(one), str(two), "--out", str(out)]
    assert main(command) == 1 and not out.exists()
    assert f"'t2' in {two}" in capsys.readouterr().err
    write_results(two, [session("pace", 2, (7, 3, 5))])
    assert main(command) == 0 and [line.seed for line in read_results(out)] == [1, 2]
    assert main(command) == 1 and "is there already" in capsys.readouterr().err
    two.write_text("{}\n")
    assert main([*command[:-1], str(tmp_path / "new.jsonl")]) == 1
    assert f"{two}, line 1: plan_name: Field required" in capsys.readouterr().err


def test_the_folder_of_what_is_merged_is_made(tmp_path: Path) -> None:
    part, out = tmp_path / "a.jsonl", tmp_path / "new" / "deep" / "all.jsonl"
    write_results(part, [session("pace", 1, (7, 3, 5))])
    assert main(["bench", "merge", str(part), "--out", str(out)]) == 0
    assert read_results(out) == read_results(part)
    for command in ("merge", "report"):  # no folder, and none to be
        assert main(["bench", command, str(part), "--out", str(part / "x")]) == 1
