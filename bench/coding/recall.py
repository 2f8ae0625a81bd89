"""Which facts of the session an answer contains: 25 a session (5 + 6 + 14), whatever its code does.

A fact is a name, a value, or for constants both on one line (paper, section 4.1).
"""

from __future__ import annotations

import re

from bench.coding.spec import CodingSpec
from bench.extract import without_thinking


def facts(spec: CodingSpec, probe: str) -> dict[str, str]:
    """Facts that a right answer to ``probe`` contains: name → regular expression."""
    rule = {"rounding": _word(spec.rounding), "quantum": _number(spec.quantum)}
    failure = {"exception": _word(spec.err), "duplicate_code": _number(spec.dup_code)}
    if probe == "p1":
        names = {
            "amount_field": spec.f_amt,
            "fee_constant": spec.fee_name,
            "cap_constant": spec.cap_name,
        }
        return {name: _word(text) for name, text in names.items()} | rule
    if probe == "p2":
        names = {
            "reference_field": spec.f_ref,
            "amount_field": spec.f_amt,
            "status_class": spec.status_cls,
            "settled_member": spec.s_done,
        }
        return {name: _word(text) for name, text in names.items()} | failure
    assert probe == "p3", probe
    names = {
        "class": spec.cls,
        "reference_field": spec.f_ref,
        "amount_field": spec.f_amt,
        "currency_field": spec.f_ccy,
        "status_class": spec.status_cls,
    }
    pairs = {
        "fee_constant": (spec.fee_name, _number(spec.fee_bps)),
        "cap_constant": (spec.cap_name, _number(spec.fee_cap)),
        "new_member": (spec.s_new, _word(spec.v_new)),
        "settled_member": (spec.s_done, _word(spec.v_done)),
        "voided_member": (spec.s_void, _word(spec.v_void)),
    }
    return (
        {name: _word(text) for name, text in names.items()}
        | {name: f"{_word(text)}[^\n]*{value}" for name, (text, value) in pairs.items()}
        | failure
        | rule
    )


def missing_facts(spec: CodingSpec, probe: str, answer: str) -> tuple[int, list[str]]:
    """How many facts ``probe`` asks for, and the names of those that ``answer`` lacks."""
    text = without_thinking(answer)
    wanted = facts(spec, probe)
    return len(wanted), [name for name, form in wanted.items() if not re.search(form, text)]


def _word(text: str) -> str:
    return rf"(?<!\w){re.escape(text)}(?!\w)"


def _number(value: int) -> str:
    """The number as a literal of its own: no part of 10000 or 2.5; 5.0 will do."""
    return rf"(?<![\w.]){value}(?:\.0+)?(?![\w.]*\w)"
