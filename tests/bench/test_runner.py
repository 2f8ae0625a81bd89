"""Runs: durable lines, going on after a kill, refusals."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.merge import merge
from bench.only import Only
from bench.results import ResultLine, read_results
from engine.environment import ENGINE_ENV
from engine.errors import ConfigError
from serve.cli import main
from tests.bench.runs import Silent, make_source, small_plan, small_run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("filler"))


def stable(lines: list[ResultLine]) -> dict[str, str]:
    """Every value that must not differ, by its place: what differs is seen at a glance."""
    return dict(_leaves([line.stable() for line in lines]))


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, f"{place}/{key}")
    else:
        yield place, json.dumps(value)


@pytest.mark.timeout(300)  # three processes load torch and the model, and play
def test_a_run_that_is_killed_goes_on_and_equals_one_that_is_not(
    protocol_model: Path, source: Path, tmp_path: Path
) -> None:
    plan = small_plan(protocol_model)
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(json.loads(plan.model_dump_json())))

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import sys; from serve.cli import main; sys.exit(main())"]
        command += ["bench", "run", str(tmp_path / "plan.yaml"), "--stdlib", str(source)]
        command += ["--out", str(out), "--device", "cpu", "--threads", "1"]
        return subprocess.Popen(command, env={**ENGINE_ENV, "PYTHONPATH": ":".join(sys.path)})

    process = start(killed)
    try:
        deadline = time.monotonic() + 200
        while not (killed.exists() and killed.read_bytes().count(b"\n")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.random())
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    done = read_results(killed, unfinished="drop")
    assert 1 <= len(done) < 4
    with killed.open("ab") as file:
        file.write(b'{"schema_version":1,"plan_na')  # what a kill within a write leaves

    for out in (killed, whole):
        process = start(out)
        try:
            assert process.wait(200) == 0
        finally:
            process.kill()
    assert len(read_results(whole)) == 4
    assert read_results(killed)[: len(done)] == done, "played again"
    assert stable(read_results(killed)).items() ^ stable(read_results(whole)).items() == set()


def test_a_run_tells_what_it_does_and_does_nothing_twice(
    protocol_model: Path, source: Path, tmp_path: Path
) -> None:
    out, watcher = tmp_path / "out.jsonl", Silent()
    run = small_run(small_plan(protocol_model), source)
    assert run.run(out, watcher, Only(arms=frozenset({"h2o"}))) == 2
    assert run.run(out, watcher) == 2 == watcher.expected
    assert read_results(out) == watcher.lines
    assert run.run(out, watcher) == 0


def test_lines_say_what_they_are_and_parts_pool(
    protocol_model: Path, source: Path, tmp_path: Path
) -> None:
    plan = small_plan(protocol_model)
    run = small_run(plan, source)
    parts = {}
    for arm in ("pace", "h2o"):
        out = tmp_path / f"{arm}.jsonl"
        assert run.run(out, Silent(), Only(arms=frozenset({arm}), limit=1)) == 1
        parts[out] = read_results(out)
    pooled = merge(parts)
    pace, h2o = sorted(pooled, key=lambda line: line.arm, reverse=True)
    assert pace.prompts_checksum == h2o.prompts_checksum
    assert pace.session == h2o.session and pace.distance == 600
    assert (pace.policy["retention"], h2o.policy["retention"]) == ("plan_aware", "h2o")
    assert pace.policy["budget"] == 256 and pace.dtype == "float32"
    assert pace.engine["filler"]["digest"] == run.pool.digest  # type: ignore[index, call-overload]
    assert pace.finished is not None and pace.timing["seconds"] > 0
    assert all(probe.targets[0].sum < 0 for probe in pace.probes)


def test_a_file_of_another_plan_or_run_is_refused(
    protocol_model: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    only = Only(arms=frozenset({"pace"}), limit=1)
    small_run(small_plan(protocol_model), source).run(out, Silent(), only)
    content = out.read_bytes()
    narrow = [{"name": "pace", "policy": "pace", "set": {"budget": 240}}]
    with pytest.raises(ConfigError, match="made with another policy; write to another file"):
        small_run(small_plan(protocol_model, arms=narrow), source).run(out, Silent(), only)
    assert out.read_bytes() == content
    import fcntl

    with out.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another run is writing"):
            small_run(small_plan(protocol_model), source).run(out, Silent(), only)


def test_plan_shows_sessions_and_hours(
    protocol_model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan(protocol_model, seeds=[1, 2])
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(json.loads(plan.model_dump_json())))
    options = ["--stdlib", str(source), "--prefill", "1", "--decode", "1"]
    assert main(["bench", "plan", str(path), *options]) == 0
    shown = capsys.readouterr().out
    groups = small_run(plan, source).groups()
    read, written = (sum(group.tokens[i] for group in groups) for i in (0, 1))
    row = next(line for line in shown.splitlines() if " all " in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "all",
        "8",
        f"{read:,}",
        f"{written:,}",
        f"{(read + written) / 3600:.2f}",
    ]
    assert main(["bench", "plan", str(path), *options, "--only", "seed=2", "--limit", "3"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if " all " in line)
    assert row.split("│")[2].strip() == "3"
    assert main(["bench", "plan", str(path), "--only", "colour=red"]) == 2
    assert main(["bench", "plan", str(path), "--only", "seed=x"]) == 2
    capsys.readouterr()
    wrong = {"arm=pcae,h2o": "pace, h2o", "seed=3": "1, 2", "distance=7": "600, 1800"}
    for option, known in {**wrong, "tokens=9": "3800"}.items():
        assert main(["bench", "plan", str(path), *options, "--only", option]) != 0
        said = " ".join(capsys.readouterr().err.split())
        assert f"{option.split(',')[0]}: not in plan small; it has {known}" in said


def test_a_plan_that_errs_more_than_a_session_allows_is_refused_before_it_runs(
    protocol_model: Path, source: Path, tmp_path: Path
) -> None:
    wrong = {"name": "wrong", "policy": "pace", "plan": {"precision": 0.001}}
    run = small_run(small_plan(protocol_model, arms=["h2o", wrong]), source)
    out, watcher = tmp_path / "out.jsonl", Silent()
    with pytest.raises(ConfigError, match=r"precision 0\.001 needs .* invented edges"):
        run.run(out, watcher)
    assert not watcher.lines and not out.stat().st_size
