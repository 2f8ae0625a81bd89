"""A server of the demo's own: started on a free port, and gone when the demo is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import httpx
import psutil

from serve.demo.api import DemoFailed
from serve.processes import end_with_parent, free_port

_START_S = 300.0
_STOP_S = 40.0
_POLL_S = 0.5
_SERVE = "import sys; from serve.cli import main; sys.exit(main(sys.argv[1:]))"
_COMMAND = (sys.executable, "-P", "-c", _SERVE, "serve", "--port")


@contextmanager
def own_server(command: tuple[str, ...] = _COMMAND) -> Iterator[str]:
    """Start a server, wait until it is ready, give its URL; stop it on the way out.

    Args:
        command: starts it; the port is appended.

    Raises:
        DemoFailed: it ended or did not get ready; the message is its own last line.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C reaches the demo, which stops the server last.
        process = subprocess.Popen(
            [*command, str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            _wait_ready(process, url, log)
            yield url
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"the server did not start: {_last_line(log)}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        time.sleep(_POLL_S)
    raise DemoFailed(f"the server was not ready after {_START_S:.0f} s: {_last_line(log)}")


def _last_line(log: IO[bytes]) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - 8192))
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ") if lines else "it said nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then whatever it takes; also when interrupted again."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    try:
        process.terminate()
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
