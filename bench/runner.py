"""Runs a plan in this process: one result line per session and arm, each durable when it ends.

A run that was stopped goes on where it was: lines in the file are not played again.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from bench.arms import arm_policies, plan_of
from bench.filler import Filler, SourcePool, token_ends
from bench.only import ALL, Only
from bench.plan import Arm, BenchPlan
from bench.player import Played, Player, shared_tokens
from bench.results import ResultLine, append_result, read_results
from bench.sessions import Session, SessionBuilder, all_sessions, template_fingerprint
from bench.tasks import HiddenChecks, load_task
from engine.catalog import load_profile, resolve_model
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.engine import KVEngine
from engine.errors import ConfigError
from engine.templates import load_tokenizer


@dataclass(frozen=True, slots=True)
class Group:
    """Sessions of one arm that are played together: they may begin alike."""

    arm: Arm
    sessions: tuple[Session, ...]

    @property
    def tokens(self) -> tuple[int, int]:
        """To prefill and to decode, as expected."""
        return shared_tokens(self.sessions, self.arm.plan is not None)


class Watcher(Protocol):
    """Is told how a run goes on."""

    def begin(self, groups: Sequence[Group], done: int) -> None:
        """Before the first session: what is to be played, and how many lines there are."""
        ...

    def playing(self, group: Group) -> None:
        """A group begins."""
        ...

    def computed(self, tokens: int) -> None:
        """Tokens were prefilled or decoded."""
        ...

    def finished(self, line: ResultLine) -> None:
        """A line was written."""
        ...


class BenchRun:
    """A plan on this machine. Making one reads the tokenizer, not the weights."""

    def __init__(
        self,
        plan: BenchPlan,
        device: str = "auto",
        stdlib: Path | None = None,
        threads: int | None = None,
    ) -> None:
        """``stdlib``: folder of the filler's source; ``threads``: of the CPU. Raises ConfigError,
        ModelError."""
        self.plan = plan
        self.task = load_task(plan.task)
        self.policies = arm_policies(plan)
        self._path = resolve_model(plan.model)
        self._device = device
        self._threads = threads
        self.pool = SourcePool(stdlib)
        self.pool.check(plan.filler.digest)
        tokenizer = load_tokenizer(self._path, plan.chat_template, plan.thinking)
        filler = Filler(self.pool, token_ends(tokenizer))
        self._builder = SessionBuilder(plan, self.task, ChatFormat(tokenizer), filler)

    def groups(self, only: Only = ALL) -> list[Group]:
        """What is to be played: by seed, then arm, so that the arms of a seed come together.

        Raises:
            ConfigError: ``only`` names what the plan does not have, or an arm's plan asks for more
                invented edges than a session has; see ``SessionBuilder``.
        """
        only.check(self.plan)
        found, left = [], only.limit
        for part, _, sessions in all_sessions(self._builder, self.plan):
            for arm in self.plan.arms_of(part):
                chosen = [session for session in sessions if only.takes(arm, session)]
                if left is not None:
                    chosen = chosen[:left]
                    left -= len(chosen)
                for session in chosen:
                    plan_of(session, arm.plan)  # refused now, not hours into the run
                if chosen:
                    found.append(Group(arm, tuple(chosen)))
        return found

    def run(self, out: Path, watcher: Watcher, only: Only = ALL) -> int:
        """Play what ``out`` does not hold yet and append it there.

        Returns:
            The number of lines written.

        Raises:
            ConfigError: another run writes to ``out``, or it holds results of another plan.
            PaceError: a session failed; what was finished is kept.
        """
        with _alone(out):
            lines = read_results(out, unfinished="drop") if out.exists() else []
            groups = self.groups(only)
            engine: KVEngine | None = None
            written = 0
            fingerprint = template_fingerprint(self.task)
            if isinstance(self.task, HiddenChecks):
                self.task.ready()
            try:
                engine = self._engine()
                make = _LineMaker(self, engine, fingerprint)
                todo = [make.without(group, lines) for group in groups]
                todo = [group for group in todo if group.sessions]
                watcher.begin(todo, len(lines))
                for group in todo:
                    watcher.playing(group)
                    player = Player(engine, self.task, group.arm, watcher.computed)
                    started = datetime.now(UTC)
                    for played in player.play(group.sessions):
                        line = make.line(group.arm, played, started)
                        append_result(out, line)
                        written += 1
                        watcher.finished(line)
            finally:
                if engine is not None:
                    engine.close()
        return written

    def _engine(self) -> KVEngine:
        config = EngineConfig(
            model=self.plan.model,
            chat_template=self.plan.chat_template,
            thinking=self.plan.thinking,
            device=self._device,
            dtype=self.plan.dtype,
            threads=self._threads,
            default_policy=self.plan.arms[0].name,
            keep_previous_turn=False,
        )
        return KVEngine.from_config(config, self.policies)


class _LineMaker:
    """Result lines of one run, and the comparison with those that are there."""

    def __init__(self, run: BenchRun, engine: KVEngine, fingerprint: str) -> None:
        profile = load_profile(run._path)
        model_range = engine.runner.model_range
        self._policies = {
            name: policy.resolve(profile, model_range).model_dump(mode="json")
            for name, policy in run.policies.items()
        }
        for arm in run.plan.arms:
            if arm.plan is not None:
                self._policies[arm.name]["plan"] = arm.plan.model_dump(mode="json")
        filler = run.plan.filler.model_dump(mode="json") | {"digest": run.pool.digest}
        self._common: dict[str, Any] = {
            "plan_name": run.plan.name,
            "task": run.task.name,
            "model": engine.model_name,
            "dtype": str(engine.runner.dtype).removeprefix("torch."),
            "engine": {
                "filler": filler,
                "chat_template": run.plan.chat_template,
                "thinking": run.plan.thinking,
            },
            "template_fingerprint": fingerprint,
            "pace_version": importlib.metadata.version("pace-engine"),
        }

    def line(self, arm: Arm, played: Played, started: datetime) -> ResultLine:
        """The line of a session that ended now."""
        return ResultLine(
            **self._identity(arm, played.session),
            probes=tuple(played.probes),
            started=started,
            finished=datetime.now(UTC),
            timing={"seconds": played.seconds, "shared_s": played.shared_s},
        )

    def without(self, group: Group, lines: Sequence[ResultLine]) -> Group:
        """The group's sessions that have no line yet.

        Raises:
            ConfigError: a line is of the same session and arm, but was made differently.
        """
        left = []
        for session in group.sessions:
            wanted = self._identity(group.arm, session)
            there = [line for line in lines if _same(line, wanted)]
            for line in there:
                differs = [key for key, value in wanted.items() if _json(line, key) != value]
                if differs:
                    raise ConfigError(
                        f"the result file holds {group.arm.name}, {session.label} already, made "
                        f"with another {', '.join(differs)}; write to another file (--out)"
                    )
            if not there:
                left.append(session)
        return Group(group.arm, tuple(left))

    def _identity(self, arm: Arm, session: Session) -> dict[str, Any]:
        return self._common | {
            "layout": session.layout,
            "seed": session.seed,
            "distance": session.distance,
            "session_tokens": session.tokens,
            "arm": arm.name,
            "policy": self._policies[arm.name],
            "prompts_checksum": session.checksum,
        }


_KEY = ("layout", "seed", "distance", "session_tokens", "arm")


def _same(line: ResultLine, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(line, key) == wanted[key] for key in _KEY)


def _json(line: ResultLine, key: str) -> Any:
    return line.model_dump(mode="json", include={key})[key]


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else writes to ``out`` meanwhile. Makes the file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{out}: another run is writing to it") from None
        yield
