"""The Ray Serve application: ``Ingress`` → ``Engine``.

All untyped Ray decorators are applied here, to plain classes.
"""

from __future__ import annotations

import sys
from typing import Any

from ray import serve as ray_serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from engine.environment import ENGINE_ENV
from serve.config import ServeConfig
from serve.engine_app import EngineReplica
from serve.ingress import Ingress

APP_NAME = "pace"

# The engine holds a large queue itself: it knows sessions, Serve's router does not.
_MAX_ONGOING = 10_000
_HEALTH_PERIOD_S = 5.0
_HEALTH_TIMEOUT_S = 30.0
_INGRESS_CPUS = 0.05
# Lets the event loop get the interpreter lock from the step thread within a token's time.
_SWITCH_INTERVAL_S = 0.0005

# Serve's own lines are noise beside ours.
QUIET = LoggingConfig(log_level="ERROR", enable_access_log=False)


class NamedEngineReplica(EngineReplica):
    """``EngineReplica`` that takes its name from Serve, and its end."""

    def __init__(self, config: ServeConfig) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        super().__init__(config, ray_serve.get_replica_context().replica_id.unique_id)

    async def __del__(self) -> None:
        # Serve awaits this after the drain.
        await self.close()


def build(args: dict[str, Any]) -> Any:
    """Builder for ``ray_serve.run`` and for Serve's own configuration files.

    Args:
        args: a ``ServeConfig`` as a mapping; unknown keys are rejected.

    Returns:
        The ``Application`` to run.
    """
    return build_app(ServeConfig.model_validate(args))


def build_app(config: ServeConfig, gpus: float | None = None) -> Any:
    """The application for a configuration.

    Args:
        config: the server's configuration.
        gpus: GPUs to reserve per engine; None: from the configuration.
    """
    engine = engine_deployment(config, gpus).bind(config)
    return ingress_deployment(config).bind(config, engine)


def engine_deployment(config: ServeConfig, gpus: float | None = None) -> Any:
    """The ``Engine`` deployment; bind it to its configuration.

    Args:
        config: the server's configuration.
        gpus: GPUs to reserve per engine; None: from the configuration.
    """
    return ray_serve.deployment(
        name="Engine",
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        ray_actor_options={
            "num_cpus": config.replica.cpus,
            "num_gpus": gpus if gpus is not None else engine_gpus(config),
            "runtime_env": {
                # Ray would give a replica of less than one CPU a single thread.
                "env_vars": {**ENGINE_ENV, "OMP_NUM_THREADS": str(config.engine.thread_count)}
            },
        },
        **_common(config),
    )(NamedEngineReplica)


def ingress_deployment(config: ServeConfig) -> Any:
    """The ``Ingress`` deployment; bind it to its configuration and the engine."""
    return ray_serve.deployment(
        name="Ingress", ray_actor_options={"num_cpus": _INGRESS_CPUS}, **_common(config)
    )(ray_serve.ingress()(Ingress))


def _common(config: ServeConfig) -> dict[str, Any]:
    return {
        "logging_config": QUIET,
        "graceful_shutdown_timeout_s": config.graceful_shutdown_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "max_ongoing_requests": _MAX_ONGOING,
        # A wrong model or configuration does not get better by trying again.
        "max_constructor_retry_count": 1,
    }


def engine_gpus(config: ServeConfig) -> float:
    """GPUs an engine replica reserves. With device ``auto`` none, unless configured."""
    if config.replica.gpus is not None:
        return config.replica.gpus
    return 1.0 if config.engine.device.startswith("cuda") else 0.0


def http_options(config: ServeConfig) -> HTTPOptions:
    """Where Serve's proxy listens."""
    return HTTPOptions(host=config.http.host, port=config.http.port)
