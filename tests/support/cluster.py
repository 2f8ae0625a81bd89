"""A Ray cluster inside the test's own process, for tests that use Serve's deployment API."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.cluster import RAY_SETTINGS, make_temp_folder
from tests.support.server import free_port


class RayCluster:
    """One node with Serve's proxy on ``port``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def run(self, application: Any, name: str = "pace") -> None:
        """Deploy and wait until it is healthy."""
        from ray import serve as ray_serve

        ray_serve.run(application, name=name, route_prefix="/")

    def handle(self, deployment: str, name: str = "pace") -> Any:
        from ray import serve as ray_serve

        return ray_serve.get_deployment_handle(deployment, name)

    def status(self, deployment: str, name: str = "pace") -> Any:
        from ray import serve as ray_serve

        return ray_serve.status().applications[name].deployments[deployment]

    def cpus(self) -> float:
        import ray

        return float(ray.cluster_resources()["CPU"])


@contextlib.contextmanager
def ray_cluster(num_cpus: int) -> Iterator[RayCluster]:
    """A cluster while the context is entered; afterwards nothing of it is left.

    Messages between replicas keep Ray's own limit of 4 MB.
    """
    import ray
    from ray import serve as ray_serve
    from ray.serve.config import HTTPOptions

    from serve.app import QUIET

    patch = pytest.MonkeyPatch()
    for name, value in RAY_SETTINGS.items():
        patch.setenv(name, value)
    patch.delenv("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", raising=False)
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    port = free_port()
    folder = make_temp_folder(Path("/tmp"))
    try:
        with contextlib.chdir(folder):
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=80 << 20,
                logging_level=logging.ERROR,
                _temp_dir=str(folder),
            )
        ray_serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port), logging_config=QUIET)
        yield RayCluster(port)
    finally:
        with contextlib.suppress(Exception):
            ray_serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        patch.undo()
