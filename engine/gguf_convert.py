"""Dequantize a GGUF file once into a transformers folder, and measure which dtype is faster."""

from __future__ import annotations

import copy
import errno
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from engine.errors import ModelError
from engine.fetch import Converted, Progress
from engine.linear import replace_linears

PREFILL_TOKENS = 256
DECODE_TOKENS = 8
# A typical turn reads a few hundred tokens and answers with a few dozen; bfloat16 must win
# clearly, since float32 is the more exact of two near equals.
TURN_PREFILLS = 1
TURN_DECODES = 48
MARGIN = 0.9


def convert_gguf(gguf: Path, target: Path, progress: Progress) -> Converted:
    """Write model (float32 safetensors) and tokenizer of ``gguf`` into the folder ``target``.

    Raises:
        ModelError: transformers cannot read the file.
        OSError: the disk is full, or another error of the file system.
    """
    progress("convert", 0, None)
    with _quiet():
        model = _rewrite(gguf, target)
    progress("measure", 0, None)
    return measure(model)


def _rewrite(gguf: Path, target: Path) -> Any:
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        ).eval()
        tokenizer: Any = AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, local_files_only=True
        )
    except OSError:
        raise
    except Exception as error:  # the readers raise whatever the broken part made them raise
        raise ModelError(f"{gguf.name} cannot be read as GGUF: {error}") from error
    # The weights are plain now; a quantization_config would make every load quantize them again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except SafetensorError as error:  # carries the system's error as text only
        number = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(number, str(error)) from error
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of transformers inside: the caller shows progress."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # one bar of the GGUF reader knows no switch
            yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def measure(model: Any) -> Converted:
    """Time prefill and decode in float32 and bfloat16 on the device the engine would use.

    ``model`` ends up in bfloat16. Seconds are the best of two prefills of ``PREFILL_TOKENS``
    tokens and the median of ``DECODE_TOKENS`` single-token forwards.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds: dict[str, dict[str, float]] = {}
    model.to(device=device, dtype=torch.bfloat16)
    exact = copy.deepcopy(model).float()
    if device == "cpu":
        replace_linears(exact)  # as the engine runs it
    seconds["float32"] = _time(exact)
    del exact
    seconds["bfloat16"] = _time(model)
    turns = {
        name: TURN_PREFILLS * s["prefill_256"] + TURN_DECODES * s["decode_1"]
        for name, s in seconds.items()
    }
    dtype: Literal["float32", "bfloat16"] = (
        "bfloat16" if turns["bfloat16"] < MARGIN * turns["float32"] else "float32"
    )
    return Converted(dtype, seconds)


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
        "prefill_256": round(min(timed(ids), timed(ids)), 5),
        "decode_1": round(decodes[DECODE_TOKENS // 2], 5),
    }
