"""``pace bench``: the commands; each imports what it needs when it is run."""

from __future__ import annotations

from pathlib import Path

import click

_FILES = click.argument(
    "results",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)


@click.group()
def bench() -> None:
    """Compare eviction methods on long sessions."""


@bench.command()
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
    from bench.merge import merge as merge_files
    from bench.results import read_all, write_results
    from engine.errors import ConfigError

    if out.exists():
        raise ConfigError(f"{out} is there already: remove it or name another file", param="--out")
    lines = merge_files(read_all(results))
    write_results(out, lines)
    click.echo(f"{len(lines)} lines of {len(results)} files are in {out}.")
    return 0
