"""Rotary tables per session, and the one function that rotates.

The cache keeps keys before rotation (DESIGN §3.2). Every rotated key, whether written for
the first time or renumbered for the hundredth, comes out of ``rotate`` applied to the raw
key, so equal positions give equal bits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.config import RopeConfig
from engine.errors import ConfigError

_FIRST_TABLE = 4096
_LARGEST_TABLE = 16384


class IdentityRotary(nn.Module):
    """Stands in for a model's rotary module: cos = 1, sin = 0, so q and k stay unrotated."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` gives dtype and device; returns (ones, zeros), each ``[1, T, dims]``."""
        shape = (1, position_ids.shape[-1], self.dims)
        return x.new_ones(shape), x.new_zeros(shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool = False) -> Tensor:
    """Rotate pairs of dimensions of ``x`` (RoFormer).

    Args:
        x: raw keys or queries ``[..., T, D]``.
        cos, sin: ``[T, r]`` with r ≤ D rotated dims, in the computing dtype (float32, or
            float64 for a float64 model).
        neighbours: the pairs are (2i, 2i + 1), as in GLM and Cohere; else (i, i + r/2), as in
            Llama.

    Returns:
        ``[..., T, D]`` in ``x``'s dtype: computed in the table's dtype, rounded once.
    """
    dims = cos.shape[-1]
    part = x[..., :dims].to(cos.dtype)
    half = dims // 2
    first, second = slice(0, half), slice(half, None)
    if neighbours:
        first, second = slice(0, None, 2), slice(1, None, 2)
    turned = part * cos
    turned[..., first] -= part[..., second] * sin[..., first]
    turned[..., second] += part[..., first] * sin[..., second]
    out = turned.to(x.dtype)
    return out if dims == x.shape[-1] else torch.cat((out, x[..., dims:]), dim=-1)


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a model turns its queries and keys (``engine.rotary_probe`` finds it out).

    ``neighbours``: see ``rotate``. ``halves``: the rotary module lists the angles twice, one half
    behind the other, though neighbours turn: only its first half counts (GLM). ``unturned``:
    layers without positions (NoPE), whose keys stay raw.
    """

    neighbours: bool = False
    halves: bool = False
    unturned: frozenset[int] = frozenset()

    def turn(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` ``[..., T, D]`` of a layer, rotated (``rotate``); ``x`` itself where nothing is."""
        return x if layer in self.unturned else rotate(x, cos, sin, self.neighbours)

    def spread(self, table: Tensor) -> Tensor:
        """The rotary module's cos or sin ``[T, r]``, with the entry of each dimension in place."""
        if not self.halves:
            return table
        return table[..., : table.shape[-1] // 2].repeat_interleave(2, dim=-1)


class RotaryTable:
    """cos and sin by position for one rope setting, made by transformers' own rotary module.

    Positions below ``_LARGEST_TABLE`` are looked up in a table that grows by doubling; those
    beyond, which only sessions with positions as written reach, are computed when asked for, so
    that memory does not grow with a session. Either way a position's values are the same bits.
    """

    def __init__(
        self,
        rotary: nn.Module,
        limit: int,
        device: torch.device,
        dtype: torch.dtype,
        rotation: Rotation = Rotation(),
    ) -> None:
        self.limit = limit
        self.rotation = rotation
        self._rotary = rotary
        self._device = device
        self._dtype = dtype
        self._cos, self._sin = self._compute(self._range(0, min(limit, _FIRST_TABLE)))

    @property
    def dims(self) -> int:
        """Rotated dimensions of a head."""
        return self._cos.shape[-1]

    @property
    def stored_positions(self) -> int:
        """Positions the table holds now."""
        return self._cos.shape[0]

    def lookup(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """cos, sin ``[count, dims]`` of positions start … start + count − 1.

        Raises:
            IndexError: a position is not below the limit (DESIGN §3.6: p < L always holds).
        """
        if self._in_table(start + count):
            return self._cos[start : start + count], self._sin[start : start + count]
        return self._compute(self._range(start, count))

    def gather(self, positions: Tensor, highest: int) -> tuple[Tensor, Tensor]:
        """cos, sin ``[n, dims]`` of int64 ``positions`` ``[n]``, none above ``highest``."""
        if self._in_table(highest + 1):
            return self._cos[positions], self._sin[positions]
        return self._compute(positions)

    def _in_table(self, count: int) -> bool:
        """Whether the table holds, or can grow to hold, the first ``count`` positions."""
        if count > self.limit:
            raise IndexError(f"position {count - 1} is not below the limit {self.limit}")
        if count > _LARGEST_TABLE:
            return False
        held = self._cos.shape[0]
        if count > held:
            size = min(self.limit, _LARGEST_TABLE, max(count, 2 * held))
            self._cos, self._sin = self._compute(self._range(0, size))
        return True

    def _range(self, start: int, count: int) -> Tensor:
        return torch.arange(start, start + count, device=self._device)

    @torch.inference_mode()
    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        # float32 like the stock model: angles, cos and sin are float32 there too, even in float64.
        probe = torch.empty(0, dtype=torch.float32, device=self._device)
        cos, sin = self._rotary(probe, position_ids=positions[None])
        spread = self.rotation.spread
        return spread(cos[0]).to(self._dtype), spread(sin[0]).to(self._dtype)


def build_rotary(original: nn.Module, model_config: Any, rope: RopeConfig) -> nn.Module:
    """The rotary module of a session: the model's own, or one built from a copied config.

    Raises:
        ConfigError: YaRN is asked of a model whose own rope is already scaled.
    """
    if rope.type == "default":
        return original
    parameters = dict(model_config.rope_parameters)
    if parameters.get("rope_type", "default") != "default":
        raise ConfigError(
            f"rope.type {rope.type}: the model's own rope is already "
            f"{parameters['rope_type']}; use rope.type default",
            param="rope.type",
        )
    config = copy.deepcopy(model_config)
    parameters.update(
        rope_type=rope.type,
        factor=rope.factor,
        original_max_position_embeddings=model_config.max_position_embeddings,
    )
    config.rope_parameters = parameters
    config.max_position_embeddings = int(model_config.max_position_embeddings * rope.factor)
    kind: Any = type(original)
    module: nn.Module = kind(config)
    return module.to(next(original.buffers()).device)
