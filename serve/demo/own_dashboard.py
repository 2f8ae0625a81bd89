"""A dashboard of the demo's own: beside it, never in its way, and gone when the demo is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import ConfigError
from serve.cli.serve import check_port
from serve.processes import free_port
from serve.viewer import HOST, PORT, start_viewer, stop_viewer


class OwnDashboard:
    """``url`` where it will answer in a few seconds; None when it cannot be started: ``problem``
    says why."""

    def __init__(self, server: str, key: str | None) -> None:
        self.url: str | None = None
        self.problem = ""
        self._process: subprocess.Popen[bytes] | None = None
        port = _port()
        try:
            self._process = start_viewer(
                server, port, key=key, log=subprocess.DEVNULL, yielding=True
            )
        except (ConfigError, OSError) as error:
            self.problem = str(error)
        else:
            self.url = f"http://{HOST}:{port}"

    @property
    def runs(self) -> bool:
        """Whether it is there now."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            stop_viewer(self._process)


@contextmanager
def own_dashboard(server: str, key: str | None) -> Iterator[OwnDashboard]:
    """A dashboard for the server at ``server``; nobody waits for it."""
    found = OwnDashboard(server, key)
    try:
        yield found
    finally:
        found.stop()


def _port() -> int:
    """The usual one, or a free one when that is taken."""
    try:
        check_port(HOST, PORT)
    except ConfigError:
        return free_port()
    return PORT
