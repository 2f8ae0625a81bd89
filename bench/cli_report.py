"""``pace bench report`` and ``pace bench merge``."""

from __future__ import annotations

from pathlib import Path

import click

from bench.merge import merge as merge_files
from bench.results import read_all, write_results
from engine.errors import ConfigError

_FILES = click.argument(
    "results",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)


@click.command()
@_FILES
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; must not exist.",
)
def merge(results: tuple[Path, ...], out: Path) -> int:
    """Pool result files into one.

    Refuses files whose templates, prompts, policies or engine settings differ, and says which.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already: remove it or name another file", param="--out")
    lines = merge_files(read_all(results))
    write_results(out, lines)
    click.echo(f"{len(lines)} lines of {len(results)} files are in {out}.")
    return 0


@click.command()
@_FILES
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write tables.md and report.html to.",
)
@click.option("--baseline", help="The arm the others are compared with (default: h2o).")
@click.option("--arm", help="The arm that is compared with each other one (default: pace).")
def report(results: tuple[Path, ...], out: Path, baseline: str | None, arm: str | None) -> int:
    """Tables (Markdown) and figures (HTML) of result files, as in the paper.

    Files are pooled first, as by pace bench merge.
    """
    from bench.report import write_report  # plotly and scipy take a second

    lines = merge_files(read_all(results))
    files, lacking = write_report(lines, out, baseline=baseline, ours=arm)
    for one in lacking:
        click.echo(str(one))
    click.echo(f"Written: {', '.join(map(str, files))}")
    return 0
