"""The deployment API: several engine replicas in one cluster of two cores, and one that dies.

There is no session router yet, so ``pace serve`` itself runs one replica.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from serve.config import HttpConfig, ReplicaConfig, ServeConfig
from tests.support.cluster import RayCluster, ray_cluster
from tests.support.deployed import Looked

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
