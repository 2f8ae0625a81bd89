"""``pace dashboard`` and the dashboard of ``make run``: what is said when it cannot be had."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from serve.cli import main
from serve.demo.own_dashboard import own_dashboard
from serve.viewer import PORT
from tests.support.server import free_port


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
