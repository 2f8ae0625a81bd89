"""The specification of a coding session, sampled from its seed (paper, section 4.1, appendix A)."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

Rounding = Literal["ROUND_HALF_UP", "ROUND_HALF_DOWN", "ROUND_HALF_EVEN", "ROUND_UP", "ROUND_DOWN"]
# Those that differ for amounts that are not negative.
ROUNDINGS: tuple[Rounding, ...] = (
    "ROUND_HALF_UP",
    "ROUND_HALF_DOWN",
    "ROUND_HALF_EVEN",
    "ROUND_UP",
    "ROUND_DOWN",
)
QUANTA = (5, 10, 25)


def _words(text: str) -> list[str]:
    return text.split()


# Two lists a name: too many combinations to guess. No word of a probe is among them.
_CLASS = _words("Harbor Cedar Falcon Granite Meadow Orchid Quartz Saffron Tundra Willow")
_RECORD = _words("Voucher Docket Remittance Posting Consignment Drawdown Allotment Transfer")
_REFERENCE = _words("docket folio slip chit ticket parcel dossier waybill")
_KEY = _words("key tag mark serial stamp handle")
_SIZE = _words("gross billed posted booked carried tendered pledged drawn")
_UNITS = _words("minor cents units pence points ticks")
_MONEY = _words("money coin tender cash specie legal")
_ISO = _words("iso alpha3 tag symbol letters")
_LEVY = _words("LEVY TOLL DUTY SURCHARGE COMMISSION TARIFF MARGIN HANDLING")
_RATE = _words("BPS POINTS MYRIAD BASIS")
_TOP = _words("CEILING MAXIMUM TOP UPPER LID BOUND")
_FAULT = _words("Clash Collision Rejection Conflict Breach Refusal")
_STANDING = _words("Stage Phase Standing Lifecycle Condition Progress")
_OPEN = _words("DRAFTED LODGED RAISED FILED LOGGED QUEUED")
_CLOSED = _words("CLEARED REMITTED BANKED CONCLUDED HONORED DISCHARGED")
_CANCELLED = _words("SCRAPPED REVOKED STRUCK ANNULLED WAIVED RESCINDED")
_VALUE = _words("amber basil cobalt delta ember fjord garnet hazel indigo jasper kelp lotus")


class CodingSpec(BaseModel):
    """What a session defines. ``fee_bps`` in basis points, ``fee_cap`` in minor units."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cls: str
    f_ref: str
    f_amt: str
    f_ccy: str
    fee_name: str
    fee_bps: int
    cap_name: str
    fee_cap: int
    err: str
    dup_code: int
    status_cls: str
    s_new: str
    v_new: str
    s_done: str
    v_done: str
    s_void: str
    v_void: str
    rounding: Rounding
    quantum: int


class Amount(NamedTuple):
    """An amount in minor units, and what is special about its fee."""

    kind: str
    value: int


def sample_spec(seed: int) -> CodingSpec:
    """The specification of ``seed``; the same on every machine and version of Python."""
    draw = Random(f"pace coding task, seed {seed}")
    bps, cap, quantum = draw.choice(_settings())
    values = draw.sample(_VALUE, 3)
    return CodingSpec(
        cls=draw.choice(_CLASS) + draw.choice(_RECORD),
        f_ref=f"{draw.choice(_REFERENCE)}_{draw.choice(_KEY)}",
        f_amt=f"{draw.choice(_SIZE)}_{draw.choice(_UNITS)}",
        f_ccy=f"{draw.choice(_MONEY)}_{draw.choice(_ISO)}",
        fee_name=f"{draw.choice(_LEVY)}_{draw.choice(_RATE)}",
        fee_bps=bps,
        cap_name=f"{draw.choice(_LEVY)}_{draw.choice(_TOP)}",
        fee_cap=cap,
        err=draw.choice(_RECORD) + draw.choice(_FAULT),
        dup_code=draw.randrange(4100, 5000),
        status_cls=draw.choice(_CLASS) + draw.choice(_STANDING),
        s_new=draw.choice(_OPEN),
        v_new=f"{values[0]}_{draw.randrange(10, 100)}",
        s_done=draw.choice(_CLOSED),
        v_done=f"{values[1]}_{draw.randrange(10, 100)}",
        s_void=draw.choice(_CANCELLED),
        v_void=f"{values[2]}_{draw.randrange(10, 100)}",
        rounding=draw.choice(ROUNDINGS),
        quantum=quantum,
    )


def amounts(spec: CodingSpec) -> list[Amount]:
    """Seven amounts that tell every part of the fee rule: two between quanta below the half, two
    above it, a tie below an odd and one below an even multiple, and one beyond the cap.
    """
    draw = Random(f"amounts of {spec.model_dump_json()}")
    unit = 10_000 * spec.quantum
    # fees from one quantum on, that stay below the cap when rounded up
    first, last = (
        -(-unit // spec.fee_bps),
        (spec.fee_cap // spec.quantum - 1) * unit // spec.fee_bps,
    )
    found: dict[str, int] = {}
    while len(found) < 4:
        amount = draw.randrange(first, last)
        rest = amount * spec.fee_bps % unit
        kind = "above" if 2 * rest > unit else "below"
        free = [name for name in (f"{kind}_1", f"{kind}_2") if name not in found]
        if rest and 2 * rest != unit and free and amount not in found.values():
            found[free[0]] = amount
    for kind, ties in zip(("tie_even", "tie_odd"), _ties(spec), strict=True):
        found[kind] = draw.choice(ties)
    beyond = (spec.fee_cap + 2 * spec.quantum) * 10_000 // spec.fee_bps
    found["capped"] = draw.randrange(beyond, 3 * beyond)
    return [Amount(kind, found[kind]) for kind in sorted(found)]


def fee(spec: CodingSpec, amount: int) -> int:
    """The fee of ``amount``, by whole numbers: independent of the rule's Decimal code."""
    multiples, rest = divmod(amount * spec.fee_bps, 10_000 * spec.quantum)
    half = 5_000 * spec.quantum
    up = {
        "ROUND_UP": rest > 0,
        "ROUND_DOWN": False,
        "ROUND_HALF_UP": rest >= half,
        "ROUND_HALF_DOWN": rest > half,
        "ROUND_HALF_EVEN": rest > half or (rest == half and multiples % 2 == 1),
    }[spec.rounding]
    return min((multiples + up) * spec.quantum, spec.fee_cap)


@cache
def _settings() -> list[tuple[int, int, int]]:
    """(bps, cap, quantum) for which ties of both kinds lie below the cap.

    25 basis points are left out: recall could not tell them from the quantum.
    """
    return [
        (bps, cap, quantum)
        for bps in range(17, 50)
        if bps not in QUANTA
        for cap in range(300, 901, 50)
        for quantum in QUANTA
        if all(_ties_of(bps, cap, quantum))
    ]


def _ties(spec: CodingSpec) -> tuple[list[int], list[int]]:
    return _ties_of(spec.fee_bps, spec.fee_cap, spec.quantum)


def _ties_of(bps: int, cap: int, quantum: int) -> tuple[list[int], list[int]]:
    """Amounts whose fee is exactly between an even and an odd multiple of the quantum, with the
    even one below, then with the odd one below. At least one quantum, rounded up at most the cap.
    """
    found: tuple[list[int], list[int]] = ([], [])
    for multiple in range(1, cap // quantum):
        amount, rest = divmod((2 * multiple + 1) * 5_000 * quantum, bps)
        if not rest:
            found[multiple % 2].append(amount)
    return found
