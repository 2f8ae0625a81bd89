"""``pace doctor``: is this machine ready? One line per check, with the remedy."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import psutil
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from engine.catalog import is_present, load_profile, model_path
from engine.config import EngineConfig, load_policies
from engine.errors import PaceError
from engine.home import pace_home, write_atomic
from serve.cli.clean import find_made

State = Literal["ok", "warn", "fail"]
HTTP_PORT = 8000
GIB = 1 << 30
# Measured for the embedded model: weights, conversion and one session; and what a model needs.
MEMORY_FAIL, MEMORY_WARN = 2 * GIB, 4 * GIB
DISK_FAIL, DISK_WARN = 1 * GIB, 3 * GIB
_COLOURS: dict[State, str] = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. ``remedy`` says what to do; empty when all is well."""

    name: str
    state: State
    found: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Check whether this machine is ready; exit with 1 if something is missing."""
    checks = run_checks()
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        table = Table("check", "state", "found", "remedy")
        for check in checks:
            colour = _COLOURS[check.state]
            state = f"[{colour}]{check.state}[/{colour}]"
            table.add_row(check.name, state, escape(check.found), escape(check.remedy))
        Console().print(table)
    return int(any(check.state == "fail" for check in checks))


def run_checks() -> list[Check]:
    """All checks, in order. A check that breaks is a failed check, not a crash."""
    return [check for checks in CHECKS for check in _guarded(checks)]


def _guarded(checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    name = checks.__name__.removeprefix("check_")
    try:
        yield from checks()
    except PaceError as error:
        yield Check(name, "fail", error.message)
    except Exception as error:
        yield Check(name, "fail", f"{type(error).__name__}: {error}", "reinstall PACE")


def check_python() -> Iterator[Check]:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} ({sys.executable})"
    yield Check("python", "ok" if good else "fail", found, "" if good else "install Python 3.11+")


def check_packages() -> Iterator[Check]:
    """Versions of the packages whose internals PACE relies on."""
    for name, lowest, below in (("ray", (2, 60), (2, 61)), ("transformers", (5, 24), (5, 40))):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "fail", "not installed", "make setup")
            continue
        numbers = tuple(int(part) for part in version.split(".")[:2])
        good = lowest <= numbers < below
        wanted = f"{lowest[0]}.{lowest[1]} or newer, below {below[0]}.{below[1]}"
        remedy = "" if good else f"install {name} {wanted}"
        yield Check(name, "ok" if good else "fail", version, remedy)


def check_torch() -> Iterator[Check]:
    import torch

    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ", ".join(torch.cuda.get_device_name(n) for n in range(cuda)) or "CPU only"
    found = f"{torch.__version__}, {devices}, {torch.get_num_threads()} threads"
    if cuda == 0 and Path("/proc/driver/nvidia").exists():
        remedy = "this machine has a GPU but torch cannot use it: make setup TORCH=cuda"
        yield Check("torch", "warn", found, remedy)
    else:
        yield Check("torch", "ok", found)


def check_memory() -> Iterator[Check]:
    free = min(psutil.virtual_memory().available, _cgroup_free())
    state = _level(free, MEMORY_FAIL, MEMORY_WARN)
    remedy = "" if state == "ok" else "close other programs, or raise the memory limit"
    yield Check("memory", state, f"{free / GIB:.1f} GiB available", remedy)


def check_home() -> Iterator[Check]:
    """``$PACE_HOME`` can be written, and its disk has room."""
    home = pace_home()
    probe = home / f".doctor-{os.getpid()}"
    try:
        write_atomic(probe, b"")
    except (PaceError, OSError) as error:
        yield Check("home", "fail", str(error), "set PACE_HOME to a folder you can write to")
        return
    probe.unlink()
    size = sum(made.size for made in find_made(home))
    kept = f", {decimal(size)} that pace clean removes" if size else ""
    yield Check("home", "ok", f"{home}{kept}")
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(nearest).free
    state = _level(free, DISK_FAIL, DISK_WARN)
    remedy = "free some space (pace clean), or set PACE_HOME to another disk"
    remedy = "" if state == "ok" else remedy
    yield Check("disk", state, f"{free / GIB:.1f} GiB free", remedy)


def check_model() -> Iterator[Check]:
    """The default model is there, its files can be read, and its chat template will do."""
    name = EngineConfig().model
    remedy = f"pace model add {name}"
    if not is_present(name):
        yield Check("model", "fail", f"{name} is missing", remedy)
        return
    path = model_path(name)
    from transformers import AutoConfig, AutoTokenizer

    from engine.templates import choose_template

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        profile = load_profile(path)
    except (PaceError, OSError, ValueError) as error:
        yield Check("model", "fail", f"{path}: {error}", f"{remedy} --force")
        return
    if not any(path.glob("*.safetensors")):
        yield Check("model", "fail", f"{path} has no weights", f"{remedy} --force")
        return
    yield Check("model", "ok", f"{name}: {config.model_type}, {profile.dtype}, {path}")
    template = choose_template(tokenizer, config.model_type)
    yield Check("chat template", "ok", template.source)


def check_configs() -> Iterator[Check]:
    policies = load_policies()
    yield Check("configs", "ok", f"{len(policies)} policies: {', '.join(sorted(policies))}")


def check_port() -> Iterator[Check]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", HTTP_PORT))
        except OSError:
            remedy = "stop what uses it, or choose another: pace serve --port"
            yield Check("port", "warn", f"{HTTP_PORT} is in use", remedy)
            return
    yield Check("port", "ok", f"{HTTP_PORT} is free")


def check_valkey() -> Iterator[Check]:
    yield Check("valkey", "ok", "not configured")


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    check_python,
    check_packages,
    check_torch,
    check_memory,
    check_home,
    check_model,
    check_configs,
    check_port,
    check_valkey,
)


def _level(value: int, fail_below: int, warn_below: int) -> State:
    if value < fail_below:
        return "fail"
    return "warn" if value < warn_below else "ok"


def _cgroup_free() -> int:
    """Bytes this process group may still take; a very large number without a limit."""
    unlimited = 1 << 62
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(stat.get("inactive_file", 0))  # cached files give way
    except (OSError, ValueError):
        return unlimited
    return unlimited if limit == "max" else max(0, int(limit) - used)
