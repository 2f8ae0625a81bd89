"""``pace serve``: the server in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from engine.catalog import load_profile, resolve_model
from engine.config import load_policies
from engine.errors import ConfigError
from engine.home import in_use
from engine.template_files import read_template
from serve.cluster import LocalCluster, StartFailed
from serve.config import ServeConfig, load_serve_config
from serve.held_output import HeldOutput
from serve.keys import keys_file, load_keys
from serve.stop_signals import StopRequested, StopSignals

_WATCH_S = 1.0


@click.command()
@click.option("--host", help="Address to listen on; without API keys loopback only.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file; without it the shipped configs/serve.yaml.",
)
@click.option("--model", help="A model's name, hub id or folder.")
@click.option(
    "--chat-template",
    metavar="FILE",
    help="A chat template in place of the model's own: a file, or a name from configs/templates.",
)
@click.option("--device", help="cpu, cuda, cuda:0, or auto.")
def serve(
    host: str | None,
    port: int | None,
    config_path: Path | None,
    model: str | None,
    chat_template: str | None,
    device: str | None,
) -> int:
    """Start the server and wait. Ctrl-C stops it; a second Ctrl-C stops it at once."""
    overrides = {
        "http": _given(host=host, port=port),
        "engine": _given(model=model, chat_template=chat_template, device=device),
    }
    config = load_serve_config(config_path, overrides)
    with in_use():
        return run(check(config))


def check(config: ServeConfig) -> ServeConfig:
    """Find what is wrong before anything is started.

    Returns:
        The configuration with the model's folder, served name and chat template filled in.

    Raises:
        ConfigError: the port is taken, the file of API keys is bad, or the default policy does
            not fit the model.
        ModelError: the model or the chat template is not there, or is no text.
    """
    check_port(config.http.host, config.http.port)
    path = keys_file()
    if path is not None:
        load_keys(path)
    folder = resolve_model(config.engine.model)
    _check_policy(config, folder)
    template = config.engine.chat_template
    engine = {
        **config.engine.model_dump(),
        # absolute: the replica runs in another folder
        "chat_template": None if template is None else read_template(template).source,
        "model": str(folder),
        "served_name": config.engine.model_name,
    }
    return ServeConfig.model_validate({**config.model_dump(), "engine": engine})


def check_port(host: str, port: int) -> None:
    """Raises ConfigError when nobody can listen on ``port``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # A port in TIME_WAIT is free; one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used ({error.strerror}): another program may "
                "listen there; choose another with --port",
                param="http.port",
            ) from error


def run(config: ServeConfig) -> int:
    """Serve until a signal comes.

    Args:
        config: as ``check`` returns it.

    Returns:
        The exit code: 0 after a stop; 128 + signal when stopped before the server was ready.

    Raises:
        PaceError: the server could not start, or died.
    """
    cluster = LocalCluster(config)
    started = time.monotonic()
    ready = False
    out, err = sys.stdout, sys.stderr
    # Standard output is for the ready line alone.
    outs, errs = HeldOutput(err), HeldOutput(err)
    with redirect_stdout(outs), redirect_stderr(errs), StopSignals(cluster.kill) as signals:
        try:
            with Console(file=err).status("Starting") as status:
                cluster.start(lambda text: status.update(f"{text} …"), signals.install)
            ready = True
            outs.let_through()
            errs.let_through()
            url = f"http://{_netloc(config.http.host)}:{config.http.port}"
            click.echo(f"PACE is ready at {url} (model {config.engine.served_name})", file=out)
            out.flush()
            seconds = time.monotonic() - started
            click.echo(f"Started in {seconds:.0f} s. Ctrl-C stops it.", file=err)
            while cluster.alive():
                time.sleep(_WATCH_S)
            raise StartFailed("Ray's processes died; the server is stopped")
        except StopRequested as stop:
            if ready:
                _say_stopping(config.graceful_shutdown_s, err)
            return 0 if ready else 128 + stop.signum
        except SystemExit:
            # While Ray starts, its own handler of SIGTERM may be the one that is called.
            return 0 if ready else 128 + signal.SIGTERM
        finally:
            signals.stopping()
            # Ray complains to standard output about actors that it stops itself.
            outs.drop()
            if not ready:
                errs.drop()
            cluster.stop()


def _say_stopping(seconds: float, file: TextIO) -> None:
    with suppress(OSError):  # the terminal may be gone
        click.echo(
            f"Stopping: running turns have {seconds:g} s. Ctrl-C again stops at once.", file=file
        )
        file.flush()


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _netloc(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_policy(config: ServeConfig, folder: Path) -> None:
    policies = load_policies()
    name = config.engine.default_policy
    if name not in policies:
        known = ", ".join(sorted(policies))
        raise ConfigError(
            f"engine.default_policy: {name!r} is not one of: {known}", param="engine.default_policy"
        )
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    positions = about.get("max_position_embeddings")
    if isinstance(positions, int):
        profile = config.engine.profile or load_profile(folder)
        for policy in policies.values():
            policy.resolve(profile, positions)
