"""``pace dashboard``: the session viewer in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path

import click

from engine.errors import PaceError
from serve.cli.serve import check_port
from serve.config import load_serve_config
from serve.viewer import HOST, PORT, check_address, start_viewer, stop_viewer


class DashboardFailed(PaceError):
    """The dashboard ended without being asked to."""

    code = "dashboard_failed"


@click.command()
@click.option("--url", help="The server; without it where the configuration says it listens.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The server's configuration file; without it the shipped configs/serve.yaml.",
)
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="To listen on."
)
def dashboard(url: str | None, config_path: Path | None, port: int) -> int:
    """Show what sessions hold and why, in a browser.

    A server with API keys wants one of them in PACE_API_KEY.
    """
    if url is None:
        http = load_serve_config(config_path).http
        host = f"[{http.host}]" if ":" in http.host else http.host
        url = f"http://{host}:{http.port}"
    check_address(url)
    check_port(HOST, port)
    process = start_viewer(url, port)
    try:
        click.echo(f"The dashboard is at http://{HOST}:{port} (server {url}). Ctrl-C stops it.")
        code = process.wait()
    except (KeyboardInterrupt, SystemExit):  # SIGTERM is a SystemExit here
        return 0
    finally:
        stop_viewer(process)
    raise DashboardFailed(f"the dashboard ended by itself (exit code {code})")
