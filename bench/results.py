"""The record of a result file: one JSON object a line, one line per (session, arm).

Everything but ``timing``, ``started`` and ``finished`` is the same in two identical runs. What two
lines must share to be pooled (``bench.merge``) is in them: the fingerprint of the templates, the
checksum of the prompts, and the settings (paper, Appendix B).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from bench.tasks import Outcome, ProbeScore
from engine.errors import InvalidRequest

# the only fields in which two identical runs may differ
VOLATILE = ("timing", "started", "finished")


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class TargetLogprob(_Record):
    """A true continuation and its log-probability (nats): sum over, and mean of, its tokens."""

    text: str
    sum: float = Field(le=0)
    mean: float = Field(le=0)
    tokens: int = Field(gt=0)


class Composition(_Record):
    """Resident tokens at a probe, mean over layers (paper, section 5.7)."""

    sink: float = Field(ge=0)
    needed: float = Field(ge=0)
    other_old: float = Field(ge=0)
    recent: float = Field(ge=0)


class ProbeResult(_Record):
    """One probe: its answer, its score, and the cache at the moment it was asked.

    ``prompt_tokens`` counts the whole session up to and with the probe. ``residency`` and
    ``rotary_gap`` as in DESIGN §3.1, None where the probe needs no earlier step.
    ``highest_unprotected_score``: None where nothing unprotected has a score.
    """

    name: str = Field(min_length=1)
    step: int = Field(ge=1)
    answer: str
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    score: ProbeScore
    targets: tuple[TargetLogprob, ...] = ()
    residency: float | None = Field(default=None, ge=0, le=1)
    rotary_gap: float | None = Field(default=None, ge=0)
    composition: Composition | None = None
    highest_unprotected_score: float | None = None

    @model_validator(mode="after")
    def _score_adds_up(self) -> Self:
        score = self.score
        for named, count, total in (
            (score.failed, score.passed, score.total),
            (score.missing, score.found, score.facts),
        ):
            if count < 0 or count + len(named) != total:
                raise ValueError(f"{count} of {total} and {len(named)} others do not add up")
        if score.outcome != outcome_of(score.passed, score.total, score.missing):
            raise ValueError(f"outcome {score.outcome} does not follow from its checks and facts")
        return self


class ResultLine(_Record):
    """One session under one arm.

    Attributes:
        seed: of the session's specification; arms of one seed saw identical prompts.
        distance: tokens between the definitions and the first probe; None in the single layout.
        session_tokens: the planned length of the session.
        policy: the arm's resolved cache policy (``CachePolicy``), and what else tells arms apart.
        engine: settings that all arms share; they must not hold what differs between machines.
        template_fingerprint: of every instruction template and hidden check of the task.
        prompts_checksum: of this session's user and system messages.
    """

    schema_version: Literal[1] = 1
    plan_name: str
    task: str
    layout: Literal["single", "distance"]
    seed: int
    distance: int | None = Field(default=None, gt=0)
    session_tokens: int = Field(gt=0)
    arm: str = Field(min_length=1)
    policy: dict[str, JsonValue]
    model: str
    dtype: str
    engine: dict[str, JsonValue]
    template_fingerprint: str
    prompts_checksum: str
    pace_version: str
    probes: tuple[ProbeResult, ...] = Field(min_length=1)
    started: datetime | None = None
    finished: datetime | None = None
    timing: dict[str, float] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.distance is None) != (self.layout == "single"):
            raise ValueError(f"layout {self.layout} and distance {self.distance} disagree")
        names = [probe.name for probe in self.probes]
        if len(set(names)) != len(names):
            raise ValueError(f"probe names repeat: {', '.join(names)}")
        return self

    @property
    def session(self) -> SessionKey:
        """Which session it is: lines that share it saw the same prompts."""
        return SessionKey(
            self.model, self.task, self.layout, self.session_tokens, self.distance, self.seed
        )

    def stable(self) -> dict[str, Any]:
        """The line as JSON values, without what may differ between identical runs."""
        return self.model_dump(mode="json", exclude=set(VOLATILE))


class SessionKey(NamedTuple):
    """Identity of a session; with an arm, of a result line."""

    model: str
    task: str
    layout: str
    session_tokens: int
    distance: int | None
    seed: int


class ResultError(InvalidRequest):
    """A result file cannot be read, pooled or reported; the message names file and line."""

    code = "invalid_results"


def outcome_of(passed: int, total: int, missing: Sequence[str]) -> Outcome:
    """The paper's classification of a probe (section 4.1)."""
    if passed == total:
        return "pass"
    return "forgetting" if missing else "coding_error"


def read_results(
    path: Path, *, unfinished: Literal["refuse", "drop"] = "refuse"
) -> list[ResultLine]:
    """The lines of a result file, in its order; blank lines are skipped.

    Args:
        unfinished: what to do with a last line that was cut while it was written (no newline).

    Raises:
        ResultError: not a file, not UTF-8, or a line is no result line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}") from None
    complete, _, tail = content.rpartition(b"\n")
    if tail.strip() and unfinished == "refuse":
        raise ResultError(
            f"{path} ends in the middle of a line: its run was interrupted; run it again to resume"
        )
    found = []
    for number, line in enumerate(complete.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(ResultLine.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise ResultError(f"{path}, line {number}: {where}: {first['msg']}{more}") from None
    return found


def append_result(path: Path, line: ResultLine) -> None:
    """Add one line durably; a last line cut by a crash is cut off first."""
    data = line.model_dump_json().encode() + b"\n"
    with open(path, "a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_results(path: Path, lines: Iterable[ResultLine]) -> None:
    """Write a whole file, replacing one that is there; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line.model_dump_json() + "\n" for line in lines), encoding="utf-8")


def read_all(paths: Sequence[Path]) -> dict[Path, list[ResultLine]]:
    """Several files by path. Raises ResultError as ``read_results``, and when all are empty."""
    found = {path: read_results(path) for path in paths}
    if not any(found.values()):
        raise ResultError(f"no result lines in {', '.join(map(str, paths))}")
    return found
