"""A real ``pace serve`` as a child process, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

START_S = 180
READY = "PACE is ready at"


class Server:
    """A server in a process group of its own, as a shell would start it.

    Args:
        folder: where it runs and keeps its files; outside the checkout.
        config: content of its configuration file.
        args: more command-line arguments.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *args: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Whoever starts the server may have files of these names where they work.
        (folder / "engine.py").write_text("raise RuntimeError('not our engine')\n")
        (folder / "serve").mkdir(exist_ok=True)
        (folder / "serve" / "__init__.py").write_text("raise RuntimeError('not our serve')\n")
        path = folder / "serve.yaml"
        path.write_text(yaml.safe_dump(dict(config)))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._out = folder / "stdout.txt"
        self._err = folder / "stderr.txt"
        command = [str(Path(sys.executable).parent / "pace"), "serve", "--config", str(path)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *args],
                stdout=out,
                stderr=err,
                cwd=folder,
                start_new_session=True,
            )
        self._seen: set[psutil.Process] = set()

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def wait_ready(self) -> None:
        """Wait for the ready line."""
        self.wait_for(READY, START_S)

    def wait_for(self, text: str, seconds: float) -> None:
        """Wait until standard output holds ``text``."""
        end = time.monotonic() + seconds
        while text not in self.stdout:
            assert self.process.poll() is None, f"the server ended: {self.stderr}"
            assert time.monotonic() < end, f"not ready: {self.stderr}"
            time.sleep(0.05)
        self.processes()

    def processes(self) -> list[psutil.Process]:
        """The server and all its descendants seen so far that still run."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            self._seen |= {own, *own.children(recursive=True)}
        return [process for process in self._seen if _runs(process)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server alone, as ``kill`` does."""
        self.processes()
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT to the whole process group."""
        self.processes()
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, seconds: float) -> int:
        """Exit code, when the server ends within ``seconds``."""
        return self.process.wait(timeout=seconds)

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait(30)
            except subprocess.TimeoutExpired:
                for process in self.processes():
                    process.kill()
                self.wait(5)

    def assert_gone(self, seconds: float = 2) -> None:
        """Nothing of the server is left: no process, no listening port."""
        _, alive = psutil.wait_procs(self.processes(), timeout=seconds)
        assert not alive, f"left behind: {alive}"
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self.port)) != 0, "the port still answers"


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """``server`` while it is ready; afterwards nothing of it is left."""
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
        server.assert_gone()
