"""The ``Ingress`` deployment: HTTP in front of the engines. Holds no session state."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from serve import logs
from serve.config import ServeConfig
from serve.engine_client import HandleClient
from serve.keys import keys_file, load_keys
from serve.routes import create_app


class Ingress:
    """Built by Ray Serve, which asks it for the application it runs.

    Args:
        config: the server's configuration.
        engine: handle of the ``Engine`` deployment.

    Raises:
        ConfigError: ``PACE_API_KEYS_FILE`` names a bad file.
    """

    def __init__(self, config: ServeConfig, engine: Any) -> None:
        self._config = config
        self._client = HandleClient(engine)
        self._logger = logs.configure(config.log_level)
        path = keys_file()
        self._keys = None if path is None else load_keys(path)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._client, self._config.limits, self._logger, self._keys)
