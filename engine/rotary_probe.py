"""How a model turns its queries and keys: the model itself is asked, layer by layer.

Two short forwards with an attention function that only looks and returns zeros. The hidden states
are then the same in both; what differs in a layer's queries and keys is what the rotary module's
cos and sin did to them: (1, 0) in the first, numbers drawn at random in the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from engine.errors import ModelError
from engine.rope import IdentityRotary, Rotation

PROBE_NAME = "pace-probe"
# what a model whose softmax is not the plain one hands to its attention function
_OTHER_SOFTMAX = {
    "sliding_window": "sliding-window attention",
    "softcap": "capped attention logits (softcap)",
    "s_aux": "attention sinks (s_aux)",
    "position_bias": "a position bias (such as ALiBi)",
}
# in this order they are tried; where pairs of one dimension make no difference, the first holds
_LAYOUTS = (Rotation(), Rotation(neighbours=True), Rotation(neighbours=True, halves=True))
_TOKENS = 2
# between bf16, which rounds three times on the way, and another layout of random angles
_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A model's attention as it is run. ``dims``: rotated dimensions of a head."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dims: int
    rotation: Rotation


@dataclass(slots=True)
class _Call:
    """Queries ``[Hq, T, D]``, keys and values ``[Hkv, T, D]`` of one layer."""

    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(slots=True)
class _Seen:
    """Attention calls of one forward, by layer, and what makes them no plain attention."""

    calls: dict[int, _Call] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)


class _GivenRotary(nn.Module):
    """Stands in for a model's rotary module: fixed cos and sin, each ``[1, T, r]``."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        self.cos, self.sin = cos, sin

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos.to(x), self.sin.to(x)


def look(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *_: Any,
    pace: _Seen,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function that remembers what it gets and returns zeros ``[1, T, Hq, Dv]``."""
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # set by every transformers attention
    pace.calls[layer] = _Call(query[0], key[0], value[0])
    pace.refused |= {why for name, why in _OTHER_SOFTMAX.items() if others.get(name) is not None}
    size = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    return query.new_zeros(size), None


def find_rotary(model: Any) -> list[tuple[nn.Module, str, nn.Module]]:
    """Rotary modules of ``model``, each with the module that holds it and its name there.

    Raises:
        ModelError: none, or several that are not alike.
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if "rotary" in type(child).__name__.lower()
    ]
    kind = model.config.model_type
    if not found:
        raise ModelError(f"{kind}: no rotary embedding was found in the model")
    first = dict(found[0][2].named_buffers())
    for _, _, other in found[1:]:
        buffers = dict(other.named_buffers())
        alike = first.keys() == buffers.keys() and type(other) is type(found[0][2])
        if not alike or not all(torch.equal(first[name], buffers[name]) for name in first):
            raise ModelError(f"{kind}: layers with different rotary embeddings are not supported")
    return found


def replace_rotary(places: list[tuple[nn.Module, str, nn.Module]], by: nn.Module) -> None:
    """Put ``by`` in the place of every module of ``find_rotary``."""
    for parent, name, _ in places:
        setattr(parent, name, by)


@torch.inference_mode()
def probe(
    model: Any, places: list[tuple[nn.Module, str, nn.Module]], device: torch.device
) -> Found:
    """Ask ``model`` (see above). Its rotary modules are the identity afterwards, and its
    attention is ``look``.

    Raises:
        ModelError: the architecture takes no custom attention function, does not run with it, or
            is not the attention PACE computes; with the reason.
    """
    kind = model.config.model_type
    AttentionInterface.register(PROBE_NAME, look)
    use_attention(model, PROBE_NAME)
    count = min(_TOKENS, int(model.config.max_position_embeddings))
    positions = torch.arange(count, device=device)[None]
    try:
        cos, _ = places[0][2](torch.zeros(1, device=device), position_ids=positions)
        dims = int(cos.shape[-1])
        generator = torch.Generator().manual_seed(0)
        angles = torch.randn(2, 1, count, dims, generator=generator, dtype=torch.float64)
        # as the model will see them
        cos, sin = (part.to(model.dtype).to(device) for part in angles)
        replace_rotary(places, _GivenRotary(cos, sin))
        turned = _calls(model, positions)
        replace_rotary(places, IdentityRotary(dims))
        raw = _calls(model, positions)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        raise not_run(kind, error) from error
    if raw.refused:
        raise ModelError(f"{kind}: {' and '.join(sorted(raw.refused))} is not supported")
    layers = int(model.config.num_hidden_layers)
    if sorted(raw.calls) != list(range(layers)):
        raise ModelError(
            f"{kind}: {len(raw.calls)} of {layers} layers attend through transformers' attention "
            "interface; layers of another kind are not supported"
        )
    calls = raw.calls.values()
    shapes = {(call.query.shape[0], call.key.shape, call.value.shape) for call in calls}
    if len(shapes) > 1:
        raise ModelError(f"{kind}: layers whose keys differ in shape are not supported")
    ((heads, keys, values),) = shapes
    if keys != values:
        raise ModelError(
            f"{kind}: values of another shape than keys are not supported "
            f"({tuple(values)} and {tuple(keys)})"
        )
    rotation = _layout(kind, raw, turned, cos[0].double(), sin[0].double())
    return Found(layers, heads, keys[0], keys[2], dims, rotation)


def use_attention(model: Any, name: str) -> None:
    """Let ``model`` attend by a registered function.

    Raises:
        ModelError: the architecture cannot.
    """
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ModelError(
            f"{model.config.model_type}: this architecture does not take a custom attention "
            "function, so PACE cannot serve it"
        )


def not_run(kind: str, error: Exception) -> ModelError:
    """The refusal of a model that failed with ``error``."""
    return ModelError(f"{kind}: the model does not run with PACE's attention: {error}")


def _calls(model: Any, positions: Tensor) -> _Seen:
    seen = _Seen()
    # different tokens, so that their keys differ; any vocabulary has two
    tokens = positions % int(model.config.vocab_size)
    model(input_ids=tokens, position_ids=positions, use_cache=False, pace=seen)
    return seen


def _layout(kind: str, raw: _Seen, turned: _Seen, cos: Tensor, sin: Tensor) -> Rotation:
    """The layout that explains every layer; layers that turn nothing are left out of it."""
    unturned = frozenset(
        layer for layer, call in raw.calls.items() if _alike(call, turned.calls[layer])
    )
    others = [layer for layer in raw.calls if layer not in unturned]
    unexplained = others
    for layout in _LAYOUTS:
        spread = layout.spread(cos), layout.spread(sin)
        unexplained = [
            layer
            for layer in others
            if not _alike(_turn(layout, raw.calls[layer], *spread), turned.calls[layer])
        ]
        if not unexplained:
            return Rotation(layout.neighbours, layout.halves, unturned)
    raise ModelError(
        f"{kind}: layer {unexplained[0]} turns its queries and keys by position in a way that is "
        "not supported (pairs of halves or of neighbours, applied last)"
    )


def _turn(layout: Rotation, call: _Call, cos: Tensor, sin: Tensor) -> _Call:
    query, key = (layout.turn(-1, part.double(), cos, sin) for part in (call.query, call.key))
    return _Call(query, key, call.value)


def _alike(one: _Call, other: _Call) -> bool:
    """Whether queries and keys agree."""
    return _near(one.query, other.query) and _near(one.key, other.key)


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree; what is no number in both is the load check's to judge."""
    if one.shape != other.shape:
        return False
    a, b = (part.double().nan_to_num(0.0, 0.0, 0.0) for part in (one, other))
    return bool(((a - b).abs() <= _TOLERANCE * b.abs().max()).all())
