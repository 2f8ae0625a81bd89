"""DESIGN §3.2, §6: a model whose logits PACE would change is refused, with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from engine.errors import ModelError
from engine.runner import ModelRunner
from tests.engine.support import runner_for, tiny_llama

SMALL = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (Qwen2Config(**SMALL), Qwen2ForCausalLM),
        (Qwen3Config(**SMALL), Qwen3ForCausalLM),
        (MistralConfig(**SMALL, sliding_window=None), MistralForCausalLM),
    ],
    ids=["qwen2", "qwen3", "mistral"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_families_that_differ_in_nothing_that_matters_are_taken(
    config: Any, kind: Any, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    runner = runner_for(kind(copy.deepcopy(config)).to(dtype).eval())
    assert runner.shape.layers == 2 and runner.shape.kv_heads == 2 and runner.shape.head_dim == 8


def rotates_values(model: nn.Module) -> None:
    """Like the families that rotate inside their own attention code, unseen by the interface."""

    class RotatesValues(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
            cos, _ = position_embeddings
            scaled = hidden_states * cos.mean(-1, keepdim=True)
            return super().forward(scaled, position_embeddings, **kwargs)

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.__class__ = RotatesValues


def rotates_in_mirrored_pairs(model: nn.Module) -> None:
    """The first dimension turns with the last, the second with the last but one, and so on."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:].flip(-1)
        c, s = cos[..., :half], sin[..., :half]
        return torch.cat((a * c - b * s, (a * s + b * c).flip(-1)), dim=-1)

    class Mirrored(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
            shape = (*hidden_states.shape[:-1], -1, self.head_dim)
            q, k, v = (
                project(hidden_states).view(shape).transpose(1, 2)
                for project in (self.q_proj, self.k_proj, self.v_proj)
            )
            cos, sin = (part[:, None] for part in position_embeddings)
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
            kwargs.pop("past_key_values", None)
            mask = kwargs.pop("attention_mask", None)
            out, weights = attend(
                self, turn(q, cos, sin), turn(k, cos, sin), v, mask, scaling=self.scaling, **kwargs
            )
            return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.__class__ = Mirrored


def caps_logits(model: nn.Module) -> None:
    """A softmax that is not the plain one."""

    class Capped(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
            out, weights = super().forward(hidden_states, position_embeddings, **kwargs)
            sink = 0.9 if self.config._attn_implementation != "pace" else 1.0
            return out * sink, weights

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.__class__ = Capped


def mixes_tokens(model: nn.Module) -> None:
    """Tokens see their neighbour outside of attention: right for one prefill, not for chunks."""

    class Mixing(LlamaMLP):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.mlp.__class__ = Mixing


def scales_after_rotating(model: nn.Module) -> None:
    """A weight per dimension behind the rotation, as norms have: it does not commute with it."""

    class Scales(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
            cos, sin = position_embeddings
            return super().forward(hidden_states, (cos * weight, sin * weight), **kwargs)

    weight = torch.linspace(0.5, 1.5, 8)
    for layer in model.model.layers:  # type: ignore[union-attr]
        weight = weight.to(layer.self_attn.q_proj.weight.dtype)
        layer.self_attn.__class__ = Scales


DIFFERS = r"logits differ from the stock model's by up to [\d.]+"
TURNS = "layer 0 turns its queries and keys by position in a way that is not supported"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (caps_logits, DIFFERS),
        (mixes_tokens, DIFFERS),
        (rotates_values, TURNS),
        (rotates_in_mirrored_pairs, TURNS),
        (scales_after_rotating, TURNS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_model_whose_logits_would_differ_is_refused(
    change: Callable[[nn.Module], None], reason: str, dtype: torch.dtype
) -> None:
    plain = tiny_llama().to(dtype)
    runner_for(plain)
    changed = tiny_llama().to(dtype)
    change(changed)
    with pytest.raises(ModelError, match=reason):
        runner_for(changed)


@pytest.mark.parametrize("positions", [1, 2, 5, 33, 40])
def test_a_model_of_a_short_range_is_checked_over_all_of_it(positions: int) -> None:
    runner_for(tiny_llama(max_position_embeddings=positions))
    wrong = tiny_llama(max_position_embeddings=positions)
    caps_logits(wrong)
    with pytest.raises(ModelError, match=f"over {positions} tokens"):
        runner_for(wrong)


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny_llama()
    model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="differ from the stock model's by up to nan"):
        runner_for(model)


def test_an_attention_that_fails_under_pace_is_refused_with_its_error() -> None:
    class Insists(LlamaAttention):
        def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
            if "pace" in kwargs:
                raise TypeError("unexpected keyword: pace")
            return super().forward(hidden_states, position_embeddings, **kwargs)

    model = tiny_llama()
    model.model.layers[0].self_attn.__class__ = Insists
    with pytest.raises(ModelError, match=r"does not run with PACE's attention: unexpected keyword"):
        runner_for(model)


def test_a_model_that_does_not_run_at_all_is_refused_with_its_error() -> None:
    model = tiny_llama()
    model.model.layers[1].mlp.down_proj.weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(ModelError, match=r"llama: the stock model does not run here: .*shapes"):
        runner_for(model)


ROPE = {"rope_theta": 10_000.0}
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("dynamic", {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    (
        "longrope",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 128,
            }
        },
        "longrope",
    ),
]


@pytest.mark.parametrize(
    ("name", "settings", "reason"), UNSUPPORTED, ids=[u[0] for u in UNSUPPORTED]
)
def test_unsupported_rope_is_refused_by_name(
    name: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=f"rope type {reason} is not supported.*default, linear"):
        runner_for(tiny_llama(**settings))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MistralConfig(**SMALL, sliding_window=64), r"sliding-window attention \(64 tokens\)"),
        (
            Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=64, max_window_layers=1),
            "layers other than full attention.*sliding_attention",
        ),
    ],
    ids=["all layers", "some layers"],
)
def test_sliding_windows_are_refused(config: Any, reason: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=reason):
        runner_for(AutoModelForCausalLM.from_config(config).double().eval())


