"""The engine on a GPU: the same identities, in the dtypes used there. ``pytest -m gpu``."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import CachePolicy, RopeConfig
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner
from engine.state import SessionState
from engine.types import Message

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def runner(dtype: torch.dtype) -> ModelRunner:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).to(dtype).to("cuda").eval()
    # compares the logits with the stock model's and refuses the model when they differ
    return ModelRunner.verified(model, torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_equal_the_stock_model(dtype: torch.dtype) -> None:
    assert runner(dtype).device.type == "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_rows_stay_whole_through_evictions_and_renumbers(dtype: torch.dtype) -> None:
    ready = runner(dtype)
    policy = CachePolicy(
        name="pace",
        retention="plan_aware",
        budget=128,
        sinks=4,
        recent=16,
        interval=16,
        chunk=64,
        position_limit=208,
        rope=RopeConfig(),
        model_range=4096,
    )
    pool = KVPool(ready.shape, 1 << 30, staging_slots=64)
    table = ready.table(policy.rope, policy.position_range)
    row = pool.acquire(policy.capacity)
    row.rotated = pool.acquire_buffer(policy.capacity)
    state = SessionState(policy=policy, table=table, row=row)
    tokens = torch.randint(0, 128, (2000,), generator=torch.Generator().manual_seed(1)).tolist()
    state.add_message(Message("user", ""), tokens, step=1)
    flow = Writer().replay(state, tokens, [[64, 20], [1, 720]], TurnRecord())
    work = next(flow)
    while True:
        (written,) = ready.forward([work], pool)
        try:
            work = flow.send(written)
        except StopIteration:
            break
    assert state.renumbers > 10 and state.written == 2000
    row.check_integrity(table)
