"""Wrong methods, paths, queries and bodies of all routes, and the answer the contract gives."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.serve.hostile import CHAT, HI, INVALID, KNOWN, UNKNOWN, UNSUPPORTED, Case


def refusals() -> Iterator[Case]:
    """Wrong methods, paths and queries, and bodies of the other routes."""
    of_known = f"/v1/sessions/{KNOWN}"
    for method, path in (
        ("GET", CHAT),
        ("PUT", CHAT),
        ("PATCH", CHAT),
        ("DELETE", CHAT),
        ("OPTIONS", CHAT),
        ("HEAD", CHAT),
        ("POST", "/health"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/default"),
        ("POST", "/metrics"),
        ("PUT", "/openapi.json"),
        ("POST", "/v1/sessions"),
        ("PUT", of_known),
        ("POST", f"{of_known}/blueprint"),
        ("POST", f"{of_known}/residency"),
        ("PUT", f"{of_known}/tokens"),
        ("DELETE", f"{of_known}/steps"),
        ("PATCH", f"{of_known}/messages"),
        ("GET", f"{of_known}/score"),
    ):
        yield Case(f"{method} {path}", 405, None, "method_not_allowed", method, path)
    for method, path in (
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", "/-/routes"),
        ("GET", "/-/healthz"),
        ("GET", "/v1"),
        ("POST", f"{CHAT}/"),
        ("POST", f"/{CHAT}"),
        ("POST", "/v1/Chat/Completions"),
        ("POST", f"{CHAT}%20"),
        ("POST", f"{CHAT}%00"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/sessions/"),
        ("GET", "/v1/sessions/a%2Fb"),
        ("GET", "/v1/sessions/..%2F..%2Fetc%2Fpasswd"),
        ("GET", f"{of_known}/nothing"),
        ("GET", "/" + "x" * 8000),
    ):
        yield Case(f"{method} {path[:60]}", 404, None, "not_found", method, path)
    for name in ("gpt-4", "a/b", "%00", "%FF", "default%20"):
        path = f"/v1/models/{name}"
        yield Case(f"GET {path}", 404, "model", "model_not_found", "GET", path)
    for name in ("%20", "%00", "%FF", "%C3%BC", "a%0Ab", "x" * 129, "%2E%2E%20"):
        path = f"/v1/sessions/{name}"
        yield Case(f"GET {path[:60]}", 400, "session_id", INVALID, "GET", path)
    for method, path in (
        ("GET", "/v1/sessions/none-such"),
        ("DELETE", "/v1/sessions/none-such"),
        ("GET", "/v1/sessions/none-such/events"),
        ("GET", "/v1/sessions/none-such/residency"),
        ("GET", "/v1/sessions/none-such/tokens"),
        ("GET", "/v1/sessions/none-such/steps"),
        ("GET", "/v1/sessions/none-such/messages"),
        ("PUT", "/v1/sessions/none-such/blueprint"),
    ):
        body = b"{}" if method == "PUT" else None
        yield Case(f"{method} {path}", 404, "session_id", "session_not_found", method, path, body)
    yield from _bad_queries(of_known)
    for since in ("", "-1", "+1", "1.0", "1e3", "x", "%D9%A1", "1" * 19):
        path = f"{of_known}/events?since={since}"
        yield Case(f"since={since}", 400, "since", INVALID, "GET", path)
    yield Case(
        "another's", 403, "namespace", "permission_denied", "GET", "/v1/sessions?namespace=x"
    )
    score = {"messages": [HI], "continuations": ["a"]}
    for change, param, code in (
        ({"continuations": []}, "continuations", INVALID),
        ({"continuations": "a"}, "continuations", INVALID),
        ({"continuations": [""]}, "continuations.0", INVALID),
        ({"continuations": ["a"] * 65}, "continuations", INVALID),
        ({"messages": []}, "messages", INVALID),
        ({"stream": True}, "stream", UNKNOWN),
        ({"pace": {"session_id": "other"}}, "pace.session_id", INVALID),
        ({"pace": {"policy": "none-such"}}, "pace.policy", INVALID),
        ({"pace": {"step": 1}}, "pace.step", INVALID),
    ):
        body = json.dumps({**score, **change}).encode()
        name = f"score {json.dumps(change)[:60]}"
        yield Case(name, 400, param, code, "POST", f"{of_known}/score", body)
    for change, param, code in (
        ({"step": 2}, "step", UNSUPPORTED),
        ({"session_id": "other"}, "session_id", INVALID),
        ({"plan": {"7": [8]}, "strict": True}, "plan", INVALID),
        ({"pace": {}}, "pace", UNKNOWN),
    ):
        body = json.dumps(change).encode()
        name = f"blueprint {json.dumps(change)}"
        yield Case(name, 400, param, code, "PUT", f"{of_known}/blueprint", body)
    policy = json.dumps({**score, "pace": {"policy": "pace"}}).encode()
    yield Case(
        "score another policy",
        409,
        "pace.policy",
        "policy_mismatch",
        "POST",
        f"{of_known}/score",
        policy,
    )
    for method, path in (("POST", CHAT), ("POST", f"{of_known}/score")):
        yield Case(f"too large {path}", 413, None, "request_too_large", method, path, b" " * LARGE)
    yield Case("too large", 413, None, "request_too_large", body=b" " * LARGE, chunks=1 << 20)


def odd_queries() -> Iterator[Case]:
    """Ranges that hold nothing or everything, and what nobody asked for, of ``KNOWN``'s views."""
    for query in (
        "residency?start=999999999999999999",
        "residency?start=5&end=3&bins=1024",
        "residency?layers=0-999999999&bins=1",
        "residency?layers=7-3",
        "residency?layers=999999999",
        "residency?layers=00-01&start=000&end=1",
        "residency?bins=1&bins=2&unknown=x",
        "tokens?start=0&end=0",
        "tokens?end=999999999999999999&limit=999999999999999999",
        "tokens?resident=1&start=1&end=2&limit=1",
        "tokens?resident=0&namespace=",
        "messages?start=999999999999999999",
        "messages?limit=1&end=1",
        "steps?since=999999999999999999",
        "steps?limit=999999999999999999",
        "events?limit=1&since=0",
    ):
        yield Case(f"ok {query}", method="GET", path=f"/v1/sessions/{KNOWN}/{query}")


