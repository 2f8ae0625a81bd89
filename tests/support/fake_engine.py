"""A stand-in for ``KVEngine`` behind ``engine.protocol.Engine``: no model, exact answers.

One byte is one token. The answer to a transcript is its last message's text, cut at
``max_tokens``. Texts that begin with a word of ``SPECIAL`` make it misbehave.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.errors import (
    CapacityExceeded,
    EngineFailure,
    InvalidRequest,
    PaceError,
    PolicyMismatch,
    SessionBusy,
    SessionDiverged,
    SessionNotFound,
    StepNotFound,
    TurnCancelled,
)
from engine.ledger import KINDS
from engine.transcript import chain_digests
from engine.types import (
    ChunkDone,
    FinishReason,
    LedgerEvent,
    Match,
    Message,
    PaceInfo,
    PlanUpdate,
    ScoredContinuation,
    ScoreRequest,
    ScoreResult,
    TextDelta,
    TokenLogprob,
    TopLogprob,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnRequest,
    Usage,
    Window,
)

POLICIES = ("pace", "h2o", "full")
PREFILL_CHUNK = 8
# "fail": a turn that fails after two tokens. "hang": one that runs until it is cancelled.
# "refuse": a full pool. "explode": a bug at admission. "bug": a bug in the step thread.
SPECIAL = ("fail", "hang", "refuse", "explode", "bug")


@dataclass
class FakeSession:
    """What a fake session remembers."""

    policy: str
    messages: tuple[Message, ...] = ()
    tokens: int = 0
    turns: int = 0
    running: FakeTurn | None = None
    events: list[LedgerEvent] = field(default_factory=list)


class FakeTurn:
    """A running fake turn."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self.cancelled = threading.Event()

    @property
    def session_id(self) -> str:
        return self._session_id

    def cancel(self) -> None:
        self.cancelled.set()


