"""The wheel, built, installed and run outside the checkout: what a user gets, not what we see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--quiet", "--disable-pip-version-check", "--wheel-dir", str(target), str(CHECKOUT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, seeing our dependencies but not our checkout."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    command += ["--no-index", "--quiet", "--disable-pip-version-check", str(wheel)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    # Added after the installation, so that pip leaves our own environment alone. A plain path
    # entry: the .pth files in there, the editable install's among them, are not read.
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a command of the installed environment from an empty folder."""

    def run_command(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        command = [str(installed / "bin" / name), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )

    return run_command


def test_the_wheel_carries_the_packages_the_configs_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(
            archive.read(n).decode() for n in names if n.endswith(".dist-info/METADATA")
        )
    assert {n.split("/")[0] for n in names if n.endswith(".py")} == {
        *("engine", "serve", "dashboard", "bench")
    }
    shipped = {
        n.split("/share/pace/configs/")[1] for n in names if "/data/share/pace/configs/" in n
    }
    ours = (CHECKOUT / "configs").rglob("*")
    assert shipped == {str(p.relative_to(CHECKOUT / "configs")) for p in ours if p.is_file()}
    assert {"dashboard/residency_map.js", "dashboard/residency_map.css"} <= {*names}
    assert any(n.endswith("/LICENSE") for n in names)
    assert "Private :: Do Not Upload" in metadata


def test_code_and_configs_come_from_the_installation(installed: Path, run: Run) -> None:
    code = (
        "import engine, serve, bench, dashboard, json\n"
        "from engine.config import config_dir, load_policies\n"
        "files = [m.__file__ for m in (engine, serve, bench, dashboard)]\n"
        "print(json.dumps([*files, str(config_dir()), sorted(load_policies())]))"
    )
    result = run("python", "-c", code)
    assert result.returncode == 0, result.stderr
    *paths, policies = json.loads(result.stdout)
    assert all(Path(path).resolve().is_relative_to(installed.resolve()) for path in paths), paths
    assert policies == sorted(p.stem for p in (CHECKOUT / "configs" / "policies").glob("*.yaml"))


def test_the_command_runs(run: Run) -> None:
    result = run("pace", "--help")
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout


def test_doctor_runs_and_finds_all_but_the_model(run: Run) -> None:
    result = run("pace", "doctor", "--json")
    assert result.stdout, result.stderr
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert result.returncode == 1
    assert [name for name, state in states.items() if state == "fail"] == ["model"]
    assert states["configs"] == "ok"
