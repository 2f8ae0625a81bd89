"""Clients as people use them, unmodified and without a session key: turns cost what is new.

What passes the model's embedding is watched, turn by turn.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai.resources.chat.completions import Completions

from serve.wire.chat import KNOWN_FIELDS
from serve.wire.fields import USUAL_VALUES, WITHOUT_EFFECT
from tests.support.clients import (
    ChatClient,
    LangChainChat,
    LiteLLMChat,
    LLMChat,
    OpenAIChat,
    PydanticAIChat,
)
from tests.support.local_server import LocalServer, local_server
from tests.support.watch import check_session

TURNS = 20
ANSWER = 8
LONGEST = 4000
MODEL = "protocol"
KEYS = {"session_id", "prompt_cache_key", "pace"}
KINDS = (OpenAIChat, LangChainChat, LiteLLMChat, PydanticAIChat, LLMChat)
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def server(protocol_model: Path) -> Iterator[LocalServer]:
    with local_server(protocol_model, max_session_tokens=LONGEST) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_turn_computes_what_is_new(
    server: LocalServer, kind: type[ChatClient], stream: bool
) -> None:
    client = kind(server.base_url, MODEL, ANSWER, stream)
    server.exchanges.take()
    shown = []
    for number in range(TURNS):
        client.say(f"{kind.__name__} asks, {stream}: question {number}?")
        shown.append(client.reused)
    turns = check_session(server)
    assert [len(turn.body["messages"]) for turn in turns] == [*range(2, 2 * TURNS + 1, 2)]
    assert {bool(turn.body.get("stream")) for turn in turns} == {stream}
    assert not any(KEYS & turn.body.keys() for turn in turns)
    # what the client shows its user as saved is what was not computed
    asks = not stream or kind in (PydanticAIChat, LLMChat)
    assert shown == [turn.reused if asks else None for turn in turns]


def test_no_parameter_of_openai_is_unknown() -> None:
    """It is heeded, accepted since it changes nothing, or refused by its name."""
    of_the_library = {"self", "timeout", "extra_headers", "extra_query", "extra_body"}
    asked = inspect.signature(Completions.create).parameters.keys() - of_the_library
    assert asked
    assert not asked - KNOWN_FIELDS - WITHOUT_EFFECT - USUAL_VALUES.keys()


@dataclass(frozen=True)
class Errors:
    """Where a client's errors are defined, and their names there: an unknown model, a bad
    parameter, a transcript that is too long."""

    module: str
    unknown: str
    bad: str
    long: str


ERRORS = {
    OpenAIChat: Errors("openai", "NotFoundError", "BadRequestError", "BadRequestError"),
    LangChainChat: Errors("openai", "NotFoundError", "BadRequestError", "BadRequestError"),
    LiteLLMChat: Errors(
        "litellm", "NotFoundError", "BadRequestError", "ContextWindowExceededError"
    ),
    PydanticAIChat: Errors("pydantic_ai", "ModelHTTPError", "ModelHTTPError", "ModelHTTPError"),
    LLMChat: Errors("openai", "NotFoundError", "BadRequestError", "BadRequestError"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_are_the_client_s_own(
    server: LocalServer, kind: type[ChatClient], stream: bool
) -> None:
    server.exchanges.take()
    errors = ERRORS[kind]
    module = importlib.import_module(errors.module)
    with pytest.raises(getattr(module, errors.unknown), match="'none-such' does not exist"):
        kind(server.base_url, "none-such", ANSWER, stream).say("Hello")
    with pytest.raises(getattr(module, errors.bad), match=r"max_(completion_)?tokens"):
        kind(server.base_url, MODEL, 0, stream).say("Hello")
    with pytest.raises(getattr(module, errors.long), match=f"maximum context length is {LONGEST}"):
        kind(server.base_url, MODEL, ANSWER, stream).say("long " * LONGEST)
    refused = server.exchanges.take()
    assert len(refused) == 3  # none was tried again
    assert not any(exchange.passed for exchange in refused)
