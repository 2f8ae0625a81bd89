"""A local Ray cluster of one's own: started, served from, and stopped with all it started.

Ray is imported here only after its environment is set; importing this module imports none.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import PaceError
from engine.home import lock, pace_home, write_atomic
from serve.config import MIB, ServeConfig
from serve.keys import KEYS_FILE_VARIABLE, keys_file
from serve.memory import ALLOCATOR_ENV
from serve.processes import OwnProcesses, pid_exists
from serve.start_errors import find_start_error

_TEMP_PREFIX = "pace-"
_SHUTDOWN_MARGIN_S = 6.0
_RAY_SHUTDOWN_S = 5.0
_EXIT_S = 3.0


class StartFailed(PaceError):
    """The server could not start; the message is the root cause."""

    code = "start_failed"


RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Makes Ray bind to the loopback address, on Linux as it does elsewhere.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray's own metrics would listen on all interfaces; ours are at /metrics.
    "RAY_enable_metrics_collection": "0",
    # Workers made in advance are never used: every deployment has its own environment.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Requests go in pieces, but a long session's ledger comes as one message, which the
    # default, 4 MB, may not hold.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * MIB),
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.proxy_guard:middlewares",
    # Ray's workers would yield to every other process; the engine is what the server is for.
    "RAY_worker_niceness": "0",
    # Ten looks around a second cost a twentieth of a core.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Each worker prints its own line per turn; none may be folded into another's.
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    **ALLOCATOR_ENV,
}
"""Environment variables of Ray that do not depend on the machine or the user."""


def ray_environment() -> dict[str, str]:
    """Environment variables Ray and its workers must see, set before Ray is imported."""
    keys = keys_file()
    return {
        **RAY_SETTINGS,
        # Absolute: workers run in another folder.
        "PACE_HOME": str(pace_home()),
        KEYS_FILE_VARIABLE: "" if keys is None else str(keys),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Whoever reaches Ray's ports can run code: only who can read the token may.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(auth_token_path()),
    }


def auth_token_path() -> Path:
    """File of Ray's token, made on first use, readable by its owner only."""
    path = pace_home() / "ray-token"
    with lock("ray-token"):
        if not path.is_file():
            write_atomic(path, secrets.token_hex(32).encode())
    return path


class LocalCluster:
    """One Ray cluster on this machine, with the application on it."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._processes = OwnProcesses()
        self._folder: Path | None = None
        self._ray: Any = None

    def start(self, progress: Callable[[str], None], after_init: Callable[[], None]) -> None:
        """Start Ray and deploy; returns when the server answers.

        Args:
            progress: is told what is being done.
            after_init: called when Ray runs (it takes over the handler of SIGTERM).

        Raises:
            StartFailed: with the root cause.
        """
        progress("Starting Ray")
        _set_environment(ray_environment())
        import ray
        from ray import serve as ray_serve

        from serve import app

        for name in ("ray", "ray.serve", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._ray = ray
        self._folder = make_temp_folder(_temp_root())
        try:
            # Workers import from the driver's working folder first; a user's file named
            # engine.py there must not stand in for ours.
            with contextlib.chdir(self._folder):
                ray.init(
                    address="local",
                    num_cpus=max(2, math.ceil(self._config.replica.cpus) + 1),
                    include_dashboard=False,
                    object_store_memory=self._config.object_store_bytes,
                    logging_level=logging.ERROR,
                    log_to_driver=True,
                    _temp_dir=str(self._folder),
                )
        except Exception as error:
            raise StartFailed(f"Ray could not start: {error}") from error
        self._processes.look()
        after_init()
        progress(f"Loading {self._config.engine.model_name}")
        try:
            ray_serve.start(http_options=app.http_options(self._config), logging_config=app.QUIET)
            application = app.build_app(self._config, self._gpus())
            ray_serve.run(application, name=app.APP_NAME, route_prefix="/")
        except Exception as error:
            report = "\n".join([str(error), *_deployment_messages(ray_serve)])
            raise StartFailed(find_start_error(report)) from error
        self._processes.look()

    def alive(self) -> bool:
        """Whether Ray's own processes still run; their death ends the server."""
        self._processes.look()
        return bool(
            self._ray is not None and self._ray.is_initialized() and _raylet_alive(self._ray)
        )

    def stop(self) -> None:
        """Drain, shut down, and end whatever is left. Takes at most about 25 seconds."""
        self._processes.look()
        if self._running():
            drain = self._config.graceful_shutdown_s + _SHUTDOWN_MARGIN_S
            if _within(drain, _drain_and_shut_down):
                self._processes.look()
                _within(_RAY_SHUTDOWN_S, self._ray.shutdown)
        self._processes.wait(_EXIT_S)
        self.kill()

    def kill(self) -> None:
        """End all processes this one has started, at once, and remove their folder."""
        self._processes.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _running(self) -> bool:
        return self._ray is not None and bool(self._ray.is_initialized())

    def _gpus(self) -> float | None:
        """Device ``auto`` takes a GPU when Ray has found one; None: as configured."""
        found = self._ray.cluster_resources().get("GPU", 0)
        return 1.0 if self._config.engine.device == "auto" and found >= 1 else None


def _set_environment(values: Mapping[str, str]) -> None:
    # A RAY_ADDRESS from outside would deploy into somebody's cluster.
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE"):
        os.environ.pop(name, None)
    os.environ.update(values)


def _temp_root() -> Path:
    """A short path: Ray puts sockets under it, whose names are limited to about 100 bytes."""
    return Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())


def make_temp_folder(root: Path) -> Path:
    """A new folder in ``root`` for this process; those of killed servers are removed."""
    for old in root.glob(f"{_TEMP_PREFIX}[0-9]*"):
        pid = old.name.removeprefix(_TEMP_PREFIX).partition("-")[0]
        if pid.isdecimal() and _is_my_folder(old) and not pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_TEMP_PREFIX}{os.getpid()}-", dir=root))


def _is_my_folder(path: Path) -> bool:
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def _raylet_alive(ray: Any) -> bool:
    node = ray._private.worker._global_node
    return node is not None and not node.dead_processes()


def _deployment_messages(ray_serve: Any) -> list[str]:
    """Why deployments did not come up, in Serve's words; empty when Serve does not answer."""
    try:
        applications = ray_serve.status().applications.values()
    except Exception:
        return []
    return [item.message for about in applications for item in about.deployments.values()]


def _drain_and_shut_down() -> None:
    """Let running turns end, then stop Serve. Its own shutdown kills the proxy first, and with
    it the clients' connections."""
    from ray import serve as ray_serve

    from serve import app

    ray_serve.delete(app.APP_NAME)
    ray_serve.shutdown()  # type: ignore[no-untyped-call]


def _within(seconds: float, action: Callable[[], object]) -> bool:
    """Run ``action`` for at most ``seconds``; False when it did not end in time."""

    def run() -> None:
        # What goes wrong while stopping is made up for by killing what is left.
        try:
            action()
        except Exception:
            logging.getLogger("pace").debug("stopping: %s failed", action)

    thread = threading.Thread(target=run, name="pace-stop", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
