"""Engines that are checked and closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine.config import PolicyConfig
from engine.engine import KVEngine
from engine.integrity import state_problems
from engine.runner import ModelRunner
from engine.scheduler import Scheduler
from engine.store import SessionStore
from tests.engine.counting import CountingRunner, counting_scheduler
from tests.engine.support import build_engine, check_engine, runner_for, states, tiny_llama
from tests.engine.tool_support import END, Script
from tests.support.protocol_model import byte_tokenizer

MakeEngine = Callable[..., KVEngine]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)  # faster on models this small


@pytest.fixture(autouse=True)
def integrity(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every session is whole: whenever a turn commits, its rotated keys included (an idle row has
    none), and, for engines made in the test, once more at the end. What was found broken."""
    problems: list[str] = []
    engines: list[KVEngine] = []
    commit, create = SessionStore.commit, KVEngine.__init__

    def checked(self: SessionStore, *args: Any) -> None:
        assert args[-1].active_row().rotated is not None
        problems.extend(state_problems(args[-1]))
        commit(self, *args)

    def noted(self: KVEngine, *args: Any, **settings: Any) -> None:
        create(self, *args, **settings)
        engines.append(self)

    monkeypatch.setattr(SessionStore, "commit", checked)
    monkeypatch.setattr(KVEngine, "__init__", noted)
    yield problems
    for engine in engines:
        with engine.store.lock:
            for state in states(engine):
                problems += state_problems(state)
    assert not problems


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """``make_engine(runner, policies, **settings)``; all are checked and closed at the end."""
    made: list[KVEngine] = []

    def make(runner: ModelRunner, policies: dict[str, PolicyConfig], **settings: Any) -> KVEngine:
        made.append(build_engine(runner, policies, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        check_engine(engine)


@pytest.fixture(scope="module")
def tiny() -> ModelRunner:
    """A runner of the tiny float64 Llama."""
    return runner_for(tiny_llama())


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """``script(text)``: the model will "sample" this text and its end token."""
    planned: list[int] = []
    monkeypatch.setattr("engine.answering.draw", lambda *_: planned.pop(0))
    tokenizer = byte_tokenizer()
    yield lambda text: planned.extend(
        [*tokenizer(text, add_special_tokens=False)["input_ids"], END]
    )
    assert not planned, "the engine drew fewer tokens than the test planned"


@pytest.fixture
def runner() -> CountingRunner:
    """What ``scheduler`` runs on; a module with a runner of its own overrides it."""
    return CountingRunner()


@pytest.fixture
def scheduler(runner: CountingRunner) -> Iterator[Scheduler]:
    """A step thread on a runner that only counts."""
    made = counting_scheduler(runner)
    yield made
    made.close()
