"""A model that thinks first, behind clients that keep its thoughts, drop them, or write them again.

Some clients send the reasoning of earlier answers back, some do not: either way the answer is the
one the session holds, thoughts included, and only new messages are computed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.serve.test_clients import KINDS, MODEL
from tests.serve.test_tool_clients import KINDS as TOOL_KINDS
from tests.support.clients import ChatClient
from tests.support.local_server import LocalServer, drawing, local_server
from tests.support.tool_clients import ToolClient

pytestmark = pytest.mark.usefixtures("quiet")

CONTENT = "(message.content or '')"
REASONING = "message.reasoning_content"
THOUGHT = f"('<think>\\n' + {REASONING} + '\\n</think>\\n\\n' if {REASONING} else '')"
ANSWER = "<think>\nHm, hm.\n</think>\n\nYes.<|im_end|>"
CALL = '{"name": "forecast", "arguments": {"city": "Oslo", "days": 2}}'
CALLING = f"<think>\nOslo, they say.\n</think>\n\n<tool_call>\n{CALL}\n</tool_call><|im_end|>"


@pytest.fixture(scope="module")
def server(protocol_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The protocol model with a template that writes reasoning as Qwen's does."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(protocol_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = tokenizer.chat_template
    tokenizer.chat_template = template.replace(CONTENT, f"{THOUGHT} + {CONTENT}", 1)
    assert tokenizer.chat_template != template
    tokenizer.save_pretrained(folder)
    with local_server(folder) as made:
        yield made


def passed(server: LocalServer) -> list[str]:
    """The text that passed the embedding in each turn."""
    return [server.tokenizer.decode(item.passed) for item in server.exchanges.take()]


def behind(role: str, text: str, answer: str) -> str:
    """What a turn computes: the end token of the last answer, which had no KV, the new message,
    and the answer but for its own end token."""
    opened = f"<|im_end|>\n<|im_start|>{role}\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return opened + answer.removesuffix("<|im_end|>")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_thoughts(server: LocalServer, kind: type[ChatClient], stream: bool) -> None:
    client = kind(server.base_url, MODEL, 60, stream)
    server.exchanges.take()
    questions = [f"{kind.__name__} {stream}: {number}?" for number in range(3)]
    for question in questions:
        with drawing(server, ANSWER):
            assert client.say(question) == "Yes."
    _, *later = passed(server)
    assert later == [behind("user", question, ANSWER) for question in questions[1:]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", TOOL_KINDS, ids=lambda kind: kind.__name__)
def test_thoughts_before_a_call(server: LocalServer, kind: type[ToolClient], stream: bool) -> None:
    client = kind(server.base_url, MODEL, 200, stream)
    server.exchanges.take()
    with drawing(server, CALLING):
        (call,) = client.ask(f"{kind.__name__} {stream}: Oslo?").calls
    assert (call.name, call.arguments) == ("forecast", {"city": "Oslo", "days": 2})
    with drawing(server, ANSWER):
        assert client.give(call, "Rain.").text == "Yes."
    with drawing(server, ANSWER):
        assert client.ask("Sure?").text == "Yes."
    _, *later = passed(server)
    assert later == [behind("tool", "Rain.", ANSWER), behind("user", "Sure?", ANSWER)]
