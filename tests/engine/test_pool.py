"""Rows and buffers: reused, counted, never beyond the limit."""

from __future__ import annotations

import random

import pytest
import torch

from engine.errors import CapacityExceeded
from engine.pool import KVPool
from engine.row import KVShape, Row
from tests.engine.support import free_bytes

SHAPE = KVShape(2, 3, 8, torch.float32, torch.device("cpu"))
# per slot: raw key and value of every layer and head; logical, physical (int64) and score
ROW_SLOT = 2 * 2 * 3 * 8 * 4 + 2 * (8 + 8 + 4)
BUFFER_SLOT = 2 * 3 * 8 * 4


def row_size(row: Row) -> int:
    arrays = (row.raw, row.value, row.logical, row.physical, row.score)
    return sum(array.numel() * array.element_size() for array in arrays)


def test_sizes_are_those_of_the_tensors() -> None:
    pool = KVPool(SHAPE, 1 << 20, staging_slots=5)
    row = pool.acquire(10)
    assert pool.row_bytes(10) == 10 * ROW_SLOT == row_size(row)
    buffer = pool.acquire_buffer(10)
    assert pool.buffer_bytes(10) == 10 * BUFFER_SLOT == buffer.numel() * 4
    assert pool.bytes_allocated == 10 * (ROW_SLOT + BUFFER_SLOT)
    assert SHAPE.token_bytes == 2 * BUFFER_SLOT
    staged = pool.stage(1, 4)
    assert staged.raw.shape == (2, 3, 4, 8) and pool.staging_slots == 5


def test_any_use_is_counted_and_stays_within_the_limit() -> None:
    draw, limit = random.Random(1), 60 * ROW_SLOT
    pool, rows = KVPool(SHAPE, limit, 4), []
    refused = 0
    for _ in range(2000):
        if rows and draw.random() < 0.5:
            row = rows.pop(draw.randrange(len(rows)))
            pool.release(row)
            assert row.length == 0 and row.rotated is None
        else:
            try:
                row = pool.acquire(draw.choice((3, 10, 20)))
                rows.append(row)
                if draw.random() < 0.5:
                    row.rotated = pool.acquire_buffer(row.capacity)
            except CapacityExceeded:
                refused += 1
        held = sum(row_size(row) for row in rows)
        held += sum(row.rotated.numel() * 4 for row in rows if row.rotated is not None)
        assert pool.bytes_allocated == held + free_bytes(pool) <= limit
        assert len({id(row) for row in rows}) == len(rows)
        buffers = [row.rotated.data_ptr() for row in rows if row.rotated is not None]
        assert len(set(buffers)) == len(buffers), "two rows share a buffer"
    assert refused > 50


def test_a_freed_row_is_used_again_and_other_sizes_make_room() -> None:
    pool = KVPool(SHAPE, 20 * ROW_SLOT, 4)
    first = pool.acquire(10)
    pool.release(first)
    assert pool.acquire(10) is first
    pool.release(first)
    pool.acquire(20)  # the free row of 10 slots goes
    assert pool.bytes_allocated == 20 * ROW_SLOT
    with pytest.raises(CapacityExceeded, match=f"{20 * ROW_SLOT} of {20 * ROW_SLOT} bytes"):
        pool.acquire(1)
    assert pool.bytes_allocated == 20 * ROW_SLOT
