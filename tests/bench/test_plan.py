"""Plan files: what they may say, and what the shipped ones hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.arms import arm_policies
from bench.plan import load_plan
from bench.tasks import load_task, task_names
from engine.config import ModelProfile, config_dir
from engine.errors import ConfigError

SHIPPED = sorted(path.stem for path in (config_dir() / "bench").glob("*.yaml"))
PLAN: dict[str, Any] = {
    "name": "p",
    "task": "facts",
    "seeds": [1],
    "sessions": [{"layout": "single", "tokens": 8000}],
    "arms": ["pace"],
}


def load(tmp_path: Path, **changes: Any) -> Any:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN | changes))
    return load_plan(path)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_plans_load_and_their_arms_resolve(name: str) -> None:
    plan = load_plan(name)
    assert plan.name == name and len(plan.seeds) >= 3
    load_task(plan.task)
    embedded = plan.model.startswith("smollm2")
    profile = (
        ModelProfile(budget=1024, chunk=512, position_limit=2048) if embedded else ModelProfile()
    )
    model_range = 8192 if embedded else 32_768  # the smaller one of the paper's two models
    for policy in arm_policies(plan).values():
        policy.resolve(profile, model_range)


def test_an_arm_by_name_is_the_preset_and_set_replaces_keys(tmp_path: Path) -> None:
    narrow = {"name": "narrow", "policy": "retention-only", "set": {"rope": {"type": "default"}}}
    plan = load(tmp_path, arms=["pace", narrow])
    policies = arm_policies(plan)
    assert policies["pace"].retention == "plan_aware"
    assert policies["narrow"].rope.factor == 1 and policies["narrow"].position_limit is None
    assert policies["narrow"].name == "narrow"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"arms": ["pace", "pace"]}, "arms must differ"),
        ({"extra": 1}, "extra: unknown key"),
        ({"sessions": [{"layout": "distance", "tokens": 8000}]}, "distances are given"),
        (
            {"sessions": [{"layout": "single", "tokens": 8000, "distances": [5]}]},
            "distances are given",
        ),
        (
            {"sessions": [{"layout": "distance", "tokens": 8000, "distances": [0]}]},
            "must be positive",
        ),
        ({"sessions": [{"layout": "single", "tokens": 8000, "arms": ["h2o"]}]}, "'h2o'"),
        (
            {"sessions": [{"layout": "distance", "tokens": 8000, "distances": [500, 500]}]},
            "distance, 8000 tokens at distance 500 to the arm 'pace' 2 times",
        ),
        (
            {"sessions": [{"layout": "single", "tokens": 8000}] * 2},
            "single, 8000 tokens to the arm 'pace' 2 times",
        ),
        ({"arms": [{"name": "a", "policy": "pace", "plan": {"precision": 0}}]}, "precision"),
    ],
)
def test_bad_plans_are_refused_in_plain_words(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **changes)
    assert words in caught.value.message and "plan.yaml" in caught.value.message


def test_a_bad_arm_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="arm x: policy 'nothing' is not one of"):
        arm_policies(load(tmp_path, arms=[{"name": "x", "policy": "nothing"}]))
    with pytest.raises(ConfigError, match="arm x: budget: "):
        arm_policies(load(tmp_path, arms=[{"name": "x", "policy": "pace", "set": {"budget": -1}}]))


def test_unknown_plans_and_tasks_name_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"shipped plans: .*facts-distance"):
        load_plan("no-such-plan")
    with pytest.raises(ConfigError, match="not one of"):
        load_task("no-such-task")
    assert {"coding", "facts"} <= set(task_names())
