"""The real routes over the real engine in this process, and what passes its embedding.

Counting at the embedding is independent of every figure the server reports: a token that the
model computes has to pass it, once per time it is computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from torch import Tensor

from engine.config import EngineConfig
from engine.engine import KVEngine
from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.routes import create_app
from tests.support.local_handle import LocalHandle

START_S = 30


class PassedTokens:
    """Collects the token ids that pass a model's embedding, in the order computed."""

    def __init__(self, model: Any) -> None:
        self._ids: list[int] = []
        model.get_input_embeddings().register_forward_hook(self._note)

    def _note(self, module: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._ids.extend(inputs[0].flatten().tolist())

    def take(self) -> list[int]:
        """The ids since the last call."""
        taken, self._ids = self._ids, []
        return taken


class LocalServer:
    """A server on a loopback port, its engine at hand."""

    def __init__(self, engine: KVEngine) -> None:
        self.engine = engine
        self.passed = PassedTokens(engine.runner.model)
        self.tokenizer = engine.chat.tokenizer
        self._replica = EngineReplica(ServeConfig(), "local", lambda config: engine)
        app = create_app(
            HandleClient(LocalHandle(self._replica)), LimitsConfig(), logging.getLogger("pace")
        )
        settings = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_config=None, lifespan="off", access_log=False
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, name="local-server", daemon=True)
        self._thread.start()
        end = time.monotonic() + START_S
        while not self._server.started:
            assert self._thread.is_alive() and time.monotonic() < end, "uvicorn did not start"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    @property
    def base_url(self) -> str:
        """What OpenAI clients are pointed at."""
        return f"{self.url}/v1"

    def wait_idle(self, seconds: float = 10) -> None:
        """Wait until no turn runs: one whose client left ends at its next token."""
        end = time.monotonic() + seconds
        while self.engine.stats()["sessions_running"]:
            assert time.monotonic() < end, "a turn still runs"
            time.sleep(0.005)

    def close(self) -> None:
        """Stop listening, end what runs."""
        self._server.should_exit = True
        self._thread.join(START_S)
        assert not self._thread.is_alive()
        self.engine.close()


@contextmanager
def local_server(model: Path, **settings: Any) -> Iterator[LocalServer]:
    """A ``LocalServer`` on the model at ``model``, served as "protocol", on one thread.

    ``settings`` go to ``EngineConfig``.
    """
    fields: dict[str, Any] = {"served_name": "protocol", "threads": 1, "pool_bytes": 1 << 27}
    config = EngineConfig(model=str(model), **(fields | settings))
    server = LocalServer(KVEngine.from_config(config))
    try:
        yield server
    finally:
        server.close()
