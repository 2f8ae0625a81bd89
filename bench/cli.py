"""``pace bench``."""

from __future__ import annotations

import click

from bench.cli_renumbering import renumbering
from bench.cli_report import merge, report


@click.group()
def bench() -> None:
    """Compare eviction methods on long sessions."""


bench.add_command(merge)
bench.add_command(report)
bench.add_command(renumbering)
