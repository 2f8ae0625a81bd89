"""The demo without a server: its transcripts, its sums, its table, its errors."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from serve.cli import main
from serve.demo.api import Api, DemoFailed
from serve.demo.filler import estimate_tokens, slices
from serve.demo.own_server import own_server
from serve.demo.results import (
    AskedFact,
    FillerTurn,
    SessionResult,
    summarize,
    to_json,
    value_logprob,
)
from serve.demo.session import Fact, make_transcript
from serve.demo.table import render
from tests.support.server import free_port

SEEDS = (1, 2, 3)
JSON_KEYS = [
    "recalled",
    "asked",
    "logprob",
    "residency",
    "rotary_gap",
    "renumbers",
    "kv_bytes",
    "full_kv_bytes",
    "ms_per_token_first",
    "ms_per_token_last",
]


# ---- transcripts --------------------------------------------------------------------------------


def test_a_transcript_depends_on_its_seed_only() -> None:
    one, again, other = (
        make_transcript(1, 12000),
        make_transcript(1, 12000),
        make_transcript(2, 12000),
    )
    assert one == again
    assert one.facts != other.facts
    assert not set(one.fillers) & set(other.fillers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transcript_is_as_long_as_asked(seed: int) -> None:
    for tokens in (4000, 12000, 30000):
        transcript = make_transcript(seed, tokens)
        texts = [message["content"] for message in transcript.opening]
        texts += [*transcript.fillers, *(fact.question for fact in transcript.facts)]
        texts += [fact.statement for fact in transcript.facts]
        # The chat template's tokens around the messages are in neither sum.
        around = 10 * (2 * len(transcript.facts) + transcript.turns)
        estimated = sum(map(estimate_tokens, texts))
        assert tokens - around <= estimated <= tokens * 1.1


@pytest.mark.parametrize("seed", SEEDS)
def test_facts_are_ten_and_distinct(seed: int) -> None:
    facts = make_transcript(seed, 4000).facts
    assert len(facts) == 10
    assert len({fact.key for fact in facts}) == len({fact.value for fact in facts}) == 10


@pytest.mark.parametrize("seed", range(20))
def test_no_question_reveals_a_value(seed: int) -> None:
    facts = make_transcript(seed, 2000).facts
    questions = " ".join(fact.question for fact in facts)
    assert not [fact for fact in facts if fact.is_in(questions)]


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_stated_early_and_nowhere_in_the_questions_for_code(seed: int) -> None:
    transcript = make_transcript(seed, 12000)
    stated = [m["content"] for m in transcript.opening if m["role"] == "user"]
    for fact, text in zip(transcript.facts, stated, strict=True):
        assert fact.is_in(text)
        assert fact.statement not in "".join(transcript.fillers)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_names_the_step_that_stated_the_fact(seed: int) -> None:
    transcript = make_transcript(seed, 12000)
    asking = range(transcript.steps - len(transcript.facts) + 1, transcript.steps + 1)
    assert list(transcript.plan) == [str(step) for step in asking]
    assert list(transcript.plan.values()) == [[step] for step in range(1, 11)]
    steps = sum(message["role"] == "user" for message in transcript.opening)
    assert steps + transcript.turns == transcript.steps


def test_filler_never_repeats_and_goes_on_through_further_parts(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        lines = "\n".join(f"    x{i} = '{name}' + str({i})" for i in range(400))
        (tmp_path / name).write_text(f"import this_is_left_out\n\ndef f():\n{lines}\n")
    (tmp_path / "short.py").write_text("def g(): ...\n")
    found = list(slices(0, 500, tmp_path))
    codes = [code for _, code in found]
    assert len(set(codes)) == len(codes) > 6
    assert {name for name, _ in found[:2]} == {"a.py", "b.py"}
    assert all(500 <= estimate_tokens(code) < 600 for code in codes)
    assert "this_is_left_out" not in "".join(codes)
    assert list(slices(0, 500, tmp_path)) == found


def test_more_code_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="no 5000000 tokens"):
        make_transcript(1, 5_000_000)


@pytest.mark.parametrize(
    ("text", "found"),
    [("The test fruit is lime.", True), ("LIME", True), ("sublime", False), ("limes", False)],
)
def test_a_value_is_recalled_as_a_word(text: str, found: bool) -> None:
    assert Fact("test fruit", "lime").is_in(text) is found


# ---- results ------------------------------------------------------------------------------------


def turn(new: int, forward_s: float, evicted: int = 0) -> FillerTurn:
    return FillerTurn.from_event(
        {
            "new_tokens": new - 8,
            "completion_tokens": 8,
            "evicted": evicted,
            "times": {
                "queued_s": 9.0,
                "prefill_s": 9.0,
                "decode_s": 9.0,
                "forward_s": forward_s - 0.3,
                "evict_s": 0.2,
                "renumber_s": 0.1,
            },
        }
    )


def asked(recalled: bool, logprob: float, residency: float | None, gap: int | None) -> AskedFact:
    return AskedFact("test fruit", "lime", "…", recalled, logprob, residency, gap)


def session(policy: str, seed: int, facts: list[AskedFact], turns: list[FillerTurn]) -> Any:
    return SessionResult(
        session_id=f"{policy}-{seed}",
        seed=seed,
        policy=policy,
        tokens=12000 + seed,
        facts=tuple(facts),
        fillers=tuple(turns),
        renumbers=10 + seed,
        kv_bytes=50_000_000,
        full_kv_bytes=550_000_000 + seed * 1000,
    )


TURNS = [
    turn(700, 99.0),  # the budget is not full yet
    turn(1500, 99.0, 900),  # fills it
    turn(1000, 10.0, 1000),
    turn(1000, 20.0, 1000),
    turn(2000, 30.0, 2000),
    turn(1000, 44.0, 1000),
]
RESULTS = [
    session("pace", 1, [asked(True, -0.5, 1.0, 1000), asked(True, -1.5, 0.5, 2000)], TURNS),
    session("pace", 2, [asked(False, -4.0, 1.0, 1500)], TURNS),
    session("h2o", 1, [asked(False, -9.0, 0.0, None)], TURNS[:2]),
]


def test_summary_sums_recall_and_averages_the_rest() -> None:
    summary = summarize(RESULTS)
    pace, h2o = summary["pace"], summary["h2o"]
    assert list(summary) == ["pace", "h2o"]
    assert (pace.recalled, pace.asked) == (2, 3)
    assert pace.logprob == pytest.approx(-2.0)
    assert pace.residency == pytest.approx(0.8333)
    assert pace.rotary_gap == pytest.approx(1500)
    assert pace.renumbers == pytest.approx(11.5)
    assert (pace.kv_bytes, pace.full_kv_bytes) == (50_000_000, 550_001_500)
    assert pace.ms_per_token_first == pytest.approx(1000 * 60 / 4000)
    assert pace.ms_per_token_last == pytest.approx(1000 * 94 / 4000)
    assert (h2o.residency, h2o.rotary_gap) == (0.0, None)
    assert h2o.ms_per_token_first is None


def test_json_is_the_summary_and_nothing_else() -> None:
    data = json.loads(json.dumps(to_json(summarize(RESULTS))))
    assert list(data) == ["policies"]
    assert [list(policy) for policy in data["policies"].values()] == [JSON_KEYS, JSON_KEYS]


@pytest.mark.parametrize(
    ("tokens", "value", "expected"),
    [
        (["The", " fruit", " is", " lime"], "lime", -8.0),
        (["The", " port", " is", " ", "4", "1", "7"], "417", -112.0),
        (["The", "port", "is", "4", "17"], "417", -24.0),
    ],
)
def test_only_the_value_is_scored(tokens: list[str], value: str, expected: float) -> None:
    logprobs = [-float(2**index) for index in range(len(tokens))]
    assert value_logprob(tokens, logprobs, value) == expected


def shown(results: list[SessionResult], tokens: int) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(render(results, summarize(results), tokens, 300.0))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_table_shows_every_policy() -> None:
    text = shown(RESULTS, 12000)
    assert "3 sessions of 12,001–12,002 tokens" in text
    assert "2 of 3" in text and "0 of 1" in text
    assert "47.7 MiB" in text and "524.5 MiB" in text
    assert "15.0" in text and "23.5" in text
    assert "–" in text  # what cannot be averaged
    assert "--tokens" not in text


def test_table_says_when_the_sessions_came_out_short() -> None:
    assert "fewer tokens than the 13,000" in shown(RESULTS, 13000)


# ---- the command --------------------------------------------------------------------------------


def test_without_a_server_one_line_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["demo", "--json", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"Error: no server answers at {url}. Start one with `pace serve`, or let the demo start "
        "its own: `pace demo --serve`"
    ]


@pytest.mark.parametrize(
    "args",
    [
        ["--seeds", "one"],
        ["--seeds", ","],
        ["--policies", " "],
        ["--tokens", "10"],
        ["--serve", "--keep"],
    ],
)
def test_wrong_usage_is_refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *args]) == 2
    assert capsys.readouterr().err


def test_a_bad_address_is_refused() -> None:
    async def use(url: str) -> None:
        async with Api(url) as api:
            await api.check()

    for url in ("localhost:8000", "http://127.0.0.1:99999", "ftp://127.0.0.1"):
        with pytest.raises(DemoFailed):
            asyncio.run(use(url))


def test_a_server_that_does_not_start_is_told_in_its_own_words() -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('Error: no such model')")
    with pytest.raises(DemoFailed, match=r"did not start: no such model"), own_server(command):
        raise AssertionError("never ready")


# Answers every request and ignores SIGTERM in the child it starts.
STUBBORN = """
import http.server, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM,"
                  " signal.SIG_IGN); time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_nothing_of_an_own_server_is_left() -> None:
    before = set(psutil.Process().children(recursive=True))
    with (
        pytest.raises(RuntimeError, match="the demo broke"),
        own_server((sys.executable, "-c", STUBBORN)),
    ):
        started = set(psutil.Process().children(recursive=True)) - before
        assert len(started) == 2
        raise RuntimeError("the demo broke")
    _, alive = psutil.wait_procs(started, timeout=5)
    assert not alive
