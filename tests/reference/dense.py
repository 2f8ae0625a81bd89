"""A whole session in one dense forward of a stock model.

A mask ``[layer, query, key]`` says what each query sees, and an array of the same shape where: the
position of each key as that query sees it, which changes when the session is renumbered. The
model's own code projects, rotates and attends; nothing is cached, every call starts from tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.reference.llama import Entry, LayerCache
from tests.reference.stock import Attention, replace_attention


@dataclass(frozen=True)
class View:
    """What query i sees, in layer l: ``visible`` ``[L, T, T]`` is true for the keys j, each at
    position ``places[l, i, j]``; its own is ``places[l, i, i]``."""

    visible: Tensor
    places: Tensor

    @classmethod
    def empty(cls, layers: int, tokens: int) -> View:
        """Nothing is seen yet."""
        size = (layers, tokens, tokens)
        return cls(torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.int64))

    @classmethod
    def recorded(
        cls,
        layers: int,
        schedule: Iterable[int],
        keeps: Mapping[int, Sequence[Sequence[int]]],
        renumbered: Iterable[int],
    ) -> View:
        """The view of a session that wrote chunks of these sizes.

        Args:
            keeps: logical positions that stayed, per layer, by the number of tokens written when
                the others were evicted.
            renumbered: tokens written whenever the row was numbered from 0 on again.
        """
        sizes, due = list(schedule), set(renumbered)
        view = cls.empty(layers, sum(sizes))
        for layer in range(layers):
            row: dict[int, int] = {}  # logical position → physical one
            written = following = 0
            for size in sizes:
                if written in due:
                    row = {token: place for place, token in enumerate(row)}
                    following = len(row)
                for token in range(written, written + size):
                    row[token] = following
                    following += 1
                    view.see(layer, token, row)
                written += size
                if written in keeps:
                    row = {token: row[token] for token in keeps[written][layer]}
        return view

    def see(self, layer: int, query: int, row: Mapping[int, int]) -> None:
        """Let ``query`` see the keys of ``row``: logical position → physical one."""
        keys = torch.tensor(list(row))
        self.visible[layer, query, keys] = True
        self.places[layer, query, keys] = torch.tensor(list(row.values()))

    def until(self, tokens: int) -> View:
        """That of the first ``tokens``."""
        return View(self.visible[:, :tokens, :tokens], self.places[:, :tokens, :tokens])

    def groups(self, layer: int) -> Iterator[tuple[int, int, Tensor]]:
        """Queries [start, end) that agree on where each key is, and the places ``[end]``."""
        visible, places = self.visible[layer], self.places[layer]
        start, total = 0, len(visible)
        while start < total:
            seen = visible[start:]
            highest = places[start:].masked_fill(~seen, -1).cummax(dim=0).values
            lowest = places[start:].masked_fill(~seen, 1 << 40).cummin(dim=0).values
            agree = int((highest <= lowest).all(dim=1).sum())  # rows up to the first conflict
            end = start + agree
            yield start, end, highest[agree - 1, :end].clamp(min=0)
            start = end


class DenseModel:
    """Takes a model with eager attention, which returns its weights, and changes it for good.

    ``write`` makes it a ``Model`` of ``ReferenceSession``: a PACE that keeps no cache at all, and
    whose scores are sums over columns of the attention matrix.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = replace_attention(model, self._attend)
        self._rotary = model.base_model.rotary_emb
        self._view = View.empty(0, 0)
        self._weights: list[Tensor] = []
        self._tokens: list[int] = []
        self._history = View.empty(self.layers, 0)

    def forward(self, tokens: Sequence[int], view: View) -> tuple[Tensor, Tensor]:
        """Logits ``[T, V]`` and what each query gave to each key, all heads of a layer together:
        ``[L, T, T]``."""
        assert view.visible.shape == (self.layers, len(tokens), len(tokens))
        self._view, self._weights = view, []
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)])
            logits: Tensor = self.model(ids, use_cache=False).logits[0]
        return logits, torch.stack(self._weights)

    def write(
        self,
        caches: Sequence[LayerCache],
        tokens: Sequence[int],
        logical: int,
        physical: int,
        observe: int | None = None,
    ) -> Tensor:
        """As ``DenseLlama.write``, from scratch: all tokens so far are computed again."""
        count, total = len(tokens), logical + len(tokens)
        self._tokens = [*self._tokens[:logical], *tokens]
        before, self._history = self._history, View.empty(self.layers, total)
        for array, old in (
            (self._history.visible, before.visible),
            (self._history.places, before.places),
        ):
            array[:, :logical, :logical] = old[:, :logical, :logical]
        nothing, zero = torch.empty(0), torch.zeros((), dtype=torch.float64)
        for layer, cache in enumerate(caches):
            for i in range(count):
                cache.entries.append(Entry(logical + i, physical + i, nothing, nothing, zero))
                row = {entry.logical: entry.physical for entry in cache.entries}
                self._history.see(layer, logical + i, row)
        logits, weights = self.forward(self._tokens, self._history)
        first = 0 if observe is None else total - min(count, observe)
        received = weights[:, first:].sum(dim=1)
        for layer, cache in enumerate(caches):
            for entry in cache.entries:
                if observe is None or count > 1:
                    entry.score = received[layer, entry.logical]
        return logits[logical:]

    def _attend(
        self, layer: int, own: Attention, *args: Any, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        x = args[0] if args else settings.pop("hidden_states")
        total, visible = x.shape[1], self._view.visible[layer]
        out, weights = torch.empty_like(x), x.new_zeros(total, total)
        for start, end, places in self._view.groups(layer):
            inputs, at = x[:, :end], places[None]
            # queries before the group are computed too, and do not count
            mask = torch.full((end, end), -math.inf, dtype=x.dtype)
            mask = mask.masked_fill(visible[:end, :end], 0.0)
            settings |= {
                "attention_mask": mask[None, None],
                "position_ids": at,
                "position_embeddings": self._rotary(inputs, position_ids=at),
            }
            mixed, given = own(hidden_states=inputs, **settings)
            out[:, start:end] = mixed[:, start:]
            weights[start:end, :end] = given[0, :, start:].sum(dim=0)
        self._weights.append(weights)
        return out, weights
