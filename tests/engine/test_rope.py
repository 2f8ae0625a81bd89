"""DESIGN §3.2: a renumbered key is the key a fresh write would cache, bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from engine.alone import drive, new_state
from engine.config import RopeConfig
from engine.errors import ConfigError
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.rope import _LARGEST_TABLE, RotaryTable, build_rotary, rotate
from engine.row import KVShape, Row
from engine.state import SessionState
from tests.engine.support import begin, resolved, runner_for, tiny_llama
from tests.reference.retention import Rules

LIMIT = 128
CONFIG = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, rope_theta=10_000.0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def new_row(dtype: torch.dtype, capacity: int, dim: int = 32) -> Row:
    shape = KVShape(2, 2, dim, dtype, torch.device("cpu"))
    row = Row(shape, capacity)
    row.rotated = shape.array(capacity)
    return row


def new_table(dtype: torch.dtype, limit: int = LIMIT) -> RotaryTable:
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    return RotaryTable(LlamaRotaryEmbedding(CONFIG), limit, torch.device("cpu"), computing)


def stock_rotation(raw: Tensor, positions: Tensor) -> Tensor:
    """``raw`` ``[H, T, D]`` rotated by transformers' own code."""
    cos, sin = LlamaRotaryEmbedding(CONFIG)(raw, position_ids=positions[None])
    _, rotated = apply_rotary_pos_emb(raw[None], raw[None], cos, sin)
    return rotated[0]


def churn(row: Row, table: RotaryTable, rounds: int, seed: int) -> dict[int, Tensor]:
    """Append tokens, evict at random, renumber, ``rounds`` times. Returns raw keys as drawn,
    ``[L, H, D]`` by logical position. Token 0 survives all of it."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    drawn: dict[int, Tensor] = {}
    logical, shift = 0, 0
    for _ in range(rounds):
        for _ in range(draw.randint(1, row.capacity - row.length)):
            size = (2, 2, row.shape.head_dim)
            raw = torch.randn(size, generator=generator, dtype=torch.float64).to(row.shape.dtype)
            slot, physical = row.length, logical - shift
            cos, sin = table.lookup(physical, 1)
            row.raw[:, :, slot], row.value[:, :, slot] = raw, 0
            row.require_rotated()[:, :, slot] = rotate(raw[:, :, None], cos, sin)[:, :, 0]
            row.append(None, logical, physical, torch.ones(2, 1, dtype=row.shape.score_dtype))
            drawn[logical] = raw
            logical += 1
        n = row.length
        keep = sorted({0, *draw.sample(range(n), draw.randint(1, n))})
        index = torch.tensor([keep, keep])
        arrays = (row.logical[:, :n], row.physical[:, :n], row.score[:, :n])
        row.keep(index, None, *(array.clone() for array in arrays))
        row.renumber(table)
        shift = logical - row.length
    return drawn


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_after_60_renumbers_equal_fresh_ones_bit_for_bit(dtype: torch.dtype) -> None:
    row, table = new_row(dtype, capacity=40), new_table(dtype)
    drawn = churn(row, table, rounds=60, seed=1)
    assert len(drawn) > 300 and row.length > 1
    for layer in range(2):
        for slot, logical in enumerate(row.logical[layer, : row.length].tolist()):
            position = int(row.physical[layer, slot])
            assert position == slot
            raw = drawn[logical][layer]
            assert torch.equal(row.raw[layer, :, slot], raw)
            fresh = rotate(raw[:, None], *table.lookup(position, 1))[:, 0]
            assert torch.equal(row.require_rotated()[layer, :, slot], fresh)
    assert int(row.logical[0, 0]) == 0  # the key that was renumbered 60 times


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_after_60_renumbers_equal_transformers_own_rotation(dtype: torch.dtype) -> None:
    row = new_row(dtype, capacity=40)
    drawn = churn(row, new_table(dtype), rounds=60, seed=2)
    for layer in range(2):
        logical = row.logical[layer, : row.length].tolist()
        raw = torch.stack([drawn[m][layer] for m in logical], dim=1)
        expected = stock_rotation(raw, row.physical[layer, : row.length])
        assert torch.equal(row.require_rotated()[layer, :, : row.length], expected)


class RawKeys:
    """A block hook that remembers each token's raw key as the forward made it."""

    def __init__(self) -> None:
        self.by_token: dict[int, Tensor] = {}

    def after_chunk(self, state: SessionState, first: int, raw: Tensor, value: Tensor) -> None:
        for at in range(raw.shape[2]):
            self.by_token[first + at] = raw[:, :, at].clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_engines_row_survives_60_renumbers_without_a_lost_bit(dtype: torch.dtype) -> None:
    runner = runner_for(tiny_llama(initializer_range=0.1).to(dtype))
    policy = resolved(Rules("h2o", 24, 2, 4, 4, 8, 36))
    pool, first, record = KVPool(runner.shape, 1 << 30, 8), RawKeys(), TurnRecord()
    writer, state = Writer(blocks=first), new_state(runner, policy, pool)
    draw = random.Random(3)
    while record.renumbers < 60:
        begin(state, [draw.randrange(256) for _ in range(draw.choice((1, 3, 8)))])
        drive(writer.write(state, state.tokens[state.written :], record), runner, pool)
    row = state.active_row()
    row.check_integrity(state.table)
    assert row.logical[:, 0].eq(0).all(), "a sink was there from the first renumber to the last"
    for layer in range(runner.shape.layers):
        for slot, logical in enumerate(row.logical[layer, : row.length].tolist()):
            raw = first.by_token[logical][layer]
            assert torch.equal(row.raw[layer, :, slot], raw)
            cos, sin = state.table.lookup(int(row.physical[layer, slot]), 1)
            fresh = rotate(raw[:, None], cos, sin)[:, 0]
            assert torch.equal(row.require_rotated()[layer, :, slot], fresh)


