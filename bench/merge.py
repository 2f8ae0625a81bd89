"""Pooling of result files: only what was asked with the same words, of the same prompts, under the
same settings (paper, Appendix B); otherwise a refusal that says what differs, and where."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.results import ResultError, ResultLine

Files = Mapping[Path, Iterable[ResultLine]]
_SHOWN = 8


def merge(files: Files) -> list[ResultLine]:
    """All lines, ordered by session and arm; of identical ones (but for their times) the first.

    Raises:
        ResultError: the files cannot be pooled. These have to be the same: the template
            fingerprint within a task; dtype and engine settings within a task and model; the
            policy of an arm within a task and model; the prompts within a session; and a session
            under an arm is there once.
    """
    placed = [(line, path) for path, lines in files.items() for line in lines]
    differences = [
        *_differing(placed, lambda line: line.task, _fingerprint),
        *_differing(placed, lambda line: (line.task, line.model), _settings),
        *_differing(placed, lambda line: (line.task, line.model, f"arm {line.arm}"), _policy),
        *_differing(placed, _session, lambda line: {"prompts checksum": line.prompts_checksum}),
    ]
    if differences:
        raise ResultError("These results cannot be pooled:\n" + _list(differences))
    found: dict[tuple[Any, ...], tuple[ResultLine, Path]] = {}
    for line, path in placed:
        first, there = found.setdefault((line.session, line.arm), (line, path))
        if first.stable() != line.stable():
            differences.append(
                f"{_at(_session(line))}, arm {line.arm}: two different results, in {there} "
                f"and in {path}; they differ in {', '.join(_differing_fields(first, line))}"
            )
    if differences:
        raise ResultError("These results are there twice and disagree:\n" + _list(differences))
    return [line for line, _ in sorted(found.values(), key=lambda one: _order(one[0]))]


def _differing(
    placed: list[tuple[ResultLine, Path]],
    group: Callable[[ResultLine], Hashable],
    properties: Callable[[ResultLine], dict[str, Any]],
) -> list[str]:
    """Properties with several values within a group, each value with the files it is in."""
    seen: dict[Hashable, dict[str, dict[str, set[str]]]] = {}
    for line, path in placed:
        for name, value in properties(line).items():
            values = seen.setdefault(group(line), {}).setdefault(name, {})
            values.setdefault(repr(value), set()).add(str(path))
    return [
        f"{_at(where)}: {name}: "
        + ", ".join(f"{value} in {' and '.join(sorted(at))}" for value, at in values.items())
        for where, one in seen.items()
        for name, values in one.items()
        if len(values) > 1
    ]


def _fingerprint(line: ResultLine) -> dict[str, Any]:
    return {"template fingerprint": line.template_fingerprint}


def _settings(line: ResultLine) -> dict[str, Any]:
    return {"dtype": line.dtype} | _flat("engine", line.engine)


def _policy(line: ResultLine) -> dict[str, Any]:
    return _flat("policy", line.policy)


def _flat(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    # A setting that only some lines have differs too: the names are a property of their own.
    named = {f"{name} setting {key}": value for key, value in settings.items()}
    return {f"names of {name} settings": sorted(settings)} | named


def _session(line: ResultLine) -> tuple[str, ...]:
    key = line.session
    distance = "" if key.distance is None else f" at distance {key.distance}"
    where = f"{key.layout} session of {key.session_tokens} tokens{distance}, seed {key.seed}"
    return (key.task, key.model, where)


def _differing_fields(one: ResultLine, other: ResultLine) -> list[str]:
    first, second = one.stable(), other.stable()
    return [name for name in first if first[name] != second[name]]


def _order(line: ResultLine) -> tuple[Any, ...]:
    key = line.session
    return (*key[:4], key.distance or 0, key.seed, line.arm)


def _at(where: Hashable) -> str:
    return ", ".join(where) if isinstance(where, tuple) else str(where)


def _list(lines: list[str]) -> str:
    more = len(lines) - _SHOWN
    return "\n".join(f"  - {line}" for line in lines[:_SHOWN]) + (
        f"\n  and {more} more" if more > 0 else ""
    )
