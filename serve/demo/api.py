"""The server as the demo sees it: chat through the openai client, PACE's own routes through httpx.

Every failure becomes a ``DemoFailed`` that says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx
import openai

from engine.errors import PaceError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

# A turn waits for the others it is packed with; on a slow machine that is minutes.
_TURN_S = 1800.0
_CONNECT_S = 10.0

Messages = Sequence[Mapping[str, str]]


class DemoFailed(PaceError):
    """The demo could not be played to its end."""

    code = "demo_failed"


class Api:
    """One server. Use it as an async context manager."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """``url``: the server's address, without ``/v1``; ``key``: an API key, if it has keys.
        Raises DemoFailed when it is no address."""
        self.url = url.rstrip("/")
        if not _is_address(self.url):
            raise DemoFailed(f"{url!r} is not an address such as http://127.0.0.1:8000")
        self._http = httpx.AsyncClient(
            base_url=f"{self.url}/v1",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_TURN_S, connect=_CONNECT_S),
        )
        # Not retried: a turn that was cut off may have been committed, and would come twice.
        self._openai = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key or "none", max_retries=0, timeout=_TURN_S
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()
        await self._openai.close()

    async def chat(
        self, messages: Messages, max_tokens: int, pace: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """One turn, greedy. Returns the answer's text and its ``pace`` object.

        Raises:
            DemoFailed: the server is gone, or refused or failed the turn.
        """
        try:
            answer = await self._openai.chat.completions.create(
                model="default",
                messages=cast("list[ChatCompletionMessageParam]", list(messages)),
                max_tokens=max_tokens,
                temperature=0,
                extra_body={"pace": dict(pace)},
            )
        except openai.APITimeoutError as error:
            raise DemoFailed(f"the server did not answer within {_TURN_S:.0f} s") from error
        except openai.APIConnectionError as error:
            raise self._unreachable() from error
        except openai.APIStatusError as error:
            raise DemoFailed(_complaint(error.status_code, error.body)) from error
        except openai.OpenAIError as error:
            raise DemoFailed(f"the server's answer cannot be read: {error}") from error
        info = (answer.model_extra or {}).get("pace")
        if not isinstance(info, dict):
            raise self._not_pace()
        return answer.choices[0].message.content or "", info

    async def score(
        self, session_id: str, messages: Messages, continuation: str
    ) -> tuple[list[str], list[float]]:
        """Tokens of ``continuation`` as the answer to ``messages``, and their log-probabilities.

        Nothing of it becomes part of the session.
        """
        body = {"messages": list(messages), "continuations": [continuation]}
        found = await self._request("POST", f"/sessions/{session_id}/score", json=body)
        scored = found["continuations"][0]
        return scored["tokens"], scored["logprobs"]

    async def session(self, session_id: str) -> dict[str, Any]:
        """The session's summary."""
        return await self._request("GET", f"/sessions/{session_id}")

    async def turn_events(self, session_id: str, since: int) -> tuple[list[Mapping[str, Any]], int]:
        """Data of the ledger's ``turn`` events after ``since``, and where to go on."""
        found = await self._request(
            "GET", f"/sessions/{session_id}/events", params={"since": str(since)}
        )
        return [e["data"] for e in found["data"] if e["kind"] == "turn"], int(found["next"])

    async def delete(self, session_id: str) -> None:
        """Forget a session, running turn included; one that is not there is fine."""
        with suppress(httpx.HTTPError):
            await self._http.delete(f"/sessions/{session_id}", timeout=_CONNECT_S)

    async def check(self) -> None:
        """Raises DemoFailed when no PACE server answers."""
        await self._request("GET", "/sessions")

    async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.TimeoutException as error:
            raise DemoFailed(f"{self.url} does not answer in time") from error
        except httpx.TransportError as error:
            raise self._unreachable() from error
        try:
            body = response.json()
        except ValueError:
            raise self._not_pace() from None
        if response.is_error:
            inner = body.get("error") if isinstance(body, dict) else None
            if inner is None:
                raise self._not_pace()
            raise DemoFailed(_complaint(response.status_code, inner))
        return cast("dict[str, Any]", body)

    def _unreachable(self) -> DemoFailed:
        return DemoFailed(
            f"no server answers at {self.url}. Start one with `pace serve`, or let the demo start "
            "its own: `pace demo --serve`"
        )

    def _not_pace(self) -> DemoFailed:
        return DemoFailed(f"the server at {self.url} is not a PACE server")


def _is_address(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    port = 80 if parts.port is None else parts.port
    return parts.scheme in ("http", "https") and bool(parts.host) and 0 < port < 1 << 16


def _complaint(status: int, error: object) -> str:
    """The message of an error envelope's inner object."""
    if isinstance(error, dict) and error.get("message"):
        return f"{error['message']} (HTTP {status}, {error.get('code')})"
    return f"the server answered HTTP {status}"
