"""The hidden checks of the coding task: 7 of p1, 3 of p2, 5 of p3 (paper, section 4.1)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.coding.reference import classes, fee_function
from bench.coding.spec import CodingSpec, amounts, fee
from bench.extract import code_blocks
from bench.sandbox import Call, Limits, measure

# The same for every arm and model, and never widened to let an answer pass.
PRELUDE = """\
import dataclasses
import decimal
import typing
from dataclasses import dataclass, field
from decimal import (
    Decimal, ROUND_05UP, ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_DOWN, ROUND_HALF_EVEN,
    ROUND_HALF_UP, ROUND_UP,
)
from typing import Any, ClassVar, Dict, Final, Iterable, List, Optional, Sequence, Set, Tuple, Union
"""
_FUNCTIONS = {"p1": ["fee_for"], "p2": ["settle"], "p3": ["fee_for", "settle"]}
_ERROR_CODE = 7


class Check(NamedTuple):
    """Passed when every call returns what is expected: the same value of the same type."""

    name: str
    calls: tuple[Call, ...]
    expected: tuple[Any, ...]


def checks(spec: CodingSpec, probe: str) -> list[Check]:
    """The checks of ``probe``, in the order they run."""
    made = (spec.cls, [spec.f_ref, spec.f_amt, spec.f_ccy])
    fees = [
        Check(kind, (Call("fee", (*made, value)),), (fee(spec, value),))
        for kind, value in amounts(spec)
    ]
    if probe == "p1":
        return fees
    batch = _batch(spec)
    net = sum(amount - fee(spec, amount) for _, amount in batch)
    twice = [*batch, (batch[1][0], batch[1][1] + 1)]
    settled = [
        Check("total", (Call("total", (*made, batch)),), (net,)),
        Check("status", (Call("statuses", (*made, batch)),), ([spec.v_done] * len(batch),)),
        Check("duplicate", (Call("duplicate", (*made, twice, spec.err)),), (spec.dup_code,)),
    ]
    if probe == "p2":
        return settled
    assert probe == "p3", probe
    members = [spec.s_new, spec.s_done, spec.s_void]
    names = ([spec.fee_name, spec.cap_name], spec.err, spec.status_cls, members)
    defined = [
        made[1],
        "new",
        [spec.fee_bps, spec.fee_cap],
        True,
        _ERROR_CODE,
        [spec.v_new, spec.v_done, spec.v_void],
    ]
    return [
        Check("definitions", (Call("definitions", (*made, *names)),), (defined,)),
        Check(
            "fees",
            tuple(check.calls[0] for check in fees),
            tuple(check.expected[0] for check in fees),
        ),
        *settled,
    ]


def scoring(spec: CodingSpec, probe: str) -> list[Any]:
    """All that decides which checks an answer passes, as JSON values."""
    return [PRELUDE, classes(spec), fee_function(spec), _measures(), checks(spec, probe)]


def failed_checks(
    spec: CodingSpec, probe: str, answer: str, limits: Limits | None = None
) -> tuple[int, list[str]]:
    """How many checks ``probe`` has, and the names of those that ``answer`` fails.

    The reference classes (for p2 with ``fee_for``) are put in place before the code of p1 and p2,
    so that it can use them while it is read, and after it, so that its own do not count.

    Raises SandboxError where code cannot be run safely.
    """
    given = []
    if probe in ("p1", "p2"):
        given = [classes(spec)] + ([fee_function(spec)] if probe == "p2" else [])
    blocks = code_blocks(answer, _FUNCTIONS[probe])
    wanted = checks(spec, probe)
    calls = [call for check in wanted for call in check.calls]
    results = iter(measure([PRELUDE, *given, *blocks, *given], _measures(), calls, limits))
    failed = []
    for check in wanted:
        found = [next(results) for _ in check.calls]
        if any(one.error for one in found) or not _same([one.value for one in found], check):
            failed.append(check.name)
    return len(wanted), failed


def _batch(spec: CodingSpec) -> list[tuple[str, int]]:
    """Records of different references; two have the same amount, and fees are not all whole."""
    draw = Random(f"batch of {spec.model_dump_json()}")
    values = [value for _, value in amounts(spec)]
    chosen = draw.sample(values, 3)
    return [(f"r-{number}", value) for number, value in enumerate([*chosen, chosen[0]], 1)]


def _same(values: list[Any], check: Check) -> bool:
    # as JSON 25 is not 25.0, and 1 is not true
    return json.dumps(values) == json.dumps(list(check.expected))


@cache
def _measures() -> str:
    return Path(__file__).with_name("measures.py").read_text(encoding="utf-8")
