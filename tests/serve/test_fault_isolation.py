"""A forward that raises, seen over HTTP: the real engine behind the real routes, without Ray."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from engine.engine import KVEngine
from engine.pool import KVPool
from engine.runner import Work, Written
from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.routes import create_app
from tests.engine.support import check_engine
from tests.support.local_handle import LocalHandle

PATH = "/v1/chat/completions"
NAMES = [f"s{n}" for n in range(8)]
BROKEN = "s3"
SECRET = "a text that no error may quote"


@pytest.fixture(scope="module")
def kv_engine(protocol_model: Path) -> Iterator[KVEngine]:
    engine = KVEngine.from_config(EngineConfig(model=str(protocol_model), threads=1))
    yield engine
    engine.close()


def ask(name: str, text: str, max_tokens: int, stream: bool = False) -> dict[str, Any]:
    return {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "stream": stream,
        "pace": {"session_id": name, "mode": "append", "return_token_ids": True},
    }


def said(response: httpx.Response) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities of an answer, streamed or not."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
        choices = [c for line in lines for c in json.loads(line[6:])["choices"]]
    else:
        choices = response.json()["choices"]
    entries = [e for c in choices if c.get("logprobs") for e in c["logprobs"]["content"]]
    ids = [i for c in choices for i in c.get("token_ids", [])]
    return ids, [entry["logprob"] for entry in entries]


def assert_same(got: tuple[list[int], list[float]], wanted: tuple[list[int], list[float]]) -> None:
    assert got[0] == wanted[0]
    assert got[1] == pytest.approx(wanted[1], abs=1e-4)


@pytest.mark.parametrize(("moment", "stream"), [("prefill", True), ("answer", False)])
def test_seven_turns_go_on_and_the_eighth_fails_alone(
    moment: str,
    stream: bool,
    kv_engine: KVEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = EngineReplica(ServeConfig(), "r", lambda config: kv_engine)
    app = create_app(HandleClient(LocalHandle(replica)), LimitsConfig(), logging.getLogger("pace"))
    caplog.set_level(logging.DEBUG)
    # the eighth has the longest prompt: it meets the others' answers
    texts = {name: f"{name} {SECRET} " * (25 if name == BROKEN else 1) for name in NAMES}
    forward, packed = kv_engine.runner.forward, 0

    def fail(works: list[Work], pool: KVPool) -> list[Written]:
        nonlocal packed
        task = kv_engine.store.table.get("", BROKEN).task
        mine = task.work if task is not None else None
        if mine is not None and any(work is mine for work in works):
            if mine.decode == (moment == "answer") and len(works) == len(NAMES):
                packed = len(works)
            if packed:  # from then on, also alone
                raise RuntimeError(f"no forward for {SECRET}")
        return forward(works, pool)

    async def life(http: httpx.AsyncClient, faulty: bool) -> list[Any]:
        async def post(name: str, *args: Any) -> httpx.Response:
            return await http.post(PATH, json=ask(name, *args))

        first = await asyncio.gather(*(post(name, "Hello.", 20) for name in NAMES))
        monkeypatch.setattr(kv_engine.runner, "forward", fail if faulty else forward)
        second = await asyncio.gather(*(post(name, texts[name], 50, stream) for name in NAMES))
        monkeypatch.setattr(kv_engine.runner, "forward", forward)
        health = await http.get("/health")
        assert health.status_code == 200
        await replica.check_health()
        if faulty:
            about = (await http.get(f"/v1/sessions/{BROKEN}")).json()
            assert (about["turns"], about["status"]) == (1, "idle")
        third = await asyncio.gather(*(post(name, "And then?", 12) for name in NAMES))
        for name in NAMES:
            assert (await http.delete(f"/v1/sessions/{name}")).status_code == 200
        return [dict(zip(NAMES, answers, strict=True)) for answers in (first, second, third)]

    async def both() -> tuple[list[Any], list[Any], httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=60) as http:
            faulty, whole = await life(http, True), await life(http, False)
            # the eighth's control: it never had the second turn
            await http.post(PATH, json=ask(BROKEN, "Hello.", 20))
            control = await http.post(PATH, json=ask(BROKEN, "And then?", 12))
            await http.delete(f"/v1/sessions/{BROKEN}")
            return faulty, whole, control

    faulty, whole, control = asyncio.run(both())
    assert packed == len(NAMES), "the failure was to hit a packed forward"
    failed = faulty[1].pop(BROKEN)
    if stream:
        assert failed.status_code == 200
        error = json.loads(failed.text.strip().splitlines()[-1].removeprefix("data: "))["error"]
    else:
        assert failed.status_code == 500 and failed.headers["x-should-retry"] == "true"
        error = failed.json()["error"]
    assert (error["code"], error["type"]) == ("engine_failure", "server_error")
    assert SECRET not in failed.text
    for name, response in faulty[1].items():
        assert_same(said(response), said(whole[1][name]))
        assert_same(said(faulty[2][name]), said(whole[2][name]))
    assert_same(said(faulty[2][BROKEN]), said(control))
    assert SECRET not in "".join(r.getMessage() for r in caplog.records)
    check_engine(kv_engine)
