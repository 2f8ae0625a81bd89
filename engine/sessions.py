"""The sessions of one replica: lookup by id or by transcript, who may run, who must go."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.config import PolicyConfig
from engine.errors import (
    PolicyMismatch,
    ReasoningDiverged,
    SessionBusy,
    SessionDiverged,
    SessionNotFound,
)
from engine.history import History
from engine.ledger import Ledger
from engine.row import Row
from engine.scheduler import Task
from engine.state import SessionState
from engine.transcript import EMPTY_DIGEST
from engine.types import Base, Match

Key = tuple[str, str]
# Names of sessions dropped to make room that are remembered.
_MOST_DROPPED = 10_000


@dataclass(slots=True, eq=False)
class Session:
    """A session's committed state, the one before the last turn, and what is running."""

    namespace: str
    session_id: str
    policy: PolicyConfig
    state: SessionState
    ledger: Ledger
    history: History
    previous: SessionState | None = None
    task: Task | None = None
    turns: int = 0
    created: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.time)
    doomed: bool = False

    @property
    def key(self) -> Key:
        """(namespace, id)."""
        return (self.namespace, self.session_id)

    @property
    def rows(self) -> list[Row]:
        """Rows of its committed states."""
        states = (self.state, self.previous)
        return [state.row for state in states if state is not None and state.row is not None]

    def base(self, which: Base) -> SessionState:
        """The state a turn continues."""
        return self.previous if which == "previous" and self.previous is not None else self.state


class SessionTable:
    """Sessions by key, and an index of transcript digests. The engine's lock guards it."""

    def __init__(self) -> None:
        self._sessions: dict[Key, Session] = {}
        self._by_digest: dict[tuple[str, bytes], set[Key]] = {}
        self._dropped: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, namespace: str, session_id: str) -> Session | None:
        """The session, or None."""
        return self._sessions.get((namespace, session_id))

    def get(self, namespace: str, session_id: str, begun: bool = False) -> Session:
        """The session; ``begun``: also one whose first turn still runs. Raises SessionNotFound."""
        session = self.find(namespace, session_id)
        if session is None or not (session.turns or begun):
            raise SessionNotFound(f"there is no session {session_id!r}", param="session_id")
        return session

    def add(self, session: Session) -> None:
        """Register a new session."""
        self._sessions[session.key] = session
        self._dropped.pop(session.key, None)

    def drop(self, session: Session) -> None:
        """Forget a session nobody asked to forget: who appends to it is told."""
        self.remove(session)
        self._dropped[session.key] = None
        while len(self._dropped) > _MOST_DROPPED:
            self._dropped.popitem(last=False)

    def remove(self, session: Session) -> None:
        """Forget a session."""
        self.unindex(session)
        self._sessions.pop(session.key, None)

    def index(self, session: Session) -> None:
        """Make the session findable by its states' transcripts."""
        for digest in _digests(session):
            self._by_digest.setdefault((session.namespace, digest), set()).add(session.key)

    def unindex(self, session: Session) -> None:
        """Undo ``index``; call before the states change."""
        for digest in _digests(session):
            keys = self._by_digest.get((session.namespace, digest), set())
            keys.discard(session.key)
            if not keys:
                self._by_digest.pop((session.namespace, digest), None)

    def match(
        self, namespace: str, session_id: str | None, digests: Sequence[bytes], append: bool
    ) -> Match:
        """See ``Engine.match``."""
        if session_id is None:
            # what is appended to no session begins one, whatever it looks like
            return self._match_prefix(namespace, digests[:1] if append else digests)
        session = self.find(namespace, session_id)
        if session is None or session.turns == 0:
            if append and (namespace, session_id) in self._dropped:
                raise SessionNotFound(
                    f"session {session_id!r} was dropped to make room for others; send its whole "
                    "transcript to begin it again",
                    param="session_id",
                )
            return Match(session_id, "new", 0)
        if append:
            if digests[0] not in (EMPTY_DIGEST, session.state.head):
                raise _other_tools(session)
            return Match(session_id, "current", len(session.state.messages))
        for which in ("current", "previous"):
            known = _known(session, which, digests)
            if known is not None:
                return Match(session_id, which, known)
        raise _diverged(session, digests)

    def _match_prefix(self, namespace: str, digests: Sequence[bytes]) -> Match:
        for known in range(len(digests) - 2, 0, -1):
            for key in self._by_digest.get((namespace, digests[known]), ()):
                session = self._sessions[key]
                if session.task is None:
                    current = session.state.digest == digests[known]
                    return Match(session.session_id, "current" if current else "previous", known)
        return Match(f"s-{uuid.uuid4().hex[:16]}", "new", 0)

    def idle(self, keep: Session) -> list[Session]:
        """The idle sessions other than ``keep``."""
        return [s for s in self._sessions.values() if s.task is None and s is not keep]

    def idle_oldest(self, keep: Session) -> Session | None:
        """The one of them longest unused."""
        return min(self.idle(keep), key=lambda s: s.last_used, default=None)