def test_a_restored_row_has_the_same_rotated_keys() -> None:
    row, table = new_row(torch.bfloat16, capacity=40), new_table(torch.bfloat16)
    churn(row, table, rounds=5, seed=4)
    before = row.require_rotated()[:, :, : row.length].clone()
    row.rotated = row.shape.array(row.capacity).fill_(7)
    row.restore_rotated(table)
    assert torch.equal(row.rotated[:, :, : row.length], before)


def test_dimensions_beyond_the_rotated_ones_pass_through() -> None:
    table = new_table(torch.float32)
    x = torch.randn(2, 5, 48)
    rotated = rotate(x, *table.lookup(3, 5))
    assert torch.equal(rotated[..., 32:], x[..., 32:])
    assert torch.equal(rotated[..., :32], stock_rotation(x[..., :32], torch.arange(3, 8)))


def test_a_position_has_the_same_entry_however_the_table_grew() -> None:
    grown, at_once = new_table(torch.float32, 20_000), new_table(torch.float32, 20_000)
    early = [part.clone() for part in grown.lookup(4000, 96)]
    for count in (4097, 8193, 12_000, 20_000):
        grown.lookup(0, count)
    for before, after, other in zip(
        early, grown.lookup(4000, 96), at_once.lookup(4000, 96), strict=True
    ):
        assert torch.equal(before, after) and torch.equal(after, other)
    cos, sin = LlamaRotaryEmbedding(CONFIG)(torch.zeros(1), position_ids=torch.arange(20_000)[None])
    assert torch.equal(grown.lookup(0, 20_000)[0], cos[0])
    assert torch.equal(grown.lookup(0, 20_000)[1], sin[0])


@pytest.mark.parametrize(("start", "count"), [(LIMIT, 1), (LIMIT - 1, 2), (0, LIMIT + 1)])
def test_no_position_beyond_the_limit_can_be_looked_up(start: int, count: int) -> None:
    table = new_table(torch.float32)
    assert table.lookup(LIMIT - 1, 1)[0].shape == (1, 32)
    with pytest.raises(IndexError, match=f"not below the limit {LIMIT}"):
        table.lookup(start, count)
    with pytest.raises(IndexError, match=f"not below the limit {LIMIT}"):
        table.gather(torch.tensor([0]), start + count - 1)


@pytest.mark.parametrize("count", [1, 2, 7, 512])
def test_far_positions_are_computed_with_the_same_bits(count: int) -> None:
    """Beyond the table nothing is stored, and a position's values do not depend on its company."""
    table, size = new_table(torch.float32, limit=100_000), _LARGEST_TABLE
    positions = torch.arange(90_000)
    cos, sin = LlamaRotaryEmbedding(CONFIG)(torch.empty(0), position_ids=positions[None])
    for start in (size - count, size - 1, size, size + 13, 90_000 - count):
        for found in (
            table.lookup(start, count),
            table.gather(positions[start : start + count], start + count - 1),
        ):
            assert torch.equal(found[0], cos[0, start : start + count])
            assert torch.equal(found[1], sin[0, start : start + count])
    assert table.stored_positions <= size


def test_yarn_of_a_scaled_model_is_refused() -> None:
    model = tiny_llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(ConfigError, match="already linear") as caught:
        build_rotary(model.model.rotary_emb, model.config, RopeConfig(type="yarn", factor=2.0))
    assert caught.value.param == "rope.type"


def test_integrity_check_sees_what_it_is_there_for() -> None:
    table = new_table(torch.float32)

    def broken(array: str, slot: int, value: float | int) -> Row:
        row = new_row(torch.float32, capacity=40)
        churn(row, table, rounds=3, seed=5)
        row.check_integrity(table)
        target = getattr(row, array)
        target[(0, 0, slot) if target.dim() == 4 else (1, slot)] += value
        return row

    for row, message in [
        (broken("rotated", 1, 1e-3), "not rotate"),
        (broken("raw", 1, 1e-3), "not rotate"),
        (broken("logical", 0, 10**6), "logical order"),
        (broken("physical", 0, 50), "physical order"),
        (broken("score", 0, float("nan")), "not finite"),
    ]:
        with pytest.raises(AssertionError, match=message):
            row.check_integrity(table)
    row = new_row(torch.float32, capacity=40)
    churn(row, table, rounds=3, seed=5)
    row.physical[0, row.length - 1] = LIMIT
    with pytest.raises(AssertionError, match="reaches the limit"):
        row.check_integrity(table)
