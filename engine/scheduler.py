"""The step thread: packs the next work of all running flows into one forward, again and again.

It may delay a flow's chunk, never resize it (DESIGN §3.8), so what a session computes does
not depend on its company.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from engine.errors import EngineFailure, TurnCancelled
from engine.flow import Flow
from engine.pool import KVPool
from engine.runner import ModelRunner, Work, Written

log = logging.getLogger(__name__)
T = TypeVar("T")

_WAIT_S = 5.0


@dataclass(slots=True, eq=False)
class Task:
    """A running flow. ``work`` is what it waits for; ``seconds`` its share of the forwards."""

    flow: Flow[None]
    work: Work | None = None
    cancelled: bool = False
    seconds: float = 0.0

    @classmethod
    def placeholder(cls) -> Task:
        """Marks a session whose turn is being admitted; never scheduled."""
        return cls(_nothing())


class Scheduler:
    """Runs flows to their end. Flows handle their own errors and never raise."""

    def __init__(self, runner: ModelRunner, pool: KVPool, stuck_after_s: float) -> None:
        self._runner = runner
        self._pool = pool
        self._stuck_after_s = stuck_after_s
        self._new: deque[Task] = deque()
        self._tasks: list[Task] = []
        self._wake = threading.Condition()
        self._closing = False
        self._dead = False
        self._stepping_since: float | None = None
        self.steps = 0
        self.tokens = 0
        self._thread = threading.Thread(target=self._run, name="pace-step", daemon=True)
        self._thread.start()

    def add(self, task: Task) -> None:
        """Start a flow at the next step. Raises EngineFailure when the thread is gone."""
        with self._wake:
            if self._closing or self._dead:
                raise EngineFailure("the engine is shut down or its step thread died")
            self._new.append(task)
            self._wake.notify()

    def cancel(self, task: Task) -> None:
        """Throw TurnCancelled into a flow before its next step."""
        with self._wake:
            task.cancelled = True
            self._wake.notify()

    @property
    def alive(self) -> bool:
        """Whether the step thread runs."""
        return self._thread.is_alive() and not self._dead

    def check_health(self) -> None:
        """Raises EngineFailure when the thread is dead or one step takes too long."""
        if self._dead:
            raise EngineFailure("the step thread died")
        since = self._stepping_since
        if since is not None and time.monotonic() - since > self._stuck_after_s:
            raise EngineFailure(f"the step thread is stuck for over {self._stuck_after_s:.0f} s")

    def wait_for(self, outcome: SimpleQueue[T]) -> T:
        """The next item a flow puts there; raises EngineFailure when the step thread is dead or
        stuck."""
        while self.alive or not outcome.empty():
            try:
                return outcome.get(timeout=_WAIT_S)
            except Empty:
                self.check_health()
        raise EngineFailure("the engine is shut down or its step thread died")

    def close(self) -> None:
        """Cancel everything and end the thread (waits for the step in progress)."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=self._stuck_after_s)

    def _run(self) -> None:
        """The step thread. What ends it, ends every flow: nobody waits for a dead thread."""
        with torch.inference_mode():
            try:
                self._loop()
            except BaseException:
                log.exception("the step thread died")
                with self._wake:
                    self._dead = True
                    left = [*self._tasks, *self._new]
                    self._new.clear()
                for task in left:
                    self._abandon(task)

    def _abandon(self, task: Task) -> None:
        """Make a flow fail, whatever state the death of the thread left it in."""
        error = EngineFailure("the step thread died; the turn was rolled back")
        try:
            if task.work is None:
                next(task.flow)  # an error thrown into a flow that never began would pass it by
            task.flow.throw(error)
        except BaseException as raised:
            # the flow ended as it should, or it is the one that killed the thread
            log.debug("a flow of the dead step thread ended: %s", type(raised).__name__)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._new or self._tasks or self._closing):
                    self._wake.wait()
                fresh, closing = list(self._new), self._closing
                self._tasks += fresh
                self._new.clear()
            self._stepping_since = time.monotonic()
            for task in fresh:
                self._advance(task, None)
            for task in self._tasks:
                if task.work is not None and (task.cancelled or closing):
                    self._throw(task, TurnCancelled("the turn was cancelled"))
            self.step()
            self._stepping_since = None
            self._tasks = [task for task in self._tasks if task.work is not None]
            if closing and not self._tasks and not self._new:
                return

    def step(self) -> None:
        """One packed forward over what fits: all decode tokens, prefill chunks in turn."""
        chosen, staged = [], 0
        for task in self._tasks:
            if task.work is None:
                continue
            size = 0 if task.work.decode else len(task.work.tokens)
            if staged + size <= self._pool.staging_slots:
                chosen.append(task)
                staged += size
        if not chosen:
            return
        # tasks whose chunk did not fit go first next time
        rest = [task for task in self._tasks if task not in chosen]
        self._tasks = rest + chosen
        self._forward(chosen)

    def _forward(self, tasks: list[Task]) -> None:
        works = [task.work for task in tasks if task.work is not None]
        total = sum(len(work.tokens) for work in works)
        start = time.perf_counter()
        try:
            results = self._runner.forward(works, self._pool)
        except Exception as error:
            self._isolate(tasks, error)
            return
        seconds = time.perf_counter() - start
        self.steps += 1
        self.tokens += total
        for task, work, written in zip(tasks, works, results, strict=True):
            task.seconds += seconds * len(work.tokens) / total
            self._advance(task, written)

    def _isolate(self, tasks: list[Task], error: Exception) -> None:
        """A failed forward fails the turn that causes it, found by running each alone."""
        if len(tasks) == 1:
            log.error("a forward failed", exc_info=error)
            self._throw(tasks[0], EngineFailure(f"the forward failed: {type(error).__name__}"))
            return
        for task in tasks:
            self._forward([task])

    def _advance(self, task: Task, written: Written | None) -> None:
        try:
            task.work = next(task.flow) if written is None else task.flow.send(written)
        except StopIteration:
            task.work = None

    def _throw(self, task: Task, error: Exception) -> None:
        try:
            task.work = task.flow.throw(error)
        except StopIteration:
            task.work = None


def _nothing() -> Flow[None]:
    return
    yield  # makes this a generator
