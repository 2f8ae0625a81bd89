"""Plays sessions under one arm on an engine in this process, and measures at their probes.

Sessions that begin alike are played once up to where they part and forked there: the engine
continues a fork bit for bit, so every session's result is that of playing it alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bench.arms import plan_of
from bench.plan import Arm
from bench.results import Composition, ProbeResult, TargetLogprob
from bench.sessions import Ask, Session
from bench.tasks import Probe, Target, Task
from engine.engine import KVEngine
from engine.errors import CapacityExceeded, SessionDiverged, SessionNotFound
from engine.types import (
    PlanUpdate,
    Sampling,
    ScoredContinuation,
    ScoreRequest,
    ScoreResult,
    TextDelta,
    TurnDone,
    TurnRequest,
)

Tell = Callable[[int], None]
"""Is told of tokens that were computed."""
Decode = Callable[[list[int]], str]
"""Text of token ids."""


@dataclass(slots=True)
class Played:
    """One session at its end. ``seconds``: of the whole session, ``shared_s`` of them spent on a
    beginning that other sessions have in common with it."""

    session: Session
    probes: list[ProbeResult]
    seconds: float = 0.0
    shared_s: float = 0.0


@dataclass(slots=True)
class _Branch:
    """A session of the engine that has seen the first ``at`` requests and holds ``messages``.
    ``seen``: number of the last ledger event read."""

    name: str
    at: int = 0
    messages: int = 0
    seconds: float = 0.0
    shared_s: float = 0.0
    seen: int = 0
    answers: dict[str, str] = field(default_factory=dict)


class Player:
    """Plays under one arm. Sessions of the engine it leaves none."""

    def __init__(self, engine: KVEngine, task: Task, arm: Arm, tell: Tell = lambda _: None) -> None:
        self._engine = engine
        self._task = task
        self._arm = arm
        self._tell = tell
        self._count = 0
        self._open: set[str] = set()

    def play(self, sessions: Sequence[Session]) -> Iterator[Played]:
        """Each session's result as soon as it ends. Raises PaceError."""
        try:
            yield from self._walk(_Branch(self._new_name()), list(sessions))
        finally:
            for name in self._open:
                with suppress(SessionNotFound):  # its first turn failed, or it was dropped
                    self._delete(name)
            self._open.clear()

    def _walk(self, branch: _Branch, sessions: list[Session]) -> Iterator[Played]:
        while len(sessions) > 1:
            parts = _parts(sessions, branch.at)
            if len(parts) > 1:
                for part in parts[:-1]:
                    yield from self._walk(self._fork(branch), part)
                sessions = parts[-1]
                continue
            self._run(branch, sessions[0], sessions[0].asks[branch.at])
            branch.shared_s = branch.seconds
        yield self._finish(branch, sessions[0])

    def _finish(self, branch: _Branch, session: Session) -> Played:
        probes = []
        for ask in session.asks[branch.at :]:
            if ask.probe is None:
                self._run(branch, session, ask)
            else:
                probes.append(self._probe(branch, session, ask, ask.probe))
        self._close(branch.name)
        return Played(session, probes, branch.seconds, branch.shared_s)

    def _probe(self, branch: _Branch, session: Session, ask: Ask, probe: Probe) -> ProbeResult:
        start = time.perf_counter()
        texts = [target.opening + target.text for target in probe.targets]
        scored = self._score(branch.name, ask, texts) if texts else None
        # what is needed is the truth's to say, whatever the arm's plan says
        noisy = self._arm.plan is not None
        seen = self._score(branch.name, ask, ["."], session.graph) if noisy else scored
        branch.seconds += time.perf_counter() - start
        if ask.forked:
            fork = self._fork(branch)
            answer, done, turn = self._run(fork, session, ask)
            branch.seconds = fork.seconds
            branch.at += 1
            self._close(fork.name)
        else:
            answer, done, turn = self._run(branch, session, ask)
        if seen is None:
            residency, gap, composition = turn["residency"], turn["rotary_gap"], turn["composition"]
        else:
            residency, gap, composition = seen.residency, seen.rotary_gap, seen.composition
        classes = {k: v for k, v in composition.items() if k != "highest_unprotected_score"}
        score = self._task.score(session.spec, probe, answer, dict(branch.answers))
        branch.answers[probe.name] = answer
        return ProbeResult(
            name=probe.name,
            step=ask.step,
            answer=answer,
            prompt_tokens=done.usage.prompt_tokens,
            completion_tokens=done.usage.completion_tokens,
            score=score,
            targets=_targets(probe.targets, scored, self._engine.chat.tokenizer.decode),
            residency=residency,
            rotary_gap=gap,
            composition=Composition(**classes),
            # what is protected is the arm's plan's to say
            highest_unprotected_score=turn["composition"]["highest_unprotected_score"],
        )

    def _run(
        self, branch: _Branch, session: Session, ask: Ask
    ) -> tuple[str, TurnDone, Mapping[str, Any]]:
        """One turn: its answer, its end and its ledger event."""
        start = time.perf_counter()
        plan = plan_of(session, self._arm.plan) if ask.defines else None
        self._open.add(branch.name)
        try:
            events = self._engine.run(
                TurnRequest(
                    branch.name,
                    ask.messages,
                    known=branch.messages,  # else one that was dropped would silently begin anew
                    policy=self._arm.name,
                    sampling=Sampling(max_tokens=ask.max_tokens, temperature=0.0),
                    plan=PlanUpdate(plan=plan, step=ask.step, strict=True),
                )
            )
        except SessionDiverged:
            raise CapacityExceeded(
                f"arm {self._arm.name}, {session.label}: the KV pool has no room for a session and "
                "its forks; play one distance at a time (--only distance=N), or use a smaller "
                "budget or a device with more memory"
            ) from None
        done = events[-1]
        assert isinstance(done, TurnDone)
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        turn = self._turn_event(branch)
        branch.at += 1
        branch.messages += len(ask.messages) + 1
        branch.seconds += time.perf_counter() - start
        self._tell(
            done.usage.prompt_tokens - done.usage.cached_tokens + done.usage.completion_tokens
        )
        return text, done, turn

    def _turn_event(self, branch: _Branch) -> Mapping[str, Any]:
        """Data of the turn that has just ended, from the ledger's next pages."""
        while True:
            events = self._engine.events("", branch.name, since=branch.seen)
            branch.seen = events[-1].seq
            if events[-1].kind == "turn":
                return events[-1].data

    def _score(
        self,
        name: str,
        ask: Ask,
        texts: Sequence[str],
        plan: Mapping[int, tuple[int, ...]] | None = None,
    ) -> ScoreResult:
        """``texts`` as answers, on a fork. ``plan``: another one than the session's; of its readers
        only this step is left."""
        reads = None if plan is None else {ask.step: plan[ask.step]}
        update = PlanUpdate(plan=reads, step=ask.step, strict=True)
        result = self._engine.score(ScoreRequest(name, ask.messages, tuple(texts), plan=update))
        self._tell(ask.tokens + sum(len(found.token_ids) for found in result.continuations))
        return result

    def _fork(self, branch: _Branch) -> _Branch:
        """Another session in the state of ``branch``; of its own, if nothing was played yet."""
        name = self._new_name()
        if branch.at:
            self._engine.fork("", branch.name, name)
            self._open.add(name)
        return replace(branch, name=name, seen=0, answers=dict(branch.answers))

    def _close(self, name: str) -> None:
        if name in self._open:
            self._open.discard(name)
            self._delete(name)

    def _delete(self, name: str) -> None:
        self._engine.delete("", name)

    def _new_name(self) -> str:
        self._count += 1
        return f"bench-{self._arm.name}-{self._count}"


