"""Identity of messages: canonical JSON, message digests and the chained digest of a prefix.

A message's digest covers what a client can send back (role, text, name, tool calls), so a
resent transcript is recognised without rendering or tokenizing it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from engine.types import Message

DIGEST_BYTES = 16
EMPTY_DIGEST = bytes(DIGEST_BYTES)


def canonical_json(value: object) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def extend_digest(prefix: bytes, message: Message) -> bytes:
    """Digest (16 bytes) of the transcript ``prefix`` followed by ``message``."""
    body = canonical_json(
        [message.role, message.content, message.name, message.tool_call_id, message.tool_calls]
    )
    return hashlib.blake2b(
        prefix + body.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES
    ).digest()


def chain_digests(messages: Iterable[Message], prefix: bytes = EMPTY_DIGEST) -> Iterator[bytes]:
    """Digest after each message, in order; the last one identifies the whole transcript."""
    for message in messages:
        prefix = extend_digest(prefix, message)
        yield prefix
