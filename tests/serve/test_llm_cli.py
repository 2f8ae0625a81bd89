"""The command ``llm``: an interactive chat of 20 turns, then single calls that continue it.

An interactive chat holds the transcript in its process. Every single call is a process of its
own (a second to start, so there are few), which reads the transcript from its database.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.test_clients import ANSWER, LONGEST, MODEL, TURNS
from tests.support.clients import SYSTEM, write_llm_models
from tests.support.local_server import LocalServer, local_server
from tests.support.watch import check_session

CHECKOUT = Path(__file__).resolve().parents[2]
GUARD = """\
from tests.support.network import refuse_network

def note(what):
    with open({path!r}, "a") as file:
        file.write(what + "\\n")

refuse_network(note)
note("guarded")
"""


@pytest.fixture(scope="module")
def server(protocol_model: Path) -> Iterator[LocalServer]:
    with local_server(protocol_model, max_session_tokens=LONGEST) as made:
        yield made


@pytest.fixture(autouse=True)
def folder(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The command's own folder; its processes ask nobody but this machine."""
    write_llm_models(tmp_path, server.base_url, MODEL)
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    asked = tmp_path / "asked.txt"
    python = tmp_path / "python"
    python.mkdir()
    (python / "sitecustomize.py").write_text(GUARD.format(path=str(asked)))
    monkeypatch.setenv("PYTHONPATH", f"{python}:{CHECKOUT}")
    yield tmp_path
    assert set(asked.read_text().splitlines()) == {"guarded"}


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "llm"), *arguments]


def call(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


OPTIONS = ("-o", "max_tokens", str(ANSWER), "-o", "temperature", "0")


def test_a_chat_and_its_continuation(server: LocalServer) -> None:
    questions = "".join(f"Question {number}?\n" for number in range(TURNS)).encode()
    chat = command("chat", "-m", MODEL, "-s", SYSTEM, *OPTIONS)
    result = subprocess.run(chat, input=questions + b"exit\n", capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    call("-c", "One more", *OPTIONS)
    shown = call("-c", "The last one", *OPTIONS, "--no-stream").stdout.decode()
    turns = check_session(server)
    assert len(turns) == TURNS + 2
    assert [bool(turn.body.get("stream")) for turn in turns[-3:]] == [True, True, False]
    again = call("-c", "What did you say?", *OPTIONS)
    assert again.returncode == 0, again.stderr
    (exchange,) = server.exchanges.take()
    assert exchange.body["messages"][-2]["content"] == shown.removesuffix("\n")


def test_an_error_is_shown(server: LocalServer, folder: Path) -> None:
    write_llm_models(folder, server.base_url, "none-such")
    result = call("-m", "none-such", "Hello")
    assert result.returncode == 1
    assert result.stderr.decode().startswith("Error: ")
    assert "The model 'none-such' does not exist here" in result.stderr.decode()