def check_continues(
    session: Session, base: Base, known: int | None, digest: bytes | None = None
) -> SessionState:
    """The state a turn asked for, if it is still what the caller saw.

    Raises:
        SessionBusy: a turn of the session runs.
        SessionDiverged: the session changed since.
    """
    if session.task is not None:
        raise SessionBusy(f"session {session.session_id!r} is running another turn")
    state = session.base(base)
    if base == "previous" and session.previous is None:
        raise SessionDiverged(
            f"session {session.session_id!r} keeps no state before its last turn", param="messages"
        )
    known = 0 if base == "new" else known
    if known is not None and len(state.messages) != known:
        raise SessionDiverged(
            f"session {session.session_id!r} holds {len(state.messages)} messages, not {known}: "
            "it changed since the request was matched; send the request again"
        )
    if digest is not None and state.digest != digest:
        raise SessionDiverged(
            f"session {session.session_id!r} holds other messages than when the request was "
            "matched: its last turn was redone, or it was begun again; send the request again"
        )
    return state


def check_policy(session: Session, policy: str | None) -> None:
    """Raise PolicyMismatch when the session was created with another policy."""
    if policy is not None and policy != session.policy.name:
        raise PolicyMismatch(
            f"session {session.session_id!r} was created with policy {session.policy.name!r}; "
            f"use that one or start a new session for {policy!r}",
            param="pace.policy",
        )


def _digests(session: Session) -> set[bytes]:
    states = [session.state] if session.previous is None else [session.state, session.previous]
    return {state.digest for state in states if len(state.messages)}


def _known(session: Session, which: Base, digests: Sequence[bytes]) -> int | None:
    """Messages the state holds, when they are a proper prefix of the request's."""
    if which == "previous" and session.previous is None:
        return None
    state = session.base(which)
    known = len(state.messages)
    if known >= len(digests) - 1:
        return None
    return known if digests[known] == state.digest else None


def check_returned(
    state: SessionState, session_id: str, returned: Sequence[tuple[int, bytes]]
) -> None:
    """Raise ReasoningDiverged when a held message's reasoning came back changed."""
    for index, digest in returned:
        if state.messages[index].reasoning not in (b"", digest):
            raise ReasoningDiverged(
                f"the reasoning of message {index} differs from what session {session_id!r} gave; "
                "send it back as it was, or leave it out",
                param=f"messages.{index}.reasoning_content",
            )


def _other_tools(session: Session) -> SessionDiverged:
    return SessionDiverged(
        f"the tools differ from those session {session.session_id!r} began with; keep them the "
        "same, or start a new session",
        param="tools",
    )


def _diverged(session: Session, digests: Sequence[bytes]) -> SessionDiverged:
    if digests[0] != session.state.head:
        return _other_tools(session)
    held = session.state.messages
    for index in range(min(len(held), len(digests) - 1)):
        if held[index].digest != digests[index + 1]:
            return SessionDiverged(
                f"message {index} differs from what session {session.session_id!r} holds; resend "
                "the transcript as it was, or start a new session",
                param=f"messages.{index}",
            )
    return SessionDiverged(
        f"the transcript ends after {len(digests) - 1} messages, but session "
        f"{session.session_id!r} holds {len(held)}; only its last turn can be redone",
        param="messages",
    )
