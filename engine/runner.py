"""Loads a transformers model, proves that the engine computes what it computes, and runs it.

The model's code stays untouched: its rotary module is replaced by an identity and its
attention by ``packed_attention`` (DESIGN §3.2, §3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

from engine.attention import ATTENTION_NAME, PackedBatch, Scratch, Segment, packed_attention
from engine.config import RopeConfig
from engine.errors import ModelError
from engine.linear import replace_linears
from engine.load_check import LoadCheck, check_tokens, compare_logits, refuse_unsupported
from engine.pool import KVPool
from engine.rope import RotaryTable, build_rotary
from engine.rotary_probe import find_rotary, not_run, probe, use_attention
from engine.row import KVShape, Row, Staged


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one session for the next forward.

    ``first``: physical position of the first token; ``decode``: write the single token into
    the row's free slot instead of the staging area; ``logits``: for the last token or all;
    ``observe``: how many of the last tokens make the scores (see ``Segment``).
    """

    row: Row
    table: RotaryTable
    tokens: tuple[int, ...]
    first: int
    decode: bool
    logits: Literal["last", "all"]
    observe: int | None = None


@dataclass(slots=True)
class Written:
    """What a forward made of one ``Work``.

    ``logits``: float32 (float64) ``[k, V]`` for the k tokens asked for. ``scores``:
    ``[L, resident + n]``, attention received in this forward. ``staged`` is valid until the
    next forward; None for decode.
    """

    logits: Tensor
    scores: Tensor
    staged: Staged | None


