"""The ``Engine`` deployment: one engine, its step thread, and async doors to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from engine.config import EngineConfig
from engine.errors import PaceError
from engine.protocol import Engine, TurnHandle
from engine.transcript import DIGEST_BYTES
from engine.types import TurnDone, TurnEvent, TurnFailed, TurnRequest
from serve import logs
from serve.calls import Admitted, EngineInfo, EventBridge, Events, Inbox, Outcome
from serve.config import ServeConfig
from serve.memory import MemoryReturn
from serve.start_errors import mark_start_error
from serve.uploads import ABANDONED_S, PIECE_BYTES, Uploaded, Uploads, unpack
from serve.wire.errors import as_pace_error

# Methods of the engine that ``call`` passes on.
READING_METHODS = frozenset(
    {"events", "messages", "residency", "session", "sessions", "steps", "tokens"}
)
QUICK_METHODS = READING_METHODS | {"blueprint", "delete", "stats"}
BLOCKING_METHODS = frozenset({"score"})

_QUICK_THREADS = 8
# Readers take the interpreter from the step thread, and must not stand before a turn's admission.
_READING_THREADS = 1
_BLOCKING_THREADS = 4
# Requests that may arrive in pieces at the same time, each as large as a body may be.
_UPLOADS = 4

EngineFactory = Callable[[EngineConfig], Engine]


def start_engine(config: EngineConfig) -> Engine:
    """The real engine. Imported here: the command line and the Ingress need no torch."""
    from engine.engine import KVEngine

    return KVEngine.from_config(config)


class EngineReplica:
    """Runs in its own process; every public coroutine is called by the Ingress.

    Args:
        config: the server's configuration.
        replica: this replica's name in answers.
        factory: makes the engine.
    """

    def __init__(
        self, config: ServeConfig, replica: str = "local", factory: EngineFactory = start_engine
    ) -> None:
        self._log = logs.configure(config.log_level)
        self._replica = replica
        try:
            self._engine = factory(config.engine)
        except Exception as error:
            raise mark_start_error(error) from error
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="call")
        self._reading = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="read")
        self._blocking = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="score")
        self._bridge: EventBridge | None = None
        self._uploads = Uploads(_UPLOADS * (config.limits.body_bytes + PIECE_BYTES))
        self._memory = MemoryReturn()

    async def info(self) -> EngineInfo:
        """Model name and limits."""
        return EngineInfo(self._engine.model_name, self._engine.max_session_tokens, self._replica)

    async def upload(self, upload_id: str, at: int, piece: bytes) -> Outcome:
        """Take a piece of a large request; ``match``, ``call`` or ``turn`` names it then."""
        try:
            self._uploads.put(upload_id, at, piece)
        except PaceError as error:
            return Outcome(error=error)
        # without the call it is for, and without another upload, it still goes
        asyncio.get_running_loop().call_later(ABANDONED_S + 1, self._uploads.sweep)
        return Outcome()

    async def discard(self, upload_id: str) -> None:
        """Free the pieces of a request that will not come."""
        self._uploads.discard(upload_id)

    async def match(
        self, namespace: str, session_id: str | None, digests: bytes | Uploaded, append: bool
    ) -> Outcome:
        """``Engine.match``; the digests come as one string of bytes, ``DIGEST_BYTES`` each."""
        try:
            whole = await self._whole(digests)
        except PaceError as error:
            return Outcome(error=error)
        self._memory.after(_size(digests))
        split = [whole[at : at + DIGEST_BYTES] for at in range(0, len(whole), DIGEST_BYTES)]
        find = partial(self._engine.match, namespace, session_id, split, append=append)
        return await self._outcome(self._quick, "match", find)

    async def call(self, method: str, *args: object) -> Outcome:
        """Run one of the engine's methods off the event loop; its error comes as a value.
        One ``Uploaded`` stands for all arguments."""
        if method not in QUICK_METHODS | BLOCKING_METHODS:
            raise ValueError(f"{method} is not a method the ingress may call")
        size = _size(args[0]) if len(args) == 1 else 0
        if size:
            try:
                args = await self._whole(args[0])
            except PaceError as error:
                return Outcome(error=error)
        pool = self._quick
        if method in READING_METHODS:
            pool = self._reading
        elif method in BLOCKING_METHODS:
            pool = self._blocking
        function = partial(getattr(self._engine, method), *args)
        try:
            return await self._outcome(pool, method, function)
        finally:
            self._memory.after(self._memory.largest if method == "delete" else size)

    async def turn(self, request: TurnRequest | Uploaded) -> AsyncIterator[Admitted | Events]:
        """Run a turn: first ``Admitted``, then batches of events, the last one holding
        ``TurnDone`` or ``TurnFailed``. A turn that is refused yields one ``TurnFailed``.

        Closing the generator early cancels the turn.
        """
        inbox = Inbox()
        try:
            handle = await self._submit(await self._whole(request), inbox)
        except Exception as error:
            yield (TurnFailed(self._known(error, "submit")),)
            return
        finished = False
        try:
            yield Admitted(handle.session_id, self._replica)
            while not finished:
                events = tuple(self._clean(event) for event in await inbox.take())
                finished = isinstance(events[-1], TurnDone | TurnFailed)
                yield events
        finally:
            if not finished:
                handle.cancel()
            self._memory.after(_size(request))

    async def check_health(self) -> None:
        """Called by Serve: raising three times in a row gets the replica replaced."""
        self._engine.check_health()

    async def health(self) -> Outcome:
        """The same for ``GET /health``."""
        try:
            self._engine.check_health()
        except Exception as error:
            return Outcome(error=self._known(error, "check_health"))
        return Outcome()

    async def close(self) -> None:
        """Cancel what runs and stop the engine's thread. Safe after a failed constructor."""
        engine = getattr(self, "_engine", None)
        if engine is not None:
            await asyncio.to_thread(engine.close)

    async def _outcome(
        self, pool: ThreadPoolExecutor, method: str, function: Callable[[], object]
    ) -> Outcome:
        try:
            value = await asyncio.get_running_loop().run_in_executor(pool, function)
        except Exception as error:
            return Outcome(error=self._known(error, method))
        return Outcome(value=value)

    async def _whole(self, value: Any) -> Any:
        """``value``, or what was uploaded for it."""
        if not isinstance(value, Uploaded):
            return value
        raw = self._uploads.take(value)
        return await asyncio.get_running_loop().run_in_executor(self._quick, unpack, raw)

    async def _submit(self, request: TurnRequest, inbox: Inbox) -> TurnHandle:
        loop = asyncio.get_running_loop()
        if self._bridge is None:
            self._bridge = EventBridge(loop)
        send = self._bridge.sender(inbox)
        future = loop.run_in_executor(self._quick, partial(self._engine.submit, request, send))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread goes on; whatever it admits has nobody waiting.
            future.add_done_callback(_cancel_admitted)
            raise

    def _clean(self, event: TurnEvent) -> TurnEvent:
        if isinstance(event, TurnFailed):
            return TurnFailed(self._known(event.error, "turn"))
        return event

    def _known(self, error: BaseException, method: str) -> PaceError:
        if not isinstance(error, PaceError):
            self._log.error("%s failed: %s", method, logs.describe(error))
        elif self._log.isEnabledFor(logging.DEBUG):
            self._log.debug("%s refused: %s", method, error.code)
        return as_pace_error(error)


def _size(sent: object) -> int:
    """Bytes of a request that came in pieces; the others are small."""
    return sent.size if isinstance(sent, Uploaded) else 0


def _cancel_admitted(future: asyncio.Future[TurnHandle]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()
