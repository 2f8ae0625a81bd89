"""A session of 200,000 tokens of a 36-layer model behind the real routes, for what looks at it.

    python -m tests.support.large_session [--steps 60] [--message 3300] [--threads 1]

makes the session (a random model this small needs no weights from elsewhere), prints where it is
served, and serves it until Ctrl-C. Its plan: every step reads step 1, the one seven steps back and
every tenth one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.config import ModelProfile
from engine.engine import KVEngine
from engine.types import Message, PlanUpdate, Sampling, TurnRequest
from tests.support.local_server import LocalServer, local_server
from tests.support.protocol_model import make_protocol_model

SESSION = "large"
LAYERS = 36
PROFILE = ModelProfile(budget=2048, interval=64, chunk=512, position_limit=4096, dtype="float32")
_WORDS = ("queue", "tests", "parser", "retry", "latency", "schema", "naïve", "缓存", "shard", "\n")


@contextmanager
def large_session(
    steps: int = 60, message: int = 3300, threads: int = 1, layers: int = LAYERS
) -> Iterator[LocalServer]:
    """A server that holds the session ``SESSION`` of ``steps`` steps, each a message of about
    ``message`` tokens and a short answer."""
    with tempfile.TemporaryDirectory(prefix="pace-large-") as folder:
        model = make_protocol_model(
            Path(folder) / "model",
            PROFILE,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=layers,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
        with local_server(model, threads=threads, pool_bytes=1 << 29) as server:
            grow(server.engine, steps, message)
            yield server


def grow(engine: KVEngine, steps: int, message: int) -> None:
    """Run the session's turns."""
    plan = {step: _reads(step) for step in range(2, steps + 6)}
    draw = random.Random(1)
    for step in range(1, steps + 1):
        text = f"step {step}: "
        while len(text.encode()) < message:
            text += draw.choice(_WORDS) + " "
        engine.run(
            TurnRequest(
                SESSION,
                (Message("user", text),),
                base="new" if step == 1 else "current",
                sampling=Sampling(max_tokens=8, temperature=0, ignore_eos=True),
                plan=PlanUpdate(plan=plan if step == 1 else None),
            )
        )


def _reads(step: int) -> tuple[int, ...]:
    read = {1, step - 7, *range(10, step, 10)}
    return tuple(sorted(s for s in read if 0 < s < step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--steps", 60), ("--message", 3300), ("--threads", 1)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    start = time.monotonic()
    with large_session(asked.steps, asked.message, asked.threads) as server:
        print(f"{server.url} serves session '{SESSION}' ({time.monotonic() - start:.0f} s)")
        print("Ctrl-C ends it", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
