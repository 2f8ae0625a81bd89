"""DESIGN §3.7 on a real model: SmolLM2 in float32 through the engine's chunked path."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner
from tests.engine.support import begin, drive, new_state, resolved
from tests.reference.retention import Rules

TOKENS, CHUNK = 1500, 512


@pytest.fixture
def all_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(600)  # 25 s on two idle cores
@pytest.mark.usefixtures("all_threads")
def test_logits_are_transformers_within_1e_4(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = inspect.getsource(json) + inspect.getsource(json.encoder)  # real text of many kinds
    tokens = tokenizer(text)["input_ids"][:TOKENS]
    assert len(tokens) == TOKENS and len(set(tokens)) > 200
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
    runner = ModelRunner(model, torch.device("cpu"))
    policy = resolved(Rules("none", 2048, 0, 0, 1, CHUNK), model_range=runner.model_range)
    pool = KVPool(runner.shape, 1 << 30, CHUNK)
    state = new_state(runner, policy, pool)
    begin(state, tokens)
    writer, parts = Writer(), []
    prompt = TOKENS - 20
    cuts = [*range(0, prompt, CHUNK), *range(prompt, TOKENS + 1)]
    for start, end in itertools.pairwise(cuts):  # three chunks, then 20 decode steps
        flow = writer.write(state, state.tokens[start:end], TurnRecord(), "all")
        parts.append(drive(flow, runner, pool).logits.clone())
    state.active_row().check_integrity(state.table)
    difference = (torch.cat(parts) - expected).abs().max()
    assert difference < 1e-4, f"logits differ by up to {difference:.2g}"
