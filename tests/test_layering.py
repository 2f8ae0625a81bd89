"""The arrows between packages (DESIGN: engine ← serve, bench; dashboard knows none of them), and
that the tests' references know none of ours."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
OURS = {"engine", "serve", "bench", "dashboard", "tests"}
FRAMEWORKS = {"ray", "fastapi", "starlette", "uvicorn", "streamlit"}
FORBIDDEN = {
    "engine": FRAMEWORKS | OURS - {"engine"},
    "serve": {"streamlit"} | OURS - {"engine", "serve"},
    "bench": {"streamlit"} | OURS - {"engine", "serve", "bench"},
    "dashboard": {"torch", "transformers", "ray", "fastapi"} | OURS - {"dashboard"},
}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level name) of every import in ``source``, also inside functions."""
    for line, name in imported_modules(source):
        yield line, "." if name == "." else name.split(".")[0]


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """(line, full name) of every module that ``source`` imports; "." for relative ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." if node.level else node.module or ""
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_import_call(function: ast.expr) -> bool:
    return (isinstance(function, ast.Attribute) and function.attr == "import_module") or (
        isinstance(function, ast.Name) and function.id in ("import_module", "__import__")
    )


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_package_imports_only_what_its_layer_may(package: str) -> None:
    files = sorted((CHECKOUT / package).rglob("*.py"))
    assert files, f"{package} has no Python files"
    wrong = [
        f"{file.relative_to(CHECKOUT)}:{line} imports {name}"
        for file in files
        for line, name in imported(file.read_text(encoding="utf-8"))
        if name in FORBIDDEN[package] or name == "."
    ]
    assert not wrong, "\n".join(wrong)


def test_references_know_nothing_of_what_they_are_compared_with() -> None:
    """Torch, transformers and each other only; engine, fixtures and helpers of tests are not."""
    files = sorted((CHECKOUT / "tests" / "reference").glob("*.py"))
    assert len(files) > 4
    allowed = {"torch", "transformers", *sys.stdlib_module_names} - {"importlib"}
    wrong = [
        f"{file.name}:{line} imports {name}"
        for file in files
        for line, name in imported_modules(file.read_text(encoding="utf-8"))
        if name.split(".")[0] not in allowed and not name.startswith("tests.reference")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_import_form_is_seen() -> None:
    source = """
import ray.serve as s
from fastapi import FastAPI
from . import sibling
def late():
    import streamlit
    importlib.import_module("serve.cli")
    __import__("bench")
"""
    assert sorted(name for _, name in imported(source)) == sorted(
        ["ray", "fastapi", ".", "streamlit", "serve", "bench"]
    )
