"""A chat request's way through the Ingress: match, forward what is new, answer, log.

The Ingress holds no state of a session. It hashes the transcript once, asks the engine where
it continues, and sends only the messages the session has not seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import (
    EngineFailure,
    PaceError,
    PolicyMismatch,
    ReasoningDiverged,
    SessionBusy,
    SessionDiverged,
)
from engine.transcript import reasoning_digest
from engine.types import ChunkDone, Match, Message, TextDelta, TurnDone, TurnFailed, TurnRequest
from serve import logs
from serve.calls import Admitted, Events
from serve.engine_client import EngineClient
from serve.wire.answer import AnswerHead, ChunkStream, Completion, sse, sse_comment
from serve.wire.chat import ChatCall
from serve.wire.errors import as_pace_error, error_envelope, error_kind

# Between finding a session and taking it, another turn may take it, or need its room.
_TRIES = 5


@dataclass(slots=True)
class TurnLog:
    """Counts and times of one turn, written as one line when it ends. Times in seconds."""

    logger: logging.Logger
    request_id: str
    stream: bool
    started: float
    session_id: str = "-"
    admitted: float | None = None
    first: float | None = None

    def admit(self, session_id: str) -> None:
        """The engine took the turn."""
        self.session_id, self.admitted = session_id, time.monotonic()

    def token(self) -> None:
        """A piece of the answer arrived."""
        if self.first is None:
            self.first = time.monotonic()

    def done(self, done: TurnDone) -> None:
        """The turn is committed."""
        usage, pace = done.usage, done.pace
        self._write(
            logging.INFO,
            f"ok finish={done.finish_reason} step={pace.step} prompt={usage.prompt_tokens} "
            f"cached={usage.cached_tokens} completion={usage.completion_tokens} "
            f"resident={pace.resident_tokens} evicted={pace.evicted} restored={pace.restored} "
            f"renumbers={pace.renumbers} residency={pace.residency} rotary_gap={pace.rotary_gap}",
        )

    def failed(self, error: PaceError) -> None:
        """The turn was refused or rolled back."""
        level = logging.INFO if error_kind(error).status < 500 else logging.ERROR
        self._write(level, f"error status={error_kind(error).status} code={error.code}")

    def gone(self) -> None:
        """The client left before the end."""
        self._write(logging.INFO, "cancelled")

    def _write(self, level: int, outcome: str) -> None:
        def since(moment: float | None) -> str:
            return "-" if moment is None else f"{(moment - self.started) * 1000:.0f}"

        self.logger.log(
            level,
            "turn request=%s session=%s stream=%d %s admitted_ms=%s first_ms=%s total_ms=%s",
            logs.printable(self.request_id),
            logs.printable(self.session_id),
            self.stream,
            outcome,
            since(self.admitted),
            since(self.first),
            since(time.monotonic()),
        )


class Turn:
    """An admitted turn. Read it once, by ``complete`` or by ``stream``.

    Build it with ``Turn.begin``.
    """

    def __init__(
        self,
        call: ChatCall,
        head: AnswerHead,
        session_id: str,
        items: AsyncIterator[Admitted | Events],
        log: TurnLog,
    ) -> None:
        self.session_id = session_id
        self._call = call
        self._head = head
        self._items = items
        self._log = log

    @classmethod
    async def begin(
        cls,
        client: EngineClient,
        call: ChatCall,
        digests: Sequence[bytes],
        namespace: str,
        request_id: str,
        answer: AnswerHead,
        logger: logging.Logger,
    ) -> Turn:
        """Match the transcript and get the turn admitted.

        ``digests`` are those of the call's tools and messages. ``answer.replica`` is filled in
        from the replica that takes the turn.

        Raises:
            PaceError: the engine refused; nothing has changed.
        """
        log = TurnLog(logger, request_id, call.stream, time.monotonic(), call.session_id or "-")
        try:
            first, items = await _admit(client, call, digests, namespace, request_id)
        except Exception as error:
            log.failed(as_pace_error(error))
            raise
        log.admit(first.session_id)
        head = AnswerHead(
            answer.id, answer.created, answer.model, answer.fingerprint, first.replica
        )
        return cls(call, head, first.session_id, items, log)

    async def complete(self) -> dict[str, Any]:
        """The whole answer. Raises ``PaceError`` when the turn fails."""
        answer = Completion(self._head, self._call)
        async for event in self._events():
            if isinstance(event, TextDelta):
                answer.add(event)
            elif isinstance(event, TurnDone):
                return answer.finish(event)
        raise EngineFailure("the turn ended without a result")

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events. A failure is the last event, not an exception."""
        chunks = ChunkStream(self._head, self._call)
        try:
            async for event in self._events():
                match event:
                    case ChunkDone(done, total):
                        yield sse_comment(f"prefill {done}/{total}")
                    case TextDelta():
                        if piece := chunks.delta(event):
                            yield piece
                    case TurnDone():
                        yield chunks.finish(event)
        except PaceError as error:
            yield sse(error_envelope(error))

    async def _events(self) -> AsyncIterator[ChunkDone | TextDelta | TurnDone]:
        """Events up to ``TurnDone``; logs the turn's one line, however it ends."""
        logged = False
        try:
            async for batch in self._items:
                if isinstance(batch, Admitted):
                    continue
                for event in batch:
                    if isinstance(event, TurnFailed):
                        raise _failure((event,))
                    if isinstance(event, TextDelta):
                        self._log.token()
                    elif isinstance(event, TurnDone):
                        self._log.done(event)
                        logged = True
                    yield event
            if not logged:
                raise EngineFailure("the engine ended the turn without a result")
        except Exception as error:
            known = as_pace_error(error)
            self._log.failed(known)
            logged = True
            raise known from error
        finally:
            if not logged:
                self._log.gone()


