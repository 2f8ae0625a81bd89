"""Identity of messages: canonical JSON, message digests and the chained digest of a prefix.

A message's digest covers what a client can send back (role, text, name, tool calls), so a
resent transcript is recognised without rendering or tokenizing it. Reasoning is left out: many
clients drop it, and the answer is the same one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from engine.types import Message

DIGEST_BYTES = 16
EMPTY_DIGEST = bytes(DIGEST_BYTES)
# Up to here every whole number is a float of its own.
_EXACT = 2**53


def canonical_json(value: object) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def arguments_value(text: str) -> Any:
    """The value of a call's arguments; 5.0 is the integer 5, as in JavaScript.

    Raises:
        ValueError: ``text`` is no JSON (NaN and Infinity are none), nests too deeply, or holds
            half of a surrogate pair, which no tokenizer takes.
    """
    try:
        value = json.loads(text, parse_float=_number, parse_constant=_refuse)
        if "\\u" in text:  # only an escape can bring half a pair
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    return value


def encodable(text: str) -> str:
    """``text`` with a replacement for each half of a surrogate pair that stands alone."""
    return text.encode("utf-8", "replace").decode()


def canonical_arguments(text: str) -> str:
    """JSON text with sorted keys, spaced as models write it; what has no ``arguments_value``
    stays as it is.

    Clients write a call's arguments again from a parsed object, in another order or spacing: it
    is the same call.
    """
    try:
        return json.dumps(arguments_value(text), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
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


def _number(text: str) -> float | int:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
