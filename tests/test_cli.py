"""The command ``pace``: fast help, errors in one line, exit codes, ``model`` and ``doctor``."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import serve.cli
from engine.catalog import model_path
from engine.errors import ModelError
from serve.cli import COMMANDS, cli, main

HEAVY = ("torch", "ray", "transformers", "fastapi", "openai", "numpy")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run(
        "import sys; from serve.cli import main; code = main(['--help'])\n"
        f"print('HEAVY', [m for m in {HEAVY} if m in sys.modules]); sys.exit(code)"
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    assert "HEAVY []" in result.stdout
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    # Processor time, not the clock: the machine may be busy with something else.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_model_commands_import_no_torch() -> None:
    result = run(
        "import sys; from serve.cli import main; main(['model', 'list'])\n"
        f"print('HEAVY', [m for m in {HEAVY} if m in sys.modules])"
    )
    assert "HEAVY []" in result.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: pace {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pace, version 0.")


@pytest.mark.parametrize("argv", [["nope"], ["--nope"], ["model", "add"], ["model", "add", "x"]])
def test_wrong_usage_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert "Error: " in captured.err and captured.out == ""


@pytest.mark.parametrize(
    "command", [["run", "facts-distance"], ["speed"], ["renumbering"]], ids=lambda argv: argv[0]
)
def test_bench_says_what_a_device_is(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *command, "--device", "tpu"]) == 2
    assert "'tpu' must be auto, cpu, cuda or cuda:N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelError("no such model"), 1, "Error: no such model\n"),
        (OSError(errno.ENOSPC, "No space left"), 1, "Error: [Errno 28] No space left\n"),
        (
            OSError(errno.ENOTDIR, "Not a directory", "x/y"),
            1,
            "Error: [Errno 20] Not a directory: 'x/y'\n",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x"),
            1,
            "Error: [Errno 36] File name too long: 'x'\n",
        ),
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
        (click.Abort(), 130, "Error: interrupted\n"),
        (SystemExit(143), 143, ""),
        (click.ClickException("bad"), 1, "Error: bad\n"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: broken)
    assert main(["doctor"]) == code
    captured = capsys.readouterr()
    assert captured.err.lstrip("\n") == line
    assert captured.out == ""


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "get_command", broken)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_the_error_line_is_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {}
    monkeypatch.setattr(
        serve.cli.click, "secho", lambda text, **style: shown.update(style, text=text)
    )
    monkeypatch.setattr(cli, "main", lambda **_: (_ for _ in ()).throw(ModelError("x")))
    assert main([]) == 1
    assert shown == {"text": "Error: x", "fg": "red", "err": True}


def test_model_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "smollm2-135m" and row["present"] is False
    assert main(["model", "list"]) == 0
    assert "pace model add smollm2-135m" in capsys.readouterr().out


def test_adding_a_present_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_path("smollm2-135m")
    folder.mkdir(parents=True)
    (folder / "pace.json").write_text('{"profile": {}}')
    assert main(["model", "add", "smollm2-135m"]) == 0
    assert "already there" in capsys.readouterr().out


def test_a_wrong_wheel_is_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"something else")
    assert main(["model", "add", "smollm2-135m", "--wheel", str(wheel)]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert len(errors) == 1 and "is not the expected file" in errors[0]


# ---- doctor


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["doctor", "--json"])
    return code, {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_doctor_passes_with_the_model(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = model_path("smollm2-135m")
    link.parent.mkdir(parents=True)
    link.symlink_to(smollm2)
    code, rows = doctor(capsys)
    assert code == 0, rows
    assert rows["model"]["state"] == "ok" and "llama" in rows["model"]["found"]
    assert {"python", "ray", "transformers", "torch", "memory", "home", "disk"} <= rows.keys()
    assert {"configs", "port"} <= rows.keys()
    assert rows["valkey"]["found"] == "not configured"


def test_doctor_fails_without_the_model_and_names_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, rows = doctor(capsys)
    assert code == 1
    assert rows["model"]["state"] == "fail"
    assert rows["model"]["remedy"] == "pace model add smollm2-135m"
    assert main(["doctor"]) == 1
    assert "pace model add" in capsys.readouterr().out


@pytest.mark.parametrize(
    "files", [{}, {"config.json": "{"}, {"config.json": '{"model_type": "llama"}'}]
)
def test_doctor_sees_a_broken_model(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_path("smollm2-135m")
    folder.mkdir(parents=True)
    for name, text in {"pace.json": '{"profile": {}}', **files}.items():
        (folder / name).write_text(text)
    code, rows = doctor(capsys)
    assert code == 1
    assert rows["model"]["state"] == "fail" and "--force" in rows["model"]["remedy"]


def test_doctor_sees_an_unwritable_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACE_HOME", str(tmp_path / "file" / "home"))
    code, rows = doctor(capsys)
    assert code == 1 and rows["home"]["state"] == "fail"
    assert "PACE_HOME" in rows["home"]["remedy"]


def test_doctor_warns_of_a_taken_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("serve.cli.doctor.HTTP_PORT", server.getsockname()[1])
        _, rows = doctor(capsys)
    assert rows["port"]["state"] == "warn" and "--port" in rows["port"]["remedy"]


def test_doctor_sees_little_memory_and_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serve.cli.doctor._cgroup_free", lambda: 3 << 30)
    monkeypatch.setattr("serve.cli.doctor.DISK_FAIL", 1 << 60)
    _, rows = doctor(capsys)
    assert rows["memory"]["state"] == "warn" and rows["disk"]["state"] == "fail"


@pytest.mark.parametrize(("version", "state"), [("2.60.3", "ok"), ("2.61.0", "fail")])
def test_doctor_checks_the_ray_version(
    version: str,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    _, rows = doctor(capsys)
    assert rows["ray"]["state"] == state


def test_a_broken_check_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("serve.cli.doctor.load_policies", broken)
    code, rows = doctor(capsys)
    assert code == 1
    assert rows["configs"]["state"] == "fail" and "oops" in rows["configs"]["found"]


def test_module_entry_point_matches_the_installed_command() -> None:
    command = Path(sys.executable).parent / "pace"
    assert os.access(command, os.X_OK), "PACE is not installed: make setup"
    result = subprocess.run([command, "model", "list"], capture_output=True, text=True)
    assert result.returncode == 0 and "smollm2-135m" in result.stdout
