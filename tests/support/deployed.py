"""Deployments for tests of the deployment API; importable in Ray's own processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.protocol import Engine
from engine.types import TurnEvent, TurnRequest
from serve.app import NamedEngineReplica
from serve.config import ServeConfig
from serve.engine_app import EngineReplica
from tests.support.fake_engine import FakeEngine, FakeTurn


class Looked(NamedEngineReplica):
    """The real replica, and a look into its process."""

    async def about(self) -> dict[str, Any]:
        """Its name, process id, torch's threads, and whether its engine is well."""
        import torch

        error = (await self.health()).error
        return {
            "name": self._replica,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "openmp": os.environ["OMP_NUM_THREADS"],
            "well": error is None,
        }

    async def kill_step_thread(self, name: str) -> None:
        """In the replica ``name`` the next forward ends the step thread."""

        def kill(*_: object) -> None:
            raise SystemExit

        if self._replica == name:
            self._engine.runner.forward = kill  # type: ignore[attr-defined]


class Unremembering(FakeEngine):
    """A fake engine that keeps no requests and tells of a prompt in one event."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self.prefill_chunk = 1 << 40

    def submit(self, request: TurnRequest, on_event: Callable[[TurnEvent], None]) -> FakeTurn:
        turn = super().submit(request, on_event)
        self.requests.clear()
        return turn


def fake_engine(config: EngineConfig) -> Engine:
    return Unremembering(config)


class FakeReplica(EngineReplica):
    """The real doors of a replica, a fake engine behind them."""

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(config, "fake", fake_engine)
        logging.getLogger("pace").setLevel(logging.ERROR)

    async def pid(self) -> int:
        return os.getpid()

    async def held_bytes(self) -> int:
        """What uploads take."""
        return self._uploads.held_bytes
