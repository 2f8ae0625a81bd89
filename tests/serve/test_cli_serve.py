"""What ``pace serve`` refuses before it starts anything, in one line each."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config import config_dir
from serve.cli import main
from serve.cli.serve import check, check_port
from serve.cluster import LocalCluster, StartFailed
from serve.config import ServeConfig, load_serve_config
from serve.held_output import HeldOutput
from tests.support.server import free_port


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model as far as the checks before the start go."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    profile = {"budget": 1024, "interval": 64, "chunk": 512, "position_limit": 1500}
    (folder / "pace.json").write_text(json.dumps({"profile": profile}))
    return folder


@pytest.fixture
def sound(model: Path) -> Path:
    """The same with sizes that fit."""
    (model / "pace.json").unlink()
    return model


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line on standard error; nothing is on standard output."""
    assert main(["serve", *args]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Error: ") and said.err.count("\n") == 1
    return said.err


def written(tmp_path: Path, **config: Any) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_a_taken_port(capsys: pytest.CaptureFixture[str], taken: int, model: Path) -> None:
    line = refused(capsys, "--port", str(taken), "--model", str(model))
    assert f"port {taken} on 127.0.0.1" in line and "--port" in line


def test_a_port_is_free_again_after_its_listener_has_gone() -> None:
    port = free_port()
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_unknown_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = refused(capsys, "--config", written(tmp_path, engine={"modle": "x"}))
    assert "mine.yaml: engine.modle: " in line


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such file" in refused(capsys, "--config", str(tmp_path / "none.yaml"))


def test_a_host_that_others_can_reach(capsys: pytest.CaptureFixture[str]) -> None:
    assert "http.host: must be a loopback address" in refused(capsys, "--host", "0.0.0.0")


def test_a_model_that_has_not_been_added(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "--port", str(free_port()), "--model", "smollm2-135m")
    assert "pace model add smollm2-135m" in line


def test_sizes_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path
) -> None:
    profile = {"budget": 1024, "interval": 64, "chunk": 512, "position_limit": 1500}
    config = written(tmp_path, engine={"model": str(model), "profile": profile})
    line = refused(capsys, "--port", str(free_port()), "--config", config)
    assert (
        "position_limit 1500 must be at least budget 1024 + interval 64 + chunk 512 = 1600" in line
    )


def test_an_unknown_policy(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path) -> None:
    config = written(tmp_path, engine={"model": str(model), "default_policy": "none-such"})
    line = refused(capsys, "--port", str(free_port()), "--config", config)
    assert "'none-such' is not one of: " in line and "pace" in line


def test_a_chat_template_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sound: Path
) -> None:
    option = ("--chat-template", "nowhere.jinja")
    line = refused(capsys, "--port", str(free_port()), "--model", str(sound), *option)
    assert "--chat-template nowhere.jinja: no such file; give a file, or one of: " in line
    config = written(tmp_path, engine={"model": str(sound), "chat_template": "nowhere.jinja"})
    assert line == refused(capsys, "--port", str(free_port()), "--config", config)


def test_a_chat_template_that_is_no_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sound: Path
) -> None:
    file = tmp_path / "bad.jinja"
    file.write_bytes(b"{% if x %}\n\xff")
    line = refused(
        capsys, "--port", str(free_port()), "--model", str(sound), "--chat-template", str(file)
    )
    assert f"{file}: line 2: is not UTF-8" in line


def test_a_chat_template_is_passed_on_with_its_full_path(
    tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    monkeypatch.chdir(tmp_path)
    passed = {}
    for given in ("mine.jinja", "qwen3", None):
        engine = {"model": str(sound), "chat_template": given}
        config = load_serve_config(None, {"engine": engine, "http": {"port": free_port()}})
        passed[given] = check(config).engine.chat_template
    assert passed == {
        "mine.jinja": str(tmp_path / "mine.jinja"),
        "qwen3": str(config_dir() / "templates" / "qwen3.jinja"),
        None: None,
    }


def test_output_is_held_let_through_and_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    held = HeldOutput(sys.stderr)
    with redirect_stdout(held):
        print("one")
        assert capfd.readouterr().err == ""
        held.let_through()
        print("two")
        assert capfd.readouterr().err == "one\ntwo\n"
        held.drop()
        print("three")
    assert capfd.readouterr() == ("", "")


@pytest.mark.timeout(240)
def test_what_stops_the_engine_reaches_the_user(tmp_path: Path, model: Path) -> None:
    """The folder passes the first checks; only the engine's process finds it is no model."""
    (model / "pace.json").unlink()
    pace = Path(sys.executable).parent / "pace"
    done = subprocess.run(
        [pace, "serve", "--port", str(free_port()), "--model", str(model)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ") and str(model) in last
    assert "Traceback" not in done.stderr


def test_an_error_of_ray_is_a_start_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def broken(**options: Any) -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(ray, "init", broken)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_DEDUP_LOGS"):
        monkeypatch.setenv(name, "")
    cluster = LocalCluster(ServeConfig())
    with pytest.raises(StartFailed, match="no space left"):
        cluster.start(lambda text: None, lambda: None)
    cluster.stop()
