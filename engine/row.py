"""What a session keeps resident: parallel arrays over slots, in logical order, per layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.rope import RotaryTable


@dataclass(frozen=True, slots=True)
class KVShape:
    """Dimensions and storage of one model's KV state."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def score_dtype(self) -> torch.dtype:
        """Scores accumulate in float32; in float64 for a float64 model (DESIGN §3.4, §3.7)."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value in all layers."""
        return 2 * self.array_token_bytes

    @property
    def array_token_bytes(self) -> int:
        """Bytes of one token in one of the arrays (raw, rotated or value), all layers."""
        return self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def array(self, slots: int) -> Tensor:
        """A new, uninitialised ``[layers, kv_heads, slots, head_dim]`` array."""
        size = (self.layers, self.kv_heads, slots, self.head_dim)
        return torch.empty(size, dtype=self.dtype, device=self.device)


@dataclass(slots=True)
class Staged:
    """A chunk's KV in the staging area: views valid until the next forward.

    ``raw``, ``rotated``, ``value``: ``[L, Hkv, n, D]``.
    """

    raw: Tensor
    rotated: Tensor
    value: Tensor


class Row:
    """Resident KV of one state. Slots ``[0, length)`` are in use, in rising logical order.

    ``raw``, ``value``: ``[L, Hkv, capacity, D]``; ``rotated`` the same, or None while idle
    (it is derived, see ``restore_rotated``); ``logical``, ``physical``: int64 and ``score``:
    float32 (float64), each ``[L, capacity]``. Owned by one state; mutated only by it.
    """

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.shape = shape
        self.capacity = capacity
        self.length = 0
        self.raw = shape.array(capacity)
        self.value = shape.array(capacity)
        self.rotated: Tensor | None = None
        index = (shape.layers, capacity)
        self.logical = torch.zeros(index, dtype=torch.int64, device=shape.device)
        self.physical = torch.zeros(index, dtype=torch.int64, device=shape.device)
        self.score = torch.zeros(index, dtype=shape.score_dtype, device=shape.device)

    def require_rotated(self) -> Tensor:
        """The rotated keys of an active row."""
        if self.rotated is None:
            raise RuntimeError("the row is idle: its rotated keys were released")
        return self.rotated

    def copy_from(self, other: Row) -> None:
        """Take over the contents of ``other`` (same capacity), all but the rotated keys."""
        n = self.length = other.length
        self.raw[:, :, :n] = other.raw[:, :, :n]
        self.value[:, :, :n] = other.value[:, :, :n]
        self.logical[:, :n] = other.logical[:, :n]
        self.physical[:, :n] = other.physical[:, :n]
        self.score[:, :n] = other.score[:, :n]

    def restore_rotated(self, table: RotaryTable) -> None:
        """Derive the rotated keys again from raw keys and physical positions."""
        buffer, n = self.require_rotated(), self.length
        if n == 0:
            return
        highest = int(self.physical[:, :n].max())
        for layer in range(self.shape.layers):
            cos, sin = table.gather(self.physical[layer, :n], highest)
            buffer[layer, :, :n] = table.rotation.turn(layer, self.raw[layer, :, :n], cos, sin)

    def renumber(self, table: RotaryTable) -> None:
        """Number all slots 0 … length − 1 in logical order and re-derive their rotated keys
        (paper §3.2, from raw keys: DESIGN §3.2)."""
        n, rotated = self.length, self.require_rotated()
        self.physical[:, :n] = torch.arange(n, device=self.shape.device)
        cos, sin = table.lookup(0, n)
        for layer in range(self.shape.layers):
            rotated[layer, :, :n] = table.rotation.turn(layer, self.raw[layer, :, :n], cos, sin)

    def append(self, staged: Staged | None, logical: int, physical: int, score: Tensor) -> None:
        """Add n tokens behind the last slot.

        Args:
            staged: their KV; None when decode already wrote it into the free slot.
            logical, physical: positions of the first of them.
            score: ``[L, n]``.
        """
        a, n = self.length, score.shape[1]
        if staged is not None:
            self.raw[:, :, a : a + n] = staged.raw
            self.require_rotated()[:, :, a : a + n] = staged.rotated
            self.value[:, :, a : a + n] = staged.value
        steps = torch.arange(n, device=self.shape.device)
        self.logical[:, a : a + n] = logical + steps
        self.physical[:, a : a + n] = physical + steps
        self.score[:, a : a + n] = score
        self.length = a + n

    def keep(
        self,
        indices: Tensor,
        staged: Staged | None,
        logical: Tensor,
        physical: Tensor,
        score: Tensor,
    ) -> None:
        """Replace the contents by the candidates at ``indices``.

        Candidates are the row's slots followed by the staged tokens.

        Args:
            indices: ``[L, K]`` rising per layer.
            staged: KV of the chunk, or None when all candidates are in the row.
            logical, physical, score: ``[L, N]`` of all candidates.
        """
        n, kept = self.length, indices.shape[1]
        rotated = self.require_rotated()
        for layer in range(self.shape.layers):
            index = indices[layer]
            arrays = [(self.raw, 0), (rotated, 1), (self.value, 2)]
            for array, which in arrays:
                source = array[layer, :, :n]
                if staged is not None:
                    part = (staged.raw, staged.rotated, staged.value)[which]
                    source = torch.cat((source, part[layer]), dim=1)
                array[layer, :, :kept] = source.index_select(1, index)
        self.logical[:, :kept] = logical.gather(1, indices)
        self.physical[:, :kept] = physical.gather(1, indices)
        self.score[:, :kept] = score.gather(1, indices)
        self.length = kept

    def problems(self, table: RotaryTable) -> list[str]:
        """Which of the row's invariants are broken (DESIGN §3.2, §3.6); empty when all hold.

        The rotated keys are compared when there are some: those of an idle row are derived again
        before they are used.
        """
        n = self.length
        if not 0 <= n <= self.capacity:
            return [f"{n} slots in use of {self.capacity}"]
        if n == 0:
            return []
        logical, physical = self.logical[:, :n], self.physical[:, :n]
        in_range = int(physical.min()) >= 0 and int(physical.max()) < table.limit
        checks = {
            "logical order is broken": bool((logical[:, 1:] > logical[:, :-1]).all()),
            "physical order is broken": bool((physical[:, 1:] > physical[:, :-1]).all()),
            "a position reaches the limit, or is negative": in_range,
            "a score is not finite": bool(torch.isfinite(self.score[:, :n]).all()),
            "a raw key is not finite": bool(torch.isfinite(self.raw[:, :, :n]).all()),
            "a value is not finite": bool(torch.isfinite(self.value[:, :, :n]).all()),
            "a rotated key is not rotate(raw, p)": not in_range or self._rotated_as_raw(table),
        }
        return [problem for problem, holds in checks.items() if not holds]

    def _rotated_as_raw(self, table: RotaryTable) -> bool:
        if self.rotated is None:
            return True
        n = self.length
        highest = int(self.physical[:, :n].max())
        for layer in range(self.shape.layers):
            cos, sin = table.gather(self.physical[layer, :n], highest)
            fresh = table.rotation.turn(layer, self.raw[layer, :, :n], cos, sin)
            if not torch.equal(fresh, self.rotated[layer, :, :n]):
                return False
        return True

    def check_integrity(self, table: RotaryTable) -> None:
        """Raise AssertionError with the row's problems, if there are any."""
        found = self.problems(table)
        if found:
            raise AssertionError("; ".join(found))
