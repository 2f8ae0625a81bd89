"""Result lines made up for tests of reports and merging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.results import ResultLine

POLICIES: dict[str, dict[str, Any]] = {
    "h2o": {"retention": "h2o", "budget": 2048, "position_limit": None},
    "retention-only": {"retention": "plan_aware", "budget": 2048, "position_limit": None},
    "positions-only": {"retention": "h2o", "budget": 2048, "position_limit": 8192},
    "pace": {"retention": "plan_aware", "budget": 2048, "position_limit": 8192},
    "streaming": {"retention": "streaming", "budget": 2048, "position_limit": 8192},
}
CHECKS = {"p1": 7, "p2": 3, "p3": 5}


def probe(
    name: str, passed: int, total: int, *, missing: int = 0, facts: int = 5, **more: Any
) -> dict[str, Any]:
    """A probe that passed ``passed`` of ``total`` checks and lacks ``missing`` of its facts."""
    outcome = "pass" if passed == total else "forgetting" if missing else "coding_error"
    return {
        "name": name,
        "step": 9,
        "answer": "",
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "score": {
            "passed": passed,
            "total": total,
            "failed": [f"c{index}" for index in range(total - passed)],
            "found": facts - missing,
            "facts": facts,
            "missing": [f"f{index}" for index in range(missing)],
            "outcome": outcome,
        },
        **more,
    }


def line(arm: str, seed: int, probes: Sequence[Mapping[str, Any]], **more: Any) -> ResultLine:
    """A line of the coding task in the single layout, unless ``more`` says otherwise."""
    values = {
        "plan_name": "test",
        "task": "coding",
        "layout": "single",
        "seed": seed,
        "session_tokens": 100_000,
        "arm": arm,
        "policy": POLICIES[arm],
        "model": "qwen3-8b",
        "dtype": "bfloat16",
        "engine": {"greedy": True},
        "template_fingerprint": "t1",
        "prompts_checksum": f"prompts of {seed}",
        "pace_version": "0.1.0",
        "probes": list(probes),
    }
    return ResultLine.model_validate(values | more)


def session(arm: str, seed: int, passed: Sequence[int], **more: Any) -> ResultLine:
    """A coding session that passed these many checks of p1, p2 and p3."""
    probes = [probe(name, count, CHECKS[name]) for name, count in zip(CHECKS, passed, strict=True)]
    return line(arm, seed, probes, **more)
