"""The processes this one has started: seen, waited for, and ended when they do not end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG = 1


class OwnProcesses:
    """Remembers what this process starts from now on, with all its descendants, also those
    whose parent has died since. Children there were before are somebody else's.

    psutil compares creation times, so a reused process id is never mistaken for ours.
    """

    def __init__(self) -> None:
        self._before = frozenset(psutil.Process().children())
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Add the descendants there are now."""
        for child in psutil.Process().children():
            if child not in self._before:
                self._seen.add(child)
                with suppress(psutil.NoSuchProcess):
                    self._seen.update(child.children(recursive=True))

    def alive(self) -> list[psutil.Process]:
        """Those still running."""
        self.look()
        return [process for process in self._seen if _is_alive(process)]

    def wait(self, seconds: float) -> bool:
        """Wait for all to end; False when some are left after ``seconds``."""
        _, left = psutil.wait_procs(self.alive(), timeout=seconds)
        return not left

    def kill(self) -> None:
        """End what is left at once."""
        left = self.alive()
        _kill(left)
        psutil.wait_procs(left, timeout=3)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def pid_exists(pid: int) -> bool:
    """Whether a process of that id runs (it may belong to anyone)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_with_parent() -> None:
    """For a child that has just been forked: when its parent dies, the kernel sends it SIGTERM."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
