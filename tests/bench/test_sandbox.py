"""Hostile answers lose and harm nothing; values keep their types; broken output is no crash."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench import sandbox
from bench.coding.checks import failed_checks
from bench.coding.spec import amounts, fee, sample_spec
from bench.sandbox import Call, Limits, Measured, SandboxError, measure

SPEC = sample_spec(11)
FEES = [kind for kind, _ in amounts(SPEC)]
LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1) > 0
INSTRUMENT = "def run(answer, *arguments):\n    return answer['f'](*arguments)\n"


def returned(code: str, *arguments: object, limits: Limits | None = None) -> Measured:
    (found,) = measure([code], INSTRUMENT, [Call("run", arguments)], limits)
    return found


def raised(*attempts: str) -> list[str | None]:
    """The error of each attempt, which stands in the body of a function; in one process."""
    bodies = ["\n".join(f"    {line}" for line in one.split("\n")) for one in attempts]
    code = "import os\n" + "".join(f"def f{n}():\n{body}\n" for n, body in enumerate(bodies))
    instrument = "def run(answer, n):\n    answer[f'f{n}']()"
    calls = [Call("run", (number,)) for number in range(len(attempts))]
    return [found.error for found in measure([code], instrument, calls)]


@pytest.fixture
def victim() -> Iterator[Path]:
    """A file that everybody may write and remove, with a secret beside it."""
    with tempfile.TemporaryDirectory(prefix="pace-victim-", dir="/tmp") as name:
        folder = Path(name)
        path, secret = folder / "file", folder / "secret"
        path.write_text("whole")
        secret.write_text("hidden")
        for one, mode in ((folder, 0o777), (path, 0o666), (secret, 0o600)):
            one.chmod(mode)
        yield path
        assert sorted(file.name for file in folder.iterdir()) == ["file", "secret"]
        assert path.read_text() == "whole"


HOSTILE = {
    "endless loop": "while True:\n    pass",
    "endless sleep": "import time\ntime.sleep(1000)",
    "endless recovery": (
        "while 1:\n    try:\n        input()\n    except BaseException:\n        pass"
    ),
    "memory": "held = []\nwhile True:\n    held.append('x' * 10_000_000)",
    "a number without end": "x = 9 ** 9 ** 9",
    "forks": "import os\nwhile True:\n    os.fork()",
    "threads": "import threading\nwhile True:\n    threading.Thread(target=print).start()",
    "programs": "import subprocess\nsubprocess.Popen(['sleep', '98765'], start_new_session=True)",
    "shell": "import os\nassert os.system('sleep 98765 &') == 0",
    "daemon": "import os\nos.setsid()\nif os.fork():\n    os._exit(0)",
    "exit": "import sys\nsys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "crash": "import ctypes\nctypes.string_at(0)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill everything": "import os\nos.kill(-1, 9)",
    "kill by signal of a file": (
        "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())"
    ),
    "network": "import socket\nsocket.socket()",
    "huge output": "import sys\nwhile True:\n    sys.stdout.write('x' * 1_000_000)",
    "huge result": (
        "import os\nwhile True:\n    for fd in range(3, 12):\n        try:\n"
        "            os.write(fd, b'x' * 60_000)\n        except OSError:\n            pass"
    ),
    "forged results": (
        "import os\nfor fd in range(20):\n    try:\n"
        "        os.write(fd, b''.join(b'{\"call\": %d, \"value\": 5}\\n' % i for i in range(7)))\n"
        "    except OSError:\n        pass\nos._exit(0)"
    ),
    "nested results": (
        "import os\nfor fd in range(3, 20):\n    try:\n"
        "        os.write(fd, b'[' * 50_000 + b'\\n')\n"
        "        os.write(fd, b'{\"call\": 99, \"value\": 5}\\n{\"call\": \"x\"}\\n')\n"
        "        os.write(fd, b'\\xff\\n[1]\\n')\n"
        "    except OSError:\n        pass\nos._exit(0)"
    ),
    "pretend equality": (
        "class Same(int):\n    __eq__ = lambda self, other: True\n"
        "    __hash__ = int.__hash__\n    __repr__ = lambda self: 'any'\n"
        "def fee_for(entry):\n    return Same(-1)"
    ),
    "replaced tools": (
        "import builtins, json\njson.dumps = lambda *a: 'forged'\nbuiltins.isinstance = None\n"
        "def fee_for(entry):\n    return -1"
    ),
    "search for the checks": (
        "import gc, sys\nfound = []\nframe = sys._getframe()\nwhile frame:\n"
        "    found += [v for v in frame.f_locals.values()]\n    frame = frame.f_back\n"
        "jobs = [v for v in found if isinstance(v, dict) and 'calls' in v]\n"
        "def fee_for(entry):\n    (job,) = jobs\n"
        "    return [c for c in job['calls'] if isinstance(c, dict) or len(c) > 2][0]['expected']"
    ),
    "read the checks": (
        "import importlib, sys\nsys.path += ['.', '..', '/proc/1/cwd']\n"
        "import bench.coding.spec\ndef fee_for(entry):\n    return 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_loses_every_check(name: str) -> None:
    answer = f"```python\n{HOSTILE[name]}\n```"
    began = time.monotonic()
    total, failed = failed_checks(SPEC, "p1", answer, Limits(wall=0.5))
    assert (total, failed) == (7, FEES)
    assert time.monotonic() - began < 30
    if "sleep" in HOSTILE[name]:
        running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
        assert ["sleep", "98765"] not in running


def test_what_was_measured_before_the_time_is_over_counts() -> None:
    right = fee(SPEC, amounts(SPEC)[0].value)
    answer = (
        f"def fee_for(entry):\n    while entry.{SPEC.f_amt} != {amounts(SPEC)[0].value}:\n"
        f"        pass\n    return {right}"
    )
    assert failed_checks(SPEC, "p1", answer, Limits(wall=1.0)) == (7, FEES[1:])


def test_files_are_neither_written_nor_removed_nor_changed(victim: Path) -> None:
    path, folder = str(victim), str(victim.parent)
    attempts = [
        f"open({path!r}, 'w')",
        f"open({path!r}, 'r+')",
        f"open({path!r}, 'a')",
        f"open({folder!r} + '/new', 'x')",
        f"os.remove({path!r})",
        f"os.rename({path!r}, {path!r} + '2')",
        f"os.truncate({path!r}, 0)",
        f"os.mkdir({folder!r} + '/new')",
        f"os.symlink('/', {folder!r} + '/new')",
        f"os.utime({path!r})",
        f"os.open({folder!r}, os.O_TMPFILE | os.O_RDWR)",
        "open('here', 'w')",
        "os.memfd_create('m')",
    ]
    assert raised(*attempts) == ["PermissionError"] * len(attempts)
    assert raised("import tempfile\ntempfile.TemporaryFile()") == ["FileNotFoundError"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_becomes_nobody_who_cannot_read_what_is_ours(victim: Path) -> None:
    attempts = [f"open({str(victim.with_name('secret'))!r})", "os.setuid(0)", "os.getresuid()"]
    for private in ("environ", "mem", "cwd/x", "fd/0"):
        attempts.append(f"open('/proc/{os.getpid()}/{private}', 'rb')")
    assert raised(*attempts) == ["PermissionError"] * len(attempts)
    assert returned("import os\ndef f():\n    return os.getuid()").value == 65534


def test_the_environment_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE_SECRET", "hidden")
    found = returned("import os\ndef f():\n    return [*os.environ]").value
    assert "PATH" in found and "PACE_SECRET" not in found


def test_limits_cannot_be_raised_and_processes_cannot_start() -> None:
    attempts = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))",
        "os.fork()",
        "os.kill(os.getpid(), 0)",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.setsid()",
    )
    first, *others = raised(*attempts)
    assert first in ("PermissionError", "ValueError")
    assert others == ["PermissionError"] * 5


@pytest.mark.parametrize(
    "value", [0, -1, 10**300, 2.5, True, None, "é\n", [1, [True, "x"]], "\ud800"]
)
def test_plain_values_come_back_as_they_are(value: object) -> None:
    found = returned(f"def f(): return {value!r}")
    assert (found.value, type(found.value), found.error) == (value, type(value), None)


@pytest.mark.parametrize("code", ["{1}", "{}", "b''", "1j", "[object()]", "10**5000", "f", "l"])
def test_other_values_are_errors(code: str) -> None:
    assert returned(f"l = []\nl.append(l)\ndef f(): return {code}").error is not None


def test_everyday_imports_work() -> None:
    names = (
        "collections enum functools itertools math re datetime fractions statistics logging uuid"
    )
    names += " random string copy operator abc json csv hashlib bisect heapq contextlib numbers io"
    found = returned(f"import {', '.join(names.split())}\ndef f(): return math.gcd(12, 18)")
    assert found == Measured(6)


def test_dataclasses_with_postponed_annotations_work() -> None:
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from typing import ClassVar\n@dataclass\nclass A:\n    k: ClassVar[int] = 3\n    x: int\n"
        "def f(x): return [A(x).x, A.k]"
    )
    assert returned(code, 5) == Measured([5, 3])


def test_a_main_part_is_not_run() -> None:
    assert returned("def f(): return 1\nif __name__ == '__main__':\n    exit()") == Measured(1)


def test_nothing_is_run_where_the_kernel_filters_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    text = Path(sandbox._CHILD).read_text().replace('"x86_64", "aarch64"', '"z80", "6502"')
    child.write_text(text)
    monkeypatch.setattr(sandbox, "_CHILD", child)
    with pytest.raises(SandboxError, match="no list of system calls"):
        returned(f"import os\nos.kill({os.getpid()}, {int(signal.SIGTERM)})")
    child.write_text("raise SystemExit(3)")
    with pytest.raises(SandboxError, match="did not start"):
        returned("")


@pytest.mark.skipif(not LANDLOCK, reason="needs Landlock")
def test_nothing_is_read_but_libraries() -> None:
    attempts = [
        "open('/etc/passwd')",
        "os.listdir('/')",
        "os.listdir('/proc/self/fd')",
        "open('x')",
    ]
    attempts += [f"open({__file__!r})", "open('/proc/self/environ')", "open('/proc/self/mem')"]
    assert set(raised(*attempts)) <= {"PermissionError", "FileNotFoundError"}
    assert raised("open('/dev/urandom', 'rb').read(1)", "import wave, xml.dom") == [None, None]


@pytest.mark.skipif(os.geteuid() != 0, reason="run as another user anyhow")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python for everybody")
def test_the_filter_alone_holds_for_a_user_who_is_not_root() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        child = Path(shutil.copy(sandbox._CHILD, folder))
        mine = Path(folder, "mine")
        mine.touch(mode=0o600)
        os.chown(mine, 1234, 1234)
        code = (
            "import os\ndef f():\n    os.kill(os.getppid(), 9)\ndef g():\n    open('mine', 'a')\n"
        )
        code += "def i():\n    open('mine')\n"
        job = {
            "sources": [code + "def h():\n    import fractions\n    return os.getuid()"],
            "instrument": "def run(answer, name):\n    return answer[name]()",
            "calls": [["run", [name]] for name in "fghi"],
            "memory": 512 << 20,
            "cpu": 5,
        }
        done = subprocess.run(
            ["/usr/bin/python3", "-sS", str(child)],
            input=json.dumps(job).encode(),
            capture_output=True,
            user=1234,
            group=1234,
            extra_groups=[],
            cwd=folder,
        )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"safe": True},
        {"call": 0, "error": "PermissionError"},
        {"call": 1, "error": "PermissionError"},
        {"call": 2, "value": 1234},
        {"call": 3, "error": "PermissionError"} if LANDLOCK else {"call": 3, "value": None},
    ], (done.stderr, sys.version)
