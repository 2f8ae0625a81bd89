"""What ``serve`` needs from an engine. ``KVEngine`` is the implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from engine.ledger import KINDS
from engine.types import (
    LedgerEvent,
    Match,
    PlanUpdate,
    ScoreRequest,
    ScoreResult,
    TurnEvent,
    TurnRequest,
    Window,
)


class TurnHandle(Protocol):
    """A running turn."""

    @property
    def session_id(self) -> str: ...

    def cancel(self) -> None:
        """Stop and roll back; a ``TurnFailed(TurnCancelled)`` event follows. Idempotent."""
        ...


class Engine(Protocol):
    """Thread-safe. All methods return fast except ``score``, which blocks until scored."""

    @property
    def model_name(self) -> str:
        """Served model name."""
        ...

    @property
    def max_session_tokens(self) -> int:
        """Logical tokens a session may reach."""
        ...

    def match(
        self,
        namespace: str,
        session_id: str | None,
        digests: Sequence[bytes],
        *,
        append: bool = False,
    ) -> Match:
        """Find where a transcript continues.

        ``digests`` are those of the request's tools and messages (``transcript_digests``).
        With ``append`` the messages are all new: the named session's committed state is
        continued whatever it holds. Without ``session_id`` the idle session of the namespace
        with the longest matching prefix is chosen (with ``append`` none), else a new id is made.
        At least one message is always new.

        Raises: SessionDiverged, SessionBusy, SessionNotFound (append to a session that
        was dropped to make room; to an unknown one it is allowed and starts it).
        """
        ...

    def submit(self, request: TurnRequest, on_event: Callable[[TurnEvent], None]) -> TurnHandle:
        """Admit a turn (validated, session held, row held) and run it in the step thread.

        ``on_event`` is called in the step thread, in order; the last event is ``TurnDone`` or
        ``TurnFailed``. It must return fast and not raise.

        Raises: InvalidRequest, Conflict, CapacityExceeded before anything has changed.
        """
        ...

    def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probability of continuations on a fork. Blocks. Raises as ``submit`` does."""
        ...

    def sessions(self, namespace: str | None) -> list[dict[str, Any]]:
        """Summaries of committed sessions; None: of all namespaces."""
        ...

    def session(self, namespace: str, session_id: str, check: bool = False) -> dict[str, Any]:
        """Summary with spans, plan, policy. ``check``: with ``integrity``, whether the committed
        states are whole (``ok``) and what is broken (``problems``). Raises SessionNotFound."""
        ...

    def events(
        self,
        namespace: str,
        session_id: str,
        since: int = 0,
        limit: int | None = None,
        kinds: Collection[str] = KINDS,
    ) -> list[LedgerEvent]:
        """The first ``limit`` (None: any number) ledger entries of ``kinds`` with ``seq`` >
        ``since``, oldest first, as many as fit 1 MB of JSON. Raises SessionNotFound."""
        ...

    def residency(
        self,
        namespace: str,
        session_id: str,
        window: Window,
        layers: tuple[int, int | None] = (0, None),
        bins: int | None = None,
    ) -> dict[str, Any]:
        """Resident tokens of the layers (first, last; None: the last of all) after a step, slot by
        slot or in ``bins``; as many layers as fit 1 MB. Raises SessionNotFound, StepNotFound."""
        ...

    def tokens(
        self, namespace: str, session_id: str, window: Window, resident: bool = False
    ) -> dict[str, Any]:
        """Ids and texts of the window's tokens; ``resident``: of those that any layer holds, and
        how. As many as fit 1 MB. Raises SessionNotFound, StepNotFound."""
        ...

    def steps(
        self, namespace: str, session_id: str, since: int = 0, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Figures of the committed turns after turn ``since``, oldest first, as many as fit 1 MB.
        Raises SessionNotFound."""
        ...

    def messages(self, namespace: str, session_id: str, window: Window) -> dict[str, Any]:
        """The window's messages: span, readers, residents, beginning of the text; as many as fit
        1 MB. Raises SessionNotFound, StepNotFound."""
        ...

    def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None = None
    ) -> dict[str, Any]:
        """Change the plan of an idle session, and of the state its last turn is redone from.

        ``change.step`` has no effect. Returns ``session_id``, ``step``, ``plan`` (steps and
        messages that are read → their readers) and ``unresolved``.

        Raises: SessionNotFound, SessionBusy, PolicyMismatch (``policy`` is not the session's),
        InvalidRequest (strict, and something cannot be resolved).
        """
        ...

    def delete(self, namespace: str, session_id: str) -> None:
        """Drop the session and free its rows; cancels a running turn. Raises SessionNotFound."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics: tokens, turns, evictions, pool bytes, …"""
        ...

    def check_health(self) -> None:
        """Raise EngineFailure when the step thread is dead or stuck."""
        ...

    def close(self) -> None:
        """Cancel running turns, stop the step thread, free memory. Idempotent."""
        ...
