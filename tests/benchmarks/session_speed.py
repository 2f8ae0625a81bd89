"""Speed along a long session, in one process: ``python -m tests.benchmarks.session_speed``.

Two sessions, one under ``pace`` and one under ``h2o``, are fed the same filler turns in
alternation, so that every ratio is taken within one run on one machine. Costs are process CPU
seconds (``--clock wall`` for wall time): on a shared machine wall time measures the neighbours.

Prints JSON:
    late_over_early: cost per new token (pace) in the last tenth ÷ that of a session whose budget
        has just filled, fed the same text at the same moment; median
    early_over_early: the same in the first tenth, where it must be 1: the error of the method
    raw_late_over_early: last tenth ÷ first tenth, with whatever the machine did in between
    pace_over_h2o: the same cost, pace ÷ h2o, median over pairs of turns
    memory_growth: resident memory at the end ÷ right after the budget filled, minus 1
    decode_speedup_8: aggregate decode rate of 8 sessions ÷ one, median over interleaved rounds
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from engine.config import EngineConfig, PolicyConfig, RopeConfig, load_policies
from engine.engine import KVEngine
from engine.types import Message, Sampling, TurnDone, TurnRequest

ARMS = ("pace", "h2o-long")
ANSWER_TOKENS = 8
YOUNG_TURNS = 6
LEAST_FIRST = 6000  # tokens by which every budget is full and some turns were measured


def filler(characters: int) -> Iterator[str]:
    """Endless pieces of the standard library's source, in a fixed order, wrapping around."""
    folder = Path(sysconfig.get_path("stdlib"))
    while True:
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            for start in range(0, len(text) - characters, characters):
                yield text[start : start + characters]


