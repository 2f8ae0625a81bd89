"""The record of a result line: what it accepts, and how files with cut or wrong lines are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.results import ResultError, ResultLine, append_result, read_results

PROBE: dict[str, Any] = {
    "name": "p1", "step": 9, "answer": "x", "prompt_tokens": 100, "completion_tokens": 2,
    "score": {
        "passed": 1, "total": 2, "failed": ["fee"], "found": 3, "facts": 3, "missing": [],
        "outcome": "coding_error",
    },
}  # fmt: skip
LINE: dict[str, Any] = {
    "plan_name": "demo", "task": "coding", "layout": "distance", "seed": 1, "distance": 2000,
    "session_tokens": 100_000, "arm": "pace", "policy": {"budget": 2048}, "model": "m",
    "dtype": "float32", "engine": {}, "template_fingerprint": "f", "prompts_checksum": "c",
    "pace_version": "0", "probes": [PROBE],
}  # fmt: skip


def test_a_line_survives_its_file(tmp_path: Path) -> None:
    line = ResultLine.model_validate(LINE)
    append_result(tmp_path / "a.jsonl", line)
    append_result(tmp_path / "a.jsonl", line)
    assert read_results(tmp_path / "a.jsonl") == [line, line]


def test_a_cut_last_line_is_refused_dropped_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = ResultLine.model_validate(LINE)
    append_result(path, line)
    with path.open("ab") as file:
        file.write(b'{"plan_name": "de')
    with pytest.raises(ResultError, match="middle of a line"):
        read_results(path)
    assert read_results(path, unfinished="drop") == [line]
    append_result(path, line)
    assert read_results(path) == [line, line]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"distance": None}, "layout distance and distance None disagree"),
        ({"probes": [PROBE, PROBE]}, "probe names repeat"),
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"probes": [PROBE | {"residency": 1.5}]}, "probes.0.residency"),
        (
            {"probes": [PROBE | {"score": PROBE["score"] | {"passed": 2}}]},
            "2 of 2 and 1 others do not add up",
        ),
        ({"probes": [PROBE | {"score": PROBE["score"] | {"outcome": "pass"}}]}, "does not follow"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_and_number(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(LINE) + "\n\n" + json.dumps(LINE | change) + "\n")
    with pytest.raises(ResultError, match="line 3: ") as caught:
        read_results(path)
    assert said in caught.value.message


def test_only_the_times_may_differ_between_identical_runs() -> None:
    one = ResultLine.model_validate(LINE | {"timing": {"s": 1.0}, "started": "2026-01-01T00:00Z"})
    assert one.stable() == ResultLine.model_validate(LINE).stable()
    assert one.stable() != ResultLine.model_validate(LINE | {"seed": 2}).stable()
