"""Benchmark sessions: a function of task, seed, layout and filler, the same for every arm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.filler import Filler
from bench.layout import Arrangement, Layout, arrange
from bench.plan import BenchPlan, SessionSet
from bench.tasks import GivenReplies, HiddenChecks, Probe, Spec, Task, number_steps, revealed
from engine.chat import ChatFormat
from engine.errors import ConfigError
from engine.types import Message

DEFINITION_TOKENS = 400
"""Most tokens of the model's answer to a definition step."""
_FINGERPRINTED_SEEDS = range(3)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of a session.

    Attributes:
        messages: what is new, the last one a user message.
        step: number of that message.
        max_tokens: of the answer.
        probe: what it asks for, if it is a probe.
        defines: it states the first definition, and the plan is sent with it.
        tokens: of the new messages; ``answer``: expected of the answer.
    """

    messages: tuple[Message, ...]
    step: int
    max_tokens: int
    probe: Probe | None = None
    defines: bool = False
    tokens: int = 0
    answer: int = 0

    @property
    def forked(self) -> bool:
        """The session goes on as if it had not been asked."""
        return self.probe is not None and self.probe.forked


@dataclass(frozen=True, slots=True)
class Session:
    """What is asked, in order. ``graph``: the true dependency graph, probe step → steps it reads;
    ``filler_steps``: the steps that are neither; ``checksum``: of all messages."""

    task: str
    layout: Layout
    tokens: int
    distance: int | None
    seed: int
    spec: Spec
    asks: tuple[Ask, ...]
    graph: Mapping[int, tuple[int, ...]]
    filler_steps: tuple[int, ...]
    checksum: str

    @property
    def label(self) -> str:
        """For people."""
        where = "single" if self.distance is None else f"distance {self.distance}"
        return f"{self.tokens} tokens, {where}, seed {self.seed}"


class SessionBuilder:
    """Builds the sessions of a plan; filler is cut once for all of them."""

    def __init__(self, plan: BenchPlan, task: Task, chat: ChatFormat, filler: Filler) -> None:
        self._plan = plan
        self._task = task
        self._chat = chat
        self._filler = filler

    def sessions(self, group: SessionSet, seed: int) -> list[Session]:
        """The sessions of one seed: one, or one per distance.

        Raises:
            ConfigError: too short a session, or too little filler (``FillerExhausted``), or a
                probe shows a sampled value.
        """
        spec = self._task.specification(seed)
        probes = self._task.probes(spec)
        for probe in probes:
            shown = revealed(probe, self._task.forbidden(spec))
            if shown:
                raise ConfigError(
                    f"task {self._task.name}, seed {seed}: probe {probe.name} shows the sampled "
                    f"value {shown[0]!r}"
                )
        return [
            self._build(group, seed, spec, probes, distance)
            for distance in (group.distances or (None,))
        ]

    def _build(
        self,
        group: SessionSet,
        seed: int,
        spec: Spec,
        probes: Sequence[Probe],
        distance: int | None,
    ) -> Session:
        config = self._plan.filler
        definitions = self._task.definitions(spec)
        given = self._task.replies(spec) if isinstance(self._task, GivenReplies) else None
        talk = self._tokens("system", self._task.system(spec))
        talk += sum(self._tokens("user", text) for text in definitions)
        if given is None:
            talk += len(definitions) * (DEFINITION_TOKENS // 2 + self._overhead)
        else:
            talk += sum(self._tokens("assistant", text) for text in given)
        for probe in probes:
            if not probe.forked:
                talk += self._tokens("user", probe.prompt) + probe.max_tokens // 2 + self._overhead
        plan = arrange(group.layout, group.tokens, distance, talk, len(probes), config.tokens)
        answer = max(1, config.answer_tokens // 2)
        code = plan.size - self._tokens("user", filler_text("")) - answer - self._overhead
        if code < 16:
            raise ConfigError(
                f"filler.tokens: {config.tokens} is too little: the words around the code alone "
                f"take {plan.size - code}"
            )
        chunks = iter(self._filler.take(seed, plan.chunks, code, self._task.topic))
        draft = _Draft(self._chat, self._task.system(spec))

        def paste(count: int) -> None:
            for _ in range(count):
                text = filler_text(next(chunks).text)
                draft.filler_steps.append(draft.ask(text, config.answer_tokens, answer))

        paste(plan.before)
        for index, text in enumerate(definitions):
            if given is None:
                draft.define(text, index == 0, DEFINITION_TOKENS)
            else:
                draft.state(text, given[index], index == 0)
        self._probe(draft, plan, probes, paste)
        return Session(
            task=self._task.name,
            layout=group.layout,
            tokens=group.tokens,
            distance=distance,
            seed=seed,
            spec=spec,
            asks=tuple(draft.asks),
            graph=draft.graph,
            filler_steps=tuple(draft.filler_steps),
            checksum=draft.checksum(),
        )

    @staticmethod
    def _probe(draft: _Draft, plan: Arrangement, probes: Sequence[Probe], paste: Any) -> None:
        for count, members in zip(plan.between, plan.groups, strict=True):
            paste(count)
            for index in members:
                draft.probe(probes[index])

    def _tokens(self, role: Any, text: str) -> int:
        before = None if role == "system" else "assistant" if role == "user" else "user"
        text = f"STEP 10: {text}" if role == "user" else text
        return len(self._chat.message_tokens(before, Message(role, text)))

    @property
    def _overhead(self) -> int:
        """Tokens around an answer."""
        return len(self._chat.answer_prompt("user")) + len(self._chat.closing)


class _Draft:
    """A session while its steps are numbered."""

    def __init__(self, chat: ChatFormat, system: str) -> None:
        self.asks: list[Ask] = []
        self.graph: dict[int, tuple[int, ...]] = {}
        self.filler_steps: list[int] = []
        self._chat = chat
        self._step = 0
        self._steps: list[int] = []  # of the definitions
        self._probes: dict[str, int] = {}
        self._defines = False
        self._pending = [Message("system", system)]
        self._said: list[tuple[str, str]] = []
        self._role: str | None = None
        self._forks = 0

    def ask(self, text: str, max_tokens: int, answer: int, probe: Probe | None = None) -> int:
        """Add a request and return its step. ``text`` has its steps named already."""
        step = self._next_step()
        self._pending.append(Message("user", f"STEP {step}: {text}"))
        role, tokens = self._role, 0
        for message in self._pending:
            tokens += len(self._chat.message_tokens(role, message))
            role = message.role
        messages, defines = tuple(self._pending), self._defines
        self.asks.append(Ask(messages, step, max_tokens, probe, defines, tokens, answer))
        self._said += [(message.role, message.content) for message in messages]
        self._pending, self._defines = [], False
        if probe is None or not probe.forked:
            self._role = "assistant"
        return step

    def define(self, text: str, first: bool, max_tokens: int) -> None:
        """A definition step that the model answers."""
        self._defines |= first
        self._steps.append(self._step + 1)
        self.ask(number_steps(text, self._steps), max_tokens, max_tokens // 2)

    def state(self, text: str, reply: str, first: bool) -> None:
        """A definition step with a given answer; it goes out with the next request."""
        self._defines |= first
        self._steps.append(self._next_step())
        text = f"STEP {self._step}: {number_steps(text, self._steps)}"
        self._pending += [Message("user", text), Message("assistant", reply)]

    def probe(self, probe: Probe) -> None:
        """A probe step, and its edges in the dependency graph."""
        text = number_steps(probe.prompt, self._steps)
        step = self.ask(text, probe.max_tokens, probe.max_tokens // 2, probe)
        reads = [self._steps[index] for index in probe.reads]
        reads += [self._probes[name] for name in probe.after]
        self.graph[step] = tuple(sorted(reads))
        self._probes[probe.name] = step

    def checksum(self) -> str:
        """SHA-256 of all roles and texts, in order."""
        return hashlib.sha256(json.dumps(self._said).encode()).hexdigest()

    def _next_step(self) -> int:
        self._step += 1
        return self._step


def filler_text(code: str) -> str:
    """A filler step without its number."""
    return (
        f"Part of a file of the project:\n```python\n{code}\n```\nWhich function does it define "
        "first? Answer with its name, on one line."
    )


def template_fingerprint(task: Task) -> str:
    """SHA-256 of all wording of a task's sessions and of its hidden checks: rendered for some
    seeds, without filler."""
    said: list[Any] = [filler_text("")]
    for seed in _FINGERPRINTED_SEEDS:
        spec = task.specification(seed)
        said += [seed, task.system(spec), list(task.definitions(spec))]
        if isinstance(task, GivenReplies):
            said.append(list(task.replies(spec)))
        if isinstance(task, HiddenChecks):
            said.append(task.scoring(spec))
        for probe in task.probes(spec):
            targets = [[target.opening, target.text] for target in probe.targets]
            said.append([probe.name, probe.prompt, probe.max_tokens, targets])
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def all_sessions(
    builder: SessionBuilder, plan: BenchPlan
) -> Iterator[tuple[SessionSet, int, list[Session]]]:
    """Per group of the plan and seed, its sessions."""
    for group in plan.sessions:
        for seed in plan.seeds:
            yield group, seed, builder.sessions(group, seed)
