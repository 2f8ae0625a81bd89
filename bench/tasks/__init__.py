"""What a benchmark task is: a specification drawn from a seed, stated early and asked for late.

A new task is one file: ``bench/tasks/NAME.py`` with a ``TASK`` that implements ``Task``; every
plan then knows it as NAME. Definitions and probes are user messages without a step number:
the session numbers its steps. A text names the step of definition i (from 1) as ``<step i>``,
and the session writes the number that the step has there, such as ``step 17``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, runtime_checkable

from engine.errors import ConfigError

Spec = Mapping[str, Any]
"""A sampled specification; JSON values only."""

Outcome = Literal["pass", "coding_error", "forgetting"]
"""A probe's fate: everything right; wrong with every fact recalled; wrong with facts missing."""

_STEP = re.compile(r"<step (\d+)>")


@dataclass(frozen=True, slots=True)
class Target:
    """A true ``text`` of an answer whose log-probability is measured, behind its ``opening``."""

    text: str
    opening: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that only the definitions answer.

    Attributes:
        name: unique within the task.
        prompt: the user message; see the module's text for ``<step i>``.
        reads: indices (from 0) into the task's definitions: what the plan says it needs.
        forked: asked on a fork of the session, which then goes on as if it had not been asked.
        targets: what of a true answer is measured by its log-probability.
        max_tokens: of the answer.
        after: names of earlier probes whose steps it reads too.
    """

    name: str
    prompt: str
    reads: tuple[int, ...]
    forked: bool
    targets: tuple[Target, ...]
    max_tokens: int
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """What an answer is worth.

    Attributes:
        passed, total: checks.
        failed: names of the checks it did not pass.
        found, facts: the definitions' facts in the answer (recall), apart from the checks.
        missing: names of the facts it lacks.
        outcome: see ``Outcome``.
    """

    passed: int
    total: int
    failed: tuple[str, ...]
    found: int
    facts: int
    missing: tuple[str, ...]
    outcome: Outcome


class Task(Protocol):
    """One family of sessions. Everything is a pure function of the specification."""

    @property
    def name(self) -> str:
        """The module's name."""
        ...

    @property
    def topic(self) -> Sequence[str]:
        """Filler that contains one of these strings is left out (paper, appendix B)."""
        ...

    def specification(self, seed: int) -> Spec:
        """What this seed's session is about; different seeds give different ones."""
        ...

    def system(self, spec: Spec) -> str:
        """The system message; it says that what earlier steps define stays in force."""
        ...

    def definitions(self, spec: Spec) -> Sequence[str]:
        """The user messages that state the specification, in order."""
        ...

    def probes(self, spec: Spec) -> Sequence[Probe]:
        """The questions, in order. None of them shows a value of ``forbidden``."""
        ...

    def forbidden(self, spec: Spec) -> Sequence[str]:
        """The sampled values."""
        ...

    def score(
        self, spec: Spec, probe: Probe, answer: str, earlier: Mapping[str, str]
    ) -> ProbeScore:
        """Check an answer. ``earlier``: answers of the session's earlier probes, by name."""
        ...


@runtime_checkable
class GivenReplies(Protocol):
    """A task may give the answers of its definition steps instead of asking the model."""

    def replies(self, spec: Spec) -> Sequence[str]:
        """One per definition."""
        ...


@runtime_checkable
class HiddenChecks(Protocol):
    """A task may have checks that its texts do not show, and need something to run them."""

    def ready(self) -> None:
        """Raises PaceError where answers cannot be checked; called before a model is loaded."""
        ...

    def scoring(self, spec: Spec) -> Any:
        """All that decides a score, as JSON values; part of the template fingerprint."""
        ...


def task_names() -> list[str]:
    """The tasks there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_task(name: str) -> Task:
    """The task of ``bench/tasks/NAME.py``. Raises ConfigError when there is none."""
    if name not in task_names():
        raise ConfigError(f"task: {name!r} is not one of {task_names()}", param="task")
    return cast(Task, importlib.import_module(f"bench.tasks.{name}").TASK)


def number_steps(text: str, steps: Sequence[int]) -> str:
    """Replace ``<step i>`` by the number of the step that definition i became."""
    return _STEP.sub(lambda found: f"step {steps[int(found.group(1)) - 1]}", text)


def revealed(probe: Probe, values: Sequence[str]) -> list[str]:
    """The ``values`` that stand in the probe's prompt as words of their own."""
    text = _STEP.sub("", probe.prompt)
    return [v for v in values if re.search(rf"(?<!\w){re.escape(v)}(?!\w)", text)]
