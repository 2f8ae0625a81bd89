"""Configuration that breaks a rule is refused with file, key, value and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import (
    EngineConfig,
    ModelProfile,
    PolicyConfig,
    RopeConfig,
    load_policies,
    load_yaml,
)
from engine.errors import ConfigError
from engine.runner import ModelRunner
from tests.engine.conftest import MakeEngine
from tests.engine.support import policy_config
from tests.reference.retention import Rules

SMOLLM2 = ModelProfile(budget=1024, interval=64, chunk=512, position_limit=2048)


def resolve(model_range: int = 8192, profile: ModelProfile = SMOLLM2, **settings: Any) -> Any:
    settings = {"name": "mine", "retention": "plan_aware"} | settings
    return PolicyConfig(**settings).resolve(profile, model_range)


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(**settings)
    return caught.value.message


def test_a_limit_too_small_for_the_row_names_every_number() -> None:
    assert refusal(position_limit=1500) == (
        "policy mine: position_limit 1500 must be at least budget 1024 + interval 64 + chunk 512 "
        "= 1600"
    )
    assert resolve(position_limit=1600).position_limit == 1600
    assert "position_limit 1599 must be at least" in refusal(position_limit=1599)


def test_a_limit_beyond_the_models_range_is_refused() -> None:
    assert refusal(position_limit=8193) == (
        "policy mine: position_limit 8193 must not exceed the model's range 8192"
    )
    assert resolve(position_limit=8192).position_range == 8192
    # the profile's own limit is held to the same rule
    assert "position_limit 2048 must not exceed the model's range 2047" in refusal(model_range=2047)


@pytest.mark.parametrize(
    ("retention", "sinks", "recent", "fits"),
    [
        ("plan_aware", 4, 891, True),  # reserve 128
        ("plan_aware", 4, 892, False),
        ("h2o", 4, 1019, True),
        ("h2o", 4, 1020, False),
        ("none", 4, 2000, True),
    ],
)
def test_the_budget_leaves_something_to_choose(
    retention: str, sinks: int, recent: int, fits: bool
) -> None:
    settings = {"retention": retention, "sinks": sinks, "recent": recent}
    if fits:
        policy = resolve(**settings)
        assert policy.reserve == (128 if retention == "plan_aware" else 0)
    else:
        reserve = 128 if retention == "plan_aware" else 0
        total = sinks + recent + reserve
        assert refusal(**settings) == (
            f"policy mine: budget 1024 must be larger than sinks {sinks} + recent {recent} "
            f"+ reserve {reserve} = {total}"
        )


def test_sizes_come_from_the_profile_unless_the_preset_has_its_own() -> None:
    policy = resolve()
    assert (policy.budget, policy.interval, policy.chunk) == (1024, 64, 512)
    assert (policy.position_limit, policy.position_range, policy.capacity) == (2048, 2048, 1088)
    own = resolve(budget=512, interval=32, chunk=128, position_limit=700)
    assert (own.budget, own.interval, own.chunk, own.position_limit) == (512, 32, 128, 700)
    free = resolve(position_limit=None, rope=RopeConfig(type="yarn", factor=4))
    assert (free.position_limit, free.position_range) == (None, 32_768)
    full = resolve(retention="none", budget=8192, position_limit=None)
    assert full.capacity == 8192  # nothing is evicted: no interval on top


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgett: 3", r"mine\.yaml: budgett: unknown key \(value: 3\)"),
        ("budget: many", r"mine\.yaml: budget: .*valid integer.* \(value: 'many'\)"),
        ("budget: 0", r"mine\.yaml: budget: .*greater than 0 \(value: 0\)"),
        ("budget: -5", r"mine\.yaml: budget: .*greater than 0 \(value: -5\)"),
        ("budget: 1.5", r"mine\.yaml: budget: .*integer"),
        ("sinks: -1", r"mine\.yaml: sinks: .*greater than or equal to 0"),
        ("retention: best", r"mine\.yaml: retention: .*'h2o', 'none', .* \(value: 'best'\)"),
        ("position_limit: model", r"mine\.yaml: position_limit"),
        ("rope: {type: ntk}", r"mine\.yaml: rope\.type: .*'default' or 'yarn'"),
        ("rope: {type: yarn, factor: 0.5}", r"mine\.yaml: rope\.factor: .*greater than or equal"),
        ("rope: {factor: 4}", r"mine\.yaml: rope: factor 4\.0 needs a scaling type"),
        ("name: 'a b'", r"mine\.yaml: name: .*pattern"),
    ],
)
def test_wrong_policy_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    keys = {"name": "mine", "retention": "h2o"}
    lines = [f"{key}: {value}" for key, value in keys.items() if not text.startswith(key)]
    path.write_text("\n".join([*lines, text]))
    with pytest.raises(ConfigError, match=message) as caught:
        load_policies(tmp_path)
    assert str(caught.value.param).split(".")[0] == text.split(":")[0]


def test_every_broken_rule_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("retention: best\nbudget: 0\nwhat: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_policies(tmp_path)
    lines = caught.value.message.split("\n")
    assert [line.split(": ")[1] for line in lines] == ["name", "retention", "budget", "what"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "cannot be read as YAML"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        (b"- a\n- b\n", "must be a mapping of keys to values, not list"),
        (b"text", "must be a mapping of keys to values, not str"),
        (b"!!python/object/apply:os.system [true]", "cannot be read as YAML"),
        (b"threads: 1\nmodel: x\nthreads: 2\n", "(?s)the key 'threads' is there twice.* line 3"),
        (b"a: {b: {c: 1, c: 1}}", "the key 'c' is there twice"),
        (b"? [a]\n: 1\n", "unhashable key"),
        (b"[" * 5000, "nested too deeply"),
    ],
)
def test_files_that_are_no_mapping_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "engine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_yaml(path, EngineConfig)
    assert str(path) in caught.value.message


def test_a_key_beside_a_merge_is_no_second_one(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("<<: &base {threads: 1, max_sessions: 3}\nthreads: 2\n")
    config = load_yaml(path, EngineConfig)
    assert (config.threads, config.max_sessions) == (2, 3)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_yaml(tmp_path / "engine.yaml", EngineConfig)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path, EngineConfig)
    with pytest.raises(ConfigError, match="holds no policy files"):
        load_policies(tmp_path)


@pytest.mark.parametrize("kind", ["device", "large file"])
def test_what_is_too_large_for_a_configuration_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "large.yaml"
    if kind == "large file":
        path.write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        load_yaml(path, PolicyConfig)


def test_an_empty_file_is_all_defaults_and_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("")
    assert load_yaml(path, EngineConfig) == EngineConfig()
    path.write_text("max_sessions: 3\ndtype: float32\n")
    config = load_yaml(path, EngineConfig, {"max_sessions": 5})
    assert (config.max_sessions, config.dtype) == (5, "float32")


def test_a_policy_file_is_named_like_its_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: yours\nretention: h2o\n")
    with pytest.raises(ConfigError, match=r"name: 'yours' must equal the file's name 'mine'"):
        load_policies(tmp_path)


def test_the_shipped_policies_suit_the_embedded_model() -> None:
    shipped = load_policies()
    assert {"pace", "h2o", "full"} <= set(shipped)
    for policy in shipped.values():
        policy.resolve(SMOLLM2, 8192)
    assert shipped["pace"].resolve(SMOLLM2, 8192).position_limit == 2048
    assert shipped["h2o"].resolve(SMOLLM2, 8192).position_range == 4 * 8192


def test_configuration_cannot_be_changed() -> None:
    config = EngineConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.max_sessions = 3  # type: ignore[misc]


def test_an_engine_refuses_policies_its_model_cannot_run(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    rules = Rules("h2o", 2000, 4, 16, 8, 32, limit=2048)  # the tiny model's range
    make_engine(tiny, {"test": policy_config(rules)})
    for limit in (2039, 2049):
        wrong = policy_config(Rules("h2o", 2000, 4, 16, 8, 32, limit))
        with pytest.raises(ConfigError, match=f"position_limit {limit} must"):
            make_engine(tiny, {"test": wrong})
    with pytest.raises(ConfigError, match=r"default_policy: 'best' is not one of \['test'\]"):
        make_engine(tiny, {"test": policy_config(rules)}, default_policy="best")
