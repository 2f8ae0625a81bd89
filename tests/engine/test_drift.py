"""Keys renumbered hundreds of times (the paper's Appendix D), next to keys re-rotated in place.

The contrast rotates the stored bfloat16 key from one position to the next: what an engine does
that keeps rotated keys only. It is written out here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from engine.rope import RotaryTable, rotate
from engine.row import KVShape, Row

LIMIT, CAPACITY, DIM, LONG_LIVED = 2048, 1536, 128, slice(1100, 1124)
# the rotary frequencies of the model in the paper
CONFIG = LlamaConfig(hidden_size=DIM, num_attention_heads=1, head_dim=DIM, rope_theta=1e6)


@dataclass
class Errors:
    """Relative errors of the long-lived keys against a fresh write: largest and mean."""

    largest: float
    mean: float


def fresh_write(raw: Tensor, positions: Tensor) -> Tensor:
    """``raw`` ``[T, D]`` at ``positions``, by transformers' own code in float32, rounded once."""
    exact = raw.float()
    cos, sin = LlamaRotaryEmbedding(CONFIG)(exact, position_ids=positions[None])
    _, rotated = apply_rotary_pos_emb(exact[None, None], exact[None, None], cos, sin)
    return rotated[0, 0].to(raw.dtype)


def turned(stored: Tensor, delta: Tensor) -> Tensor:
    """Stored bfloat16 keys ``[T, D]`` moved by ``delta`` positions, in float32, rounded again."""
    half = DIM // 2
    frequency = 1.0 / 1e6 ** (torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    angle = delta[:, None].double() * frequency
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = stored[:, :half].float(), stored[:, half:].float()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=1).to(stored.dtype)


def errors(keys: Tensor, expected: Tensor) -> Errors:
    each = (keys.double() - expected.double()).norm(dim=1) / expected.double().norm(dim=1)
    return Errors(float(each.max()), float(each.mean()))


class Churn:
    """A full row that loses tokens from its front and its end, gains new ones, and is renumbered.
    The long-lived keys in its middle move every time, and so do their copies in ``contrast``."""

    def __init__(self, seed: int) -> None:
        shape = KVShape(1, 1, DIM, torch.bfloat16, torch.device("cpu"))
        self.row = Row(shape, CAPACITY)
        self.row.rotated = shape.array(CAPACITY)
        rotary = LlamaRotaryEmbedding(CONFIG)
        self.table = RotaryTable(rotary, LIMIT, torch.device("cpu"), torch.float32)
        self.draw, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.logical = self.shift = 0
        self.write(CAPACITY)
        self.raw = self.row.raw[0, 0, LONG_LIVED].clone()
        self.contrast = self.row.require_rotated()[0, 0, LONG_LIVED].clone()

    @property
    def slots(self) -> Tensor:
        """Where the long-lived keys are."""
        tokens = self.row.logical[0, : self.row.length]
        return torch.nonzero((tokens >= LONG_LIVED.start) & (tokens < LONG_LIVED.stop))[:, 0]

    def write(self, count: int) -> None:
        row, at, first = self.row, self.row.length, self.logical - self.shift
        raw = torch.randn((count, DIM), generator=self.generator).to(torch.bfloat16)
        row.raw[0, 0, at : at + count], row.value[0, 0, at : at + count] = raw, 0
        rotated = rotate(raw, *self.table.lookup(first, count))
        row.require_rotated()[0, 0, at : at + count] = rotated
        row.append(None, self.logical, first, torch.ones(1, count))
        self.logical += count

    def renumber(self) -> None:
        row, slots = self.row, self.slots
        front, end = int(slots[0]), int(slots[-1]) + 1
        gone = self.draw.sample(range(front), self.draw.choice((1, 2)))
        gone += self.draw.sample(range(end, row.length), 30)
        keep = torch.tensor([sorted(set(range(row.length)) - set(gone))])
        row.keep(keep, None, *(a.clone() for a in (row.logical, row.physical, row.score)))
        before = row.physical[0, self.slots]
        row.renumber(self.table)
        moved = row.physical[0, self.slots] - before
        assert bool((moved < 0).all()) and len(moved) == len(self.raw)
        self.contrast = turned(self.contrast, moved)
        self.shift = self.logical - row.length
        self.write(CAPACITY - row.length)

    def errors(self) -> tuple[Errors, Errors]:
        """Of the row and of the contrast."""
        slots = self.slots
        expected = fresh_write(self.raw, self.row.physical[0, slots])
        return (
            errors(self.row.require_rotated()[0, 0, slots], expected),
            errors(self.contrast, expected),
        )


def test_no_bit_is_lost_however_often_a_key_is_renumbered() -> None:
    churn = Churn(seed=7)
    drift = []
    for renumbers in range(1, 481):
        churn.renumber()
        if renumbers in (60, 240, 480):
            ours, contrast = churn.errors()
            assert ours == Errors(0.0, 0.0), f"after {renumbers} renumbers"
            drift.append(contrast)
    churn.row.check_integrity(churn.table)
    # one more rounding each time, and turns of a position or two that rounding swallows whole
    assert 0.005 < drift[0].mean < drift[1].mean < drift[2].mean
    assert drift[0].largest < drift[1].largest < drift[2].largest
    assert drift[2].mean > 8**0.5 * drift[0].mean, "faster than independent roundings"
