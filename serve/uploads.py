"""Requests too large for one message between Ingress and Engine go in pieces.

A request is serialized once, its bytes are sent piece by piece, and the call itself then names
where they are. All calls of one upload must reach the same replica.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.errors import CapacityExceeded
from serve.config import MIB
from serve.wire.errors import EngineUnavailable

PIECE_BYTES = 2 * MIB
ABANDONED_S = 60.0
"""Pieces that nobody adds to for so long are dropped: whoever sent them is gone."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Stands for a value whose ``size`` bytes are at the replica."""

    upload_id: str
    size: int


def pack(value: object) -> bytes:
    """``value`` as bytes; lone surrogates in its texts survive."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(raw: bytes | bytearray) -> Any:
    """What ``pack`` was given."""
    return pickle.loads(raw)


def pieces(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """``raw`` cut into pieces of at most ``PIECE_BYTES``, each with its place in it."""
    view = memoryview(raw)
    for at in range(0, len(raw), PIECE_BYTES):
        yield at, bytes(view[at : at + PIECE_BYTES])


@dataclass(slots=True)
class _Upload:
    raw: bytearray = field(default_factory=bytearray)
    touched: float = 0.0


class Uploads:
    """The uploads a replica holds. Belongs to the event loop's thread.

    Args:
        limit_bytes: of all together.
        clock: seconds.
    """

    def __init__(self, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit_bytes
        self._clock = clock
        self._held: dict[str, _Upload] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, upload_id: str, at: int, piece: bytes) -> None:
        """Add the piece that begins at byte ``at``; the one at 0 begins an upload.

        Raises:
            CapacityExceeded: too much is held already.
            EngineUnavailable: the pieces before it are not here.
        """
        self.sweep()
        if self.held_bytes + len(piece) > self._limit:
            raise CapacityExceeded("too many large requests at once; send it again in a moment")
        upload = self._held.setdefault(upload_id, _Upload()) if at == 0 else self._get(upload_id)
        if len(upload.raw) != at:
            raise _lost()
        upload.raw += piece
        upload.touched = self._clock()
        self.held_bytes += len(piece)

    def take(self, place: Uploaded) -> bytearray:
        """The bytes of a whole upload, which is no longer held then.

        Raises:
            EngineUnavailable: not all of them are here.
        """
        raw = self._get(place.upload_id).raw
        self.discard(place.upload_id)
        if len(raw) != place.size:
            raise _lost()
        return raw

    def discard(self, upload_id: str) -> None:
        """Free an upload, if it is held."""
        upload = self._held.pop(upload_id, None)
        if upload is not None:
            self.held_bytes -= len(upload.raw)

    def sweep(self) -> None:
        """Free the abandoned ones."""
        oldest = self._clock() - ABANDONED_S
        for upload_id in [name for name, held in self._held.items() if held.touched < oldest]:
            self.discard(upload_id)

    def _get(self, upload_id: str) -> _Upload:
        if upload_id not in self._held:
            raise _lost()
        return self._held[upload_id]


def _lost() -> EngineUnavailable:
    return EngineUnavailable(
        "parts of the request are not at the engine replica that was to answer it; send it again"
    )
