"""Clients people use, each keeping a conversation the way its own documentation shows it.

None of them knows PACE: they get a URL, a model's name and a limit for the answer's length. They
are imported where they are used: some take seconds, and read the environment meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import yaml

SYSTEM = "You are terse."
KEY = "sk-none"


class ChatClient(Protocol):
    """A conversation. ``say`` sends a user message and returns the answer's text.

    Attributes:
        reused: prompt tokens of the last turn that came from a cache, as the client shows it;
            None when it shows none, since it did not ask the stream for it.
    """

    reused: int | None

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None: ...

    def say(self, text: str) -> str: ...


class OpenAIChat:
    """OpenAI's own library."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        from openai import OpenAI

        self._client = OpenAI(base_url=url, api_key=KEY)
        self._settings = {"model": model, "max_tokens": limit, "temperature": 0, "stream": stream}
        self._messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    def say(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        completions: Any = self._client.chat.completions
        answer = completions.create(messages=self._messages, **self._settings)
        self.reused = None
        if self._settings["stream"]:
            parts = [choice.delta.content or "" for chunk in answer for choice in chunk.choices]
            message: Any = {"role": "assistant", "content": "".join(parts)}
            self._messages.append(message)
            return str(message["content"])
        self.reused = answer.usage.prompt_tokens_details.cached_tokens
        self._messages.append(answer.choices[0].message)
        return str(answer.choices[0].message.content)


def chat_openai(url: str, model: str, limit: int) -> Any:
    """LangChain's greedy model."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=url,
        api_key=KEY,  # type: ignore[arg-type]
        model=model,
        max_tokens=limit,  # type: ignore[call-arg]
        temperature=0,
    )


class LangChainChat:
    """LangChain's ChatOpenAI."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        from langchain_core.messages import SystemMessage

        self._llm = chat_openai(url, model, limit)
        self._stream = stream
        self._messages: list[Any] = [SystemMessage(SYSTEM)]

    def say(self, text: str) -> str:
        from langchain_core.messages import HumanMessage

        self._messages.append(HumanMessage(text))
        if self._stream:
            first, *rest = self._llm.stream(self._messages)
            answer = sum(rest, first)
        else:
            answer = self._llm.invoke(self._messages)
        self._messages.append(answer)
        usage = answer.usage_metadata
        self.reused = None if usage is None else usage["input_token_details"]["cache_read"]
        return str(answer.content)


class LiteLLMChat:
    """LiteLLM's completion function."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        self._settings = {
            "model": f"openai/{model}",
            "api_base": url,
            "api_key": KEY,
            "max_tokens": limit,
            "temperature": 0,
            "stream": stream,
        }
        self._messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    def say(self, text: str) -> str:
        import litellm

        self._messages.append({"role": "user", "content": text})
        answer: Any = litellm.completion(messages=self._messages, **self._settings)
        if self._settings["stream"]:
            answer = litellm.stream_chunk_builder(list(answer), messages=self._messages)
        details = answer.usage.prompt_tokens_details
        self.reused = None if details is None else details.cached_tokens
        self._messages.append(answer.choices[0].message)
        return str(answer.choices[0].message.content)


class PydanticAIChat:
    """An agent of pydantic-ai, which keeps the history."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=url, api_key=KEY)
        self._agent: Any = Agent(
            OpenAIChatModel(model, provider=provider),
            system_prompt=SYSTEM,
            model_settings={"max_tokens": limit, "temperature": 0},
        )
        self._stream = stream
        self._history: list[Any] = []

    def say(self, text: str) -> str:
        if self._stream:
            with self._agent.run_stream_sync(text, message_history=self._history) as result:
                output = result.get_output()
                self._history = result.all_messages()
        else:
            result = self._agent.run_sync(text, message_history=self._history)
            output, self._history = result.output, result.all_messages()
        self.reused = self._history[-1].usage.cache_read_tokens
        return str(output)


class LLMChat:
    """The Python side of the command ``llm``; its folder is ``$LLM_USER_PATH``."""

    def __init__(self, url: str, model: str, limit: int, stream: bool) -> None:
        import llm

        write_llm_models(Path(os.environ["LLM_USER_PATH"]), url, model)
        self._talk = llm.get_model(model).conversation()
        self._settings: dict[str, Any] = {"max_tokens": limit, "temperature": 0, "stream": stream}
        self._system: str | None = SYSTEM

    def say(self, text: str) -> str:
        answer = self._talk.prompt(text, system=self._system, **self._settings)
        self._system = None
        text = str(answer.text())
        details = answer.usage().details or {}  # without the zeros
        self.reused = details.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return text


def write_llm_models(folder: Path, url: str, model: str) -> None:
    """Tell ``llm`` of a server, as its documentation says."""
    entry = {"model_id": model, "model_name": model, "api_base": url}
    (folder / "extra-openai-models.yaml").write_text(yaml.safe_dump([entry]))
