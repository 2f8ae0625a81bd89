"""The PACE server that the dashboard reads, and what people are told when it cannot be read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
import streamlit as st

_KEY = re.compile(r"[\x21-\x7e]+")
_TIMEOUT_S = 10.0

Json = dict[str, Any]


class ReadFailed(Exception):
    """Something could not be read.

    Attributes:
        sentence: what happened, for people.
        advice: what to do about it.
        status: HTTP status, None when there was no answer.
    """

    def __init__(self, sentence: str, advice: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.advice, self.status = sentence, advice, status


@dataclass(frozen=True, slots=True)
class Server:
    """A PACE server: address without ``/v1``, and the API key, if it has keys."""

    url: str
    key: str | None = None

    def get(self, path: str, **params: object) -> Json:
        """``GET /v1{path}``; parameters that are None are left out.

        Raises:
            ReadFailed: no answer, a refusal, an answer that is not PACE's, or a key that no server
                has.
        """
        if self.key is not None and not _KEY.fullmatch(self.key):  # no header can carry it
            raise _refused(self)
        given = {name: str(value) for name, value in params.items() if value is not None}
        try:
            response = _client(self).get(f"/v1{path}", params=given)
        except httpx.TimeoutException:
            raise ReadFailed(
                f"The server at {self.url} has not answered for {_TIMEOUT_S:.0f} seconds.",
                "It may be busy; this page tries again by itself.",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise ReadFailed(
                f"No server answers at {self.url}.",
                "Start one with `pace serve`, or name another: `pace dashboard --url ADDRESS`. "
                "This page goes on by itself as soon as it answers.",
            ) from None
        return _body(self, response)


@st.cache_resource(max_entries=8, show_spinner=False)
def _client(server: Server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=_TIMEOUT_S)


def _body(server: Server, response: httpx.Response) -> Json:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if response.is_success and isinstance(body, dict):
        return body
    if response.status_code == 401:
        raise _refused(server)
    if not isinstance(error, dict):
        raise foreign(server, response.status_code)
    if response.status_code == 404:
        gone = "It may have been deleted, or made room for another. Choose one from the list."
        step = "Choose another step: newer ones are held longer."
        advice = step if error.get("code") == "step_not_found" else gone
        raise ReadFailed(str(error.get("message")), advice, 404)
    raise ReadFailed(
        f"{error.get('message')} (HTTP {response.status_code})",
        "This page tries again by itself.",
        response.status_code,
    )


def _refused(server: Server) -> ReadFailed:
    return ReadFailed(
        f"The server at {server.url} does not accept this dashboard's API key."
        if server.key
        else f"The server at {server.url} wants an API key.",
        "Set PACE_API_KEY to a key of the server and start `pace dashboard` again.",
        401,
    )


def foreign(server: Server, status: int) -> ReadFailed:
    """What answered, with HTTP ``status``, does not speak PACE's API."""
    return ReadFailed(
        f"What answers at {server.url} is not a PACE server (HTTP {status}).",
        "Name the right address: `pace dashboard --url ADDRESS`.",
        status,
    )
