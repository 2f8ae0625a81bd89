"""What all measurements share: an engine, code to feed it, a clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from bench.filler import Filler, SourcePool, token_ends
from engine.catalog import load_profile, resolve_model
from engine.config import EngineConfig, ModelProfile, PolicyConfig, RopeConfig, load_policies
from engine.engine import KVEngine
from engine.types import Message, Sampling, TurnDone, TurnRequest

Figures = dict[str, float]
Report = Callable[[str], None]
"""Is told how far a measurement is."""

PACE, H2O = "pace", "h2o-long"
ANSWER_TOKENS = 8


@dataclass(slots=True)
class Setting:
    """An engine to measure, and how. ``now``: seconds; ``turn_tokens``: of a filler turn."""

    engine: KVEngine
    profile: ModelProfile
    path: Path
    now: Callable[[], float]
    turn_tokens: int
    filler: Filler
    report: Report

    def texts(self) -> Iterator[str]:
        """Endless pieces of code of ``turn_tokens`` tokens, in a fixed order."""
        while True:
            for chunk in self.filler.chunks(0, self.turn_tokens):
                yield f"Read this:\n{chunk.text}"

    def turn(
        self, session: str, text: str, tokens: int = ANSWER_TOKENS, policy: str = PACE
    ) -> TurnDone:
        """One turn of exactly ``tokens`` answer tokens."""
        sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
        request = TurnRequest(session, (Message("user", text),), policy=policy, sampling=sampling)
        done = self.engine.run(request)[-1]
        assert isinstance(done, TurnDone)
        return done

    def timed(self, session: str, text: str, policy: str = PACE) -> tuple[float, TurnDone]:
        """Seconds per new token of a turn, answer included, and its end."""
        start = self.now()
        done = self.turn(session, text, policy=policy)
        spent = self.now() - start
        new = done.usage.prompt_tokens - done.usage.cached_tokens + ANSWER_TOKENS
        return spent / new, done

    def forget(self, *sessions: str) -> None:
        """Delete sessions."""
        for session in sessions:
            self.engine.delete("", session)


def open_setting(
    model: str,
    longest: int,
    report: Report,
    *,
    device: str = "auto",
    threads: int | None = None,
    clock: Literal["cpu", "wall"] | None = None,
    turn_tokens: int = 1024,
    stdlib: Path | None = None,
) -> Setting:
    """Load the model. Close the setting's engine when done.

    Args:
        longest: tokens the longest session reaches; ``h2o-long`` is stretched to hold them.
        clock: CPU time of this process (the default on a CPU, where wall time would measure the
            neighbours) or wall time (the default on CUDA, which is waited for).
    """
    path = resolve_model(model)
    profile = load_profile(path)
    policies = load_policies()
    engine_config = EngineConfig(
        model=model, device=device, threads=threads, keep_previous_turn=False
    )
    engine = KVEngine.from_config(
        engine_config, policies | {H2O: _stretched(policies["h2o"], longest, path)}
    )
    gpu = engine.runner.device.type == "cuda"
    timer = time.process_time if clock == "cpu" or (clock is None and not gpu) else None
    filler = Filler(SourcePool(stdlib), token_ends(engine.chat.tokenizer))
    now = timer or (_synchronised if gpu else time.perf_counter)
    return Setting(engine, profile, path, now, turn_tokens, filler, report)


def resident_bytes(device: torch.device) -> int:
    """Memory in use now: of the GPU, or of this process (its peak where /proc is missing)."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _stretched(h2o: PolicyConfig, longest: int, path: Path) -> PolicyConfig:
    """``h2o`` leaves positions as written: its range must hold the whole session."""
    from transformers import AutoConfig

    own = int(AutoConfig.from_pretrained(path, local_files_only=True).max_position_embeddings)
    factor = max(4.0, 2.0 ** (longest // own).bit_length())
    rope = RopeConfig(type="yarn", factor=factor)
    return h2o.model_copy(update={"name": H2O, "rope": rope})


def _synchronised() -> float:
    """Wall time once the GPU has done what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()
