"""``configs/serve.yaml`` and what is refused in such a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from engine.config import config_dir
from engine.errors import ConfigError
from serve.config import ServeConfig, load_serve_config


def test_the_shipped_file_holds_the_defaults() -> None:
    assert load_serve_config() == ServeConfig()


def test_the_shipped_file_names_every_key() -> None:
    shipped = yaml.safe_load((config_dir() / "serve.yaml").read_text(encoding="utf-8"))
    for name, default in ServeConfig():
        if isinstance(default, BaseModel):
            assert shipped[name].keys() == type(default).model_fields.keys()
    assert shipped.keys() == ServeConfig.model_fields.keys()


def test_overrides_stand_above_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("http: {port: 9000}\nengine: {model: here, max_sessions: 3}\n")
    config = load_serve_config(path, {"http": {}, "engine": {"model": "there"}})
    assert config.http.port == 9000
    assert (config.engine.model, config.engine.max_sessions) == ("there", 3)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_hosts_are_accepted(host: str) -> None:
    assert load_serve_config(None, {"http": {"host": host}}).http.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_hosts_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"command line: http\.host: .*loopback"):
        load_serve_config(None, {"http": {"host": host}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("htttp: {port: 1}", r"serve\.yaml: htttp: unknown key"),
        ("http: {prt: 1}", r"serve\.yaml: http\.prt: unknown key \(value: 1\)"),
        ("http: {port: 70000}", r"serve\.yaml: http\.port: .*65535 \(value: 70000\)"),
        ("engine:", r"serve\.yaml: engine: must be a mapping of keys to values"),
        ("engine: {device: tpu}", r"serve\.yaml: engine\.device: must be auto.*\(value: 'tpu'\)"),
        ("engine: {threads: 0}", r"serve\.yaml: engine\.threads: .*greater than 0"),
        ("log_level: LOUD", r"serve\.yaml: log_level: "),
        ("object_store_bytes: 1", r"serve\.yaml: object_store_bytes: "),
        ("- a list", r"serve\.yaml: must be a mapping"),
    ],
)
def test_mistakes_name_file_key_and_rule(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_serve_config(path)
