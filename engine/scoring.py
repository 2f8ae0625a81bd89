"""Log-probability of given continuations, on forks: how recall is measured without luck."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

import torch

from engine.chat import ChatFormat
from engine.errors import EngineFailure, InvalidRequest, PaceError
from engine.flow import Flow, TurnRecord, Writer, cut
from engine.row import Row
from engine.sampling import log_probabilities
from engine.state import SessionState
from engine.types import ScoredContinuation, ScoreResult

log = logging.getLogger(__name__)

# Logits of all tokens of a piece are held at once: 256 × 150K × 4 bytes are 150 MB.
_SCORED_AT_ONCE = 256


def encode_continuations(chat: ChatFormat, texts: tuple[str, ...]) -> list[list[int]]:
    """Token ids of each continuation. Raises InvalidRequest for none or an empty one."""
    if not texts:
        raise InvalidRequest("give at least one continuation", param="continuations")
    encoded = [chat.encode(text) for text in texts]
    for index, ids in enumerate(encoded):
        if not ids:
            raise InvalidRequest("a continuation is empty", param=f"continuations.{index}")
    return encoded


def score_flow(
    writer: Writer,
    chat: ChatFormat,
    origin: SessionState,
    prompt: SessionState,
    spare: Row,
    continuations: list[list[int]],
) -> Flow[ScoreResult]:
    """Write the prompt into ``prompt`` (a fork of ``origin``), then each continuation into a
    fork of it that lives in ``spare``."""
    prompt.fill_row(origin)
    record = TurnRecord()
    written = yield from writer.write_prompt(prompt, record)
    opening = log_probabilities(written.logits[-1]).clone()
    scored = []
    for ids in continuations:
        fork = prompt.fork(spare)
        fork.fill_row(prompt)
        fork.tokens.extend(ids)
        values = [float(opening[ids[0]])]
        at = 1
        for piece in cut(ids[:-1], min(prompt.policy.chunk, _SCORED_AT_ONCE)):
            written = yield from writer.write(fork, piece, TurnRecord(), "all")
            rows = log_probabilities(written.logits)
            chosen = torch.tensor(ids[at : at + len(piece)], device=rows.device)[:, None]
            values += rows.gather(1, chosen)[:, 0].tolist()
            at += len(piece)
        tokens = tuple(chat.tokenizer.decode([token]) for token in ids)
        scored.append(ScoredContinuation(tuple(ids), tokens, tuple(values)))
    return ScoreResult(tuple(scored), record.residency, record.rotary_gap, record.composition)


def reporting(
    flow: Flow[ScoreResult],
    release: Callable[[], None],
    outcome: SimpleQueue[ScoreResult | PaceError],
) -> Flow[None]:
    """Run ``flow``, ``release`` what it wrote to, and put its result, or what made it fail, into
    ``outcome``."""
    result: ScoreResult | PaceError = EngineFailure("scoring ended without a result")
    try:
        result = yield from flow
    except PaceError as error:
        result = error
    except BaseException as error:
        log.exception("scoring failed")
        result = EngineFailure(f"scoring failed: {type(error).__name__}")
        if not isinstance(error, Exception):
            raise  # it ends the step thread
    finally:
        release()
        outcome.put(result)
