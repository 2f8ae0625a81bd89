"""Clients that call tools, unmodified and without a session key.

The model is random, so calls are forced: then the server holds them to the tool's schema. What
passes the embedding is watched: a call, its result and the answer are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict

from tests.support.clients import KEY, chat_openai
from tests.support.local_server import LocalServer, local_server
from tests.support.tool_clients import (
    TOOLS,
    LangChainTools,
    LiteLLMTools,
    OpenAITools,
    ToolClient,
)
from tests.support.watch import check_session

pytestmark = pytest.mark.usefixtures("quiet")

MODEL = "protocol"
LIMIT = 80  # a call of ``TOOLS`` takes 60
KINDS = (OpenAITools, LangChainTools, LiteLLMTools)


@pytest.fixture(scope="module")
def server(protocol_model: Path) -> Iterator[LocalServer]:
    with local_server(protocol_model) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_calls_results_and_answers(
    server: LocalServer, kind: type[ToolClient], stream: bool
) -> None:
    client = kind(server.base_url, MODEL, LIMIT, stream)
    functions = [tool["function"] for tool in TOOLS]
    schemas = {function["name"]: function["parameters"] for function in functions}
    server.exchanges.take()
    for number, choice in enumerate(("forecast", "required", "clock")):
        reply = client.ask(f"{kind.__name__} {stream}: weather {number}?", choice)
        (call,) = reply.calls
        assert call.name == choice or choice == "required"
        jsonschema.validate(call.arguments, schemas[call.name])
        answer = client.give(call, f"Result {number}.")
        assert answer.text and not answer.calls
    assert client.ask("Thank you.").text
    assert len(check_session(server)) == 7


class Weather(BaseModel):
    """What it will be like."""

    model_config = ConfigDict(extra="forbid")  # a random model would write more, and on and on

    city: Literal["Oslo", "Lima"]
    warm: bool


def test_langchain_structured_output(server: LocalServer) -> None:
    llm = chat_openai(server.base_url, MODEL, LIMIT)
    asked = llm.with_structured_output(Weather, method="function_calling")
    server.exchanges.take()
    assert isinstance(asked.invoke("Oslo?"), Weather)
    check_session(server)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_loop_of_pydantic_ai(server: LocalServer, stream: bool) -> None:
    """An agent with a tool and a typed answer: it has the model call the tool, gives it the
    result, has it call the tool of the answer, and keeps all that for the next question."""
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class FirstLook(AbstractCapability[None]):
        """The tool first, then the answer."""

        def get_model_settings(self) -> Any:
            names = {1: ["forecast"], 2: ["final_result"]}
            return lambda context: {"tool_choice": names[context.run_step]}

    provider = OpenAIProvider(base_url=server.base_url, api_key=KEY)
    agent: Any = Agent(
        OpenAIChatModel(MODEL, provider=provider),
        output_type=Weather,
        system_prompt="Look before you answer.",
        model_settings={"max_tokens": LIMIT, "temperature": 0},
        capabilities=[FirstLook()],
    )
    looked: list[str] = []

    @agent.tool_plain
    def forecast(city: Literal["Oslo", "Lima"], days: Literal[1, 2]) -> str:
        """The weather to come."""
        looked.append(city)
        return f"In {city}: rain for {days} days."

    server.exchanges.take()
    history: list[Any] = []
    for number in range(3):
        question = f"{stream}: weather {number}?"
        if stream:
            with agent.run_stream_sync(question, message_history=history) as result:
                output = result.get_output()
                history = result.all_messages()
        else:
            result = agent.run_sync(question, message_history=history)
            output, history = result.output, result.all_messages()
        assert isinstance(output, Weather)
    assert len(looked) == 3
    assert len(check_session(server)) == 6
