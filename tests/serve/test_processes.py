"""Own processes and folders: found, also as orphans, and ended; nobody else's touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.cluster import LocalCluster, auth_token_path, make_temp_folder, ray_environment
from serve.config import ServeConfig
from serve.processes import OwnProcesses, pid_exists

# Starts a grandchild, says its id, and ends when told to.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        yield parent, int(parent.stdout.readline())
    parent.wait(10)


def test_an_orphan_is_still_ours(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, orphan = family
    own = OwnProcesses()
    own.look()
    assert parent.stdin is not None
    parent.stdin.write("\n")
    parent.stdin.flush()
    parent.wait(10)
    assert [process.pid for process in own.alive()] == [orphan]
    assert not own.wait(0.1)
    own.kill()
    assert own.wait(5) and own.alive() == []
    end = time.monotonic() + 5
    while pid_exists(orphan) and time.monotonic() < end:
        time.sleep(0.05)
    assert not pid_exists(orphan)


def test_pids() -> None:
    assert pid_exists(os.getpid()) and pid_exists(1)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(10)
    assert not pid_exists(gone.pid)


def test_folders_of_dead_servers_are_swept(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(10)
    names = (f"pace-{gone.pid}-a", f"pace-{os.getpid()}-b", "pace-x", "pace-7up", "other")
    for name in names:
        (tmp_path / name).mkdir()
    made = make_temp_folder(tmp_path)
    assert made.name.startswith(f"pace-{os.getpid()}-")
    assert made.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], made.name}


def test_the_token_is_made_once_and_secret() -> None:
    environment = ray_environment(ServeConfig())
    path = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text()
    assert len(token) == 64
    assert auth_token_path() == path and path.read_text() == token


def test_a_cluster_that_never_started_can_be_stopped() -> None:
    cluster = LocalCluster(ServeConfig())
    assert not cluster.alive()
    cluster.stop()
