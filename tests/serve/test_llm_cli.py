"""The command ``llm``: an interactive chat of 20 turns, then single calls that continue it.

An interactive chat holds the transcript in its process. Every single call is a process of its
own (a second to start, so there are few), which reads the transcript from its database.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.test_clients import ANSWER, LONGEST, MODEL, TURNS
from tests.support.clients import SYSTEM, write_llm_models
from tests.support.local_server import LocalServer, local_server
from tests.support.watch import SessionWatch

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


def turns(server: LocalServer) -> float:
    return server.engine.stats()["turns_total"]


OPTIONS = ("-o", "max_tokens", str(ANSWER), "-o", "temperature", "0")


def test_a_chat_and_its_continuation(server: LocalServer) -> None:
    watch = SessionWatch(server, ANSWER)
    new = [{"role": "system", "content": SYSTEM}]
    chat = subprocess.Popen(
        command("chat", "-m", MODEL, "-s", SYSTEM, *OPTIONS),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with chat:
        assert chat.stdin is not None and chat.stderr is not None
        for number in range(TURNS):
            text = f"Question {number}?"
            new.append({"role": "user", "content": text})
            before = turns(server)
            chat.stdin.write(f"{text}\n".encode())
            chat.stdin.flush()
            wait_for_turn(server, before, chat)
            watch.turn(new, None)
            new = []
        chat.stdin.write(b"exit\n")
        chat.stdin.close()
        assert chat.wait(30) == 0, chat.stderr.read()
    for number, more in enumerate([(), ("--no-stream",)]):
        text = f"One more {number}"
        result = call("-c", text, *OPTIONS, *more)
        assert result.returncode == 0, result.stderr
        shown = result.stdout.decode().removesuffix("\n")
        watch.turn([{"role": "user", "content": text}], shown)


def wait_for_turn(server: LocalServer, before: float, chat: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while turns(server) == before:
        assert chat.poll() is None and time.monotonic() < end, "no turn"
        time.sleep(0.01)


def test_an_error_is_shown(server: LocalServer, folder: Path) -> None:
    write_llm_models(folder, server.base_url, "none-such")
    result = call("-m", "none-such", "Hello")
    assert result.returncode == 1
    assert result.stderr.decode().startswith("Error: ")
    assert "The model 'none-such' does not exist here" in result.stderr.decode()
