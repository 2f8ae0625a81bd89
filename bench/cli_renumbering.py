"""``pace bench renumbering``."""

from __future__ import annotations

import click

from bench.cli_options import device_option
from engine.config import EngineConfig


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True)
@device_option
@click.option("--windows", default=16, show_default=True, type=click.IntRange(2))
@click.option("--prefix", default=6144, show_default=True, type=click.IntRange(1))
@click.option("--continuation", default=512, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="CPU threads; all cores if left out.")
def renumbering(
    model: str,
    device: str,
    windows: int,
    prefix: int,
    continuation: int,
    seed: int,
    threads: int | None,
) -> None:
    """What renumbering costs: likelihood of text after a long prefix, with it and without.

    Prints a Markdown table. Both arms keep by H2O; a window must fit the model's range.
    """
    from bench.renumbering import renumbering_cost  # torch takes seconds to import

    config = EngineConfig(model=model, device=device, threads=threads)
    try:
        result = renumbering_cost(
            model,
            device,
            windows,
            prefix,
            continuation,
            seed,
            config.thread_count,
            lambda text: click.echo(text, err=True),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(result)
