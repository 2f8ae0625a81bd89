"""What is done with an answer in its sandbox. Read as text and sent there: standard library only.

``answer`` is the namespace of the answer; ``cls`` names the dataclass in it, ``fields`` the
reference, the amount and the currency.
"""

from __future__ import annotations

import dataclasses
from typing import Any

Answer = dict[str, Any]
Batch = list[tuple[str, int]]


def make(answer: Answer, cls: str, fields: list[str], batch: Batch) -> list[Any]:
    """One record per (reference, amount)."""
    return [
        answer[cls](**dict(zip(fields, (reference, amount, "EUR"), strict=True)))
        for reference, amount in batch
    ]


def fee(answer: Answer, cls: str, fields: list[str], amount: int) -> Any:
    (entry,) = make(answer, cls, fields, [("r-1", amount)])
    return answer["fee_for"](entry)


def total(answer: Answer, cls: str, fields: list[str], batch: Batch) -> Any:
    return answer["settle"](make(answer, cls, fields, batch))


def statuses(answer: Answer, cls: str, fields: list[str], batch: Batch) -> list[Any]:
    entries = make(answer, cls, fields, batch)
    answer["settle"](entries)
    return [entry.status for entry in entries]


def duplicate(answer: Answer, cls: str, fields: list[str], batch: Batch, error: str) -> Any:
    """The code of the exception ``error`` that ``batch`` raises."""
    try:
        answer["settle"](make(answer, cls, fields, batch))
    except answer[error] as raised:
        return raised.code
    raise AssertionError("duplicates were accepted")


def definitions(
    answer: Answer,
    cls: str,
    fields: list[str],
    constants: list[str],
    error: str,
    states: str,
    members: list[str],
) -> list[Any]:
    (entry,) = make(answer, cls, fields, [("r-1", 1)])
    required = [
        field.name
        for field in dataclasses.fields(answer[cls])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return [
        required,
        entry.status,
        [getattr(answer[cls], name) for name in constants],
        issubclass(answer[error], Exception),
        answer[error](7).code,
        [getattr(answer[states], name) for name in members],
    ]
