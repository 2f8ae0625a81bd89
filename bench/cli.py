"""``pace bench``."""

from __future__ import annotations

import click

from bench.cli_renumbering import renumbering
from bench.cli_report import merge, report
from serve.cli import LazyGroup

_TABLE = {
    "plan": ("bench.cli_run", "plan", "Show a plan's sessions and what they cost."),
    "run": ("bench.cli_run", "run", "Run a plan; a stopped run goes on where it was."),
    "speed": ("bench.cli_speed", "speed", "Measure what a session costs along its length."),
}


@click.group(cls=LazyGroup, table=_TABLE)
def bench() -> None:
    """Compare eviction methods on long sessions."""


bench.add_command(merge)
bench.add_command(report)
bench.add_command(renumbering)
