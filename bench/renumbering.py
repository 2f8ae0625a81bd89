"""What renumbering costs: likelihood of text with it and without (paper, section 5.7).

A window is a stretch of one standard-library file: a prefix, then a continuation that is
teacher-forced. Both arms evict by the same rule (H2O) from the same budget, within the model's own
range and without YaRN; one leaves positions as written, the other renumbers at the least limit that
the sizes allow. The continuation goes in pieces of the eviction interval, so that its own
evictions and renumbers count as in decode.
"""

from __future__ import annotations

import platform
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.statistics import bootstrap_mean
from engine.alone import drive, new_state
from engine.catalog import load_profile, resolve_model
from engine.config import CachePolicy, ModelProfile, PolicyConfig
from engine.flow import Flow, TurnRecord, Writer, cut
from engine.linear import set_threads
from engine.pool import KVPool
from engine.runner import ModelRunner
from engine.sampling import log_probabilities
from engine.state import SessionState
from engine.templates import load_tokenizer
from engine.types import Message

Encode = Callable[[str], list[int]]

_POOL_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens of a stretch of the file ``name``."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One window under one arm: mean negative log-likelihood of the continuation (nats a token),
    and renumbers before and within it."""

    nll: float
    renumbers_before: int
    renumbers: int


def windows(encode: Encode, count: int, length: int, seed: int) -> Iterator[Window]:
    """``count`` windows of ``length`` tokens, each of another file of the standard library.

    Raises:
        ValueError: it has not so many files of that length.
    """
    rng = random.Random(f"windows {seed}")
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    rng.shuffle(files)
    found = 0
    for path in files:
        if path.stat().st_size < 2 * length:  # code has two to five bytes a token
            continue
        tokens = encode(path.read_text(encoding="utf-8", errors="replace"))
        if len(tokens) < length:
            continue
        start = rng.randint(0, len(tokens) - length)
        yield Window(path.name, tuple(tokens[start : start + length]))
        found += 1
        if found == count:
            return
    raise ValueError(f"the standard library has only {found} files of {length} tokens")


def arms(profile: ModelProfile, model_range: int) -> dict[str, CachePolicy]:
    """The two policies: positions as written, and renumbered as often as the sizes make it."""
    least = profile.budget + profile.interval + profile.chunk
    return {
        name: PolicyConfig(name=name, retention="h2o", position_limit=limit).resolve(
            profile, model_range
        )
        for name, limit in (("as-written", None), ("renumbered", least))
    }


def measure(
    runner: ModelRunner, policy: CachePolicy, pool: KVPool, window: Window, prefix: int
) -> Measured:
    """Write ``prefix`` tokens of the window in prefill chunks and score the others."""
    state = new_state(runner, policy, pool)
    tokens = list(window.tokens)
    state.add_message(Message("user", ""), tokens, step=1)
    try:
        return drive(_scored(state, tokens, prefix), runner, pool)
    finally:
        pool.release(state.active_row())


def _scored(state: SessionState, tokens: list[int], prefix: int) -> Flow[Measured]:
    writer, record, total = Writer(), TurnRecord(), 0.0
    for chunk in cut(tokens[:prefix], state.policy.chunk):
        written = yield from writer.write(state, chunk, record)
    before, at = state.renumbers, prefix
    last = log_probabilities(written.logits[-1:])
    for piece in cut(tokens[prefix:], state.policy.interval):
        written = yield from writer.write(state, piece, record, "all")
        ahead = torch.cat((last, log_probabilities(written.logits)))
        wanted = torch.tensor(piece, device=ahead.device)[:, None]
        total -= float(ahead[:-1].gather(1, wanted).sum())
        last, at = ahead[-1:], at + len(piece)
    return Measured(total / (at - prefix), before, state.renumbers)


def table(rows: Sequence[tuple[Window, dict[str, Measured]]]) -> str:
    """The result in Markdown."""
    lines = [
        "| file | renumbers before, within | as written | renumbered | difference |",
        "| --- | --- | --- | --- | --- |",
    ]
    differences = []
    for window, found in rows:
        plain, renumbered = found["as-written"], found["renumbered"]
        differences.append(renumbered.nll - plain.nll)
        within = renumbered.renumbers - renumbered.renumbers_before
        lines.append(
            f"| {window.name} | {renumbered.renumbers_before}, {within} | {plain.nll:.4f} | "
            f"{renumbered.nll:.4f} | {differences[-1]:+.4f} |"
        )
    mean, low, high, _ = bootstrap_mean(differences)
    lines += ["", f"Mean {mean:+.4f} nats a token, 95 % interval [{low:+.4f}, {high:+.4f}]."]
    return "\n".join(lines)


def renumbering_cost(
    model: str,
    device: str,
    count: int,
    prefix: int,
    continuation: int,
    seed: int,
    threads: int,
    progress: Callable[[str], None],
) -> str:
    """Measure ``count`` windows under both arms; the result in Markdown.

    Args:
        model: as for ``pace serve``.
        prefix, continuation: tokens of a window.
        seed: which files, and where in them.
        threads: CPU threads of a forward.
        progress: is told of every window.

    Raises:
        ValueError: the standard library has not enough long files.
    """
    path = resolve_model(model)
    profile = load_profile(path)
    tokenizer: Any = load_tokenizer(path, None)
    set_threads(threads)
    dtype = getattr(torch, profile.dtype) if profile.dtype else None
    runner = ModelRunner.load(path, device, dtype)
    policies = arms(profile, runner.model_range)
    pool = KVPool(runner.shape, _POOL_BYTES, profile.chunk)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    rows: list[tuple[Window, dict[str, Measured]]] = []
    for window in windows(encode, count, prefix + continuation, seed):
        found = {
            name: measure(runner, policy, pool, window, prefix) for name, policy in policies.items()
        }
        rows.append((window, found))
        progress(f"{len(rows)} of {count}: {window.name}")
    return (
        f"{model}, {runner.dtype}, Python {platform.python_version()}: budget {profile.budget}, "
        f"prefix {prefix}, continuation {continuation} tokens, "
        f"L = {policies['renumbered'].position_limit}.\n\n{table(rows)}"
    )
