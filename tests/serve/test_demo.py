"""The demo against a real server with the protocol model: what it plays, and what it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serve.cli import main
from serve.demo.api import Api, DemoFailed
from serve.demo.play import play
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)
TOKENS = 2000


def sessions(raw: httpx.Client) -> list[str]:
    found = raw.get("/v1/sessions").raise_for_status().json()["data"]
    return [session["session_id"] for session in found if session["session_id"].startswith("demo")]


@pytest.fixture
def tidy(raw: httpx.Client) -> Iterator[httpx.Client]:
    yield raw
    for session_id in sessions(raw):
        raw.delete(f"/v1/sessions/{session_id}")


def test_every_transcript_is_played_under_every_policy(server: Server, tidy: httpx.Client) -> None:
    seen: list[tuple[str, int, int, str]] = []
    results = asyncio.run(
        play(
            server.url,
            (1, 2),
            TOKENS,
            ("pace", "h2o"),
            keep=True,
            progress=lambda *what: seen.append(what),
        )
    )
    assert [(r.policy, r.seed) for r in results] == [
        ("pace", 1),
        ("pace", 2),
        ("h2o", 1),
        ("h2o", 2),
    ]
    assert sorted(sessions(tidy)) == sorted(result.session_id for result in results)
    for result in results:
        held = tidy.get(f"/v1/sessions/{result.session_id}").json()
        assert held["policy"] == result.policy
        assert (held["tokens"], held["turns"]) == (result.tokens, len(result.fillers) + 10)
        assert held["step"] == 20 + len(result.fillers)
        assert result.tokens >= TOKENS
        assert result.kv_bytes > 0 and result.full_kv_bytes > 0
        assert len(result.facts) == 10
        for fact in result.facts:
            # The plan reached the server: it knows what each question needs.
            assert fact.residency is not None and 0 <= fact.residency <= 1
            assert fact.logprob < 0
        assert all(turn.tokens > 0 and turn.seconds > 0 for turn in result.fillers)
        done = [what for what in seen if what[0] == f"{result.policy}, transcript {result.seed}"]
        assert done[-1][1:] == (len(result.fillers) + 10,) * 2 + ("done",)


def test_the_command_prints_json_only_and_deletes_its_sessions(
    server: Server, tidy: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--url", server.url, "--seeds", "1", "--tokens", str(TOKENS), "--policies", "h2o"]
    assert main(["demo", "--json", *args]) == 0
    out, err = capsys.readouterr()
    summary: dict[str, Any] = json.loads(out)["policies"]["h2o"]
    assert summary["asked"] == 10
    assert "h2o, transcript 1: asking" in err.splitlines()
    assert not sessions(tidy)


def test_a_refused_turn_fails_the_demo_and_deletes_its_sessions(
    server: Server, tidy: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--url", server.url, "--seeds", "1", "--policies", "pace,unheard-of"]
    assert main(["demo", *args]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: unheard-of, transcript 1: ") and "HTTP 400" in error
    assert not sessions(tidy)


def test_an_interrupted_demo_deletes_its_sessions(server: Server, tidy: httpx.Client) -> None:
    async def interrupt() -> None:
        asked = asyncio.Event()

        def watch(label: str, done: int, total: int, what: str) -> None:
            if what == "asking":
                asked.set()

        task = asyncio.create_task(play(server.url, (1,), TOKENS, ("pace", "h2o"), progress=watch))
        await asked.wait()
        assert sessions(tidy)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(interrupt())
    assert not sessions(tidy)


def test_a_server_of_another_kind_is_named(server: Server) -> None:
    async def use() -> None:
        async with Api(f"{server.url}/elsewhere") as api:
            await api.check()

    with pytest.raises(DemoFailed, match=r"404|not a PACE server"):
        asyncio.run(use())
