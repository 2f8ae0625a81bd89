"""A runner that only counts, and flows for a scheduler on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.errors import PaceError
from engine.flow import Flow
from engine.pool import KVPool
from engine.row import KVShape
from engine.runner import Work, Written
from engine.scheduler import Scheduler, Task

STAGING = 64
NO_TENSOR = torch.empty(0)


@dataclass
class CountingRunner:
    """Takes works and computes nothing. ``before`` may block or raise."""

    batches: list[list[Work]] = field(default_factory=list)
    before: Callable[[list[Work]], None] = lambda works: None

    def forward(self, works: list[Work], pool: KVPool) -> list[Written]:
        self.before(works)
        self.batches.append(works)
        return [Written(NO_TENSOR, NO_TENSOR, None) for _ in works]

    def sizes(self, name: int) -> list[tuple[int, int]]:
        """(forward, tokens) of everything the flow ``name`` had computed."""
        return [
            (number, len(work.tokens))
            for number, works in enumerate(self.batches)
            for work in works
            if work.tokens[0] == name
        ]


@dataclass
class Job:
    """A flow that writes chunks of ``sizes``; tokens carry its name."""

    name: int
    sizes: list[int]
    error: PaceError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def flow(self) -> Flow[None]:
        try:
            for size in self.sizes:
                tokens = (self.name,) * size
                yield Work(None, None, tokens, 0, size == 1, "last")  # type: ignore[arg-type]
        except PaceError as error:
            self.error = error
        self.done.set()


def counting_scheduler(runner: CountingRunner) -> Scheduler:
    """A scheduler of ``runner`` whose staging area has ``STAGING`` slots."""
    pool = KVPool(KVShape(1, 1, 2, torch.float32, torch.device("cpu")), 1 << 20, STAGING)
    return Scheduler(runner, pool, stuck_after_s=30)  # type: ignore[arg-type]


def start(scheduler: Scheduler, jobs: list[Job]) -> list[Task]:
    """Add all jobs before the step thread sees the first."""
    tasks = [Task(job.flow()) for job in jobs]
    with scheduler._wake:
        for task in tasks:
            scheduler.add(task)
    return tasks


def finish(jobs: list[Job]) -> None:
    for job in jobs:
        assert job.done.wait(30), f"job {job.name} did not end"
