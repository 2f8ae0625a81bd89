"""How a server ends: in order, at once, before it is ready, and when its engine dies."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from tests.serve.test_server_chat import chat, endless, fresh
from tests.support.server import Server

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Server]


@pytest.fixture
def start(protocol_model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a server with the given configuration; ends it after the test."""
    started: list[Server] = []

    def begin(**config: Any) -> Server:
        engine = {"model": str(protocol_model), "threads": 2}
        started.append(Server(tmp_path / f"server-{len(started)}", {"engine": engine, **config}))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


def connect(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def temporary_folders(server: Server) -> set[Path]:
    """Folders of this server; others may run on the same machine."""
    return set(Path("/tmp").glob(f"pace-{server.process.pid}-*"))


def test_a_dead_engine_then_sigterm(start: Start) -> None:
    server = start(graceful_shutdown_s=1)
    server.wait_ready()
    assert len(temporary_folders(server)) == 1
    assert server.stdout.splitlines() == [f"PACE is ready at {server.url} (model protocol)"]
    with connect(server) as client:
        stream = endless(client, fresh())
        next(stream)
        (engine,) = [p for p in server.processes() if "Engine" in " ".join(p.cmdline())]
        assert psutil.pid_exists(engine.pid)
        engine.kill()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "engine_unavailable"
        health = httpx.get(f"{server.url}/health", timeout=30)
        assert health.status_code == 503
        assert health.json()["error"]["code"] == "engine_unavailable"
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert time.monotonic() - begun < 30
    server.assert_gone()
    assert not temporary_folders(server)


def test_ctrl_c_lets_turns_end_and_a_second_one_does_not(start: Start) -> None:
    server = start(graceful_shutdown_s=15)
    server.wait_ready()
    with connect(server) as client:
        stream = endless(client, fresh())
        short = chat(client, stream=True, max_tokens=100, extra_body={"ignore_eos": True})
        next(stream)
        next(short)
        server.interrupt()
        *_, last = short
        assert last.choices[0].finish_reason == "length"
        assert server.process.poll() is None, "the first Ctrl-C waits for the running turn"
        assert "Stopping: running turns have 15 s." in server.stderr
        begun = time.monotonic()
        server.interrupt()
        assert server.wait(10) == 128 + signal.SIGINT
        assert time.monotonic() - begun < 5
        stream.close()
    server.assert_gone()


def test_ctrl_c_while_starting(start: Start) -> None:
    server = start()
    end = time.monotonic() + 60
    while not any("gcs_server" in process.name() for process in server.processes()):
        assert time.monotonic() < end and server.process.poll() is None
        time.sleep(0.05)
    server.interrupt()
    assert server.wait(30) == 128 + signal.SIGINT
    assert "ready" not in server.stdout
    server.assert_gone()
