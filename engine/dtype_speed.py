"""Which dtype is faster on this machine, measured as an engine would run it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM

from engine.environment import ENGINE_ENV
from engine.errors import ModelError
from engine.fetch import Converted
from engine.linear import replace_linears

PREFILL_TOKENS = 256
DECODE_TOKENS = 8
ROUNDS = 3
# An agent's turn reads some 2,000 tokens and answers with a few dozen; bfloat16 must win clearly,
# since float32 is the more exact of two near equals.
TURN_PREFILLS = 8
TURN_DECODES = 48
MARGIN = 0.9
_CHILD = "import sys; from engine.dtype_speed import main; main(sys.argv[1])"


def measure_apart(folder: Path) -> Converted:
    """``measure`` the model of ``folder`` in a process of its own.

    It has the environment of an engine (``ENGINE_ENV``, under what the user set), which libraries
    read when they start: without it torch's waiting threads take the cores that numpy's products
    want, and float32 comes out seven times too slow.

    Raises:
        ModelError: the process failed.
    """
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder)],
        env={**ENGINE_ENV, **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ModelError(f"measuring {folder.name} failed: {reason}")
    found = json.loads(child.stdout.splitlines()[-1])
    return Converted(found["dtype"], found["seconds"])


def main(folder: str) -> None:
    """Print ``measure`` of a folder's model as a line of JSON."""
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    found = measure(model)
    print(json.dumps({"dtype": found.dtype, "seconds": found.seconds}))


def measure(model: Any) -> Converted:
    """Time prefill and decode in float32 and bfloat16 on the device the engine would use.

    ``model`` ends up in bfloat16. Seconds are the best of ``ROUNDS`` prefills of ``PREFILL_TOKENS``
    tokens, and the best round's median of ``DECODE_TOKENS`` single-token forwards. The two take
    turns: what else the machine does must not fall on one of them alone.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device=device, dtype=torch.bfloat16)
    exact = copy.deepcopy(model).float()
    if device == "cpu":
        replace_linears(exact)  # as the engine runs it
    rounds = [(_time(exact), _time(model)) for _ in range(ROUNDS)]
    del exact
    seconds = {
        name: {key: min(found[key] for found in one) for key in one[0]}
        for name, one in zip(("float32", "bfloat16"), zip(*rounds, strict=True), strict=True)
    }
    return Converted(faster(seconds), seconds)


def faster(seconds: Mapping[str, Mapping[str, float]]) -> Literal["float32", "bfloat16"]:
    """The dtype for turns of ``TURN_PREFILLS`` · 256 new tokens and ``TURN_DECODES`` answered ones,
    from what ``measure`` found."""
    turns = {
        name: TURN_PREFILLS * found["prefill_256"] + TURN_DECODES * found["decode_1"]
        for name, found in seconds.items()
    }
    return "bfloat16" if turns["bfloat16"] < MARGIN * turns["float32"] else "float32"


@torch.inference_mode()
def _time(model: Any) -> dict[str, float]:
    device = next(model.parameters()).device
    ids = torch.arange(PREFILL_TOKENS, device=device)[None] % model.config.vocab_size

    def timed(tokens: torch.Tensor) -> float:
        start = time.perf_counter()
        model(tokens, use_cache=False, logits_to_keep=1).logits.sum().item()
        return time.perf_counter() - start

    timed(ids[:, :1])
    decodes = sorted(timed(ids[:, :1]) for _ in range(DECODE_TOKENS))
    return {
        "prefill_256": round(timed(ids), 5),
        "decode_1": round(decodes[DECODE_TOKENS // 2], 5),
    }
