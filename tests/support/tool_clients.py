"""Clients that call tools, each putting its answers together as its own documentation shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.clients import KEY, chat_openai

FORECAST: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "forecast",
        "description": "The weather to come.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Lima"]},
                "days": {"type": "integer", "enum": [1, 2, 3]},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
TOOLS = [FORECAST, CLOCK]


@dataclass(frozen=True)
class Call:
    """A call the model made, its arguments parsed by the client."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """An answer: text, calls, or both."""

    text: str
    calls: list[Call]


class ToolClient(Protocol):
    """A conversation with ``TOOLS``. ``choice``: "auto", "required" or the name of a tool."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None: ...

    def ask(self, text: str, choice: str = "auto") -> Reply: ...

    def give(self, call: Call, result: str) -> Reply: ...


class OpenAITools:
    """OpenAI's own library."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        from openai import OpenAI

        self._client = OpenAI(base_url=url, api_key=KEY)
        self._settings = {
            "model": model,
            "max_tokens": limit,
            "temperature": 0,
            "stream": stream,
            "tools": TOOLS,
        }
        self._messages: list[Any] = []

    def ask(self, text: str, choice: str = "auto") -> Reply:
        self._messages.append({"role": "user", "content": text})
        return self._send(choice)

    def give(self, call: Call, result: str) -> Reply:
        self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return self._send("auto")

    def _send(self, choice: str) -> Reply:
        completions: Any = self._client.chat.completions
        answer = completions.create(
            messages=self._messages, tool_choice=_choice(choice), **self._settings
        )
        message = joined(answer) if self._settings["stream"] else answer.choices[0].message
        self._messages.append(message)
        return _reply(message if isinstance(message, dict) else message.model_dump())


class LiteLLMTools:
    """LiteLLM's completion function."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        self._settings = {
            "model": f"openai/{model}",
            "api_base": url,
            "api_key": KEY,
            "max_tokens": limit,
            "temperature": 0,
            "stream": stream,
            "tools": TOOLS,
        }
        self._messages: list[Any] = []

    def ask(self, text: str, choice: str = "auto") -> Reply:
        self._messages.append({"role": "user", "content": text})
        return self._send(choice)

    def give(self, call: Call, result: str) -> Reply:
        self._messages.append(
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
        )
        return self._send("auto")

    def _send(self, choice: str) -> Reply:
        import litellm

        answer: Any = litellm.completion(
            messages=self._messages, tool_choice=_choice(choice), **self._settings
        )
        if self._settings["stream"]:
            answer = litellm.stream_chunk_builder(list(answer), messages=self._messages)
        message = answer.choices[0].message
        self._messages.append(message)
        return _reply(message.model_dump())


class LangChainTools:
    """LangChain's ChatOpenAI with tools bound to it."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        self._llm = chat_openai(url, model, limit)
        self._stream = stream
        self._messages: list[Any] = []

    def ask(self, text: str, choice: str = "auto") -> Reply:
        from langchain_core.messages import HumanMessage

        self._messages.append(HumanMessage(text))
        return self._send(choice)

    def give(self, call: Call, result: str) -> Reply:
        from langchain_core.messages import ToolMessage

        self._messages.append(ToolMessage(result, tool_call_id=call.id))
        return self._send("auto")

    def _send(self, choice: str) -> Reply:
        llm = self._llm.bind_tools(TOOLS, tool_choice=choice)
        if self._stream:
            first, *rest = llm.stream(self._messages)
            answer = sum(rest, first)
        else:
            answer = llm.invoke(self._messages)
        self._messages.append(answer)
        calls = [Call(call["id"], call["name"], call["args"]) for call in answer.tool_calls]
        return Reply(str(answer.content), calls)


def _choice(choice: str) -> Any:
    if choice in ("auto", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def joined(chunks: Any) -> dict[str, Any]:
    """The message a stream's chunks make up."""
    text, calls = "", {}
    for chunk in chunks:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for piece in delta.tool_calls or ():
            if piece.index not in calls:
                calls[piece.index] = piece.model_dump(exclude={"index"})
            else:
                calls[piece.index]["function"]["arguments"] += piece.function.arguments
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _reply(message: dict[str, Any]) -> Reply:
    calls = [
        Call(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return Reply(message.get("content") or "", calls)
