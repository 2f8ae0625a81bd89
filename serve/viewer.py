"""Starts the dashboard (Streamlit) in a process of its own. It reads the server over HTTP only, so
nothing here imports it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from engine.errors import ConfigError
from serve.processes import end_with_parent

HOST = "127.0.0.1"
PORT = 8501
_STOP_S = 5.0
_NEEDS = ("streamlit", "plotly", "pandas")
_THEME = {
    "theme.light.primaryColor": "#0072b2",
    "theme.light.secondaryBackgroundColor": "#f3f5f7",
    "theme.dark.primaryColor": "#58aef0",
    "theme.dark.backgroundColor": "#12161c",
    "theme.dark.secondaryBackgroundColor": "#1d242e",
}
_OPTIONS = {
    "server.address": HOST,
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorLinks": "false",
    "logger.level": "warning",
    "logger.hideWelcomeMessage": "true",
    **_THEME,
}


def start_viewer(
    url: str,
    port: int,
    *,
    key: str | None = None,
    log: IO[bytes] | int | None = None,
    yielding: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the dashboard on ``HOST``:``port``, for the server at ``url``.

    Args:
        key: an API key of the server; None: that of our environment, if any.
        log: where its output goes, as subprocess takes it; None: where ours goes.
        yielding: let everything else on the machine go first.

    Returns:
        Its process, in a session of its own, so that Ctrl-C in a terminal reaches only us. It ends
        when we die.

    Raises:
        ConfigError: what it needs is not installed.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the dashboard needs {', '.join(missing)}, not installed here: "
            "install PACE with its extra 'dashboard' (pip install '.[dashboard]' in the checkout)"
        )
    environment = {**os.environ, "PACE_URL": url}
    if key is not None:
        environment["PACE_API_KEY"] = key
    options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
    command = [sys.executable, "-P", "-m", "streamlit", "run", str(_script()), *options]
    return subprocess.Popen(
        [*command, f"--server.port={port}"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
        preexec_fn=_yield_and_end_with_parent if yielding else end_with_parent,
    )


def check_address(url: str) -> None:
    """Raise ConfigError unless ``url`` is the address of a server."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(f"--url {url!r} is not an address such as http://127.0.0.1:8000")


def stop_viewer(process: subprocess.Popen[bytes]) -> None:
    """End it, whatever it takes."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()


def _yield_and_end_with_parent() -> None:
    os.nice(10)
    end_with_parent()


def _script() -> Path:
    spec = importlib.util.find_spec("dashboard")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "app.py"
