"""Right answers of a coding session, and the classes that its functions are tested with."""

from __future__ import annotations

from bench.coding.spec import CodingSpec

_CLASSES = """\
@dataclass
class {cls}:
    {fee_name} = {fee_bps}
    {cap_name} = {fee_cap}

    {f_ref}: str
    {f_amt}: int
    {f_ccy}: str
    status: str = "new"


class {err}(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


class {status_cls}:
    {s_new} = "{v_new}"
    {s_done} = "{v_done}"
    {s_void} = "{v_void}"
"""
_FEE = """\
def fee_for(entry):
    parts = Decimal(entry.{f_amt}) * {cls}.{fee_name} / 10_000 / {quantum}
    rounded = parts.quantize(Decimal(1), rounding=decimal.{rounding})
    return min(int(rounded) * {quantum}, {cls}.{cap_name})
"""
_SETTLE = """\
def settle(entries):
    if len({{entry.{f_ref} for entry in entries}}) < len(entries):
        raise {err}({dup_code})
    for entry in entries:
        entry.status = {status_cls}.{s_done}
    return sum(entry.{f_amt} - fee_for(entry) for entry in entries)
"""
_IMPORTS = {
    "p1": "import decimal\nfrom decimal import Decimal\n\n\n",
    "p2": "",
    "p3": "import decimal\nfrom dataclasses import dataclass\nfrom decimal import Decimal\n\n\n",
}
_PARTS = {"p1": (_FEE,), "p2": (_SETTLE,), "p3": (_CLASSES, _FEE, _SETTLE)}


def classes(spec: CodingSpec) -> str:
    """The dataclass, the exception and the class of states, as Python."""
    return _CLASSES.format(**spec.model_dump())


def fee_function(spec: CodingSpec) -> str:
    """``fee_for`` as Python."""
    return _FEE.format(**spec.model_dump())


def reference_answer(spec: CodingSpec, probe: str) -> str:
    """A right answer to ``probe`` (p1, p2, p3): Markdown with one code block."""
    code = "\n\n".join(part.format(**spec.model_dump()) for part in _PARTS[probe])
    return f"```python\n{_IMPORTS[probe]}{code}```\n"
