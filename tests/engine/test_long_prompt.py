"""One prompt of 20,000 tokens on a model with a range of 8,192 (minutes; ``-m slow``).

``pace bench run facts-20k`` measures the same turn by turn, under every arm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.filler import Filler, SourcePool, token_ends
from bench.plan import BenchPlan
from bench.sessions import Session, SessionBuilder
from bench.tasks import load_task
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.engine import KVEngine
from engine.pool import KVPool
from engine.runner import Work, Written
from engine.templates import load_tokenizer
from engine.types import Message, PlanUpdate, Sampling, ScoreRequest, TurnRequest

LONG, SHORT = (20_000, 19_000), (1500, 700)


def built(model: Path, seed: int, tokens: int, distance: int) -> Session:
    sessions = [{"layout": "distance", "tokens": tokens, "distances": [distance]}]
    plan = BenchPlan.model_validate(
        {"name": "x", "task": "facts", "seeds": [seed], "sessions": sessions, "arms": ["pace"]}
    )
    tokenizer = load_tokenizer(model, None)
    filler = Filler(SourcePool(), token_ends(tokenizer))
    builder = SessionBuilder(plan, load_task("facts"), ChatFormat(tokenizer), filler)
    (session,) = builder.sessions(plan.sessions[0], seed)
    return session


def prompt(session: Session) -> tuple[Message, ...]:
    """Everything before the first question, as one transcript."""
    messages: list[Message] = []
    for ask in session.asks:
        if ask.probe is not None:
            break
        if messages:
            messages.append(Message("assistant", "noted"))
        messages += ask.messages
    return tuple(messages)


def mean_logprob(engine: KVEngine, session: Session) -> tuple[float, int]:
    """Of the true values, each asked for after the whole prompt; and the prompt's tokens."""
    plan = {step: list(reads) for step, reads in session.graph.items()}
    name = f"{session.tokens}-{session.seed}"
    done = engine.run(
        TurnRequest(
            name,
            prompt(session),
            policy="pace",
            sampling=Sampling(max_tokens=1, temperature=0.0),
            plan=PlanUpdate(plan=plan),  # type: ignore[arg-type]
        )
    )[-1]
    values = []
    for ask in session.asks:
        if ask.probe is None:
            continue
        (target,) = ask.probe.targets
        scored = engine.score(
            ScoreRequest(
                name,
                ask.messages,
                (target.opening + target.text, target.opening),
                plan=PlanUpdate(step=ask.step),
            )
        )
        whole, opening = scored.continuations
        first = next(
            i
            for i, pair in enumerate(zip(whole.token_ids, opening.token_ids, strict=False))
            if pair[0] != pair[1] or i + 1 == len(opening.token_ids)
        )
        values.append(sum(whole.logprobs[first:]))
        assert scored.residency == 1.0
    assert len(values) == 10
    return sum(values) / len(values), done.usage.prompt_tokens  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_facts_before_20_000_tokens_are_as_probable_as_in_a_short_session(smollm2: Path) -> None:
    torch.set_num_threads(2)
    engine = KVEngine.from_config(EngineConfig(model=str(smollm2)))
    forward, highest = engine.runner.forward, 0

    def look(works: list[Work], pool: KVPool) -> list[Written]:
        nonlocal highest
        highest = max([highest, *(work.first + len(work.tokens) - 1 for work in works)])
        return forward(works, pool)

    engine.runner.forward = look  # type: ignore[method-assign]
    means: dict[str, list[float]] = {"long": [], "short": []}
    try:
        for seed in (1, 2, 3):
            for kind, (tokens, distance) in (("short", SHORT), ("long", LONG)):
                mean, held = mean_logprob(engine, built(smollm2, seed, tokens, distance))
                assert 0.9 * tokens < held + 300 and held < 1.1 * tokens
                means[kind].append(mean)
        limit = engine.session("", f"{LONG[0]}-3")["policy_settings"]["position_limit"]
    finally:
        engine.close()
        torch.set_num_threads(1)
    # a chunk of 512 behind a full row of 1,024: the limit was put to the test
    assert 1536 <= highest < limit == 2048
    difference = sum(means["long"]) / 3 - sum(means["short"]) / 3
    assert abs(difference) < 0.3, means
