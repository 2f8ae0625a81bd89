"""``SessionState``: everything a session is, as one value that forks, commits and exports.

A running turn works on a fork; commit makes the fork the session's state, a failed or
cancelled turn drops it (DESIGN §3.8).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config import CachePolicy
from engine.log import ForkableLog, token_log
from engine.plan import Interval, MessageSpan, Plan, StepStart, needed_now, protected
from engine.rope import RotaryTable
from engine.row import Row
from engine.sampling import CounterRng
from engine.transcript import EMPTY_DIGEST, extend_digest, head_digest, reasoning_digest
from engine.types import Message

OPEN_END = 1 << 39
"""End of the message that is still being written."""

_ROW_ARRAYS = ("raw", "value", "logical", "physical", "score")


@dataclass(slots=True)
class SessionState:
    """One version of a session.

    ``tokens``: the whole session, tokens still without KV included; the first ``written``
    have (or had) KV, the rest open the next chunk. A token written next gets the physical
    position ``written − shift``. ``row`` is None while nothing was ever written. ``tools``
    (``ToolUse.definitions``) never change; ``head`` is their digest.
    """

    policy: CachePolicy
    table: RotaryTable
    row: Row | None = None
    tokens: ForkableLog[int] = field(default_factory=token_log)
    messages: ForkableLog[MessageSpan] = field(default_factory=ForkableLog)
    steps: ForkableLog[StepStart] = field(default_factory=ForkableLog)
    plan: Plan = field(default_factory=Plan)
    rng: CounterRng = field(default_factory=lambda: CounterRng(0))
    digest: bytes = EMPTY_DIGEST
    tools: str | None = None
    head: bytes = EMPTY_DIGEST
    written: int = 0
    shift: int = 0
    renumbers: int = 0
    evicted: int = 0

    def show_tools(self, tools: str) -> None:
        """Give an empty state its tools."""
        self.tools = tools
        self.head = self.digest = head_digest(tools)

    @property
    def step(self) -> int:
        """Step of the newest message; 0 before the first user message."""
        return self.steps[-1].step if len(self.steps) else 0

    @property
    def resident(self) -> int:
        """Tokens resident in each layer."""
        return 0 if self.row is None else self.row.length

    @property
    def room(self) -> int:
        """Tokens that can still be written before the session reaches a hard limit."""
        limits = [1 << 62]
        if self.policy.position_limit is None:
            limits.append(self.policy.position_range - (self.written - self.shift))
        if self.policy.retention == "none":
            limits.append(self.policy.capacity - self.resident)
        return min(limits)

    def active_row(self) -> Row:
        """The row of a running turn."""
        if self.row is None:
            raise RuntimeError("the state holds no row")
        return self.row

    def fork(self, row: Row) -> SessionState:
        """A copy that writes into ``row`` (empty; ``fill_row`` copies the KV when the turn
        starts). O(1) apart from the KV."""
        return replace(
            self,
            row=row,
            tokens=self.tokens.fork(),
            messages=self.messages.fork(),
            steps=self.steps.fork(),
            rng=CounterRng(self.rng.seed, self.rng.draws),
        )

    def copy(self, row: Row | None) -> SessionState:
        """An independent copy whose KV lives in ``row`` (of the same capacity, empty); both may
        commit. O(session)."""
        if self.row is not None and row is not None:
            row.copy_from(self.row)
        return replace(
            self,
            row=row,
            tokens=token_log(self.tokens[:]),
            messages=ForkableLog(self.messages[:]),
            steps=ForkableLog(self.steps[:]),
            rng=CounterRng(self.rng.seed, self.rng.draws),
        )

    def fill_row(self, origin: SessionState) -> None:
        """Copy the KV of ``origin`` and derive the rotated keys."""
        row = self.active_row()
        row.length = 0
        if origin.row is not None:
            row.copy_from(origin.row)
        row.restore_rotated(self.table)

    def commit(self) -> None:
        """Make the logs' new items part of the session."""
        for log in (self.tokens, self.messages, self.steps):
            log.commit()
        self.plan = self.plan.pruned(self.step)

    def add_message(self, message: Message, tokens: list[int], step: int) -> None:
        """Append a complete message of ``step``, its tokens still without KV."""
        start = len(self.tokens)
        self.tokens.extend(tokens)
        self._start_step(step)
        self.digest = extend_digest(self.digest, message)
        span = MessageSpan(start, len(self.tokens), message.role, step, self.digest)
        self.messages.append(replace(span, reasoning=_reasoning(message)))

    def open_answer(self, prompt: list[int]) -> None:
        """Append the generation prompt; the answer grows behind it until ``close_answer``."""
        start = len(self.tokens)
        self.tokens.extend(prompt)
        self.messages.append(MessageSpan(start, OPEN_END, "assistant", self.step, self.digest))

    def close_answer(self, answer: Message, closing: list[int]) -> None:
        """End the answer as the client was given it; ``closing`` tokens follow the sampled ones."""
        self.tokens.extend(closing)
        self.digest = extend_digest(self.digest, answer)
        span = self.messages[-1]
        self.messages.replace_last(
            replace(span, end=len(self.tokens), digest=self.digest, reasoning=_reasoning(answer))
        )

    def step_at(self, position: int) -> int:
        """Step of the message that holds the token at logical ``position``."""
        at = bisect_right(self.messages, position, key=lambda span: span.start) - 1
        return self.messages[at].step

    def protected(self, step: int) -> list[Interval]:
        """Token intervals some step ≥ ``step`` reads."""
        return protected(self.plan, self.steps, self.messages, step)

    def needed(self, step: int) -> list[Interval]:
        """Earlier token intervals that ``step`` reads."""
        return needed_now(self.plan, self.steps, self.messages, step)

    def _start_step(self, step: int) -> None:
        if not len(self.steps) or self.steps[-1].step != step:
            self.steps.append(StepStart(step, len(self.messages)))

    def export(self) -> dict[str, Any]:
        """Everything but policy and rotary table, as plain data and CPU tensors.

        ``load`` gives back a state that continues bit for bit.
        """
        row = None
        if self.row is not None:
            n = self.row.length
            row = {
                name: getattr(self.row, name)[..., :n, :].cpu().clone()
                if name in ("raw", "value")
                else getattr(self.row, name)[:, :n].cpu().clone()
                for name in _ROW_ARRAYS
            }
        return {
            "policy": self.policy.model_dump(),
            "row": row,
            "tokens": list(self.tokens),
            "messages": list(self.messages),
            "steps": list(self.steps),
            "plan": self.plan,
            "rng": (self.rng.seed, self.rng.draws),
            "digest": self.digest,
            "tools": self.tools,
            "head": self.head,
            "written": self.written,
            "shift": self.shift,
            "renumbers": self.renumbers,
            "evicted": self.evicted,
        }

    @classmethod
    def load(cls, data: dict[str, Any], table: RotaryTable, row: Row | None) -> SessionState:
        """Rebuild an exported state.

        Args:
            data: from ``export``.
            table: the rotary table of its policy.
            row: an empty row of the policy's capacity; None when nothing was written.
        """
        arrays = data["row"]
        if arrays is not None:
            if row is None:
                raise ValueError("the exported state holds KV: give it a row")
            row.length = arrays["logical"].shape[1]
            for name, saved in arrays.items():
                target = getattr(row, name)
                slots = (
                    target[:, :, : row.length]
                    if name in ("raw", "value")
                    else target[:, : row.length]
                )
                slots.copy_(saved)
        return cls(
            policy=CachePolicy(**data["policy"]),
            table=table,
            row=row if arrays is not None else None,
            tokens=token_log(data["tokens"]),
            messages=ForkableLog(data["messages"]),
            steps=ForkableLog(data["steps"]),
            plan=data["plan"],
            rng=CounterRng(*data["rng"]),
            digest=data["digest"],
            tools=data["tools"],
            head=data["head"],
            written=data["written"],
            shift=data["shift"],
            renumbers=data["renumbers"],
            evicted=data["evicted"],
        )


def _reasoning(message: Message) -> bytes:
    return reasoning_digest(message.reasoning) if message.reasoning else b""