class FakeEngine:
    """Keeps transcripts, runs each turn in a thread of its own."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], FakeSession] = {}
        self.requests: list[TurnRequest] = []
        self.blueprints: list[PlanUpdate] = []
        self.healthy = True
        self.closed = False
        self.submit_delay_s = 0.0
        self.prefill_chunk = PREFILL_CHUNK
        self.stale: list[PaceError] = []  # raised by the next submits, one each
        self._lock = threading.RLock()
        self._made = 0

    @property
    def model_name(self) -> str:
        return "fake-model"

    @property
    def max_session_tokens(self) -> int:
        return 10_000_000

    def match(
        self,
        namespace: str,
        session_id: str | None,
        digests: Sequence[bytes],
        *,
        append: bool = False,
    ) -> Match:
        with self._lock:
            if session_id is None:
                self._made += 1
                return Match(f"made-{self._made}", "new", 0)
            session = self.known.get((namespace, session_id))
            if session is None:
                return Match(session_id, "new", 0)
            held = [digests[0], *chain_digests(session.messages, digests[0])]
            known = len(session.messages)
            if append:
                return Match(session_id, "current", known)
            if known >= len(digests) - 1 or list(digests[: known + 1]) != held:
                raise SessionDiverged("the transcript differs", param="messages.0")
            return Match(session_id, "current", known)

    def submit(self, request: TurnRequest, on_event: Callable[[TurnEvent], None]) -> FakeTurn:
        time.sleep(self.submit_delay_s)
        if self.stale:
            raise self.stale.pop(0)
        text = request.messages[-1].content
        policy = request.policy or "pace"
        if policy not in POLICIES:
            raise InvalidRequest(f"no policy {policy!r}", param="pace.policy")
        if text.startswith("explode"):
            raise ValueError(f"a bug that quotes {text!r}")
        if text.startswith("refuse"):
            raise CapacityExceeded("no row is free", retry_after=7)
        with self._lock:
            self.requests.append(request)
            key = (request.namespace, request.session_id)
            session = self.known.setdefault(key, FakeSession(policy))
            if session.running is not None:
                raise SessionBusy("another turn runs")
            if request.policy is not None and request.policy != session.policy:
                raise PolicyMismatch("made with another policy", param="pace.policy")
            turn = session.running = FakeTurn(request.session_id)
        threading.Thread(
            target=self._run, args=(session, turn, request, on_event), daemon=True
        ).start()
        return turn

    def _run(
        self,
        session: FakeSession,
        turn: FakeTurn,
        request: TurnRequest,
        on_event: Callable[[TurnEvent], None],
    ) -> None:
        text = request.messages[-1].content
        try:
            new = sum(len(message.content.encode()) for message in request.messages)
            chunk = self.prefill_chunk
            for done in range(chunk, new + chunk, chunk):
                on_event(ChunkDone(min(done, new), new))
            answer, finish = _answer(text, request)
            for number, byte in enumerate(answer):
                if text.startswith("fail") and number == 2:
                    raise EngineFailure("the forward failed")
                if text.startswith("bug") and number == 2:
                    raise ValueError(f"a bug that quotes {text!r}")
                on_event(_delta(byte, request))
            if text.startswith("hang"):
                turn.cancelled.wait()
            if turn.cancelled.is_set():
                raise TurnCancelled("the turn was cancelled")
        except Exception as error:
            with self._lock:
                session.running = None
            on_event(TurnFailed(error))
            return
        with self._lock:
            cached = session.tokens
            session.messages += (*request.messages, Message("assistant", answer.decode()))
            session.tokens += new + len(answer)
            session.turns += 1
            session.events.append(LedgerEvent(session.turns, "turn", session.turns, {"in": new}))
            session.running = None
        info = PaceInfo(
            session_id=request.session_id,
            step=request.plan.step or session.turns,
            resident_tokens=session.tokens,
            residency=None,
            rotary_gap=None,
            evicted=0,
            restored=0,
            renumbers=0,
            displaced=0,
            unresolved=("plan.9",) if request.plan.plan else (),
        )
        on_event(TurnDone(finish, Usage(cached + new, len(answer), cached), info))

    def score(self, request: ScoreRequest) -> ScoreResult:
        self._get(request.namespace, request.session_id)
        return ScoreResult(
            tuple(
                ScoredContinuation(tuple(text.encode()), tuple(text), (-1.0,) * len(text.encode()))
                for text in request.continuations
            ),
            residency=1.0,
            rotary_gap=None,
        )

    def sessions(self, namespace: str | None) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"session_id": session_id, "turns": session.turns}
                for (owner, session_id), session in self.known.items()
                if namespace in (None, owner)
            ]

    def session(self, namespace: str, session_id: str, check: bool = False) -> dict[str, Any]:
        found = {"session_id": session_id, "turns": self._get(namespace, session_id).turns}
        return {**found, "integrity": {"ok": False, "problems": ["x"]}} if check else found

    def events(
        self,
        namespace: str,
        session_id: str,
        since: int = 0,
        limit: int | None = None,
        kinds: Collection[str] = KINDS,
    ) -> list[LedgerEvent]:
        found = self._get(namespace, session_id).events
        return [event for event in found if event.seq > since and event.kind in kinds][:limit]

    def residency(
        self,
        namespace: str,
        session_id: str,
        window: Window,
        layers: tuple[int, int | None] = (0, None),
        bins: int | None = None,
    ) -> dict[str, Any]:
        return self._asked(namespace, session_id, window, layers=layers, bins=bins)

    def tokens(
        self, namespace: str, session_id: str, window: Window, resident: bool = False
    ) -> dict[str, Any]:
        return self._asked(namespace, session_id, window, resident=resident)

    def steps(
        self, namespace: str, session_id: str, since: int = 0, limit: int | None = None
    ) -> list[dict[str, Any]]:
        turns = range(since + 1, self._get(namespace, session_id).turns + 1)
        return [{"turn": turn} for turn in turns][:limit]

    def messages(self, namespace: str, session_id: str, window: Window) -> dict[str, Any]:
        return self._asked(namespace, session_id, window)

    def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None = None
    ) -> dict[str, Any]:
        with self._lock:
            session = self._get(namespace, session_id)
            if session.running is not None:
                raise SessionBusy("a turn runs")
            if policy not in (None, session.policy):
                raise PolicyMismatch("made with another policy", param="policy")
            self.blueprints.append(change)
            return {"session_id": session_id, "step": session.turns, "unresolved": ["x"]}

    def delete(self, namespace: str, session_id: str) -> None:
        with self._lock:
            session = self._get(namespace, session_id)
            del self.known[(namespace, session_id)]
            if session.running is not None:
                session.running.cancel()

    def stats(self) -> dict[str, float]:
        return {"sessions": float(len(self.known)), "turns_total": float(len(self.requests))}

    def check_health(self) -> None:
        if not self.healthy:
            raise EngineFailure("the step thread died")

    def close(self) -> None:
        self.closed = True

    def _asked(
        self, namespace: str, session_id: str, window: Window, **more: Any
    ) -> dict[str, Any]:
        """What the routes made of a query. Only the last step is known."""
        session = self._get(namespace, session_id)
        if window.step not in (None, session.turns):
            raise StepNotFound("nothing is kept of it", param="step")
        return {"session_id": session_id, **asdict(window), **more}

    def _get(self, namespace: str, session_id: str) -> FakeSession:
        session = self.known.get((namespace, session_id))
        if session is None:
            raise SessionNotFound(f"there is no session {session_id!r}", param="session_id")
        return session


def _answer(text: str, request: TurnRequest) -> tuple[bytes, FinishReason]:
    for stop in request.sampling.stop:
        if stop in text:
            return text[: text.index(stop)].encode(), "stop"
    whole = text.encode()
    limit = request.sampling.max_tokens
    return whole[:limit], "length" if len(whole) > limit else "stop"


def _delta(byte: int, request: TurnRequest) -> TextDelta:
    sampling = request.sampling
    if not sampling.logprobs:
        return TextDelta(chr(byte), (byte,))
    top = tuple(
        TopLogprob(chr(byte), byte, -0.5 - rank, (byte,)) for rank in range(sampling.top_logprobs)
    )
    return TextDelta(chr(byte), (byte,), (TokenLogprob(chr(byte), byte, -0.5, (byte,), top),))
