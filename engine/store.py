"""Who holds which rows: admission, commit, rollback and making room (DESIGN §3.8)."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from engine.config import CachePolicy, EngineConfig, ModelProfile, PolicyConfig
from engine.errors import CapacityExceeded, ConfigError, Conflict, InvalidRequest
from engine.history import History
from engine.ledger import Ledger
from engine.pool import KVPool
from engine.row import Row
from engine.runner import ModelRunner
from engine.sampling import CounterRng
from engine.scheduler import Task
from engine.sessions import (
    Session,
    SessionTable,
    check_continues,
    check_policy,
    check_returned,
)
from engine.state import SessionState
from engine.types import TurnRequest

log = logging.getLogger(__name__)
T = TypeVar("T")

_NO_ROOM = (
    "all room for sessions is taken by running turns; retry later, or raise engine.pool_bytes or "
    "engine.max_sessions"
)


class SessionStore:
    """Sessions and the pool they live in, behind one lock.

    A session is held by one turn at a time (``hold`` … ``commit`` or ``drop``); its committed
    states are never written to.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pool: KVPool,
        config: EngineConfig,
        policies: dict[str, PolicyConfig],
        resolved: dict[str, CachePolicy],
    ) -> None:
        self.lock = threading.RLock()
        self.table = SessionTable()
        self.pool = pool
        self.dropped = 0
        self._runner = runner
        self._config = config
        self._policies = policies
        self._resolved = resolved

    def hold(self, request: TurnRequest) -> tuple[Session, SessionState]:
        """Find or create the session, reserve it, and return the state to continue.

        Raises:
            InvalidRequest: unknown policy, or one too large for the pool.
            PolicyMismatch, SessionBusy, SessionDiverged: see ``check_continues``.
            CapacityExceeded: too many sessions, none idle.
        """
        if request.policy is not None and request.policy not in self._policies:
            raise InvalidRequest(
                f"policy {request.policy!r} is not one of {sorted(self._policies)}",
                param="pace.policy",
            )
        with self.lock:
            session = self.table.find(request.namespace, request.session_id)
            new = session is None
            session = session or self._create(request)
            check_policy(session, request.policy)
            origin = check_continues(session, request.base, request.known, request.digest)
            check_returned(origin, request.session_id, request.returned)
            if new:
                self._add(session)
            session.task = Task.placeholder()
            session.last_used = time.time()
        return session, origin

    def active_row(self, session: Session, policy: CachePolicy) -> Row:
        """A row with a (not yet filled) buffer for rotated keys; idle sessions make room.

        Raises:
            CapacityExceeded: running turns take all the room; no idle session was dropped.
        """
        with self.lock:
            pool, size = self.pool, policy.capacity
            needed = pool.row_bytes(size) + pool.buffer_bytes(size)
            idle = [row for other in self.table.idle(session) for row in other.rows]
            if needed > pool.room + sum(pool.row_bytes(row.capacity) for row in idle):
                raise CapacityExceeded(_NO_ROOM)
            row = self._make_room(session, lambda: self.pool.acquire(policy.capacity))
            try:
                buffer = self._make_room(session, lambda: self.pool.acquire_buffer(policy.capacity))
            except CapacityExceeded:
                self.pool.release(row)
                raise
            row.rotated = buffer
            return row

    def fork(self, source: Session, session_id: str) -> None:
        """Make the session ``session_id`` out of the committed state of ``source``.

        Raises:
            SessionBusy: ``source`` runs a turn.
            Conflict: there is such a session already.
            CapacityExceeded: no room for its row.
        """
        with self.lock:
            origin = check_continues(source, "current", None)
            if self.table.find(source.namespace, session_id) is not None:
                raise Conflict(f"there is a session {session_id!r} already", param="session_id")
            row = None
            if origin.row is not None:
                row = self._make_room(source, lambda: self.pool.acquire(origin.policy.capacity))
            twin = self._session(source.namespace, session_id, source.policy, origin.copy(row))
            twin.turns = source.turns
            self._add(twin)
            self.table.index(twin)

    def commit(self, session: Session, origin: SessionState, state: SessionState) -> None:
        """Swap ``state`` in; ``origin`` becomes the previous one, others are freed."""
        with self.lock:
            state.commit()
            self.pool.release_buffer(state.active_row())
            self.table.unindex(session)
            keep = origin if self._config.keep_previous_turn else None
            for old in (session.state, session.previous):
                if old is not keep:
                    self._free(old)
            session.previous = keep
            session.state = state
            session.turns += 1
            session.task = None
            session.last_used = time.time()
            self.table.index(session)
            if session.doomed:
                self.forget(session)

    def drop(self, session: Session, *forks: SessionState | None) -> None:
        """Undo a hold: free the forks; a session that never had a turn goes."""
        with self.lock:
            for fork in forks:
                self._free(fork)
            session.task = None
            if session.doomed or session.turns == 0:
                self.forget(session)

    def delete(self, namespace: str, session_id: str) -> Task | None:
        """Forget a session at once, or after what runs of it, which is returned to be cancelled.
        Raises SessionNotFound."""
        with self.lock:
            session = self.table.get(namespace, session_id, begun=True)
            if session.task is None:
                self.forget(session)
            else:
                session.doomed = True
            return session.task

    def forget(self, session: Session) -> None:
        """Remove a session that no turn holds and free its rows."""
        with self.lock:
            self.table.remove(session)
            self._free(session.state)
            self._free(session.previous)

    @staticmethod
    def new_rng() -> CounterRng:
        """Random numbers nobody has seen."""
        return CounterRng(secrets.randbits(63))

    def _create(self, request: TurnRequest) -> Session:
        name = request.policy or self._config.default_policy
        resolved = self._resolved[name]
        needed = self.pool.session_bytes(resolved.capacity, self._config.keep_previous_turn)
        if needed > self.pool.byte_limit:
            raise InvalidRequest(
                f"a session of policy {name!r} needs {needed} bytes, and this server's KV pool has "
                f"{self.pool.byte_limit}; choose another policy, or raise engine.pool_bytes",
                param="pace.policy",
            )
        state = SessionState(
            policy=resolved,
            table=self._runner.table(resolved.rope, resolved.position_range),
            rng=self.new_rng(),
        )
        if request.tools is not None and request.tools.definitions:
            state.show_tools(request.tools.definitions)
        return self._session(request.namespace, request.session_id, self._policies[name], state)

    def _session(
        self, namespace: str, session_id: str, policy: PolicyConfig, state: SessionState
    ) -> Session:
        """With nothing in its ledger and history."""
        ledger = Ledger(self._config.ledger_events)
        history = History(self._config.ledger_steps, self._config.summary_bytes)
        return Session(namespace, session_id, policy, state, ledger, history)

    def _add(self, session: Session) -> None:
        if len(self.table) >= self._config.max_sessions:
            self._evict_idle(session)
        self.table.add(session)

    def _make_room(self, session: Session, take: Callable[[], T]) -> T:
        while True:
            try:
                return take()
            except CapacityExceeded:
                self._evict_idle(session)

    def _evict_idle(self, keep: Session) -> None:
        victim = self.table.idle_oldest(keep)
        if victim is None:
            raise CapacityExceeded(_NO_ROOM)
        log.info("session %s dropped to make room", victim.session_id)
        self.table.drop(victim)
        self._free(victim.state)
        self._free(victim.previous)
        self.dropped += 1

    def _free(self, state: SessionState | None) -> None:
        if state is not None and state.row is not None:
            self.pool.release(state.row)
            state.row = None


def resolved_policies(
    policies: Mapping[str, PolicyConfig], default: str, profile: ModelProfile, model_range: int
) -> dict[str, CachePolicy]:
    """Policies by name with every size known. Raises ConfigError for one the model cannot run, or
    when ``default`` is none of them."""
    found = {name: policy.resolve(profile, model_range) for name, policy in policies.items()}
    if default not in found:
        raise ConfigError(
            f"default_policy: {default!r} is not one of {sorted(found)}", param="default_policy"
        )
    return found


def check_room(pool: KVPool, policy: CachePolicy, keep_previous: bool) -> None:
    """Raise ConfigError unless one session of ``policy`` can run its turns."""
    needed = pool.session_bytes(policy.capacity, keep_previous)
    if needed > pool.byte_limit:
        raise ConfigError(
            f"pool_bytes {pool.byte_limit} must be at least {needed} for one session of policy "
            f"{policy.name} ({policy.capacity} slots) and its running turn",
            param="pool_bytes",
        )
