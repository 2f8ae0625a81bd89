"""``pace dashboard`` and the dashboard of ``make run``: what is said when it cannot be had."""

from __future__ import annotations

import importlib
import importlib.util
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from rich.console import Console

from serve.cli import main
from serve.demo.own_dashboard import own_dashboard
from serve.viewer import PORT
from tests.support.server import free_port

demo = importlib.import_module("serve.cli.demo")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def without_streamlit(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "streamlit" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_a_taken_port_is_said(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--port", str(taken)]) == 1
    error = capsys.readouterr().err
    assert f"port {taken} on 127.0.0.1" in error and "--port" in error


@pytest.mark.parametrize(
    "url", ["", "nonsense", "127.0.0.1:8000", "ftp://x", "http://", "http://[::1", "http://x:99999"]
)
def test_what_is_no_address_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--url", url, "--port", str(free_port())]) == 1
    assert f"--url {url!r} is not an address" in capsys.readouterr().err


@pytest.mark.usefixtures("without_streamlit")
def test_what_is_not_installed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--port", str(free_port())]) == 1
    error = capsys.readouterr().err
    assert "needs streamlit" in error and "'.[dashboard]'" in error


@pytest.mark.usefixtures("without_streamlit")
def test_the_demo_goes_on_without_it() -> None:
    with own_dashboard("http://127.0.0.1:1", None) as viewer:
        assert viewer.url is None and not viewer.runs and "streamlit" in viewer.problem


def test_the_demo_takes_another_port_when_the_usual_one_is_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", PORT))
            other.listen()
        except OSError:
            pass  # somebody else has it
        with own_dashboard("http://127.0.0.1:1", None) as viewer:
            assert viewer.runs and viewer.url is not None
            assert not viewer.url.endswith(f":{PORT}")
        assert not viewer.runs


def test_the_demos_dashboard_wants_the_demos_server() -> None:
    assert main(["demo", "--dashboard"]) == 2


@pytest.mark.parametrize("terminal", [True, False])
def test_on_a_terminal_the_sessions_stay_until_ctrl_c(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Viewer:
        url, problem = "http://127.0.0.1:8501", ""

        @property
        def runs(self) -> bool:
            asked.append("runs")
            if len(asked) > 3:
                raise KeyboardInterrupt
            return True

    async def play(*_: Any, keep: bool, **__: Any) -> list[Any]:
        asked.append(f"keep={keep}")
        return []

    monkeypatch.setattr(Console, "is_terminal", terminal)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(demo, "_WATCH_S", 0)
    monkeypatch.setattr(demo, "own_server", lambda: nullcontext("http://127.0.0.1:1"))
    monkeypatch.setattr(demo, "own_dashboard", lambda url, key: nullcontext(Viewer()))
    monkeypatch.setattr(demo, "play", play)
    monkeypatch.setattr(demo, "token_counter", lambda model: len)
    monkeypatch.setattr(demo, "_print", lambda *_: asked.append("printed"))
    assert main(["demo", "--serve", "--dashboard"]) == 0
    stayed = ["keep=True", "printed", "runs", "runs"]
    assert asked == (stayed if terminal else ["keep=False", "printed"])
