"""Dequantize a GGUF file once into a transformers folder, and measure which dtype is faster."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from engine.dtype_speed import measure_apart
from engine.errors import ModelError
from engine.fetch import Converted, Progress


def convert_gguf(gguf: Path, target: Path, progress: Progress) -> Converted:
    """Write model (float32 safetensors) and tokenizer of ``gguf`` into the folder ``target``.

    Raises:
        ModelError: transformers cannot read the file.
        OSError: the disk is full, or another error of the file system.
    """
    progress("convert", 0, None)
    with _quiet():
        _rewrite(gguf, target)
    progress("measure", 0, None)
    return measure_apart(target)


def _rewrite(gguf: Path, target: Path) -> None:
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
