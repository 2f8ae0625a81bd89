"""transformers' own model with everything kept (``DynamicCache``), beside a PACE session."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from bench.speed.setting import ANSWER_TOKENS, PACE, Figures, Setting
from engine.types import Message

_PARTS = 4


class Stock:
    """The unmodified model, fed in the same chunks as the engine feeds its own."""

    def __init__(self, setting: Setting) -> None:
        runner = setting.engine.runner
        model: Any = AutoModelForCausalLM.from_pretrained(
            setting.path, dtype=runner.dtype, local_files_only=True
        )
        self._model = model.to(runner.device).eval().requires_grad_(False)
        self._device = runner.device
        self._chunk = setting.profile.chunk
        self.cache = DynamicCache(config=self._model.config)

    @property
    def tokens(self) -> int:
        """In its cache."""
        return int(self.cache.get_seq_length())

    @property
    def cache_bytes(self) -> int:
        """Of keys and values."""
        layers: Any = self.cache.layers
        return sum(t.nbytes for layer in layers for t in (layer.keys, layer.values))

    @torch.inference_mode()
    def turn(self, prompt: list[int]) -> None:
        """Prefill ``prompt``, then decode the answer greedily."""
        for start in range(0, len(prompt), self._chunk):
            token = self._forward(prompt[start : start + self._chunk])
        for _ in range(ANSWER_TOKENS - 1):
            token = self._forward([token])

    def _forward(self, tokens: list[int]) -> int:
        ids = torch.tensor([tokens], device=self._device)
        out = self._model(input_ids=ids, cache=self.cache, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())


def full_over_pace(setting: Setting, tokens: int) -> Figures:
    """Feed both the same turns in alternation until the stock model's cache holds ``tokens``.

    ``full_over_pace_N``: cost per new token, full cache ÷ pace, median of the Nth quarter of the
    turns; ``full_kv_bytes_measured``: of the cache at the end.
    """
    stock, chat = Stock(setting), setting.engine.chat
    ratios: list[float] = []
    role: str | None = None
    for text in setting.texts():
        if stock.tokens >= tokens:
            break
        setting.report(f"full cache: {stock.tokens} of {tokens} tokens")
        prompt = chat.message_tokens(role, Message("user", text)) + chat.answer_prompt("user")
        role = "assistant"
        costs = {}
        for which in ("full", "pace") if len(ratios) % 2 else ("pace", "full"):
            if which == "pace":
                costs[which], _ = setting.timed("beside", text, PACE)
                continue
            start = setting.now()
            stock.turn(prompt)
            costs[which] = (setting.now() - start) / (len(prompt) + ANSWER_TOKENS)
        ratios.append(costs["full"] / costs["pace"])
    setting.forget("beside")
    cuts = [round(part * len(ratios) / _PARTS) for part in range(_PARTS + 1)]
    figures = {
        f"full_over_pace_{part + 1}": median(ratios[cuts[part] : cuts[part + 1]] or ratios[-1:])
        for part in range(_PARTS)
    }
    return figures | {"full_tokens": stock.tokens, "full_kv_bytes_measured": stock.cache_bytes}
