"""The one file that configures a server: ``configs/serve.yaml``.

Values come from the file and, above it, from the command line; unknown keys are rejected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from engine.config import EngineConfig, Frozen, config_dir, config_error, load_yaml
from engine.errors import ConfigError
from serve.keys import KEYS_FILE_VARIABLE, keys_file

MIB = 1024 * 1024
# Ray refuses a smaller object store.
MIN_OBJECT_STORE_BYTES = 75 * MIB


class HttpConfig(Frozen):
    """Where the server listens. Without API keys only a loopback address is allowed
    (``load_serve_config`` refuses others)."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)


class ReplicaConfig(Frozen):
    """What an engine replica reserves in Ray's books.

    ``cpus`` is for placement only and small on purpose: the threads an engine really uses are
    ``engine.threads``. ``gpus`` null: 1 when the device is CUDA, else 0.
    """

    cpus: float = Field(default=0.1, ge=0)
    gpus: float | None = Field(default=None, ge=0)


class LimitsConfig(Frozen):
    """What one request may be."""

    body_bytes: int = Field(default=64 * MIB, gt=0)
    messages: int = Field(default=100_000, gt=0)


class ServeConfig(Frozen):
    """Everything ``pace serve`` needs."""

    http: HttpConfig = HttpConfig()
    engine: EngineConfig = EngineConfig()
    replica: ReplicaConfig = ReplicaConfig()
    limits: LimitsConfig = LimitsConfig()
    graceful_shutdown_s: float = Field(default=8.0, ge=0, le=15)
    object_store_bytes: int = Field(default=MIN_OBJECT_STORE_BYTES, ge=MIN_OBJECT_STORE_BYTES)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_serve_config(
    path: Path | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> ServeConfig:
    """Read and check a server's configuration.

    Args:
        path: the file; None: the shipped ``serve.yaml``.
        overrides: section → key → value, set above the file's (from the command line).

    Raises:
        ConfigError: naming file, key, value and rule.
    """
    source = path or config_dir() / "serve.yaml"
    config = load_yaml(source, ServeConfig)
    _check_host(config.http, str(source))
    if not overrides:
        return config
    data = config.model_dump()
    for section, values in overrides.items():
        data[section] = {**data[section], **values}
    try:
        config = ServeConfig.model_validate(data)
    except ValidationError as error:
        raise config_error(error, "command line") from error
    _check_host(config.http, "command line")
    return config


def _check_host(http: HttpConfig, source: str) -> None:
    if not is_loopback(http.host) and keys_file() is None:
        raise ConfigError(
            f"{source}: http.host: must be a loopback address (127.0.0.1, ::1 or localhost), not "
            f"{http.host!r}: without API keys anyone who reaches the server could read every "
            f"session; name a file of keys in {KEYS_FILE_VARIABLE} to listen elsewhere",
            param="http.host",
        )