def _bad_queries(of_known: str) -> Iterator[Case]:
    """Values of the views' parameters that are none, and a step nobody knows."""
    for view, param, values in (
        ("residency", "bins", ("", "0", "-1", "1025", "1e3", "9" * 30)),
        ("residency", "layers", ("", "-", "-1", "a", "1-2-3", "1%202", "0--", "9" * 10, "%D9%A1")),
        ("residency", "start", ("-1", "x")),
        ("residency", "step", ("-1", "now")),
        ("tokens", "resident", ("", "2", "true")),
        ("tokens", "limit", ("0", "")),
        ("tokens", "end", ("-5",)),
        ("tokens", "step", ("1.0",)),
        ("steps", "since", ("-1", "x")),
        ("steps", "limit", ("0",)),
        ("messages", "start", ("1e1",)),
        ("messages", "limit", ("0", "%00")),
    ):
        for value in values:
            path = f"{of_known}/{view}?{param}={value}"
            yield Case(f"{view} {param}={value}", 400, param, INVALID, "GET", path)
    for view in ("residency", "residency?bins=4&", "tokens", "tokens?resident=1&", "messages"):
        path = f"{of_known}/{view}{'' if '?' in view else '?'}step=987654"
        yield Case(f"unknown step of {view}", 404, "step", "step_not_found", "GET", path)


LARGE = 8 * 1024 * 1024 + 1
