"""Runs code that a model wrote, and measures what it does.

The answer runs in a process of its own (``bench.sandbox_child``), which calls it and sends back
plain values. What is expected stays here: the child is never told, so a forged result is worth no
more than a guess. The child has

- an empty folder as working directory, an environment of its own, no input, no terminal;
- limits on time (wall and CPU), memory, open files and output; the whole process group is killed
  when the time is over, and after the last value;
- the user ``nobody`` when we are root;
- a filter in the kernel (seccomp) that refuses every system call but those that computing, reading
  files and writing to what is open already need: no process or thread is started, no signal sent,
  no socket opened, no file made, changed or removed;
- where the kernel has Landlock (since 5.13), nothing to read but the standard library and the
  system's libraries, and no look into other processes.

Without such a filter (Linux on x86_64 and aarch64 have it) nothing is run.

What this does not protect against: without Landlock an answer may read every file its user may read
(nobody, when we are root; else *our* user, with what /proc shows of our processes). It cannot send
them anywhere, and no value it returns is stored. It may find, in its own process, the classes and
the inputs it is checked with, but not what is expected. It uses a core and its share of memory
until its time is over. An attack on the kernel itself is out of scope; run whole benchmarks in a
virtual machine when the model under test might try one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import PaceError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START = 60.0  # seconds, also on a busy machine
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # the same answer does the same each time
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of wall clock for the whole answer, bytes of address space, bytes of results."""

    wall: float = 10.0
    memory: int = 512 << 20
    output: int = 1 << 18


class Call(NamedTuple):
    """A function of the instrument and its JSON arguments, after the answer's namespace."""

    function: str
    arguments: tuple[Any, ...] = ()


class Measured(NamedTuple):
    """What a call returned (plain JSON value, exact type), or why it returned nothing."""

    value: Any = None
    error: str | None = None


class SandboxError(PaceError):
    """Answers cannot be run safely here; the message says why."""

    code = "sandbox_unavailable"


def measure(
    sources: Sequence[str], instrument: str, calls: Sequence[Call], limits: Limits | None = None
) -> list[Measured]:
    """Execute ``sources`` one after another in one namespace, then make the calls.

    Args:
        sources: Python texts; when one raises, every call fails with its error.
        instrument: Python text that defines the functions of the calls. It has a namespace of its
            own; each function gets the answer's as its first argument, and returns a plain value.
        calls: made in order; one that raises fails alone, one that ends the process or its time
            fails with all after it.

    Returns:
        One result per call, in order.

    Raises:
        SandboxError: the child could not be started or shut in.
    """
    limits = limits or Limits()
    job = {
        "sources": list(sources),
        "instrument": instrument,
        "calls": calls,
        "memory": limits.memory,
        "cpu": int(limits.wall) + 1,
    }
    with (
        tempfile.TemporaryDirectory(prefix="pace-answer-") as folder,
        tempfile.TemporaryFile() as f,
    ):
        os.chmod(folder, 0o755)
        f.write(json.dumps(job).encode())
        f.seek(0)
        said, late = _run(f.fileno(), folder, limits)
    lines = [line for line in map(_parsed, said.split(b"\n")) if line is not None]
    if not lines or not lines[0].get("safe"):
        why = lines[0].get("unsafe") if lines else None
        raise SandboxError(
            f"an answer was not run: {why or 'its process did not start'}; it needs Linux with "
            "seccomp, and root must be able to become nobody"
        )
    failed = [line["failed"] for line in lines if "failed" in line]
    nothing = Measured(error=str(failed[0]) if failed else "time is over" if late else "it ended")
    results = [nothing] * len(calls)
    for line in lines[1:]:
        index = line.get("call")
        if type(index) is int and 0 <= index < len(calls):
            error = line.get("error")
            results[index] = Measured(line.get("value"), None if error is None else str(error))
    return results


def _run(job: int, folder: str, limits: Limits) -> tuple[bytes, bool]:
    """What the child wrote, up to the limit, and whether it was stopped for its time."""
    said = bytearray()
    started = False
    deadline = time.monotonic() + _START
    child = subprocess.Popen(
        # nothing of ours on its path: no site-packages, no folder of the script
        [sys.executable, "-sSP", str(_CHILD)],
        stdin=job,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=_ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while len(said) <= limits.output:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return bytes(said), True
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                break
            said += piece
            if not started and b"\n" in said:  # shut in; the answer's time begins
                started, deadline = True, time.monotonic() + limits.wall
        return bytes(said[: limits.output]), False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line of the child; None when it is none: the answer may write there what it likes."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
