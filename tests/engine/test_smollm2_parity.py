"""DESIGN §3.7 on a real model: SmolLM2 through the engine's chunked path."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.alone import drive, new_state
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner
from tests.engine.support import begin, resolved
from tests.reference.retention import Rules

TOKENS, CHUNK = 1500, 512


@pytest.fixture
def all_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def engine_logits(model: Any, tokens: list[int]) -> Tensor:
    """Teacher-forced through the engine's own writer: three chunks, then 20 decode steps."""
    runner = ModelRunner(model, torch.device("cpu"))
    policy = resolved(Rules("none", 2048, 0, 0, 1, CHUNK), model_range=runner.model_range)
    pool = KVPool(runner.shape, 1 << 30, CHUNK)
    state = new_state(runner, policy, pool)
    begin(state, tokens)
    writer, parts = Writer(), []
    prompt = TOKENS - 20
    cuts = [*range(0, prompt, CHUNK), *range(prompt, TOKENS + 1)]
    for start, end in itertools.pairwise(cuts):
        flow = writer.write(state, state.tokens[start:end], TurnRecord(), "all")
        parts.append(drive(flow, runner, pool).logits.clone())
    state.active_row().check_integrity(state.table)
    return torch.cat(parts)


def rms(difference: Tensor) -> float:
    return float(difference.square().mean().sqrt())


@pytest.mark.timeout(900)  # 60 s on two idle cores
@pytest.mark.usefixtures("all_threads")
def test_logits_are_transformers_and_as_exact_as_float32_can_be(smollm2: Path) -> None:
    """In float64 the same, but for the norms, which transformers takes in float32 all the same.
    In float32 as near to that as transformers is: two programs of equal exactness differ by up
    to 2e-4 in the worst of 74 million logits (docs/decisions/0006)."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = inspect.getsource(json) + inspect.getsource(json.encoder)  # real text of many kinds
    tokens = tokenizer(text)["input_ids"][:TOKENS]
    assert len(tokens) == TOKENS and len(set(tokens)) > 200
    stock, ours = {}, {}
    for dtype in (torch.float64, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=dtype).eval()
        model.requires_grad_(False)
        with torch.inference_mode():
            stock[dtype] = model(torch.tensor([tokens]), use_cache=False).logits[0]
        ours[dtype] = engine_logits(model, tokens)
    exact = stock[torch.float64]
    assert (ours[torch.float64] - exact).abs().max() < 5e-5
    assert rms(ours[torch.float32] - exact) < 1.1 * rms(stock[torch.float32] - exact)
    difference = (ours[torch.float32] - stock[torch.float32]).abs().max()
    assert difference < 2e-4, f"logits differ by up to {difference:.2g}"