class ModelRunner:
    """One loaded model. Not thread-safe: one thread calls ``forward``.

    Attributes:
        found: how the model attends and turns its keys, as it was asked at load.
        checked: how close its logits are to the stock model's; None before ``verified``.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        """Raises ModelError when the model's attention is not the one PACE computes."""
        config = model.config
        self.model = model
        self.config = config
        self.device = device
        self.dtype: torch.dtype = model.dtype
        self.checked: LoadCheck | None = None
        places = find_rotary(model)
        self._rotary: nn.Module = places[0][2]
        self.found = probe(model, places, device)
        self.shape = KVShape(
            layers=self.found.layers,
            kv_heads=self.found.kv_heads,
            head_dim=self.found.head_dim,
            dtype=self.dtype,
            device=device,
        )
        self.model_range = int(config.max_position_embeddings)
        self._tables: dict[tuple[RopeConfig, int], RotaryTable] = {}
        self._scratch = Scratch()
        block = 128 if device.type == "cpu" else 1024
        self._future = torch.ones(block, block, dtype=torch.bool, device=device).triu_(1)
        if device.type == "cpu" and self.dtype == torch.float32:
            replace_linears(model)
        AttentionInterface.register(ATTENTION_NAME, packed_attention)
        use_attention(model, ATTENTION_NAME)

    @classmethod
    def load(
        cls, path: Path, device: str = "auto", dtype: torch.dtype | None = None
    ) -> ModelRunner:
        """Load a folder of transformers' format and verify it (``verified``).

        Args:
            device: "auto" (CUDA when there is one), "cpu", "cuda", "cuda:1", …
            dtype: None: the checkpoint's.

        Raises:
            ModelError: unreadable, unsupported, or the logits differ from the stock model's.
        """
        name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        try:
            place = torch.device(name)
        except RuntimeError:
            raise ModelError(f"device {device}: must be auto, cpu, cuda or cuda:N") from None
        if place.type == "cuda" and not torch.cuda.is_available():
            raise ModelError(f"device {device}: this torch sees no CUDA device; use --device cpu")
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            refuse_unsupported(config)
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype or "auto", local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"{path}: cannot be loaded as a causal language model: {error}"
            ) from error
        ready: Any = model
        ready.to(place).eval().requires_grad_(False)
        return cls.verified(ready, place)

    @classmethod
    def verified(cls, model: Any, device: torch.device) -> ModelRunner:
        """Take over ``model`` and compare its logits before and after on 300 tokens.

        Raises:
            ModelError: they differ, with by how much.
        """
        refuse_unsupported(model.config)
        tokens = check_tokens(model.config)
        try:
            with torch.inference_mode():
                ids = torch.tensor([tokens], device=device)
                stock = model(ids, use_cache=False).logits[0]
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            kind = model.config.model_type
            raise ModelError(f"{kind}: the stock model does not run here: {error}") from error
        runner = cls(model, device)
        ours = runner._check_logits(tokens)
        runner.checked = compare_logits(model.config.model_type, ours, stock, runner.dtype)
        return runner

    def table(self, rope: RopeConfig, limit: int) -> RotaryTable:
        """The rotary table of a rope setting, for positions below ``limit``; cached."""
        key = (rope, limit)
        if key not in self._tables:
            dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
            rotary = build_rotary(self._rotary, self.config, rope)
            self._tables[key] = RotaryTable(rotary, limit, self.device, dtype, self.found.rotation)
        return self._tables[key]

    @torch.inference_mode()
    def forward(self, works: list[Work], pool: KVPool) -> list[Written]:
        """One packed forward (DESIGN §3.3).

        Prefill tokens together must fit ``pool.staging_slots``. No row changes its length or
        scores; repeating the call after a failure is safe.
        """
        segments: list[Segment] = []
        tables: list[tuple[Tensor, Tensor]] = []
        wanted: list[int] = []
        start = staged_used = 0
        for work in works:
            count = len(work.tokens)
            # DESIGN §3.6: every forward asserts p < L (lookup raises IndexError otherwise)
            tables.append(work.table.lookup(work.first, count))
            staged = None
            if not work.decode:
                staged = pool.stage(staged_used, count)
                staged_used += count
            scores = torch.zeros(
                (self.shape.layers, work.row.length + count),
                dtype=self.shape.score_dtype,
                device=self.device,
            )
            segments.append(Segment(work.row, start, count, staged, scores, work.observe))
            wanted.extend(
                range(start if work.logits == "all" else start + count - 1, start + count)
            )
            start += count
        logits = self._run(works, segments, tables, wanted)
        written, at = [], 0
        for work, segment in zip(works, segments, strict=True):
            size = len(work.tokens) if work.logits == "all" else 1
            written.append(Written(logits[at : at + size], segment.scores, segment.staged))
            at += size
        return written

    def _run(
        self,
        works: list[Work],
        segments: list[Segment],
        tables: list[tuple[Tensor, Tensor]],
        wanted: list[int],
    ) -> Tensor:
        tokens = [token for work in works for token in work.tokens]
        positions = [work.first + i for work in works for i in range(len(work.tokens))]
        batch = PackedBatch(
            segments=segments,
            cos=torch.cat([cos for cos, _ in tables]),
            sin=torch.cat([sin for _, sin in tables]),
            rotation=self.found.rotation,
            future=self._future,
            scratch=self._scratch,
        )
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(
            input_ids=ids,
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=self.device),
            pace=batch,
        )
        logits: Tensor = out.logits[0]
        return logits.to(self.shape.score_dtype)

    def _check_logits(self, tokens: list[int]) -> Tensor:
        """Logits ``[T, V]`` of ``tokens``, in the shapes of a session."""
        count = len(tokens)
        pool = KVPool(self.shape, byte_limit=1 << 62, staging_slots=count)
        row = pool.acquire(count)
        row.rotated = pool.acquire_buffer(count)
        table = self.table(RopeConfig(), self.model_range)
        parts = []
        # chunks, a short one, then decode
        cuts = sorted({0, count // 2, count - count // 8, *range(max(0, count - 4), count + 1)})
        try:
            for start, end in pairwise(cuts):
                chunk = tuple(tokens[start:end])
                work = Work(row, table, chunk, start, decode=len(chunk) == 1, logits="all")
                (written,) = self.forward([work], pool)
                row.append(written.staged, start, start, written.scores[:, start:])
                parts.append(written.logits)
        except (TypeError, RuntimeError, AttributeError, IndexError) as error:
            raise not_run(self.config.model_type, error) from error
        return torch.cat(parts)
