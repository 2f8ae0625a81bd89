"""Which dtype `pace model add` chooses, and how it finds out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine import dtype_speed
from engine.errors import ModelError


def seconds(prefill: float, decode: float) -> dict[str, float]:
    return {"prefill_256": prefill, "decode_1": decode}


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [
        # measured: an EPYC with AVX-512 and bfloat16, the same beside other work, one without
        (seconds(0.305, 0.0225), seconds(0.156, 0.0293), "bfloat16"),
        (seconds(1.404, 0.0361), seconds(0.352, 0.0521), "bfloat16"),
        (seconds(0.8, 0.06), seconds(3.65, 0.11), "float32"),
        # near equals: the more exact one. 8 × 0.3 + 48 × 0.02 = 3.36; 0.9 of it are 3.024
        (seconds(0.3, 0.02), seconds(0.2585, 0.02), "float32"),
        (seconds(0.3, 0.02), seconds(0.2575, 0.02), "bfloat16"),
    ],
)
def test_an_agents_turn_decides(
    float32: dict[str, float], bfloat16: dict[str, float], chosen: str
) -> None:
    assert dtype_speed.faster({"float32": float32, "bfloat16": bfloat16}) == chosen


def test_it_is_measured_in_the_environment_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        seen.update(env)
        found = {"dtype": "float32", "seconds": {"float32": {}, "bfloat16": {}}}
        return subprocess.CompletedProcess(command, 0, f"a warning\n{json.dumps(found)}\n", "")

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setattr(subprocess, "run", run)
    assert dtype_speed.measure_apart(tmp_path).dtype == "float32"
    assert seen["OMP_WAIT_POLICY"] == "PASSIVE"
    assert seen["MALLOC_ARENA_MAX"] == "2", "what the user set is kept"


def test_a_model_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"measuring {tmp_path.name} failed: .*config"):
        dtype_speed.measure_apart(tmp_path)
