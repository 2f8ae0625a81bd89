"""The deployment API on a cluster of two cores: several engine replicas, one that dies, and
requests of 12 MB.

There is no session router yet, so ``pace serve`` itself runs one replica.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engine.config import EngineConfig
from engine.environment import ENGINE_ENV
from serve.config import HttpConfig, ReplicaConfig, ServeConfig
from tests.support.cluster import RayCluster, ray_cluster
from tests.support.deployed import FakeReplica, Looked
from tests.support.raw_http import RawRequest

# Three engines that import torch at once, on two cores.
pytestmark = pytest.mark.timeout(240)

REPLICAS = 3
THREADS = 3  # neither Ray's default for a part of a CPU nor torch's here


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(num_cpus=2) as running:
        yield running


@pytest.fixture(scope="module")
def engines(cluster: RayCluster, protocol_model: Path) -> Any:
    """A handle of three engine replicas behind an Ingress."""
    from serve import app

    config = ServeConfig(
        http=HttpConfig(port=cluster.port),
        engine=EngineConfig(model=str(protocol_model), threads=THREADS),
        replica=ReplicaConfig(cpus=0.1),
    )
    deployment = app.engine_deployment(config).options(
        func_or_class=Looked, num_replicas=REPLICAS, health_check_period_s=1
    )
    engine = deployment.bind(config)
    cluster.run(app.ingress_deployment(config).bind(config, engine))
    return cluster.handle("Engine")


def about(engines: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = engines.broadcast("about").results(timeout_s=60)
    return found


def test_three_replicas_fit_on_two_cores(cluster: RayCluster, engines: Any) -> None:
    assert cluster.cpus() == 2
    status = cluster.status("Engine")
    assert (status.status, status.replica_states) == ("HEALTHY", {"RUNNING": REPLICAS})
    found = about(engines)
    assert len({item["pid"] for item in found}) == REPLICAS
    assert [item["threads"] for item in found] == [THREADS] * REPLICAS
    assert [item["openmp"] for item in found] == [str(THREADS)] * REPLICAS
    assert all(item["well"] for item in found)
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    body["ignore_eos"] = True  # it is sampled: one answer in a hundred would end early
    for _ in range(6):
        answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3


def test_a_replica_whose_step_thread_died_is_replaced(cluster: RayCluster, engines: Any) -> None:
    names = {item["name"] for item in about(engines)}
    victim = min(names)
    engines.broadcast("kill_step_thread", victim).results(timeout_s=60)
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    end = time.monotonic() + 60
    codes = set()
    while victim in {item["name"] for item in about(engines)}:
        assert time.monotonic() < end, "the dead engine is still there"
        # until the replacement it may be asked, and says so at once
        answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=20)
        if answer.status_code != 200:
            codes.add((answer.status_code, answer.json()["error"]["type"]))
    assert codes <= {(500, "server_error"), (503, "server_error")} and codes
    while cluster.status("Engine").replica_states.get("RUNNING") != REPLICAS:
        assert time.monotonic() < end, "no replacement"
        time.sleep(0.1)
    found = about(engines)
    assert len(found) == REPLICAS and all(item["well"] for item in found)
    assert len({item["name"] for item in found} & names) == REPLICAS - 1


# ---- requests of 12 MB. The routes, Ray's handle, its proxy and the replica's doors are the real
# ones, with Ray's own limit of 4 MB for a message between replicas; the engine behind them is a
# fake that counts bytes. What the real engine does with a long transcript is tested, smaller,
# in test_server_large.py.

MB = 1_000_000
SIZE = 12 * MB
RETURNED = 12 * (1 << 20)
"""Memory a process may hold above that of its beginning, a moment after large requests. Measured:
0.3 to 4.4 MiB; up to 22 and 46 while they run."""


@dataclass
class Doors:
    """A fake engine behind real doors, and the processes a request goes through."""

    url: str
    handle: Any
    processes: list[psutil.Process]

    def ask(self, messages: list[Any], session: str, append: bool = False) -> Any:
        pace = {"session_id": session, "mode": "append" if append else "transcript"}
        body = {"model": "default", "messages": messages, "max_tokens": 3, "pace": pace}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text[:1000]
        return answer.json()

    def forget(self, session: str) -> None:
        assert httpx.delete(f"{self.url}/v1/sessions/{session}", timeout=60).status_code == 200

    def held(self) -> int:
        held: int = self.handle.held_bytes.remote().result(timeout_s=60)
        return held

    def cpu(self) -> float:
        """Seconds of processor time so far, of all processes."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def own_bytes(self) -> list[int]:
        """Memory of each process without the pages it shares: Ray's object store, which keeps its
        size, and the code of libraries."""
        return [info.rss - info.shared for info in map(psutil.Process.memory_info, self.processes)]


