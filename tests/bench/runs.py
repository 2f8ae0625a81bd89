"""Small plans, filler and runs for tests, on the protocol model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plan import BenchPlan
from bench.results import ResultLine
from bench.runner import Group


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


def small_plan(model: Path, **changes: Any) -> BenchPlan:
    """Facts on sessions of 4,200 bytes with 3 filler steps, or as ``changes`` say."""
    values: dict[str, Any] = {
        "name": "small",
        "task": "facts",
        "model": str(model),
        "seeds": [1],
        "filler": {"tokens": 800, "answer_tokens": 4},
        "sessions": [{"layout": "distance", "tokens": 4200, "distances": [800, 2400]}],
        "arms": ["pace", "h2o"],
    }
    return BenchPlan.model_validate(values | changes)


class Silent:
    """A watcher that notes lines; ``stop_after``: raises when it has seen so many."""

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
