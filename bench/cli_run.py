"""``pace bench plan`` and ``pace bench run``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.cli_options import device_option
from bench.only import Only
from bench.plan import BenchPlan, load_plan
from engine.environment import enter_environment

if TYPE_CHECKING:  # they import torch, which reads the environment
    from bench.results import ResultLine
    from bench.runner import Group

C = TypeVar("C", bound=Callable[..., Any])
_PART = re.compile(r"(arm|seed|distance|tokens)=(\S+)")
_WINDOW_S = 120.0


def _only(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Only:
    chosen: dict[str, list[str]] = {}
    for value in values:
        found = _PART.fullmatch(value)
        if found is None:
            raise click.BadParameter(
                f"{value!r} is not arm=, seed=, distance= or tokens= with values, such as seed=1,2"
            )
        chosen.setdefault(found[1], []).extend(found[2].split(","))
    arms = frozenset(chosen["arm"]) if "arm" in chosen else None
    try:
        seeds, distances, tokens = (
            frozenset(map(int, chosen[name])) if name in chosen else None
            for name in ("seed", "distance", "tokens")
        )
    except ValueError:
        raise click.BadParameter("seeds, distances and tokens are whole numbers") from None
    return Only(arms, seeds, distances, tokens)


def _which(command: C) -> C:
    """Options that say what is run on what."""
    options = [
        click.argument("plan_file", metavar="PLAN"),
        click.option(
            "--only",
            multiple=True,
            callback=_only,
            metavar="KEY=VALUES",
            help="A part: arm=, seed=, distance= or tokens=, values separated by commas.",
        ),
        click.option(
            "--limit", type=click.IntRange(min=1), help="At most so many (session, arm) pairs."
        ),
        click.option("--model", help="Another model than the plan's."),
        click.option(
            "--stdlib",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder of the filler's source; by default the running Python's library.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _load(plan_file: str, model: str | None) -> BenchPlan:
    plan = load_plan(plan_file)
    return plan if model is None else plan.model_copy(update={"model": model})


def _part(only: Only, limit: int | None) -> Only:
    return Only(only.arms, only.seeds, only.distances, only.tokens, limit)


@click.command()
@_which
@click.option("--prefill", type=click.FloatRange(min=0.1), help="Tokens per second, if known.")
@click.option("--decode", type=click.FloatRange(min=0.1), help="Tokens per second, if known.")
def plan(
    plan_file: str,
    only: Only,
    limit: int | None,
    model: str | None,
    stdlib: Path | None,
    prefill: float | None,
    decode: float | None,
) -> None:
    """Show the sessions of PLAN (a file, or the name of a shipped plan) and what they cost.

    Builds them all: a plan that passes here has enough filler and shows no probe's answer.
    """
    from bench.runner import BenchRun

    chosen = _load(plan_file, model)
    run = BenchRun(chosen, stdlib=stdlib)
    groups = run.groups(_part(only, limit))
    speed = chosen.speed
    fast = prefill or (speed.prefill if speed else None)
    slow = decode or (speed.decode if speed else None)
    table = Table(title=f"{chosen.name}: task {chosen.task}, {chosen.model}")
    for name in ("arm", "sessions", "prefill tokens", "decode tokens", "hours"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    sessions: Counter[str] = Counter()
    totals: dict[str, tuple[int, int]] = {}
    for group in groups:
        sessions[group.arm.name] += len(group.sessions)
        read, written = group.tokens
        before = totals.get(group.arm.name, (0, 0))
        totals[group.arm.name] = (before[0] + read, before[1] + written)
    rows = [(name, sessions[name], *totals[name]) for name in totals]
    read = sum(row[2] for row in rows)
    written = sum(row[3] for row in rows)
    rows.append(("all", sessions.total(), read, written))
    for name, count, read, written in rows:
        hours = "?" if not (fast and slow) else f"{(read / fast + written / slow) / 3600:.2f}"
        table.add_row(name, str(count), f"{read:,}", f"{written:,}", hours)
    console = Console()
    console.print(table)
    if fast and slow:
        where = speed.measured_on if speed and not (prefill or decode) else "as given"
        console.print(f"at {fast:g} prefilled and {slow:g} decoded tokens per second ({where})")
    console.print(f"filler: {run.pool.folder}, digest {run.pool.digest}", soft_wrap=True)


@click.command()
@_which
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result file; by default the plan's name with .jsonl, here.",
)
@device_option
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all cores by default.")
def run(
    plan_file: str,
    only: Only,
    limit: int | None,
    model: str | None,
    stdlib: Path | None,
    out: Path | None,
    device: str,
    threads: int | None,
) -> None:
    """Run PLAN (a file, or the name of a shipped plan) in this process.

    Every session's result is appended to the result file as it ends. The same command goes on
    where a stopped run was.
    """
    enter_environment()
    from bench.runner import BenchRun

    chosen = _load(plan_file, model)
    out = out or Path(f"{chosen.name}.jsonl")
    console = Console(stderr=True)
    with _watching(console) as watcher:
        written = BenchRun(chosen, device, stdlib, threads).run(out, watcher, _part(only, limit))
    click.echo(f"{written} results written to {out}")


@contextmanager
def _watching(console: Console) -> Iterator[_Bars]:
    """A bar on a terminal, a line per result elsewhere."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.1f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=_WINDOW_S,
    )
    with progress:
        yield _Bars(console, progress)


class _Bars:
    """A run's progress in tokens, with the rate and the time left."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("loading the model", total=None, rate="")
        self._start = time.monotonic()
        self._done = 0
        self._total = 0
        self._lines = (0, 0)

    def begin(self, groups: Sequence[Group], done: int) -> None:
        self._start = time.monotonic()
        self._total = max(1, sum(sum(group.tokens) for group in groups))
        self._lines = (0, sum(len(group.sessions) for group in groups))
        self._progress.update(self._task, total=self._total, description="")
        self._console.print(
            f"{self._lines[1]} results to come, {done} in the file already; about "
            f"{self._total:,} tokens",
            soft_wrap=True,
        )

    def playing(self, group: Group) -> None:
        first = group.sessions[0]
        self._progress.update(self._task, description=f"{group.arm.name}, seed {first.seed}")

    def computed(self, tokens: int) -> None:
        self._done += tokens
        self._progress.update(self._task, completed=self._done, rate=self._rate())

    def finished(self, line: ResultLine) -> None:
        self._lines = (self._lines[0] + 1, self._lines[1])
        passed = sum(probe.score.passed for probe in line.probes)
        total = sum(probe.score.total for probe in line.probes)
        where = line.layout if line.distance is None else f"distance {line.distance}"
        self._console.print(
            f"{self._lines[0]}/{self._lines[1]} {line.arm}, seed {line.seed}, "
            f"{line.session_tokens} tokens, {where}: {passed}/{total}; {self._rate()}",
            highlight=False,
            soft_wrap=True,
        )

    def _rate(self) -> str:
        seconds = time.monotonic() - self._start
        rate = self._done / seconds if seconds else 0.0
        if not rate:
            return ""
        left = max(0.0, self._total - self._done) / rate
        return f"{rate:.0f} tokens/s, {left / 3600:.1f} h left"
