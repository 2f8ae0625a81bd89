"""``engine.catalog``: finding models by name, folder and hub id; profiles."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import catalog
from engine.catalog import CATALOG, list_models, load_profile, model_path, resolve_model
from engine.config import ModelProfile, PolicyConfig
from engine.errors import ConfigError, ModelError

NAME = "smollm2-135m"
ASK_HUB = """
import sys, time
from engine.catalog import resolve_model
from engine.errors import ModelError
start = time.monotonic()
try:
    print("PATH", resolve_model(sys.argv[1]))
except ModelError as error:
    print("ERROR", error.message)
print("SECONDS", time.monotonic() - start)
"""


def ask_hub(repo: str, hub_home: Path, **environment: str) -> tuple[str, float]:
    """Resolve ``repo`` in a process of its own: the hub client reads its settings at import."""
    result = subprocess.run(
        [sys.executable, "-c", ASK_HUB, repo],
        env={**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(hub_home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    answer, seconds = result.stdout.strip().rsplit("\nSECONDS ", 1)
    return answer, float(seconds)


@pytest.fixture
def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent_port() -> Iterator[str]:
    """Accepts connections (the kernel does) and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_every_preset_of_the_embedded_model_fits_it() -> None:
    profile = CATALOG[NAME].profile
    policy = PolicyConfig(name="pace", retention="plan_aware").resolve(profile, 8192)
    assert (policy.budget, policy.interval, policy.chunk, policy.position_limit) == (
        1024,
        64,
        512,
        2048,
    )


def test_a_missing_embedded_model_names_the_command() -> None:
    with pytest.raises(ModelError, match=f"run: pace model add {NAME}"):
        resolve_model(NAME)
    (status,) = list_models()
    assert (status.name, status.present) == (NAME, False)


def test_an_embedded_model_is_its_folder_in_pace_home() -> None:
    folder = model_path(NAME)
    folder.mkdir(parents=True)
    catalog.write_profile(folder, ModelProfile(budget=99))
    assert resolve_model(NAME) == folder
    assert list_models()[0].present
    assert load_profile(folder).budget == 99


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == folder  # a folder wins over a hub id
    assert resolve_model(str(folder)) == folder
    with pytest.raises(ModelError, match="not a model folder"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["nothing", "./no/where", "/no/where", "a/b/c", "", "~x/y"])
def test_anything_else_lists_what_is_known(name: str) -> None:
    with pytest.raises(ModelError, match=NAME):
        resolve_model(name)


# ---- profiles


def test_a_folder_without_a_profile_has_the_defaults(tmp_path: Path) -> None:
    assert load_profile(tmp_path) == ModelProfile()


def test_a_profile_survives_and_ignores_what_is_only_for_people(tmp_path: Path) -> None:
    profile = ModelProfile(budget=300, dtype="bfloat16")
    catalog.write_profile(tmp_path, profile, licence="MIT")
    assert load_profile(tmp_path) == profile
    assert json.loads((tmp_path / "pace.json").read_text())["licence"] == "MIT"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", ModelError, "cannot be read as JSON"),
        ("[]", ModelError, "no key 'profile'"),
        ('{"profile": {"budget": 0}}', ConfigError, "budget"),
        ('{"profile": {"bugdet": 8}}', ConfigError, "bugdet"),
    ],
)
def test_a_broken_profile_says_where(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "pace.json").write_text(text)
    with pytest.raises(error, match=message) as caught:
        load_profile(tmp_path)
    assert str(tmp_path) in str(caught.value)


# ---- the hub


def test_a_closed_hub_is_given_up_at_once(tmp_path: Path, closed_port: str) -> None:
    answer, seconds = ask_hub("org/name", tmp_path, HF_ENDPOINT=closed_port)
    assert answer.startswith("ERROR the model hub cannot be reached")
    assert closed_port in answer and "give the path of a model folder" in answer
    assert seconds < 5


def test_a_silent_hub_is_given_up_within_five_seconds(tmp_path: Path, silent_port: str) -> None:
    answer, seconds = ask_hub("org/name", tmp_path, HF_ENDPOINT=silent_port)
    assert answer.startswith("ERROR the model hub cannot be reached")
    assert catalog.HUB_DEADLINE_S * 0.5 < seconds < 5


def test_offline_says_so(tmp_path: Path) -> None:
    answer, _ = ask_hub("org/name", tmp_path, HF_HUB_OFFLINE="1")
    assert answer.startswith("ERROR") and "HF_HUB_OFFLINE forbids" in answer


def make_cached(hub_home: Path) -> Path:
    """A hub cache that holds ``org/name``, as the hub client lays it out."""
    repo = hub_home / "hub" / "models--org--name"
    folder = repo / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    weights = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(weights))
    for name in ("config.json", "tokenizer.json", "one.safetensors", "two.safetensors"):
        (folder / name).write_text("{}")
    return folder


def test_a_cached_hub_model_needs_no_hub(tmp_path: Path, closed_port: str) -> None:
    folder = make_cached(tmp_path)
    answer, _ = ask_hub("org/name", tmp_path, HF_ENDPOINT=closed_port)
    assert answer == f"PATH {folder}"


@pytest.mark.parametrize("missing", ["two.safetensors", "tokenizer.json"])
def test_a_half_downloaded_hub_model_is_not_used(
    tmp_path: Path, closed_port: str, missing: str
) -> None:
    (make_cached(tmp_path) / missing).unlink()
    answer, _ = ask_hub("org/name", tmp_path, HF_ENDPOINT=closed_port)
    assert answer.startswith("ERROR the model hub cannot be reached")