def _parts(sessions: Sequence[Session], at: int) -> list[list[Session]]:
    """The sessions by what they ask at ``at``, those that part from the others first. The first
    definition brings the session's own plan, so from there on each goes alone."""
    found: dict[Any, list[Session]] = {}
    for session in sessions:
        ask = session.asks[at]
        alone = ask.defines or ask.probe is not None
        key: Any = id(session) if alone else (ask.messages, ask.step, ask.max_tokens)
        found.setdefault(key, []).append(session)
    return sorted(found.values(), key=len)


def shared_tokens(sessions: Sequence[Session], noisy: bool = False) -> tuple[int, int]:
    """Tokens to prefill and to decode, as expected, for sessions played together; ``noisy``: by an
    arm whose plan errs."""
    prefill = decode = 0
    waiting = [(0, list(sessions))]
    while waiting:
        at, group = waiting.pop()
        if at == len(group[0].asks):
            continue
        for part in _parts(group, at):
            ask = part[0].asks[at]
            reads = 1
            if ask.probe is not None:  # read again for its targets, and for what is truly needed
                reads += bool(ask.probe.targets) + noisy
            prefill += reads * ask.tokens
            decode += ask.answer
            waiting.append((at + 1, part))
    return prefill, decode


def _targets(
    targets: Sequence[Target], scored: ScoreResult | None, decode: Decode
) -> tuple[TargetLogprob, ...]:
    if scored is None:
        return ()
    pairs = zip(targets, scored.continuations, strict=True)
    return tuple(_logprob(target, continuation, decode) for target, continuation in pairs)


def _logprob(target: Target, scored: ScoredContinuation, decode: Decode) -> TargetLogprob:
    """The log-probability of the last tokens, those that spell the target's text; the space before
    it may be part of the first of them."""
    ids, wanted = scored.token_ids, target.text.strip()
    # decoded together: alone, a token may be half a character or lack its space
    count = 1
    while count < len(ids) and wanted not in decode(list(ids[-count:])):
        count += 1
    # a probability of one rounds to slightly more
    total = min(0.0, sum(scored.logprobs[-count:]))
    return TargetLogprob(text=target.text, sum=total, mean=total / count, tokens=count)
