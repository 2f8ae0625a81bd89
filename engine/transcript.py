"""Identity of messages: canonical JSON, message digests and the chained digest of a prefix.

A message's digest covers what a client can send back (role, text, name, tool calls), so a
resent transcript is recognised without rendering or tokenizing it. Reasoning is left out: many
clients drop it, and the answer is the same one.
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


def canonical_arguments(text: str) -> str:
    """JSON text with sorted keys, spaced as models write it; what is no JSON stays as it is.

    Clients write a call's arguments again from a parsed object, in another order or spacing: it
    is the same call.
    """
    try:
        value = json.loads(text)
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # also NaN and Infinity, which are no JSON
        return text


def canonical_calls(calls: Iterable[tuple[str, str, str]]) -> str | None:
    """``Message.tool_calls`` of calls given as (id, name, arguments); None when there are none."""
    plain = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": canonical_arguments(arguments)},
        }
        for call_id, name, arguments in calls
    ]
    return canonical_json(plain) if plain else None


def head_digest(tools: str | None) -> bytes:
    """Digest of a transcript before its first message: of its tools, in any order of keys.

    Args:
        tools: ``ToolUse.definitions``, or None.
    """
    if tools is None:
        return EMPTY_DIGEST
    body = "tools" + canonical_json(json.loads(tools))
    return _digest(body.encode("utf-8", "surrogatepass"))


def reasoning_digest(reasoning: str) -> bytes:
    """Digest of a message's reasoning; clients strip the space around it."""
    return _digest(reasoning.strip().encode("utf-8", "surrogatepass"))


def extend_digest(prefix: bytes, message: Message) -> bytes:
    """Digest (16 bytes) of the transcript ``prefix`` followed by ``message``."""
    body = canonical_json(
        [message.role, message.content, message.name, message.tool_call_id, message.tool_calls]
    )
    return _digest(prefix + body.encode("utf-8", "surrogatepass"))


def chain_digests(messages: Iterable[Message], prefix: bytes = EMPTY_DIGEST) -> Iterator[bytes]:
    """Digest after each message, in order; the last one identifies the whole transcript."""
    for message in messages:
        prefix = extend_digest(prefix, message)
        yield prefix


def transcript_digests(messages: Iterable[Message], tools: str | None = None) -> list[bytes]:
    """Entry k identifies the tools and the first k messages, from k = 0."""
    head = head_digest(tools)
    return [head, *chain_digests(messages, head)]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
