"""Memory of all sessions on one replica: rows by capacity class, reused, within a byte limit."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import CapacityExceeded
from engine.row import KVShape, Row, Staged


class KVPool:
    """Hands out rows and rotated-key buffers; freed ones are reused, never returned to the OS
    unless another capacity class needs the room. Not thread-safe: the engine's lock guards it.
    """

    def __init__(self, shape: KVShape, byte_limit: int, staging_slots: int) -> None:
        self.shape = shape
        self.byte_limit = byte_limit
        self.bytes_allocated = 0
        self._rows: dict[int, list[Row]] = defaultdict(list)
        self._buffers: dict[int, list[Tensor]] = defaultdict(list)
        self._staging = [shape.array(staging_slots) for _ in range(3)]

    @property
    def staging_slots(self) -> int:
        """Prefill tokens one forward can hold."""
        return self._staging[0].shape[2]

    def stage(self, start: int, count: int) -> Staged:
        """Views of ``count`` staging slots from ``start``."""
        raw, rotated, value = (array[:, :, start : start + count] for array in self._staging)
        return Staged(raw=raw, rotated=rotated, value=value)

    @property
    def room(self) -> int:
        """Bytes that can still be handed out: not allocated yet, or waiting for reuse."""
        rows = sum(len(free) * self.row_bytes(size) for size, free in self._rows.items())
        buffers = sum(len(free) * self.buffer_bytes(size) for size, free in self._buffers.items())
        return self.byte_limit - self.bytes_allocated + rows + buffers

    def session_bytes(self, capacity: int, keep_previous: bool) -> int:
        """Bytes one session takes at most: its states at rest, and the two forks of scoring."""
        at_rest = 2 if keep_previous else 1
        active = self.row_bytes(capacity) + self.buffer_bytes(capacity)
        return at_rest * self.row_bytes(capacity) + 2 * active

    def row_bytes(self, capacity: int) -> int:
        """Bytes of a row without rotated keys."""
        index = self.shape.layers * (8 + 8 + self.shape.score_dtype.itemsize)
        return capacity * (self.shape.token_bytes + index)

    def buffer_bytes(self, capacity: int) -> int:
        """Bytes of one rotated-key buffer."""
        return capacity * self.shape.array_token_bytes

    def acquire(self, capacity: int) -> Row:
        """An empty idle row.

        Raises:
            CapacityExceeded: the byte limit leaves no room.
        """
        if self._rows[capacity]:
            return self._rows[capacity].pop()
        self._reserve(self.row_bytes(capacity))
        return Row(self.shape, capacity)

    def acquire_buffer(self, capacity: int) -> Tensor:
        """A buffer for the rotated keys of an active row. Raises CapacityExceeded."""
        if self._buffers[capacity]:
            return self._buffers[capacity].pop()
        self._reserve(self.buffer_bytes(capacity))
        return self.shape.array(capacity)

    def release(self, row: Row) -> None:
        """Take a row back, its rotated keys too. The caller must drop its reference."""
        self.release_buffer(row)
        row.length = 0
        self._rows[row.capacity].append(row)

    def release_buffer(self, row: Row) -> None:
        """Make a row idle: its rotated keys can be derived again."""
        if row.rotated is not None:
            self._buffers[row.capacity].append(row.rotated)
            row.rotated = None

    def _reserve(self, size: int) -> None:
        if self.bytes_allocated + size > self.byte_limit:
            self._trim()
        if self.bytes_allocated + size > self.byte_limit:
            raise CapacityExceeded(
                f"the KV pool is full: {self.bytes_allocated} of {self.byte_limit} bytes are in "
                f"use and this turn needs {size} more; retry later or raise engine.pool_bytes"
            )
        self.bytes_allocated += size

    def _trim(self) -> None:
        """Drop free memory of every capacity class."""
        for capacity, rows in self._rows.items():
            self.bytes_allocated -= len(rows) * self.row_bytes(capacity)
            rows.clear()
        for capacity, buffers in self._buffers.items():
            self.bytes_allocated -= len(buffers) * self.buffer_bytes(capacity)
            buffers.clear()


def default_pool_bytes(device: torch.device) -> int:
    """Without a setting: 60 % of the free device memory, or a quarter of what this machine, or
    the container's memory limit, gives the process."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.6)
    return memory_limit() // 4


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of host memory this process may use at most."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # version 2, version 1
        try:
            limit = min(limit, int((cgroup / name).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return limit
