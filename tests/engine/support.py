"""Tiny models, engines on them, and what tests look at while an engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine.config import CachePolicy, EngineConfig, ModelProfile, PolicyConfig, RopeConfig
from engine.engine import KVEngine
from engine.flow import Writer
from engine.integrity import check_integrity
from engine.pool import KVPool
from engine.row import Row
from engine.runner import ModelRunner, Work, Written
from engine.state import SessionState
from engine.types import (
    Message,
    Sampling,
    TextDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnRequest,
)
from tests.reference.retention import Rules
from tests.support.protocol_model import byte_tokenizer

RANGE = 2048
GREEDY = Sampling(max_tokens=8, temperature=0.0)


class ExactNorm(LlamaRMSNorm):
    """Llama's norm without its detour through float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        mean = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(mean + self.variance_epsilon)


def tiny_llama(seed: int = 0, layers: int = 3, **changes: Any) -> LlamaForCausalLM:
    """A random float64 Llama on byte tokens, exact to the last bits of float64."""
    settings: dict[str, Any] = {
        "vocab_size": 261,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": RANGE,
        # large weights: logits far apart, attention far from uniform
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "pad_token_id": 256,
    } | changes
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**settings)).double().eval().requires_grad_(False)
    torch.set_rng_state(state)
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.__class__ = ExactNorm
    return model


def runner_for(model: nn.Module) -> ModelRunner:
    """Hand ``model`` over to the engine."""
    return ModelRunner.verified(model, torch.device("cpu"))


def policy_config(rules: Rules, name: str = "test", rope: RopeConfig | None = None) -> PolicyConfig:
    """The engine's preset for the reference's rules."""
    return PolicyConfig(
        name=name,
        retention=rules.retention,
        foresight=rules.foresight,  # type: ignore[arg-type]
        renumber=rules.renumber,  # type: ignore[arg-type]
        budget=rules.budget,
        sinks=rules.sinks,
        recent=rules.recent,
        interval=rules.interval,
        chunk=rules.chunk,
        position_limit=rules.limit,
        rope=rope or RopeConfig(),
    )


def resolved(rules: Rules, rope: RopeConfig | None = None, model_range: int = RANGE) -> CachePolicy:
    """The engine's policy for the reference's rules."""
    return policy_config(rules, rope=rope).resolve(ModelProfile(), model_range)


def build_engine(
    runner: ModelRunner,
    policies: dict[str, PolicyConfig],
    writer: Writer | None = None,
    **settings: Any,
) -> KVEngine:
    """An engine on byte tokens whose default policy is the first one given."""
    settings = {"pool_bytes": 1 << 28, "default_policy": next(iter(policies))} | settings
    config = EngineConfig(model="tiny", **settings)
    return KVEngine(runner, byte_tokenizer(), config, ModelProfile(), policies, writer)


def request(
    session_id: str,
    *messages: tuple[str, str] | str,
    **settings: Any,
) -> TurnRequest:
    """A greedy turn. A plain string is a user message."""
    canonical = tuple(
        Message("user", m) if isinstance(m, str) else Message(m[0], m[1])  # type: ignore[arg-type]
        for m in messages
    )
    return TurnRequest(session_id, canonical, **({"sampling": GREEDY} | settings))


@dataclass(frozen=True)
class Outcome:
    """A finished turn as a client sees it."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    done: TurnDone


def outcome(events: list[TurnEvent]) -> Outcome:
    """Put the deltas of a turn together."""
    deltas = [event for event in events if isinstance(event, TextDelta)]
    (done,) = (event for event in events if isinstance(event, TurnDone))
    return Outcome(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        logprobs=tuple(entry.logprob for delta in deltas for entry in delta.logprobs),
        done=done,
    )


def run_together(engine: KVEngine, requests: list[TurnRequest]) -> dict[str, Outcome]:
    """Run turns of different sessions at once; outcomes by session id."""
    queue: SimpleQueue[tuple[str, TurnEvent]] = SimpleQueue()
    events: dict[str, list[TurnEvent]] = {item.session_id: [] for item in requests}

    def tell(name: str) -> Callable[[TurnEvent], None]:
        return lambda event: queue.put((name, event))

    for item in requests:
        engine.submit(item, tell(item.session_id))
    running = set(events)
    while running:
        name, event = queue.get(timeout=60)
        assert not isinstance(event, TurnFailed), event.error
        events[name].append(event)
        if isinstance(event, TurnDone):
            running.remove(name)
    return {name: outcome(list_) for name, list_ in events.items()}


def state_of(engine: KVEngine, session_id: str, namespace: str = "") -> SessionState:
    """The committed state of an idle session."""
    return engine.store.table.get(namespace, session_id).state


def kept(row: Row | None, name: str = "logical") -> list[list[Any]]:
    """A row's index array (logical, physical, score) per layer."""
    assert row is not None
    values: list[list[Any]] = getattr(row, name)[:, : row.length].tolist()
    return values


@dataclass
class Recorder:
    """Wraps ``runner.forward``: asks for all logits, keeps them by row, checks every row's
    integrity before each forward."""

    runner: ModelRunner
    logits: list[tuple[Row, Tensor]] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    before: Callable[[list[Work]], None] | None = None

    def __post_init__(self) -> None:
        self._forward = self.runner.forward
        self.runner.forward = self.forward  # type: ignore[method-assign]

    def forward(self, works: list[Work], pool: KVPool) -> list[Written]:
        for work in works:
            work.row.check_integrity(work.table)
        if self.before is not None:
            self.before(works)
        results = self._forward([replace(work, logits="all") for work in works], pool)
        self.batches.append([len(work.tokens) for work in works])
        self.works.extend(works)
        for work, written in zip(works, results, strict=True):
            self.logits.append((work.row, written.logits.clone()))
        return results

    def stop(self) -> None:
        self.runner.forward = self._forward  # type: ignore[method-assign]

    def take(self, row: Row | None = None) -> Tensor:
        """Logits ``[n, V]`` in the order written, of one row or of all; forgets them."""
        taken = [part for of, part in self.logits if row is None or of is row]
        self.logits = [item for item in self.logits if row is not None and item[0] is not row]
        return torch.cat(taken)


def begin(state: SessionState, tokens: list[int], step: int = 1) -> None:
    """Append a user message that consists of ``tokens``."""
    state.add_message(Message("user", ""), tokens, step)


def states(engine: KVEngine) -> Iterator[SessionState]:
    """Every committed state of every session."""
    for session in engine.store.table:
        yield session.state
        if session.previous is not None:
            yield session.previous


def check_engine(engine: KVEngine) -> None:
    """After all turns: nobody holds a session, every state is whole, no memory is unaccounted."""
    pool = engine.store.pool
    with engine.store.lock:
        assert all(session.task is None for session in engine.store.table)
        held = 0
        for state in states(engine):
            if state.row is not None:
                held += pool.row_bytes(state.row.capacity)
                assert state.row.rotated is None
            check_integrity(state)
        assert held + free_bytes(pool) == pool.bytes_allocated


def free_bytes(pool: KVPool) -> int:
    """Bytes of the rows and buffers that wait for reuse."""
    rows = sum(len(rows) * pool.row_bytes(size) for size, rows in pool._rows.items())
    return rows + sum(len(b) * pool.buffer_bytes(size) for size, b in pool._buffers.items())