def test_a_model_without_rotary_positions_is_refused(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=261, n_embd=32, n_layer=1, n_head=4, n_positions=512)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="gpt2: the model has no single rotary embedding"):
        ModelRunner.load(tmp_path, "cpu")


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        ModelRunner.load(tmp_path, "cpu")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
        ModelRunner.load(tmp_path, "cpu")
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ModelError, match="cannot be loaded"):
        ModelRunner.load(tmp_path, "cpu")
    AutoConfig.for_model("llama", **SMALL).save_pretrained(tmp_path)  # no weights
    with pytest.raises(ModelError, match="cannot be loaded"):
        ModelRunner.load(tmp_path, "cpu")


def test_a_device_that_is_none_is_refused(protocol_model: Path) -> None:
    with pytest.raises(ModelError, match="device tpu: must be auto, cpu, cuda or cuda:N"):
        ModelRunner.load(protocol_model, "tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_on_a_machine_without_it_is_refused(protocol_model: Path) -> None:
    with pytest.raises(ModelError, match="sees no CUDA device; use --device cpu"):
        ModelRunner.load(protocol_model, "cuda")


def test_the_dtype_is_the_checkpoints_unless_asked_otherwise(protocol_model: Path) -> None:
    assert ModelRunner.load(protocol_model, "cpu").dtype == torch.float32
    runner = ModelRunner.load(protocol_model, "cpu", torch.bfloat16)
    assert runner.dtype == runner.shape.dtype == torch.bfloat16
    assert runner.shape.score_dtype == torch.float32


def test_two_runners_in_one_process_do_not_touch_each_other() -> None:
    first, second = runner_for(tiny_llama(seed=1)), tiny_llama(seed=2)
    with torch.inference_mode():
        before = second(torch.tensor([[1, 2, 3]]), use_cache=False).logits
    other = runner_for(tiny_llama(seed=2))
    with torch.inference_mode():
        after = second(torch.tensor([[1, 2, 3]]), use_cache=False).logits
    assert torch.equal(before, after), "a model that was not handed over changed"
    assert first.model is not other.model and first.shape == other.shape
