"""``pace bench speed``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from bench.cli_options import device_option
from engine.environment import enter_environment

PARTS = ("decode", "long", "resend", "full")


def _parts(ctx: click.Context, param: click.Parameter, value: str) -> Sequence[str]:
    chosen = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in chosen if name not in PARTS]
    if wrong or not chosen:
        raise click.BadParameter(f"{', '.join(wrong) or 'nothing'}: choose of {', '.join(PARTS)}")
    return chosen


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True, help="Name, hub id or folder.")
@click.option(
    "--tokens",
    default=100_000,
    show_default=True,
    type=click.IntRange(min=1000),
    help="Of the long session; at least nine budgets.",
)
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Of the decode part."
)
@click.option(
    "--decode", default=48, show_default=True, type=click.IntRange(2), help="Tokens of a round."
)
@click.option(
    "--resend-tokens",
    default=8000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Of the session that is also resent.",
)
@click.option(
    "--full-tokens",
    default=8000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Most tokens in the full cache of transformers' own model.",
)
@click.option(
    "--turn-tokens", default=1024, show_default=True, type=click.IntRange(32), help="Of a turn."
)
@click.option(
    "--parts",
    default=",".join(PARTS),
    show_default=True,
    callback=_parts,
    help="What to measure; full loads the model twice.",
)
@click.option("--clock", type=click.Choice(["cpu", "wall"]), help="By default cpu; wall on CUDA.")
@device_option
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.option(
    "--stdlib",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the code that is fed; by default the running Python's library.",
)
def speed(
    model: str,
    tokens: int,
    rounds: int,
    decode: int,
    resend_tokens: int,
    full_tokens: int,
    turn_tokens: int,
    parts: Sequence[str],
    clock: Literal["cpu", "wall"] | None,
    device: str,
    threads: int | None,
    as_json: bool,
    stdlib: Path | None,
) -> None:
    """Measure what a session costs, from its first token to its last.

    Both sides of every ratio are measured in one run, in alternation. On a CPU the clock is this
    process's CPU time: on a shared machine wall time measures the neighbours.
    """
    enter_environment()
    from bench.speed.long_session import long_session
    from bench.speed.resend import persistent_over_resent
    from bench.speed.setting import open_setting
    from bench.speed.stock import full_over_pace
    from bench.speed.table import speed_table
    from bench.speed.together import decode_scaling

    console = Console(stderr=True)
    with console.status("loading the model") as status:
        setting = open_setting(
            model,
            tokens,
            status.update,
            device=device,
            threads=threads,
            clock=clock,
            turn_tokens=turn_tokens,
            stdlib=stdlib,
        )
        least = 9 * setting.profile.budget
        if "long" in parts and tokens < least:
            setting.engine.close()
            raise click.UsageError(f"--tokens must be at least nine budgets, {least} here")
        curve: list[tuple[int, float]] = []
        figures: dict[str, float] = {}
        try:
            if "decode" in parts:
                figures |= decode_scaling(setting, rounds, decode)
            if "long" in parts:
                found, curve = long_session(setting, tokens)
                figures |= found
            if "resend" in parts:
                figures |= persistent_over_resent(setting, resend_tokens)
            if "full" in parts:
                figures |= full_over_pace(setting, full_tokens)
        finally:
            setting.engine.close()
    runner = setting.engine.runner
    where = f"{model}, {str(runner.dtype).removeprefix('torch.')}, {runner.device}"
    if as_json:
        rounded = {name: round(value, 4) for name, value in figures.items()}
        click.echo(json.dumps({"on": where, **rounded, "curve": curve}, indent=1))
    else:
        Console().print(speed_table(figures, curve, where))