def resident_bytes() -> int:
    """Resident memory of this process now (peak where /proc is missing)."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def turn(engine: KVEngine, session: str, policy: str, text: str, tokens: int) -> TurnDone:
    """One turn of exactly ``tokens`` answer tokens."""
    sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
    request = TurnRequest(session, (Message("user", text),), policy=policy, sampling=sampling)
    done = engine.run(request)[-1]
    assert isinstance(done, TurnDone)
    return done


class Young:
    """Sessions that never grow old: the control for the cost of a long one.

    Fed the same text at the same moment as the long session, so that neither the text nor the
    neighbours of a shared machine count.
    """

    def __init__(self, engine: KVEngine, measure: Callable[[str, str, str], float | None]) -> None:
        self._engine = engine
        self._measure = measure
        self._turns = 0

    def cost(self, text: str) -> float | None:
        """Cost of a turn right after the budget filled; None for the turn that fills it."""
        if self._turns == YOUNG_TURNS:
            self._engine.delete("", "young")
            self._turns = 0
        self._turns += 1
        found = self._measure("young", "pace", text)
        return None if self._turns == 1 else found


def long_session(engine: KVEngine, tokens: int, clock: Callable[[], float]) -> dict[str, float]:
    """Feed both arms until each holds ``tokens``; see the module's text for the figures."""
    reached = 0

    def measure(session: str, policy: str, text: str) -> float | None:
        """Seconds per new token of a turn; None before the budget is full."""
        nonlocal reached
        start = clock()
        done = turn(engine, session, policy, f"Read this:\n{text}", ANSWER_TOKENS)
        spent = clock() - start
        reached = max(reached, done.usage.prompt_tokens)
        new = done.usage.prompt_tokens - done.usage.cached_tokens + ANSWER_TOKENS
        return spent / new if done.pace.evicted else None

    young = Young(engine, measure)
    pace: list[float] = []
    over_h2o: list[float] = []
    over_young: dict[str, list[float]] = {"first": [], "last": []}
    memory: list[int] = []
    for number, text in enumerate(filler(4000)):
        # the arm that goes first alternates too
        order = ARMS if number % 2 == 0 else ARMS[::-1]
        costs = {arm: measure(arm, arm, text) for arm in order}
        ours, theirs = costs["pace"], costs["h2o-long"]
        is_first = reached < max(tokens / 10, LEAST_FIRST)
        place = "first" if is_first else "last" if reached > 0.9 * tokens else None
        control = young.cost(text) if place else None
        if ours and theirs:
            pace.append(ours)
            over_h2o.append(ours / theirs)
            memory.append(resident_bytes())
            if place and control:
                over_young[place].append(ours / control)
            report(f"\r{reached} of {tokens} tokens, {1000 * ours:.2f} ms/token ")
        if reached >= tokens:
            break
    tenth = max(1, len(pace) // 10)
    early, late = pace[:tenth], pace[-tenth:]
    # the first pairs still warm up allocator and page cache
    settled = memory[min(tenth, len(memory) - 1)]
    return {
        "tokens": reached,
        "turns": len(pace),
        "ms_per_token_first_tenth": 1000 * statistics.mean(early),
        "ms_per_token_last_tenth": 1000 * statistics.mean(late),
        "raw_late_over_early": statistics.mean(late) / statistics.mean(early),
        "late_over_early": statistics.median(over_young["last"]),
        "early_over_early": statistics.median(over_young["first"]),
        "pace_over_h2o": statistics.median(over_h2o),
        "memory_growth": memory[-1] / settled - 1,
    }


def decode_scaling(
    engine: KVEngine, rounds: int, tokens: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Aggregate decode rate of 8 sessions against one, rounds interleaved."""
    for index in range(8):
        turn(engine, f"decode-{index}", "pace", "Tell a long story.", 2)

    def decode(count: int) -> float:
        names = [f"decode-{index}" for index in range(count)]
        with ThreadPoolExecutor(count) as pool:
            # turns of a few prompt tokens: nearly all of the time is decode
            start = clock()
            futures = [pool.submit(turn, engine, n, "pace", "Go on.", tokens) for n in names]
            for future in futures:
                future.result()
        return count * tokens / (clock() - start)

    ratios, alone, together = [], [], []
    for number in range(rounds):
        report(f"\rdecode round {number + 1} of {rounds} ")
        alone.append(decode(1))
        together.append(decode(8))
        ratios.append(together[-1] / alone[-1])
    return {
        "decode_tokens_per_s_1": statistics.median(alone),
        "decode_tokens_per_s_8": statistics.median(together),
        "decode_speedup_8": statistics.median(ratios),
    }


def report(text: str) -> None:
    """Progress, for a person only."""
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


@click.command()
@click.option(
    "--tokens",
    default=100_000,
    show_default=True,
    type=click.IntRange(min=9000),
    help="Session length.",
)
@click.option("--rounds", default=5, show_default=True, help="Interleaved decode rounds.")
@click.option("--decode", default=48, show_default=True, help="Tokens decoded per round.")
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--clock", type=click.Choice(["cpu", "wall"]), default="cpu", show_default=True)
def main(tokens: int, rounds: int, decode: int, model: str, clock: str) -> None:
    """Measure the speed along one long session and print JSON."""
    now = time.process_time if clock == "cpu" else time.perf_counter
    policies = load_policies()
    # h2o leaves positions as written: its range must hold the whole session
    factor = max(4.0, 2.0 ** (tokens // 8192).bit_length())
    stretched = policies["h2o"].model_dump() | {
        "name": "h2o-long",
        "rope": RopeConfig(type="yarn", factor=factor),
    }
    policies["h2o-long"] = PolicyConfig(**stretched)
    engine = KVEngine.from_config(EngineConfig(model=model), policies)
    try:
        figures = decode_scaling(engine, rounds, decode, now) if rounds else {}
        figures |= long_session(engine, tokens, now)
    finally:
        engine.close()
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}, indent=1))


def in_engine_environment() -> None:
    """Begin again with the environment ``pace serve`` gives its engine, unless it is set."""
    from engine.environment import ENGINE_ENV

    if any(os.environ.get(name) != value for name, value in ENGINE_ENV.items()):
        command = [sys.executable, "-m", "tests.benchmarks.session_speed", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ENGINE_ENV)


if __name__ == "__main__":
    in_engine_environment()
    main()
