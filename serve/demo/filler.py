"""Code to paste into a session: slices of the running Python's standard library.

Deterministic for a Python, a seed and a way to count tokens, and no slice comes twice.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from engine.catalog import is_present, resolve_model

# What byte-pair tokenizers cut code into, nearly: words, digits, runs of signs, line starts.
_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]+|_+|\n+[ \t]*|[ \t]{2,}")
# Measured on 212 slices of the standard library with SmolLM2's tokenizer: 1.09 tokens a piece,
# standard deviation 5 % of a slice.
_TOKENS_PER_PIECE = 1.09
_LEAST_FILE_BYTES = 6000


Count = Callable[[str], float]
"""Tokens of a text."""


def estimate_tokens(text: str) -> float:
    """Tokens that a byte-pair tokenizer makes of code or prose, without having one."""
    return len(_PIECE.findall(text)) * _TOKENS_PER_PIECE


def token_counter(model: str) -> Count:
    """Counts with the tokenizer of an embedded model; estimates when it was not added."""
    if not is_present(model):
        return estimate_tokens
    tokenizer = Tokenizer.from_file(str(resolve_model(model) / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def slices(
    seed: int, tokens: int, folder: Path | None = None, count: Count = estimate_tokens
) -> Iterator[tuple[str, str]]:
    """(file name, code) of about ``tokens`` tokens each, all different.

    First a slice of every file in an order drawn from ``seed``, then a second one of every
    file, until the code runs out. ``folder``: where the files are; None: the standard library.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    files = [
        path for path in sorted(folder.glob("*.py")) if path.stat().st_size > _LEAST_FILE_BYTES
    ]
    random.Random(f"filler {seed}").shuffle(files)
    part = 0
    while files:
        longer = []
        for path in files:
            cuts = _cut(path, tokens, count)
            if part < len(cuts):
                longer.append(path)
                yield path.name, cuts[part]
        files, part = longer, part + 1


@lru_cache(maxsize=1024)
def _cut(path: Path, tokens: int, count: Count) -> tuple[str, ...]:
    """The whole slices of a file, from its first function or class on."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(("def ", "class "))), 0)
    found, taken, size = [], [], 0.0
    for line in lines[start:]:
        taken.append(line)
        if line.strip():  # a run of line breaks is one piece
            size += count("\n" + line)
        if size >= tokens:
            found.append("\n".join(taken))
            taken, size = [], 0.0
    return tuple(found)
