"""Small plans, filler and runs for tests, on the protocol model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plan import BenchPlan
from bench.results import ResultLine
from bench.runner import BenchRun, Group


def make_source(folder: Path, files: int = 24, functions: int = 40) -> Path:
    """A folder of Python files that are all different; one byte is one token for the model."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        bodies = [
            f"def part_{file}_{number}(value):\n    return value * {file * 1000 + number}\n"
            for number in range(functions)
        ]
        (folder / f"module_{file:02}.py").write_text("\n\n".join(bodies))
    return folder


def small_run(plan: BenchPlan, source: Path) -> BenchRun:
    """On one thread, which is faster on models this small."""
    return BenchRun(plan, device="cpu", stdlib=source, threads=1)


def small_plan(model: Path, **changes: Any) -> BenchPlan:
    """Facts on sessions of 3,800 bytes with 4 filler steps, or as ``changes`` say."""
    values: dict[str, Any] = {
        "name": "small",
        "task": "facts",
        "model": str(model),
        "seeds": [1],
        "filler": {"tokens": 600, "answer_tokens": 4},
        "sessions": [{"layout": "distance", "tokens": 3800, "distances": [600, 1800]}],
        "arms": ["pace", "h2o"],
    }
    return BenchPlan.model_validate(values | changes)


class Silent:
    """A watcher that notes what it is told."""

    def __init__(self) -> None:
        self.lines: list[ResultLine] = []
        self.expected = 0
        self.tokens = 0

    def begin(self, groups: Sequence[Group], done: int) -> None:
        self.expected = sum(len(group.sessions) for group in groups)

    def playing(self, group: Group) -> None: ...

    def computed(self, tokens: int) -> None:
        self.tokens += tokens

    def finished(self, line: ResultLine) -> None:
        self.lines.append(line)
