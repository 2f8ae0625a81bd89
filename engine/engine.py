"""``KVEngine``: sessions answered from a constant KV budget. ``_turn`` is the whole flow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch

from engine.answering import Answering
from engine.blueprint import set_plan
from engine.catalog import load_profile, resolve_model
from engine.chat import ChatFormat, stop_ids
from engine.config import EngineConfig, ModelProfile, PolicyConfig, load_policies
from engine.errors import EngineFailure, PaceError
from engine.flow import Flow, TurnRecord, Writer
from engine.forced_call import CallGrammars
from engine.ledger import Notes
from engine.linear import set_threads
from engine.pool import KVPool, default_pool_bytes
from engine.readers import SessionReaders
from engine.report import pace_info, step_row, turn_counts, turn_event
from engine.residents import Residents
from engine.runner import ModelRunner
from engine.scheduler import Scheduler, Task
from engine.scoring import encode_continuations, reporting, score_flow
from engine.sessions import Session
from engine.state import SessionState
from engine.store import SessionStore, check_room, resolved_policies
from engine.templates import load_tokenizer
from engine.turn import RunningTurn, extend_state, usable_tools
from engine.types import (
    ChunkDone,
    FinishReason,
    Match,
    PlanUpdate,
    ScoreRequest,
    ScoreResult,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnRequest,
    Usage,
)

log = logging.getLogger(__name__)


class KVEngine(SessionReaders):
    """Implements ``engine.protocol.Engine`` on one model and one device, without Ray.

    Public methods may be called from any thread. The step thread runs the turns.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Any,
        config: EngineConfig,
        profile: ModelProfile,
        policies: dict[str, PolicyConfig],
        writer: Writer | None = None,
    ) -> None:
        """Raises ConfigError for policies the model cannot run, ModelError for its template."""
        self.config = config
        self.runner = runner
        self.writer = writer or Writer()
        chat = ChatFormat(tokenizer, stop_ids(runner.model, tokenizer))
        resolved = resolved_policies(policies, config.default_policy, profile, runner.model_range)
        staging = max(policy.chunk for policy in resolved.values())
        limit = config.pool_bytes or default_pool_bytes(runner.device)
        pool = KVPool(runner.shape, limit, staging)
        check_room(pool, resolved[config.default_policy], config.keep_previous_turn)
        super().__init__(
            store=SessionStore(runner, pool, config, policies, resolved),
            scheduler=Scheduler(runner, pool, config.stuck_after_s),
            chat=chat,
        )
        self._grammars = CallGrammars(tokenizer, int(runner.config.vocab_size))

    @classmethod
    def from_config(
        cls, config: EngineConfig, policies: dict[str, PolicyConfig] | None = None
    ) -> KVEngine:
        """Load the model named in ``config`` and the shipped policies (unless given)."""
        path = resolve_model(config.model)
        profile = config.profile or load_profile(path)
        # first: a template that will not do is known in a second, weights take minutes
        tokenizer = load_tokenizer(path, config.chat_template, config.thinking)
        set_threads(config.thread_count)
        name = profile.dtype if config.dtype == "auto" else config.dtype
        runner = ModelRunner.load(path, config.device, getattr(torch, name) if name else None)
        return cls(runner, tokenizer, config, profile, policies or load_policies())

    @property
    def model_name(self) -> str:
        """Served model name."""
        return self.config.model_name

    @property
    def max_session_tokens(self) -> int:
        """Logical tokens a session may reach."""
        return self.config.max_session_tokens

    # ---- turns ------------------------------------------------------------------------------

    def match(
        self,
        namespace: str,
        session_id: str | None,
        digests: Sequence[bytes],
        *,
        append: bool = False,
    ) -> Match:
        """See ``Engine.match``."""
        with self.store.lock:
            return self.store.table.match(namespace, session_id, digests, append)

    def submit(self, request: TurnRequest, on_event: Callable[[TurnEvent], None]) -> RunningTurn:
        """See ``Engine.submit``."""
        session, origin = self.store.hold(request)
        state: SessionState | None = None
        try:
            state = origin.fork(self.store.active_row(session, origin.policy))
            if request.base == "previous":
                state.rng = self.store.new_rng()  # "regenerate" draws another answer
            tools = usable_tools(self.chat, state, request.tools, self.model_name)
            forced = self._grammars.forced(tools, self.chat.tools)
            unresolved = extend_state(
                self.chat, state, request, origin.room, self.max_session_tokens, forced is not None
            )
            held = (session, origin, state, unresolved)
            turn = RunningTurn(request, *held, on_event, self.scheduler, tools, forced)
            turn.record = TurnRecord(Notes(session.ledger.limit))
            turn.task.flow = self._guarded(turn)
            self._start(session, turn.task)
        except BaseException:
            self.store.drop(session, state)
            raise
        return turn

    def run(self, request: TurnRequest) -> list[TurnEvent]:
        """Run a turn to its end and return its events, the last a ``TurnDone``. Blocks.

        Raises:
            PaceError: as ``submit`` does, or what made the turn fail.
        """
        queue: SimpleQueue[TurnEvent] = SimpleQueue()
        self.submit(request, queue.put)
        events: list[TurnEvent] = []
        while not events or not isinstance(events[-1], TurnDone):
            events.append(queue.get())
            if isinstance(events[-1], TurnFailed):
                raise events[-1].error
        return events

    def _start(self, session: Session, task: Task) -> None:
        """Make ``task`` what the session runs, and schedule it."""
        with self.store.lock:
            session.task = task
            task.cancelled = session.doomed  # deleted while the turn was admitted
        self.scheduler.add(task)

    def _turn(self, turn: RunningTurn) -> Flow[None]:
        """The life of a turn, in the step thread. At admission the messages became tokens behind
        the fork's, the plan was updated and a row was taken; a commit or a rollback follows."""
        state, record, sampling = turn.state, turn.record, turn.request.sampling
        turn.start()
        state.fill_row(turn.origin)
        cached, prompt = state.written, len(state.tokens)
        written = yield from self.writer.write_prompt(
            state, record, lambda: turn.emit(ChunkDone(state.written - cached, prompt - cached))
        )
        turn.prompt_done()
        answer = Answering(self.chat, sampling, turn.tools, turn.forced, state.rng)
        while answer.finish is None:
            if answer.tokens:
                written = yield from self.writer.write(state, [answer.tokens[-1]], record)
            token = answer.draw(written.logits[-1])
            state.tokens.append(token)
            room = min(state.room, self.max_session_tokens - len(state.tokens))
            delta = answer.push(token, written.logits[-1], room > 0)
            if delta is not None:
                turn.emit(delta)
        self.writer.note_residency(state, record)
        state.close_answer(answer.message(), answer.closing())
        usage = Usage(prompt, len(answer.tokens), cached, answer.reasoning_tokens)
        self._commit(turn, usage, answer.finish)

    def _guarded(self, turn: RunningTurn) -> Flow[None]:
        """Run ``_turn``; roll back and report whatever goes wrong."""
        try:
            yield from self._turn(turn)
        except BaseException as error:
            known = error
            if not isinstance(known, PaceError):
                log.exception("turn %s failed", turn.request.request_id)
                known = EngineFailure(f"the turn failed: {type(error).__name__}")
            self.store.drop(turn.session, turn.state)
            self._count(turns_failed=1)
            turn.emit(TurnFailed(known))
            if not isinstance(error, Exception):
                raise  # it ends the step thread

    def _commit(self, turn: RunningTurn, usage: Usage, finish: FinishReason) -> None:
        state, record, session = turn.state, turn.record, turn.session
        event = turn_event(turn, usage, finish)
        residents = Residents.of(state, session.turns + 1)
        row = step_row(turn, event, residents, self.store.pool)
        with self.store.lock:
            session.history.add(row, residents)
            session.ledger.extend(record.events)
            session.ledger.add("turn", state.step, event)
            pace = pace_info(turn)
            self.store.commit(session, turn.origin, state)
        self._count(**turn_counts(record, usage))
        turn.emit(TurnDone(finish, usage, pace))

    def score(self, request: ScoreRequest) -> ScoreResult:
        """See ``Engine.score``."""
        encoded = encode_continuations(self.chat, request.continuations)
        wanted = TurnRequest(
            request.session_id,
            request.messages,
            namespace=request.namespace,
            policy=request.policy,
            plan=request.plan,
        )
        with self.store.lock:
            self.store.table.get(request.namespace, request.session_id)
            session, origin = self.store.hold(wanted)
        forks: list[SessionState] = []
        outcome: SimpleQueue[ScoreResult | PaceError] = SimpleQueue()
        try:
            for _ in range(2):
                forks.append(origin.fork(self.store.active_row(session, origin.policy)))
            longest = max(len(ids) for ids in encoded)
            limit = self.max_session_tokens - longest
            extend_state(self.chat, forks[0], wanted, origin.room - longest, limit)
            flow = score_flow(
                self.writer, self.chat, origin, forks[0], forks[1].active_row(), encoded
            )
            # from here on the flow frees the rows: while it runs, also after nobody waits for it
            # any more, it may write to them
            task = Task(reporting(flow, lambda: self.store.drop(session, *forks), outcome))
            self._start(session, task)
        except BaseException:
            self.store.drop(session, *forks)
            raise
        try:
            result = self.scheduler.wait_for(outcome)
        except BaseException:
            self.scheduler.cancel(task)
            raise
        if isinstance(result, PaceError):
            raise result
        return result

    # ---- sessions ---------------------------------------------------------------------------

    def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None = None
    ) -> dict[str, Any]:
        """See ``Engine.blueprint``."""
        with self.store.lock:
            session = self.store.table.get(namespace, session_id, begun=True)
            return set_plan(session, change, policy)

    def fork(self, namespace: str, session_id: str, name: str) -> None:
        """Make another session, ``name``, that goes on from where this one is; its ledger is empty.

        Raises:
            SessionNotFound, SessionBusy: nothing to fork, or a turn runs.
            Conflict: there is a session ``name``.
            CapacityExceeded: no room for it.
        """
        with self.store.lock:
            self.store.fork(self.store.table.get(namespace, session_id), name)

    def delete(self, namespace: str, session_id: str) -> None:
        """See ``Engine.delete``."""
        with self.store.lock:
            running = self.store.delete(namespace, session_id)
            if running is not None:
                self.scheduler.cancel(running)

    def check_health(self) -> None:
        """See ``Engine.check_health``."""
        self.scheduler.check_health()

    def close(self) -> None:
        """See ``Engine.close``."""
        self.scheduler.close()
