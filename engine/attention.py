"""The attention function: a packed batch of segments, each over its own row, scores collected.

Registered with transformers under the name "pace". Queries and keys arrive unrotated
(``IdentityRotary``); they are rotated here with each session's own table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engine.linear import batched_product
from engine.rope import Rotation
from engine.row import Row, Staged

ATTENTION_NAME = "pace"


@dataclass(slots=True)
class Segment:
    """``count`` tokens of one session inside the flat batch, from ``start``.

    A prefill chunk has ``staged`` views for its KV; a decode token (``staged`` None) is
    written into the row's first free slot. Writing twice gives the same bits, so a failed
    forward can be repeated. ``scores`` ``[L, length + count]``, zeros at first, receives the
    attention each candidate gets in this forward (DESIGN §3.4), from its last ``observe`` tokens
    only (None: from all; a decode token then observes nothing); the row's own scores are not
    touched.
    """

    row: Row
    start: int
    count: int
    staged: Staged | None
    scores: Tensor
    observe: int | None = None


@dataclass(slots=True)
class PackedBatch:
    """All segments of one forward, and the rotary tables gathered for their tokens.

    ``cos``, ``sin``: ``[T, r]``, applied as ``rotation`` says. ``future``: bool ``[q, q]``, true
    above the diagonal, for the q queries attended at once in prefill.
    """

    segments: list[Segment]
    cos: Tensor
    sin: Tensor
    rotation: Rotation
    future: Tensor
    scratch: Scratch


@dataclass(slots=True)
class Scratch:
    """Reused buffers for attention probabilities, one per dtype: fresh pages cost more than the
    softmax, and large blocks of ever new sizes fragment the heap."""

    buffers: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def view(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor, valid until the next call with the same dtype."""
        size = shape[0] * shape[1] * shape[2]
        buffer = self.buffers.get(dtype)
        if buffer is None or buffer.numel() < size or buffer.device != device:
            buffer = self.buffers[dtype] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    pace: PackedBatch,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of every segment over its own row and itself, causal.

    Args:
        query: ``[1, Hq, T, D]`` unrotated; key, value: ``[1, Hkv, T, D]``.
        pace: the batch, passed through the model's forward as a keyword argument.

    Returns:
        ``[1, T, Hq, D]`` and None, as transformers expects.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # set by every transformers attention
    raw, v = key[0], value[0]
    q = pace.rotation.turn(layer, query[0], pace.cos, pace.sin)
    k = pace.rotation.turn(layer, raw, pace.cos, pace.sin)
    heads, tokens, dim = q.shape
    out = q.new_empty(tokens, heads, dim)
    for segment in pace.segments:
        a, b = segment.start, segment.start + segment.count
        if segment.staged is None:
            _decode(layer, segment, scaling, q[:, a], raw[:, a], k[:, a], v[:, a], out[a])
        else:
            part = (q[:, a:b], raw[:, a:b], k[:, a:b], v[:, a:b])
            _prefill(layer, segment, scaling, *part, out[a:b], pace)
    return out[None], None


def _decode(
    layer: int,
    segment: Segment,
    scaling: float,
    q: Tensor,
    raw: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
) -> None:
    """One token: ``q`` ``[Hq, D]``, ``raw``, ``k``, ``v`` ``[Hkv, D]``, ``out`` ``[Hq, D]``."""
    row, slot = segment.row, segment.row.length
    rotated = row.require_rotated()
    row.raw[layer, :, slot] = raw
    rotated[layer, :, slot] = k
    row.value[layer, :, slot] = v
    keys, values = rotated[layer, :, : slot + 1], row.value[layer, :, : slot + 1]
    grouped = q.reshape(keys.shape[0], -1, q.shape[-1])
    # for so few queries torch's product is the faster one on CPUs too
    weights = grouped.new_empty(grouped.shape[0], grouped.shape[1], slot + 1)
    torch.baddbmm(weights, grouped, keys.transpose(1, 2), beta=0, alpha=scaling, out=weights)
    weights = torch.softmax(weights, dim=-1, dtype=segment.scores.dtype)
    if segment.observe is None:
        segment.scores[layer] = weights.sum(dim=(0, 1))
    out.copy_(torch.bmm(weights.to(v.dtype), values).view(out.shape))


def _prefill(
    layer: int,
    segment: Segment,
    scaling: float,
    q: Tensor,
    raw: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    batch: PackedBatch,
) -> None:
    """A chunk of n tokens: ``q`` ``[Hq, n, D]``, keys ``[Hkv, n, D]``, ``out`` ``[n, Hq, D]``.

    Queries go in blocks that see only the keys up to their own last one, so the masked half
    of the chunk costs nothing and the probabilities stay in cache.
    """
    row, staged, n, resident = segment.row, segment.staged, segment.count, segment.row.length
    assert staged is not None
    staged.raw[layer] = raw
    staged.rotated[layer] = k
    staged.value[layer] = v
    keys = torch.cat((row.require_rotated()[layer, :, :resident], k), dim=1)
    values = torch.cat((row.value[layer, :, :resident], v), dim=1)
    kv_heads, dim = keys.shape[0], keys.shape[2]
    group = q.shape[0] // kv_heads
    scores, block = segment.scores[layer], batch.future.shape[0]
    observed_from = 0 if segment.observe is None else max(0, n - segment.observe)
    for start in range(0, n, block):
        end = min(start + block, n)
        width, seen = end - start, resident + end
        queries = q[:, start:end].reshape(kv_heads, group * width, dim)
        shape = (kv_heads, group * width, seen)
        weights = batch.scratch.view(shape, q.dtype, q.device)
        batched_product(queries, keys[:, :seen].transpose(1, 2), weights, scaling)
        own = weights.view(kv_heads, group, width, seen)[..., resident + start :]
        own.masked_fill_(batch.future[:width, :width], float("-inf"))
        exact = batch.scratch.view(shape, scores.dtype, q.device)  # weights itself in float32
        torch.softmax(weights, dim=-1, dtype=scores.dtype, out=exact)
        if end > observed_from:
            part = exact.view(kv_heads * group, width, seen)[:, max(0, observed_from - start) :]
            scores[:seen] += part.sum(dim=(0, 1))
        if weights.dtype != exact.dtype:
            weights.copy_(exact)
        mixed = q.new_empty(kv_heads, group * width, dim)
        batched_product(weights, values[:, :seen], mixed)
        out[start:end] = mixed.view(kv_heads * group, width, dim).transpose(0, 1)
