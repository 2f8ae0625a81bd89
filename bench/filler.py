"""Code to paste between definitions and probes: chunks of a Python's standard library.

Chunks do not repeat within a session. Their source is a folder of ``.py`` files, by default the
running Python's own standard library; ``SourcePool.digest`` tells two sources apart, so that a
plan can pin one and results of different ones are never pooled (paper, section 4.1, appendix B).
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

Ends = Callable[[str], list[int]]
"""Where each token of a text ends (index of the character after it)."""

# not source that people write, or missing from some builds of the same Python
_LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "lib2to3",
    "pydoc_data",
}
_LEFT_OUT_FILES = "_sysconfigdata"
_FUNCTION = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one file. ``function``: the first one they define; ``tokens``: their count."""

    path: str
    text: str
    function: str
    tokens: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """A file's chunks, and its end that is too short for one."""

    chunks: list[Chunk]
    end: Chunk


class FillerExhausted(ConfigError):
    """The source has less code than the session needs."""

    code = "filler_exhausted"


class SourcePool:
    """The Python files of a folder, without tests and installed packages."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: None: the running Python's standard library. Raises ConfigError."""
        self.folder = folder or Path(sysconfig.get_path("stdlib"))
        self.paths = sorted(_source_files(self.folder), key=self.name)
        if not self.paths:
            raise ConfigError(f"filler: {self.folder} holds no Python source files")

    def name(self, path: Path) -> str:
        """The file's path within the pool."""
        return path.relative_to(self.folder).as_posix()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files, in hexadecimal."""
        found = hashlib.sha256()
        for path in self.paths:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{content}  {self.name(path)}\n".encode())
        return found.hexdigest()

    def check(self, wanted: str | None) -> None:
        """Raise ConfigError when a plan pins another source than this one."""
        if wanted is not None and self.digest != wanted:
            raise ConfigError(
                f"filler.digest: the plan pins {wanted[:16]}…, but {self.folder} has "
                f"{self.digest[:16]}…: another version or build of Python. Give the folder of the "
                "pinned one with --stdlib, or leave filler.digest out of the plan: results then "
                "compare only with runs on the same source"
            )


class Filler:
    """Chunks of a pool for one tokenizer; each file is read and cut once."""

    def __init__(self, pool: SourcePool, ends: Ends) -> None:
        self.pool = pool
        self._ends = ends
        self._cuts: dict[tuple[Path, int], _Cut] = {}

    def chunks(self, seed: int, tokens: int, without: Sequence[str] = ()) -> Iterator[Chunk]:
        """Chunks of about ``tokens`` tokens in an order drawn from ``seed``, all different: one of
        every file, then a second one of every file, and so on; at last the files' ends, put
        together.

        Args:
            without: chunks that contain one of these strings are left out.
        """
        for chunk in self._all(seed, tokens):
            if not any(word in chunk.text for word in without):
                yield chunk

    def _all(self, seed: int, tokens: int) -> Iterator[Chunk]:
        files = list(self.pool.paths)
        random.Random(f"filler {seed}").shuffle(files)
        waiting, part = files, 0
        while waiting:
            longer = [path for path in waiting if part < len(self._cut(path, tokens).chunks)]
            yield from (self._cut(path, tokens).chunks[part] for path in longer)
            waiting, part = longer, part + 1
        ends: list[Chunk] = []
        for path in files:
            ends.append(self._cut(path, tokens).end)
            if sum(end.tokens for end in ends) >= tokens:
                joined = "\n\n".join(end.text for end in ends if end.text)
                whole = _cut_text(", ".join(end.path for end in ends), joined, self._ends, tokens)
                yield from whole.chunks
                ends = [whole.end]

    def take(self, seed: int, count: int, tokens: int, without: Sequence[str] = ()) -> list[Chunk]:
        """The first ``count`` chunks. Raises FillerExhausted, saying how much there is."""
        found: list[Chunk] = []
        for chunk in self.chunks(seed, tokens, without):
            if len(found) == count:
                break
            found.append(chunk)
        if len(found) < count:
            raise FillerExhausted(
                f"the session needs {count} chunks of {tokens} tokens of code that do not repeat, "
                f"but {self.pool.folder} has {len(found)}, in all "
                f"{sum(chunk.tokens for chunk in found)} tokens; use shorter sessions, or a "
                "folder with more source (--stdlib)"
            )
        return found

    def _cut(self, path: Path, tokens: int) -> _Cut:
        key = (path, tokens)
        if key not in self._cuts:
            text = path.read_text(encoding="utf-8", errors="replace")
            self._cuts[key] = _cut_text(self.pool.name(path), text, self._ends, tokens)
        return self._cuts[key]


def _source_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in files:
            if name.endswith(".py") and not name.startswith(_LEFT_OUT_FILES):
                yield Path(place, name)


def token_ends(tokenizer: Any) -> Ends:
    """``Ends`` of a (fast) transformers tokenizer."""

    def ends(text: str) -> list[int]:
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [end for _, end in found["offset_mapping"]]

    return ends


def _cut_text(name: str, text: str, ends_of: Ends, tokens: int) -> _Cut:
    """Whole lines of ``text`` in pieces of ``tokens`` tokens, as near as lines allow. Pieces that
    define no function are left out."""
    ends = ends_of(text)
    found: list[Chunk] = []
    start = first = at = 0
    for line in text.splitlines(keepends=True):
        before = bisect_right(ends, at) - first  # tokens up to this line
        at += len(line)
        after = bisect_right(ends, at) - first
        if after < tokens:
            continue
        # cut before or behind this line, whichever comes nearer
        cut, size = (at, after)
        if before and tokens - before < after - tokens:
            cut, size = at - len(line), before
        piece = text[start:cut].rstrip("\n")
        function = _FUNCTION.search(piece)
        if function is not None:
            found.append(Chunk(name, piece, function.group(1), size))
        start, first = cut, first + size
    return _Cut(found, Chunk(name, text[start:].rstrip("\n"), "", len(ends) - first))
