"""Plays demo sessions against a server, all at the same time, and measures."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from serve.demo.api import Api, DemoFailed
from serve.demo.filler import Count, estimate_tokens
from serve.demo.results import AskedFact, FillerTurn, SessionResult, value_logprob
from serve.demo.session import (
    FACT_ANSWER_TOKENS,
    FILLER_ANSWER_TOKENS,
    Transcript,
    make_transcript,
    user,
)

Progress = Callable[[str, int, int, str], None]
"""Called with a session's label, turns done, turns in all, and what is being done."""


async def play(
    url: str,
    seeds: Sequence[int],
    tokens: int,
    policies: Sequence[str],
    *,
    count: Count = estimate_tokens,
    key: str | None = None,
    keep: bool = False,
    progress: Progress | None = None,
) -> list[SessionResult]:
    """Play one session per seed and policy, all at the same time.

    Args:
        url: the server's address.
        seeds: one transcript each.
        tokens: length of each session; see ``make_transcript``.
        policies: names of presets.
        count: how to count tokens.
        key: an API key, if the server has keys.
        keep: leave the sessions on the server; otherwise they are deleted, whatever happens.
        progress: is told how far each session is.

    Returns:
        The sessions by policy, then seed, in the order given.

    Raises:
        DemoFailed: no PACE server answers, or a turn failed; the other sessions are given up.
    """
    try:
        transcripts = [make_transcript(seed, tokens, count) for seed in seeds]
    except ValueError as error:
        raise DemoFailed(str(error)) from error
    run = uuid.uuid4().hex[:8]
    async with Api(url, key) as api:
        await api.check()
        players = [
            _Player(api, transcript, policy, run, progress or _quiet)
            for policy in policies
            for transcript in transcripts
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(player.play()) for player in players]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            if not keep:
                await asyncio.gather(*(api.delete(player.session_id) for player in players))
    return [task.result() for task in tasks]


class _Player:
    """One session."""

    def __init__(
        self, api: Api, transcript: Transcript, policy: str, run: str, progress: Progress
    ) -> None:
        self.session_id = f"demo-{run}-{policy}-{transcript.seed}"
        self._api = api
        self._transcript = transcript
        self._policy = policy
        self._label = f"{policy}, transcript {transcript.seed}"
        self._progress = progress
        self._done = 0
        self._events = 0

    async def play(self) -> SessionResult:
        """All steps, in order."""
        try:
            fillers = [await self._paste(text) for text in self._transcript.fillers]
            facts = [await self._ask(index) for index in range(len(self._transcript.facts))]
            session = await self._api.session(self.session_id)
        except DemoFailed as error:
            raise DemoFailed(f"{self._label}: {error.message}") from error
        self._tell("done")
        return SessionResult(
            session_id=self.session_id,
            seed=self._transcript.seed,
            policy=self._policy,
            tokens=session["tokens"],
            facts=tuple(facts),
            fillers=tuple(fillers),
            renumbers=session["renumbers"],
            kv_bytes=session["kv_bytes"],
            full_kv_bytes=session["full_kv_bytes"],
        )

    async def _paste(self, text: str) -> FillerTurn:
        """A filler step; the first one opens the session."""
        pace: dict[str, Any] = {"session_id": self.session_id}
        messages = [user(text)]
        if self._done == 0:
            # The early steps are sent as clients send everything: the whole conversation so
            # far. From then on only what is new goes over the wire (append).
            self._tell("stating facts")
            messages = [*self._transcript.opening, *messages]
            pace |= {"policy": self._policy, "plan": self._transcript.plan, "strict": True}
        else:
            self._tell("pasting code")
            pace |= {"mode": "append"}
        await self._api.chat(messages, FILLER_ANSWER_TOKENS, pace)
        self._done += 1
        turns, self._events = await self._api.turn_events(self.session_id, self._events)
        return FillerTurn.from_event(turns[-1])

    async def _ask(self, index: int) -> AskedFact:
        """Score the true answer on a fork, then ask."""
        self._tell("asking")
        fact = self._transcript.facts[index]
        question = [user(fact.question)]
        wanted = f"{fact.opening} {fact.value}"
        tokens, logprobs = await self._api.score(self.session_id, question, wanted)
        pace = {"session_id": self.session_id, "mode": "append"}
        answer, info = await self._api.chat(question, FACT_ANSWER_TOKENS, pace)
        self._done += 1
        return AskedFact(
            key=fact.key,
            value=fact.value,
            answer=answer,
            recalled=fact.is_in(answer),
            logprob=value_logprob(tokens, logprobs, fact.value),
            residency=info["residency"],
            rotary_gap=info["rotary_gap"],
        )

    def _tell(self, what: str) -> None:
        self._progress(self._label, self._done, self._transcript.turns, what)


def _quiet(label: str, done: int, total: int, what: str) -> None:
    """Progress nobody watches."""