async def _admit(
    client: EngineClient,
    call: ChatCall,
    digests: Sequence[bytes],
    namespace: str,
    request_id: str,
) -> tuple[Admitted, AsyncIterator[Admitted | Events]]:
    """Find the session and take it; look again when it was another turn's by then."""
    tries = 0
    while True:
        tries += 1
        match = await client.match(namespace, call.session_id, digests, call.append)
        # appended messages continue whatever is held
        digest = None if call.append else digests[match.known]
        items = client.turn(_request(call, match, digest, namespace, request_id))
        first = await anext(items)
        if isinstance(first, Admitted):
            return first, items
        refused = _failure(first)
        if tries == _TRIES or not _stale(refused, call):
            raise refused
        if isinstance(refused, PolicyMismatch | ReasoningDiverged) and call.session_id is None:
            digests = digests[:1]  # the same session would be found again: begin one


def _request(
    call: ChatCall, match: Match, digest: bytes | None, namespace: str, request_id: str
) -> TurnRequest:
    return TurnRequest(
        session_id=match.session_id,
        messages=call.messages if call.append else call.messages[match.known :],
        base=match.base,
        known=match.known,
        digest=digest,
        namespace=namespace,
        policy=call.policy,
        sampling=call.sampling,
        plan=call.plan,
        tools=call.tools,
        returned=() if call.append else _returned(call.messages[: match.known]),
        request_id=request_id,
    )


def _returned(held: Sequence[Message]) -> tuple[tuple[int, bytes], ...]:
    """The reasoning a client sent back with messages the session holds."""
    return tuple(
        (index, reasoning_digest(message.reasoning))
        for index, message in enumerate(held)
        if message.reasoning
    )


def _stale(error: PaceError, call: ChatCall) -> bool:
    """Whether looking again can help: the session changed, or went to make room, since it was
    found. A client that named no session gets another one instead of a busy one, one of another
    policy or one of other reasoning.
    """
    own = isinstance(error, SessionBusy | PolicyMismatch | ReasoningDiverged)
    return call.session_id is None if own else isinstance(error, SessionDiverged)


def _failure(events: Events) -> PaceError:
    for event in events:
        if isinstance(event, TurnFailed):
            return as_pace_error(event.error)
    return EngineFailure("the engine did not admit the turn")
