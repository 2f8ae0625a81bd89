"""Millions of tokens through the writer, without a model: sizes, order and memory hold."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.alone import drive
from engine.flow import TurnRecord, Writer
from engine.integrity import check_integrity
from engine.ledger import Ledger, Notes
from engine.plan import Plan
from engine.pool import KVPool
from engine.rope import RotaryTable, rotate
from engine.row import KVShape
from engine.runner import Work, Written
from engine.state import SessionState
from tests.engine.support import begin, kept, resolved
from tests.reference.retention import Rules
from tests.support.scale import scaled

TURN, DECODED, LEDGER_EVENTS = 10_000, 130, 20
RULES = Rules("plan_aware", budget=2048, sinks=4, recent=128, interval=64, chunk=4096, limit=8192)
SHAPE = KVShape(2, 1, 8, torch.float32, torch.device("cpu"))
CONFIG = LlamaConfig(hidden_size=8, num_attention_heads=1, head_dim=8)
# read by the last step of all, and never planned
FACT, READER = 300, 10**9


class Noise:
    """In the place of a model: random keys, and random attention."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.highest = 0

    def forward(self, works: list[Work], pool: KVPool) -> list[Written]:
        (work,) = works
        row, count = work.row, len(work.tokens)
        self.highest = max(self.highest, work.first + count - 1)
        raw = torch.randn((2, 1, count, 8), generator=self.generator)
        rotated = rotate(raw, *work.table.lookup(work.first, count))
        scores = torch.rand((2, row.length + count), generator=self.generator)
        staged = None if work.decode else pool.stage(0, count)
        if staged is None:
            slot = slice(row.length, row.length + 1)
            row.raw[:, :, slot], row.require_rotated()[:, :, slot] = raw, rotated
            row.value[:, :, slot] = raw
        else:
            staged.raw[:], staged.rotated[:], staged.value[:] = raw, rotated, raw
        return [Written(torch.zeros(1, 2), scores, staged)]


def resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.timeout(0)  # as long as PACE_SCALE asks for
def test_millions_of_tokens() -> None:
    """5 million at ``PACE_SCALE=1``: 10,000 a turn, most in chunks, some one by one. No position
    reaches the limit, the order holds, what is planned is there to the last, and memory is that of
    the token ids."""
    noise: Any = Noise()
    pool = KVPool(SHAPE, 1 << 30, RULES.chunk)
    policy = resolved(RULES, model_range=8192)
    row = pool.acquire(policy.capacity)
    row.rotated = pool.acquire_buffer(policy.capacity)
    rotary = LlamaRotaryEmbedding(CONFIG)
    table = RotaryTable(rotary, RULES.limit or 0, SHAPE.device, torch.float32)
    state = SessionState(policy, table, row, plan=Plan({1: (READER,)}))
    writer, ledger, allocated = Writer(), Ledger(LEDGER_EVENTS), pool.bytes_allocated
    turns = scaled(10)  # 5,000,000 tokens at PACE_SCALE=1
    memory, used = [], []
    for turn in range(1, turns + 1):
        begin(state, [turn % 7] * (FACT if turn == 1 else TURN - DECODED), turn)
        record = TurnRecord(Notes(LEDGER_EVENTS))
        drive(writer.write_prompt(state, record), noise, pool)
        begin(state, [3] * DECODED, turn)
        for at in range(state.written, len(state.tokens)):
            drive(writer.write(state, [state.tokens[at]], record), noise, pool)
        state.commit()
        ledger.extend(record.events)
        check_integrity(state)
        memory.append(resident_bytes())
        used.append(len(state.tokens))
    assert state.written == len(state.tokens) > 0.99 * (turns - 1) * TURN
    assert state.evicted > 0.99 * state.written - 10_000
    assert noise.highest < 8192 and table.stored_positions <= 8192
    assert all(layer[:FACT] == list(range(FACT)) for layer in kept(row))
    assert pool.bytes_allocated == allocated
    events = ledger.since(0)
    assert len(events) == LEDGER_EVENTS and events[-1].seq > 3 * turns
    early = len(memory) // 5
    grown, tokens = memory[-1] - memory[early], used[-1] - used[early]
    assert grown < 5 * tokens + 16 * 2**20, f"{grown} bytes for {tokens} tokens"
