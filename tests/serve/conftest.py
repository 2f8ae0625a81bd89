"""The routes over a fake engine without Ray, and a real server with the protocol model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.routes import create_app
from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle
from tests.support.network import no_network
from tests.support.server import Server, started

BODY_BYTES = 8 * 1024 * 1024
# What clients would ask of hosts elsewhere, or tell them, at import or with every call.
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else litellm's import fetches a list of prices
    "LANGSMITH_TRACING": "false",  # else LangChain reports its calls where the user asked for it
}
LIMITS = LimitsConfig(body_bytes=20_000, messages=40)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def handle(engine: FakeEngine) -> LocalHandle:
    return LocalHandle(EngineReplica(ServeConfig(), "replica-1", lambda config: engine))


@pytest.fixture
def http(handle: LocalHandle) -> Iterator[TestClient]:
    app = create_app(HandleClient(handle), LIMITS, logging.getLogger("pace"))
    with TestClient(app) as client:
        yield client


@pytest.fixture(scope="package")
def server(protocol_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server on the protocol model, shared by the tests of this package."""
    config = {
        "engine": {"model": str(protocol_model), "served_name": "protocol", "threads": 2},
        "limits": {"body_bytes": BODY_BYTES, "messages": 2000},
        "graceful_shutdown_s": 1,
    }
    with started(Server(tmp_path_factory.mktemp("server"), config)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """The real client library; it does not retry, so that every status is seen."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def raw(server: Server) -> Iterator[httpx.Client]:
    """Plain HTTP to the same server."""
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """While the tests of a module run clients, nothing beyond loopback is asked for."""
    with pytest.MonkeyPatch.context() as patch, no_network():
        for name, value in QUIET.items():
            patch.setenv(name, value)
        patch.setenv("LLM_USER_PATH", str(tmp_path_factory.mktemp("llm")))
        yield
