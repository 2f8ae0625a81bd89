"""A real server with sessions that tell a story: a rule stated first and read last."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.dashboard.browser import SLOW_MS
from tests.support.chromium import chromium_or_skip, launched
from tests.support.local_server import LocalServer, local_server
from tests.support.server import free_port

RULE = "Never push to main. <b>x</b> **y** $z^2$ \x1b[0m 😀 שלום"
SYSTEM = "You keep rules."
FILLERS = 5
LAST = FILLERS + 2
"""The step that reads the rule of step 1."""
_PACE = "import sys; from serve.cli import main; sys.exit(main(sys.argv[1:]))"
PLAN = {str(LAST): [1], str(LAST - 1): [1]}


@dataclass(frozen=True)
class Story:
    """The server, and what its API says."""

    server: LocalServer

    @property
    def url(self) -> str:
        return self.server.url

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An answer of the API."""
        answer = httpx.get(f"{self.url}/v1{path}", params=params, timeout=30)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def say(self, session: str, text: str, **pace: Any) -> None:
        """One turn in append mode."""
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 4,
            "temperature": 0,
            "pace": {"session_id": session, "mode": "append", **pace},
        }
        httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()

    def begin(self, session: str, policy: str) -> None:
        """The turn that states the rule and the plan."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": RULE}]
        pace = {"session_id": session, "policy": policy, "plan": PLAN}
        body = {"model": "default", "messages": messages, "max_tokens": 4, "temperature": 0}
        answer = httpx.post(
            f"{self.url}/v1/chat/completions", json=body | {"pace": pace}, timeout=60
        )
        answer.raise_for_status()

    def play(self, session: str, policy: str) -> None:
        """A session of ``LAST`` steps."""
        self.begin(session, policy)
        for step in range(2, LAST + 1):
            text = "What is the rule?" if step > FILLERS + 1 else f"Log {step}: " + "ok, " * 40
            self.say(session, text)


@pytest.fixture(scope="session")
def story(protocol_model: Path) -> Iterator[Story]:
    """Sessions ``rule-pace`` and ``rule-h2o``."""
    with local_server(protocol_model) as server:
        made = Story(server)
        for policy in ("pace", "h2o"):
            made.play(f"rule-{policy}", policy)
        yield made


@pytest.fixture
def empty() -> Iterator[str]:
    """A server without sessions."""
    with answering(200, {"object": "list", "data": []}) as url:
        yield url


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that wants another key."""
    error = {"message": "No API key of this server was given.", "code": "invalid_api_key"}
    with answering(401, {"error": error | {"type": "authentication_error", "param": None}}) as url:
        yield url


@pytest.fixture
def other() -> Iterator[str]:
    """A server of another kind."""
    with answering(404, None) as url:
        yield url


@contextmanager
def answering(status: int, body: dict[str, Any] | None) -> Iterator[str]:
    """A server that has one answer to everything; None: a page of HTML."""
    answer = b"<html></html>" if body is None else json.dumps(body).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def dashboard(story: Story) -> Iterator[str]:
    """Its address. In the end Ctrl-C stops it, and nothing of it is left."""
    port = free_port()
    command = [sys.executable, "-c", _PACE, "dashboard", "--url", story.url, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            assert url in process.stdout.readline()
            end = time.monotonic() + 60
            while not _answers(url):
                assert process.poll() is None and time.monotonic() < end, "it did not start"
                time.sleep(0.1)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                assert process.wait(20) == 0
            finally:
                process.kill()  # leaving the block waits for it
    assert not _answers(url)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def page(dashboard: str) -> Iterator[Page]:
    """A browser's page that reaches nothing beyond this machine, and may not try to."""
    asked: list[str] = []

    def guard(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    with launched(chromium_or_skip()) as browser:
        opened = browser.new_page(viewport={"width": 1280, "height": 800})
        opened.set_default_timeout(SLOW_MS)
        expect.set_options(timeout=SLOW_MS)
        opened.route(re.compile(r"^https?://(?!127\.0\.0\.1[:/])"), guard)
        yield opened
    assert not asked
