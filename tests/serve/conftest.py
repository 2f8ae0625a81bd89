"""A server's parts without Ray: the routes over a fake engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.routes import create_app
from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle

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
