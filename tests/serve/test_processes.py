"""Own processes and folders: found, also as orphans, and ended; nobody else's touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.cluster import auth_token_path, make_temp_folder, ray_environment
from serve.processes import pid_exists

# Both run in a process of their own: what they end is everything that process has started, and
# this one has started the server the other tests use.
ORPHAN = """
import subprocess, sys, time
from serve.processes import OwnProcesses, pid_exists

# a parent that starts a grandchild, says its id, and ends when told to
code = '''
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
sys.stdin.readline()
'''
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
own = OwnProcesses()
parent = subprocess.Popen([sys.executable, "-c", code], **pipes)
orphan = int(parent.stdout.readline())
own.look()
parent.stdin.close()  # ends it; the orphan still holds its output
parent.wait(10)
assert [process.pid for process in own.alive()] == [orphan]
assert not own.wait(0.1)
own.kill()
assert own.wait(5) and own.alive() == []
end = time.monotonic() + 5
while pid_exists(orphan) and time.monotonic() < end:
    time.sleep(0.05)
assert not pid_exists(orphan)
"""

NEVER_STARTED = """
import subprocess, sys

others = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
from serve.cluster import LocalCluster
from serve.config import ServeConfig

cluster = LocalCluster(ServeConfig())
assert not cluster.alive()
cluster.stop()
assert others.poll() is None
others.communicate(b"\\n", timeout=10)
assert others.returncode == 0
"""


@pytest.mark.parametrize("script", [ORPHAN, NEVER_STARTED], ids=["orphan", "never started"])
def test_only_own_processes_are_ended(script: str) -> None:
    """An orphan is still ours; a cluster that never started can be stopped, and a child that was
    there before it is left alone."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


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
    environment = ray_environment()
    path = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text()
    assert len(token) == 64
    assert auth_token_path() == path and path.read_text() == token
