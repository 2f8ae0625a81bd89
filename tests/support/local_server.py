"""The real routes over the real engine in this process, and what passes its embedding.

Counting at the embedding is independent of every figure the server reports: a token that the
model computes has to pass it, once per time it is computed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from engine.config import EngineConfig, PolicyConfig, load_policies
from engine.engine import KVEngine
from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.routes import create_app
from tests.support.local_handle import LocalHandle
from tests.support.transcript import encode

START_S = 30


class PassedTokens:
    """Collects the token ids that pass a model's embedding, in the order computed."""

    def __init__(self, model: Any) -> None:
        self.ids: list[int] = []
        self._taken = 0
        model.get_input_embeddings().register_forward_hook(self._note)

    def _note(self, module: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.ids.extend(inputs[0].flatten().tolist())

    def take(self) -> list[int]:
        """The ids since the last call."""
        start, self._taken = self._taken, len(self.ids)
        return self.ids[start:]


@dataclass(frozen=True)
class Exchange:
    """A chat request as the client sent it, and the ids that passed until the next one came."""

    body: dict[str, Any]
    passed: list[int]


class ExchangeLog:
    """ASGI middleware that keeps the bodies of chat requests."""

    def __init__(self, app: ASGIApp, passed: PassedTokens) -> None:
        self._app = app
        self._passed = passed
        self._requests: list[tuple[int, bytearray]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/chat/completions"):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        self._requests.append((len(self._passed.ids), body))

        async def keep() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        await self._app(scope, keep, send)

    def take(self) -> list[Exchange]:
        """The exchanges since the last call. Clients came one after the other."""
        requests, self._requests = self._requests, []
        ids = self._passed.ids
        cuts = pairwise([*(start for start, _ in requests), len(ids)])
        return [
            Exchange(json.loads(body), ids[start:end])
            for (_, body), (start, end) in zip(requests, cuts, strict=True)
        ]


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
        self.exchanges = ExchangeLog(app, self.passed)
        settings = uvicorn.Config(
            self.exchanges,
            host="127.0.0.1",
            port=0,
            log_config=None,
            lifespan="off",
            access_log=False,
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
def local_server(model: Path, *policies: PolicyConfig, **settings: Any) -> Iterator[LocalServer]:
    """A ``LocalServer`` on the model at ``model``, served as "protocol", on one thread.

    It knows ``policies`` besides the shipped ones; ``settings`` go to ``EngineConfig``.
    """
    fields: dict[str, Any] = {"served_name": "protocol", "threads": 1, "pool_bytes": 1 << 27}
    config = EngineConfig(model=str(model), **(fields | settings))
    known = load_policies() | {policy.name: policy for policy in policies}
    server = LocalServer(KVEngine.from_config(config, known))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def drawing(server: LocalServer, text: str) -> Iterator[None]:
    """The model "draws" the tokens of ``text``, one after the other."""
    planned = encode(server.tokenizer, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.answering.draw", lambda *_: planned.pop(0))
        yield
