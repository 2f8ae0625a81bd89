"""A real server under hostile and odd requests: the right answer to each, and it serves on."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.serve import hostile_raw, hostile_refused, hostile_routes, hostile_tools
from tests.serve.hostile import CHAT, KNOWN, Case, accepted, accepted_elsewhere, say
from tests.serve.hostile_raw import REFUSED, Raw
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)

TIMEOUT_S = 20
GROUP = 12
TYPES = {409: "conflict_error", 429: "rate_limit_error"}
TABLES = {
    "accepted": accepted,
    "accepted_elsewhere": accepted_elsewhere,
    "accepted_views": hostile_routes.odd_queries,
    "accepted_tools": hostile_tools.accepted,
    "bodies": hostile_refused.bodies,
    "fields": hostile_refused.fields,
    "messages": hostile_refused.messages,
    "pace": hostile_refused.pace,
    "routes": hostile_routes.refusals,
    "tools": hostile_tools.refusals,
}


RAW_TABLES = {"odd": hostile_raw.odd, "broken": hostile_raw.broken}


def groups(tables: dict[str, Any]) -> Iterator[Any]:
    for name, table in tables.items():
        cases = list(table())
        for at in range(0, len(cases), GROUP):
            yield pytest.param(cases[at : at + GROUP], id=f"{name}{at // GROUP}")


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def ask(server: Server, case: Case) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a case as it is: no client normalizes its path or headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.putrequest(case.method, case.path)
        for name, value in case.headers.items():
            connection.putheader(name, value)
        body = case.body or b""
        if case.chunks:
            connection.putheader("Transfer-Encoding", "chunked")
        else:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        with suppress(BrokenPipeError, ConnectionResetError):  # answered before it was all sent
            if case.chunks:
                for piece in pieces(body, case.chunks):
                    connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                connection.send(b"0\r\n\r\n")
            else:
                connection.send(body)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def fault(case: Case, answer: http.client.HTTPResponse, body: bytes) -> str | None:
    """What is wrong with the answer."""
    if answer.status != case.status:
        return f"{answer.status} instead of {case.status}: {body[:200]!r}"
    kind = answer.headers.get_content_type()
    if case.method == "HEAD":
        return "HEAD has a body" if body else None
    if case.status >= 400:
        if kind != "application/json" or answer.headers["x-should-retry"] != "false":
            return f"headers {answer.headers.items()}"
        wanted = {
            "type": TYPES.get(case.status, "invalid_request_error"),
            "param": case.param,
            "code": case.code,
        }
        error = json.loads(body)["error"]
        return None if error | {"message": ""} == {"message": "", **wanted} else f"{error}"
    if case.path.partition("?")[0] == CHAT and not answer.headers["x-session-id"]:
        return "no X-Session-Id"
    if kind == "text/event-stream":
        return None if body.endswith(b"data: [DONE]\n\n") else f"the stream ends {body[-200:]!r}"
    return None if isinstance(json.loads(body), dict) else f"{body[:200]!r}"


def outcome(server: Server, case: Case) -> str | None:
    try:
        wrong = fault(case, *ask(server, case))
    except Exception as error:
        wrong = repr(error)
    return wrong and f"{case.name}: {wrong}"


@pytest.fixture(scope="module")
def logged_before(server: Server) -> int:
    """Length of the server's log when these tests began."""
    return len(server.stderr)


def assert_serves(server: Server) -> None:
    """A good request works."""
    good = Case("a good request", body=say())
    assert outcome(server, good) is None


@pytest.fixture
def known(server: Server, logged_before: int) -> None:
    """The session ``KNOWN`` as the tables expect it; others may have taken its room."""
    ask(server, Case("delete", method="DELETE", path=f"/v1/sessions/{KNOWN}"))
    for mode in ("transcript", "append"):
        pace = {"session_id": KNOWN, "policy": "h2o", "mode": mode}
        assert outcome(server, Case("known", body=say(pace=pace))) is None


@pytest.mark.parametrize("cases", groups(TABLES))
def test_every_request_gets_its_answer(server: Server, known: None, cases: Sequence[Case]) -> None:
    # a session has one turn at a time, so those about the same one wait for each other
    shared = any(KNOWN in case.path or KNOWN.encode() in (case.body or b"") for case in cases)
    with ThreadPoolExecutor(1 if shared else 4) as pool:
        faults = [wrong for wrong in pool.map(lambda case: outcome(server, case), cases) if wrong]
    assert not faults, "\n".join(faults)
    assert_serves(server)


def exchange(server: Server, raw: Raw) -> bytes:
    """Send what ``raw`` says and read until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as connection:
        received = b""
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was all sent
            for number, part in enumerate(raw.parts):
                if 0 < number < 10:
                    time.sleep(0.05)
                connection.sendall(part)
            if raw.end in ("close", "reset"):
                time.sleep(0.05)
            if raw.end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if raw.end == "half":
                connection.shutdown(socket.SHUT_WR)
            if raw.end in ("read", "half"):
                while piece := connection.recv(1 << 16):
                    received += piece
        return received


def raw_outcome(server: Server, raw: Raw) -> str | None:
    try:
        received = exchange(server, raw)
    except Exception as error:
        return f"{raw.name}: {error!r}"
    found = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
    final = tuple(code for code in found if code != 100)
    right = (
        set(final) <= REFUSED and len(final) <= 2 if raw.statuses is None else final == raw.statuses
    )
    if right and b"Traceback" not in received:
        return None
    return f"{raw.name}: {final} instead of {raw.statuses}: {received[:300]!r}"


@pytest.mark.parametrize("raws", list(groups(RAW_TABLES)))
def test_every_byte_stream_gets_its_answer(server: Server, raws: Sequence[Raw]) -> None:
    with ThreadPoolExecutor(4) as pool:
        faults = [wrong for wrong in pool.map(lambda raw: raw_outcome(server, raw), raws) if wrong]
    assert not faults, "\n".join(faults)
    assert_serves(server)


def running(server: Server) -> float:
    """Turns that run."""
    _, text = ask(server, Case("metrics", method="GET", path="/metrics"))
    (value,) = re.findall(rb"^pace_sessions_running\{.*\} (.*)$", text, re.MULTILINE)
    return float(value)


def test_nothing_of_all_that_goes_on(server: Server, logged_before: int) -> None:
    """Whoever went away has no turn left, and nothing was a surprise to the server."""
    end = time.monotonic() + TIMEOUT_S
    while running(server):
        assert time.monotonic() < end, "a turn goes on without its client"
        time.sleep(0.1)
    log = server.stderr[logged_before:]
    surprises = [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line]
    assert not surprises, surprises[:5]


def test_a_third_of_the_requests_is_fine() -> None:
    cases = [case for table in TABLES.values() for case in table()]
    assert len(cases) >= 220
    assert 3 * sum(case.status == 200 for case in cases) >= len(cases)
