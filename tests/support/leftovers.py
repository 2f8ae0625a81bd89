"""What a test session must not leave behind: processes, listening sockets, files."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

# Children inherit the mark, so that a process is known as ours after it left our process tree.
MARK = "PACE_TEST_SESSION"
FILES_BEFORE = pytest.StashKey[frozenset[str] | None]()
FOUND = pytest.StashKey[list[str]]()
OF_WORKER = "left_behind"
"""Where a worker of pytest-xdist tells the controller what it found."""
GRACE_S = 5.0


def new_mark() -> str:
    return uuid4().hex


def processes(grace_s: float = GRACE_S) -> list[str]:
    """One line per process started in this session that is still there after ``grace_s``."""
    deadline = time.monotonic() + grace_s
    while (left := _marked()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"process {p.pid}: {_describe(p)}" for p in left]


def listening_sockets() -> list[str]:
    """One line per TCP socket on which pytest itself or a process of this session listens."""
    lines = []
    for process in [psutil.Process(), *_marked()]:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.Error:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                host, port = connection.laddr
                lines.append(f"socket {host}:{port} of process {process.pid}")
    return lines


def untracked_files(checkout: Path) -> frozenset[str] | None:
    """Files in ``checkout`` that git neither tracks nor ignores; None outside a git checkout."""
    command = ["git", "-C", str(checkout), "ls-files", "--others", "--exclude-standard", "-z"]
    try:
        output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(name for name in output.split("\0") if name)


def new_files(checkout: Path, before: frozenset[str] | None) -> list[str]:
    """One line per file that appeared in ``checkout`` since ``before``."""
    after = untracked_files(checkout)
    if before is None or after is None:
        return []
    return [
        f"file {name} in the checkout (--editing if you made it meanwhile)"
        for name in sorted(after - before)
    ]


def _marked() -> list[psutil.Process]:
    mark = os.environ[MARK]
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == mark
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return "?"
