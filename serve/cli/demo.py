"""``pace demo``: play agent sessions against a server and show what they cost and remember."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from engine.config import EngineConfig
from serve.demo.filler import token_counter
from serve.demo.own_dashboard import OwnDashboard, own_dashboard
from serve.demo.own_server import own_server
from serve.demo.play import Progress, play
from serve.demo.results import SessionResult, summarize, to_json
from serve.demo.table import render

_WATCH_S = 0.5


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise click.BadParameter("give at least one")
    return names


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in _names(ctx, param, value))
    except ValueError:
        raise click.BadParameter("give whole numbers, separated by commas") from None


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option(
    "--api-key",
    envvar="PACE_API_KEY",
    show_envvar=True,
    help="A key of the server, if it has keys.",
)
@click.option("--serve", "serve_own", is_flag=True, help="Start a server for the demo only.")
@click.option(
    "--seeds", default="1,2,3", show_default=True, callback=_numbers, help="One transcript each."
)
@click.option(
    "--tokens",
    default=12000,
    show_default=True,
    type=click.IntRange(2000, 10_000_000),
    help="Least length of a session.",
)
@click.option(
    "--policies", default="pace,h2o", show_default=True, callback=_names, help="To compare."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.option("--keep", is_flag=True, help="Leave the sessions on the server.")
@click.option(
    "--dashboard",
    "show",
    is_flag=True,
    help="With --serve: show the sessions in a browser; on a terminal also after the demo.",
)
def demo(
    url: str,
    api_key: str | None,
    serve_own: bool,
    seeds: tuple[int, ...],
    tokens: int,
    policies: tuple[str, ...],
    as_json: bool,
    keep: bool,
    show: bool,
) -> None:
    """Play agent sessions against a server.

    Each states ten facts, pastes code until it is long, then asks for the facts. Every
    transcript is played under every policy, all at the same time.
    """
    if serve_own and keep:
        raise click.UsageError("--keep has no use with --serve: its sessions end with the server")
    if show and not serve_own:
        raise click.UsageError("--dashboard goes with --serve; elsewhere there is `pace dashboard`")
    console = Console(stderr=True)
    with (
        _started(console) if serve_own else nullcontext(url) as address,
        own_dashboard(address, api_key) if show else nullcontext() as viewer,
    ):
        if viewer is not None:
            where = viewer.url or f"not there: {viewer.problem}"
            console.print(f"Dashboard: {where}", soft_wrap=True)
        stays = viewer is not None and console.is_terminal and sys.stdin.isatty()
        began = time.monotonic()
        with _progress(console) as progress:
            results = asyncio.run(
                play(
                    address,
                    seeds,
                    tokens,
                    policies,
                    count=token_counter(EngineConfig().model),
                    key=api_key,
                    keep=keep or stays,
                    progress=progress,
                )
            )
        seconds = time.monotonic() - began
        _print(results, tokens, seconds, as_json, keep)
        if stays and viewer is not None and viewer.runs:
            _stay(console, viewer)


def _stay(console: Console, viewer: OwnDashboard) -> None:
    """Until Ctrl-C, or until the dashboard ends."""
    console.print(f"The sessions are at {viewer.url} until Ctrl-C.", soft_wrap=True)
    with suppress(KeyboardInterrupt):
        while viewer.runs:
            time.sleep(_WATCH_S)


def _print(
    results: list[SessionResult], tokens: int, seconds: float, as_json: bool, keep: bool
) -> None:
    summaries = summarize(results)
    if as_json:
        click.echo(json.dumps(to_json(summaries)))
        return
    Console().print(render(results, summaries, tokens, seconds))
    if keep:
        click.echo("Kept: " + " ".join(result.session_id for result in results))


@contextmanager
def _started(console: Console) -> Iterator[str]:
    """``own_server``, with words about the waiting."""
    with console.status("Starting the server …") as status:
        if not console.is_terminal:
            console.print("Starting the server …")
        with own_server() as url:
            status.stop()
            yield url
            status.update("Stopping the server …")
            status.start()


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    """A bar per session on a terminal; elsewhere a line when a session does something new."""
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    ids: dict[str, TaskID] = {}
    doing: dict[str, str] = {}

    def show(label: str, done: int, total: int, what: str) -> None:
        if label not in ids:
            ids[label] = bars.add_task(label, total=total, what=what)
        bars.update(ids[label], completed=done, what=what)
        if not console.is_terminal and doing.get(label) != what:
            console.print(f"{label}: {what}")
        doing[label] = what

    with bars:
        yield show
