"""Options that several commands of ``pace bench`` share."""

from __future__ import annotations

import click

from engine.config import known_device


def _known(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return known_device(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from None


device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=_known,
    help="auto, cpu, cuda or cuda:N.",
)
