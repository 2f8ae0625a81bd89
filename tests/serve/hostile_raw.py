"""What no HTTP library would send: bytes on a socket, and the answers HTTP allows to them.

By RFC 9112 a server answers 400 to a message it cannot frame, and may close the connection
instead. What follows a message that cannot be framed is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.serve.hostile import CHAT, say

REFUSED = frozenset({400, 404, 405, 408, 411, 413, 414, 417, 421, 426, 431, 501, 505})


@dataclass(frozen=True)
class Raw:
    """Bytes to send, a pause between two parts, and the statuses to come.

    ``end``: what the client does next: "read" until the server closes, "half" (close its own
    side, then read), "close", or "reset" the connection. ``statuses``: None means any refusal, or
    the connection closed without one.
    """

    name: str
    parts: tuple[bytes, ...]
    statuses: tuple[int, ...] | None = None
    end: str = "read"


def request(
    body: bytes | None = None,
    *headers: str,
    line: str = f"POST {CHAT} HTTP/1.1",
    close: bool = True,
    length: str | None = None,
) -> bytes:
    """A request with a right Content-Length, if none is given."""
    content = say() if body is None else body
    lines = [line, "Host: x", *headers]
    if length is None and not any(h.lower().startswith("transfer-encoding") for h in headers):
        length = str(len(content))
    lines += [f"Content-Length: {length}"] if length is not None else []
    lines += ["Connection: close"] if close else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def chunked(*pieces: bytes, close: bool = True, line: str = f"POST {CHAT} HTTP/1.1") -> bytes:
    """A request whose body is ``pieces``, framed by the caller."""
    return request(b"".join(pieces), "Transfer-Encoding: chunked", close=close, line=line)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


GOOD = say()
END = b"0\r\n\r\n"
HALF = len(GOOD) // 2
GET = "GET /v1/models HTTP/1.1"


def odd() -> Iterator[Raw]:
    """Strange and legal."""
    yield Raw("plain", (request(),), (200,))
    yield Raw("two writes", (request()[:40], request()[40:]), (200,))
    yield Raw("byte by byte", tuple(bytes([b]) for b in request(b"", line=GET)), (200,))
    yield Raw("an empty line first", (b"\r\n" + request(),), (200,))
    yield Raw(
        "lower-case headers", (request().replace(b"Content-Length", b"content-length"),), (200,)
    )
    yield Raw(
        "spaces around a value", (request(None, "X-Session-Id:  \t hostile-raw \t "),), (200,)
    )
    yield Raw("an empty header", (request(None, "X-Nothing:"),), (200,))
    yield Raw("the same header twice", (request(None, "X-Odd: 1", "X-Odd: 2"),), (200,))
    ids = ("X-Session-Id: hostile-twice", "x-session-ID: hostile-twice")
    yield Raw("the session twice", (request(None, *ids),), (200,))
    yield Raw(
        "bytes beyond ASCII in a header", (request(None, "X-Request-Id: \xff\xfe\xe9"),), (200,)
    )
    yield Raw("HTTP/1.0", (request(line=f"POST {CHAT} HTTP/1.0"),), (200,))
    yield Raw("HTTP/1.0 without Host", (b"GET /health HTTP/1.0\r\n\r\n",), (200,))
    absolute = f"POST http://x{CHAT} HTTP/1.1"
    yield Raw("an absolute target", (request(line=absolute),), (200,))
    yield Raw("one chunk", (chunked(chunk(GOOD), END),), (200,))
    yield Raw("a chunk in two writes", (chunked(chunk(GOOD))[:-9], chunk(GOOD)[-9:] + END), (200,))
    yield Raw("chunk extensions", (chunked(chunk(GOOD, b';a="b;c"'), END),), (200,))
    trailer = b"0\r\nX-Session-Id: too-late\r\n\r\n"
    yield Raw("a trailer", (chunked(chunk(GOOD), trailer),), (200,))
    yield Raw("zeros before a size", (chunked(b"000" + chunk(GOOD), END),), (200,))
    two = request(close=False) + request()
    yield Raw("two requests at once", (two,), (200, 200))
    three = request(b"", line=GET, close=False) + request(b"{", close=False) + request()
    yield Raw("a bad one between two good ones", (three,), (200, 400, 200))
    after = chunked(chunk(GOOD), END, close=False) + request(b"", line=GET)
    yield Raw("chunks, then another request", (after,), (200, 200))
    unread = request(line="POST /v1/nothing HTTP/1.1", close=False) + request(b"", line=GET)
    yield Raw("a body nobody reads, then another", (unread,), (404, 200))
    expect = request(None, "Expect: 100-continue")
    head = expect.index(b"\r\n\r\n") + 4
    yield Raw("waiting for 100", (expect[:head], expect[head:]), (200,))
    # RFC 9112 lets servers split the first line at any white space
    yield Raw("spaces in the first line", (request(b"", line="GET  /health  HTTP/1.1"),), (200,))
    model = ("serve_multiplexed_model_id: x", "Serve-Multiplexed-Model-Id: y")
    yield Raw("headers Ray would read", (request(None, *model, "traceparent: \xff"),), (200,))
    yield Raw("asking to upgrade", (request(None, "Upgrade: h2c"),), (200,))


def broken() -> Iterator[Raw]:
    """What cannot be framed, or breaks off."""
    for length in ("abc", "-1", "1.5", "0x10", "1e2", "", "1" * 30, "5, 6"):
        yield Raw(f"length {length!r}", (request(length=length),))
    twice = request(None, "Content-Length: 3")
    yield Raw("two lengths", (twice,))
    both = request(chunk(GOOD) + END, "Transfer-Encoding: chunked", length="4")
    yield Raw("a length and chunks", (both,))
    short = request(length=str(HALF))
    yield Raw("a length too short", (short,), (400,))
    yield Raw("no length", (request(GOOD, "Transfer-Encoding: identity"),))
    for size in (b"ZZ", b"-1", b"", b"0x10", b"f" * 40, b"1 0"):
        yield Raw(f"chunk size {size!r}", (chunked(size + b"\r\n" + GOOD + b"\r\n", END),))
    yield Raw("a chunk longer than it says", (chunked(b"5\r\n" + GOOD + b"\r\n", END),))
    yield Raw("unknown coding", (request(GOOD, "Transfer-Encoding: zstd, chunked"),))
    for line in (
        "nonsense",
        "GET",
        f"POST {CHAT} HTTP/9.9",
        f"POST {CHAT} SMTP/1.1",
        "G\x00T /health HTTP/1.1",
        "GET /hea lth HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GET health HTTP/1.1",
        f"BREW {CHAT} HTTP/1.1",
        f"post {CHAT} HTTP/1.1",
        f"CONNECT {CHAT} HTTP/1.1",
        f"TRACE {CHAT} HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET /" + "x" * 100_000 + " HTTP/1.1",
    ):
        yield Raw(f"line {line[:40]!r}", (request(b"", line=line),))
    for header in (
        "no colon",
        ": no name",
        "two words: x",
        "X-Null: a\x00b",
        "X-Bare: a\rb",
        "X-Ünicode: x",
        "X-Session-Id: \xff",
        "x-session-id: \xc3\xa9",
    ):
        yield Raw(f"header {header[:40]!r}", (request(None, header),))
    yield Raw("a long header", (request(None, "X-Long: " + "y" * 200_000),), (431,))
    yield Raw(
        "ten thousand headers", (request(None, *(f"X-{n}: 12" for n in range(10_000))),), (431,)
    )
    yield Raw("a TLS greeting", (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,))
    yield Raw("an HTTP/2 preface", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00",))
    yield Raw("noise", (bytes(range(256)) * 40,))
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    socket = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    yield Raw("a web socket", (socket + "\r\n".join([*upgrade, "", ""]).encode(),), end="half")
    for end in ("half", "close", "reset"):
        yield Raw(f"nothing, {end}", (b"",), end=end)
        yield Raw(f"half a line, {end}", (b"POST /v1/ch",), end=end)
        yield Raw(f"half the headers, {end}", (request()[:60],), end=end)
        yield Raw(f"half the body, {end}", (request()[:-HALF],), end=end)
        yield Raw(f"half a chunk, {end}", (chunked(chunk(GOOD)[:-HALF]),), end=end)
        yield Raw(f"no last chunk, {end}", (chunked(chunk(GOOD)),), end=end)
    for end in ("close", "reset"):
        long = say(stream=True, max_tokens=100_000, ignore_eos=True)
        yield Raw(f"a stream nobody reads, {end}", (request(long),), end=end)
        whole = say(max_tokens=100_000, ignore_eos=True)
        yield Raw(f"an answer nobody awaits, {end}", (request(whole),), end=end)
    lies = request(b"", length="999999999")
    yield Raw("a large body announced", (lies,), (413,))