@pytest.fixture(scope="module")
def doors(cluster: RayCluster) -> Doors:
    from ray import serve as ray_serve

    from serve import app

    config = ServeConfig(http=HttpConfig(port=cluster.port))
    engine = ray_serve.deployment(
        FakeReplica,
        name="Engine",
        ray_actor_options={"num_cpus": 0.1, "runtime_env": {"env_vars": ENGINE_ENV}},
        max_ongoing_requests=100,
    )
    cluster.run(app.ingress_deployment(config).bind(config, engine.bind(config)))
    handle = cluster.handle("Engine")
    # an engine of an earlier test may still be on its way out: the handle knows which is ours
    replica = psutil.Process(handle.pid.remote().result(timeout_s=60))
    titles = ("ray::ProxyActor", "ray::ServeReplica:pace:Ingress")
    found = {
        title: process
        for process in psutil.Process().children(recursive=True)
        for title in titles
        if title in " ".join(process.cmdline())
    }
    made = Doors(cluster.url, handle, [*(found[title] for title in titles), replica])
    made.ask([user("hi")], "first")
    return made


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def build(doors: Doors, session: str, size: int) -> list[dict[str, str]]:
    """A session of ``size`` bytes in messages of 3,000, in four appended turns; its transcript."""
    transcript = []
    for part in range(4):
        new = [user(f"{part}.{n} ".ljust(3000, "x")) for n in range(size // 12_000)]
        answer = doors.ask(new, session, append=True)
        said = answer["choices"][0]["message"]["content"]
        transcript += [*new, {"role": "assistant", "content": said}]
    return transcript


def resend(doors: Doors, session: str, transcript: list[dict[str, str]]) -> float:
    """Resend all of it and a new message; processor seconds. The engine holds what came before,
    byte for byte, or it would call the transcript another one."""
    before = sum(len(message["content"]) for message in transcript)
    begun = doors.cpu()
    transcript.append(user("and?"))
    answer = doors.ask(transcript, session)
    seconds = doors.cpu() - begun
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == before
    assert usage["prompt_tokens"] == before + 4
    transcript.append({"role": "assistant", "content": "and"})
    return seconds


def test_a_resent_transcript_costs_what_its_bytes_cost(doors: Doors) -> None:
    costs = {}
    for session, size in (("quarter", SIZE // 4), ("whole", SIZE)):
        transcript = build(doors, session, size)
        assert len(transcript) > size // 3000
        costs[session] = min(resend(doors, session, transcript) for _ in range(4))
        doors.forget(session)
    # four times the bytes: measured 3 times the time; 16 times if it were quadratic
    assert costs["whole"] < 7 * costs["quarter"], costs
    assert doors.held() == 0


def test_memory_is_given_back(doors: Doors) -> None:
    idle = doors.own_bytes()
    kinds = [[user("y" * SIZE)], [user(f"{n} ".ljust(3000, "z")) for n in range(SIZE // 3000)]]
    highest = idle
    for turn in range(8):
        answer = doors.ask(kinds[turn % 2], f"turn-{turn}", append=True)
        assert answer["usage"]["prompt_tokens"] == SIZE
        highest = [max(pair) for pair in zip(highest, doors.own_bytes(), strict=True)]
        doors.forget(f"turn-{turn}")
    end = time.monotonic() + 10
    while max(gained := [a - b for a, b in zip(doors.own_bytes(), idle, strict=True)]) > RETURNED:
        assert time.monotonic() < end, (idle, highest, gained)
        time.sleep(0.2)


def test_pieces_of_a_client_that_is_gone_are_freed(doors: Doors) -> None:
    draw = random.Random(3)
    pace = {"session_id": "gone", "mode": "append"}
    body = {"model": "default", "messages": [user("y" * SIZE)], "max_tokens": 3, "pace": pace}
    for _ in range(8):
        with RawRequest(f"{doors.url}/v1/chat/completions", body) as request:
            request.send(draw.choice((0.9, 1.0, 1.0)))
            request.read_for(draw.uniform(0, 0.2))
            request.cut(reset=True)
    end = time.monotonic() + 20
    while doors.held() > 0:
        assert time.monotonic() < end, "pieces are held for nobody"
        time.sleep(0.05)
    doors.ask([user("still there?")], "other")
