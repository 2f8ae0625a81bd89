"""A session outside of an engine: written step by step, for measurements and tests."""

from __future__ import annotations

from typing import TypeVar

import torch

from engine.config import CachePolicy
from engine.flow import Flow
from engine.pool import KVPool
from engine.runner import ModelRunner
from engine.state import SessionState

T = TypeVar("T")


def new_state(runner: ModelRunner, policy: CachePolicy, pool: KVPool) -> SessionState:
    """An empty session with a row of its own, ready to be written.

    Raises:
        CapacityExceeded: the pool has no room for the row.
    """
    row = pool.acquire(policy.capacity)
    row.rotated = pool.acquire_buffer(policy.capacity)
    return SessionState(policy, runner.table(policy.rope, policy.position_range), row)


def drive(flow: Flow[T], runner: ModelRunner, pool: KVPool) -> T:
    """Run a flow to its end without a scheduler; its result."""
    with torch.inference_mode():
        try:
            work = next(flow)
            while True:
                (written,) = runner.forward([work], pool)
                work = flow.send(written)
        except StopIteration as stop:
            result: T = stop.value
            return result
