"""The session-end check itself: it must fail a session that leaves something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leftovers

CHECKOUT = Path(__file__).resolve().parent.parent

LEAKY = """
import socket, subprocess, sys
server = socket.create_server(("127.0.0.1", 0))
def test_leaves_things_behind():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                             start_new_session=True, 
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    open("pid", "w").write(str(child.pid))
"""


def run_inner(folder: Path, source: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``source`` as the only test file of a session of its own under our conftest."""
    (folder / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-s", "--editing"]
    command += ["--rootdir", str(folder), "-p", "no:cacheprovider", *args, "test_inner.py"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("args", [(), ("-n", "1", "--dist", "loadgroup")], ids=["alone", "workers"])
def test_a_leaked_process_and_socket_fail_the_session(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    result = run_inner(tmp_path, LEAKY, *args)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "1 passed" in result.stdout
    assert f"process {pid}: " in result.stdout
    assert "socket 127.0.0.1:" in result.stdout


def test_a_clean_session_passes(tmp_path: Path) -> None:
    result = run_inner(tmp_path, "def test_nothing(): pass\n")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "left behind" not in result.stdout


def test_new_files_are_seen_and_ignored_ones_are_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    before = leftovers.untracked_files(tmp_path)
    (tmp_path / "left.txt").touch()
    (tmp_path / "fine.log").touch()
    (line,) = leftovers.new_files(tmp_path, before)
    assert line.startswith("file left.txt ")


def test_outside_git_files_are_not_checked(tmp_path: Path) -> None:
    assert leftovers.untracked_files(tmp_path / "nowhere") is None
    assert leftovers.new_files(tmp_path / "nowhere", None) == []
