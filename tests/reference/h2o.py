"""H2O with nothing but a dense attention matrix and loops over it (Zhang et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tests.reference.dense import DenseModel, View


def naive_h2o(
    model: DenseModel,
    chunks: Sequence[Sequence[int]],
    budget: int,
    sinks: int,
    recent: int,
    interval: int,
) -> tuple[Tensor, list[list[int]], list[list[float]]]:
    """A session whose tokens came in ``chunks``, at the positions they were written at.

    Whenever a chunk fills budget + interval slots, all tokens so far are computed again; a key has
    received what its column of the matrix holds.

    Returns:
        Logits ``[T, V]``, and per layer the tokens held at the end and what they received.
    """
    tokens = [token for chunk in chunks for token in chunk]
    layers, written = range(model.layers), 0
    held: list[list[int]] = [[] for _ in layers]
    view = View.empty(model.layers, len(tokens))
    for chunk in chunks:
        for token in range(written, written + len(chunk)):
            for layer in layers:
                held[layer].append(token)
                view.see(layer, token, {key: key for key in held[layer]})
        written += len(chunk)
        if len(held[0]) >= budget + interval:
            _, matrix = model.forward(tokens[:written], view.until(written))
            for layer in layers:
                held[layer] = _heavy(matrix[layer], held[layer], budget, sinks, recent)
    logits, matrix = model.forward(tokens, view)
    return logits, held, [_received(matrix[layer], held[layer]) for layer in layers]


def _received(matrix: Tensor, keys: Sequence[int]) -> list[float]:
    return [sum(matrix[:, key].tolist()) for key in keys]


def _heavy(matrix: Tensor, keys: Sequence[int], budget: int, sinks: int, recent: int) -> list[int]:
    """Sinks, the newest, then whatever received most; of equals the newer."""
    received = dict(zip(keys, _received(matrix, keys), strict=True))
    stay = {key for key in keys if key < sinks} | set(keys[len(keys) - recent :])
    while len(stay) < budget:
        best = None
        for key in keys:
            if key not in stay and (best is None or received[key] >= received[best]):
                best = key
        assert best is not None
        stay.add(best)
    return sorted(stay)
