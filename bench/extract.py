"""The code in an answer: Markdown with fences, several blocks, or no fence at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from textwrap import dedent

# An answer is cut there: no honest one is longer, and parsing must end.
_MOST_CHARACTERS = 100_000
_MOST_LINES = 2_000
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
# (before, fence, language, more)
_OPENS = re.compile(r"([^`~]*)(`{3,}+|~{3,}+)[ \t]*([\w+.#-]*)([^`]*)$")
_PYTHON = {"", "python", "python3", "py", "py3", "python-3", "code", "ipython"}
_STARTS = re.compile(r"(?:import|from|def|class|async def)\s+\w|@\w")
_DEFINING = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def without_thinking(answer: str) -> str:
    """The answer without what the model thought aloud before it."""
    return _THINKING.sub("", answer)


def code_blocks(answer: str, wanted: Sequence[str]) -> list[str]:
    """The Python blocks of an answer that are to be run, in order.

    Blocks that define one of ``wanted`` at their top level, and those that only define; examples of
    use and output are left out. If no block does either, all of them. Without fences: the part of
    the answer that is Python. A block is never repaired; one that was cut off stays so.
    """
    text = without_thinking(answer)[:_MOST_CHARACTERS].replace("\r\n", "\n")
    blocks = list(_fenced(text))
    if not blocks:
        return _unfenced(text)
    python = [code for language, code in blocks if language.lower() in _PYTHON]
    python = python or [code for _, code in blocks]
    return [code for code in python if _is_definition(code, wanted)] or python


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """(language, code) of each fenced block; one that is not closed goes to the end."""
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        if not fence:
            opened = _OPENS.match(line)
            # at the end of a line of prose, too: models do that
            if opened and not (opened[1].strip() and opened[4].strip()):
                fence, language, lines = opened[2], opened[3], []
            continue
        stripped = line.strip()
        closed = stripped.startswith(fence) and not stripped.strip(fence[0])
        if not closed and not stripped.startswith(fence) and stripped.endswith(fence):
            closed = True  # on the last line of code
            lines.append(line.rstrip().rstrip(fence[0]))
        if closed:
            yield language, dedent("\n".join(lines))
            fence = ""
        else:
            lines.append(line)
    if fence:
        yield language, dedent("\n".join(lines))


def _unfenced(text: str) -> list[str]:
    """The longest run of lines from the first that looks like code on that is Python."""
    lines = dedent(text).split("\n")[:_MOST_LINES]
    start = next((number for number, line in enumerate(lines) if _STARTS.match(line)), None)
    if start is None:
        return [text] if text.strip() and _parsed(text) else []
    for end in range(len(lines), start, -1):
        # only before a line that could begin something else can the code end
        if end == len(lines) or (lines[end].strip() and not lines[end][0].isspace()):
            code = "\n".join(lines[start:end])
            if _parsed(code):
                return [code]
    return ["\n".join(lines[start:])]


def _is_definition(code: str, wanted: Sequence[str]) -> bool:
    tree = _parsed(code)
    if tree is None:  # it fails when it is run, unless it plainly is something else
        return any(re.search(rf"^\s*def\s+{name}\b", code, re.MULTILINE) for name in wanted)
    names = {getattr(node, "name", None) for node in tree.body}
    if names & set(wanted):
        return True
    return bool(tree.body) and all(
        isinstance(node, _DEFINING) or _is_text(node) for node in tree.body
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _parsed(code: str) -> ast.Module | None:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.parse(code)
    return None
