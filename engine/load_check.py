"""What a model must be to be served, and how close to the stock model's its logits must stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError

CHECK_TOKENS = 300
_SUPPORTED_ROPE = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """Logits of PACE against the stock model's.

    ``difference``: the largest between two logits; ``divergence``: mean over the tokens, in nats.
    """

    tokens: int
    difference: float
    divergence: float


def check_tokens(config: Any) -> list[int]:
    """The tokens of the check: the same for every model of one vocabulary."""
    count = min(CHECK_TOKENS, int(config.max_position_embeddings))
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()
    return ids


def compare_logits(kind: str, ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> LoadCheck:
    """Compare logits ``[T, V]`` of the same tokens; ``dtype`` is the model's.

    Raises:
        ModelError: they differ, with by how much.
    """
    ours, theirs = ours.double(), theirs.double()
    difference = float((ours - theirs).abs().max())
    divergence = float(
        torch.nn.functional.kl_div(
            ours.log_softmax(-1), theirs.log_softmax(-1), log_target=True, reduction="batchmean"
        )
    )
    exact = dtype in (torch.float32, torch.float64)
    scale = max(1.0, float(theirs.abs().max()))
    # a NaN compares as false, so it is refused too
    if not ((difference <= 1e-4 * scale) if exact else (divergence <= 0.02)):
        raise ModelError(
            f"{kind}: logits differ from the stock model's by up to {difference:.3g} "
            f"(mean divergence {divergence:.3g} nats) over {len(ours)} tokens, so PACE would not "
            "serve this model faithfully"
        )
    return LoadCheck(len(ours), difference, divergence)


def refuse_unsupported(config: Any) -> None:
    """Raise ModelError, with the reason, for what §6 of the design rules out."""
    kind = getattr(config, "model_type", "model")
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise ModelError(
            f"{kind}: the model has no single rotary embedding (rope_parameters); learned "
            "positions, ALiBi and several rotary embeddings are not supported"
        )
    if rope.get("rope_type", "default") not in _SUPPORTED_ROPE:
        raise ModelError(
            f"{kind}: rope type {rope['rope_type']} is not supported "
            f"(supported: {', '.join(_SUPPORTED_ROPE)})"
        )
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {"full_attention"}:
        raise ModelError(
            f"{kind}: layers other than full attention are not supported: {sorted(kinds)}"
        )
    window = getattr(config, "sliding_window", None)
    # where layers have types, the window is of those that slide
    if window and not kinds and getattr(config, "use_sliding_window", True):
        raise ModelError(f"{kind}: sliding-window attention ({window} tokens) is not supported")
