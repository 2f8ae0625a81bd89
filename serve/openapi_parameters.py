"""The parameters of the OpenAPI document: what paths, queries and headers may say."""

from __future__ import annotations

from engine.ledger import KINDS
from serve.openapi_answers import SESSION_ID, Schema
from serve.requests import LAYERS as LAYERS_PATTERN
from serve.requests import MOST_BINS

_MOST = 10**18 - 1


def _query(name: str, description: str, **schema: object) -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _number(name: str, description: str, minimum: int = 0, **schema: object) -> Schema:
    limits = {"minimum": minimum, "maximum": _MOST, **schema}
    return _query(name, description, type="integer", **limits)


def _flag(name: str, description: str) -> Schema:
    return _query(name, description, type="integer", enum=[0, 1], default=0)


SESSION: Schema = {"name": "session_id", "in": "path", "required": True, "schema": SESSION_ID}
MODEL: Schema = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "The served name (which may hold slashes), or `default`.",
    "schema": {"type": "string", "minLength": 1},
}
HEADERS: list[Schema] = [
    {
        "name": "X-Session-Id",
        "in": "header",
        "description": "The session. Goes before `pace.session_id`, `session_id` and "
        "`prompt_cache_key`; without any the transcript says which.",
        "schema": SESSION_ID,
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Named in the server's log.",
        "schema": {"type": "string"},
    },
]
NAMESPACE = _query(
    "namespace", "Whose session is meant. Another's name needs an admin's key.", type="string"
)
EVENTS_SINCE = _number("since", "Only events after this one.", default=0)
KIND = _query(
    "kind",
    "Only events of these kinds, with commas between; without it all.",
    type="string",
    pattern=f"^({'|'.join(KINDS)})(,({'|'.join(KINDS)}))*$",
)
TURNS_SINCE = _number("since", "Only turns after this one.", default=0)
LIMIT = _number(
    "limit",
    "At most so many. An answer never exceeds 1 MB: go on from `next` until `data` is empty, or "
    "`next` null.",
    minimum=1,
)
START = _number("start", "The first, counted from 0.", default=0)
END = _number("end", "The one behind the last; without it all.")
STEP = _number(
    "step",
    "As it was after this step; without it, after the last. `held` in the session's steps says "
    "which are known.",
)
LAYERS = _query(
    "layers",
    "One layer, or two with a hyphen between; `3-` goes to the last.",
    type="string",
    pattern=LAYERS_PATTERN,
    default="0-",
)
BINS = _number(
    "bins",
    "So many equal parts of the range, and what is in each, in place of slots.",
    minimum=1,
    maximum=MOST_BINS,
)
RESIDENT = _flag("resident", "1: only tokens that some layer holds, and how they are held.")
CHECK = _flag("check", "1: with `integrity`.")
