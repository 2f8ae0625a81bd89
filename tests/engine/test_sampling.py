"""Drawing tokens: the right distribution, the same draws again."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import CounterRng, draw, log_probabilities
from engine.types import Sampling

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.5, float("-inf"), -3.0])
DRAWS = 4000


def expected(temperature: float, top_p: float) -> dict[int, float]:
    """Probability by token: softmax, then the fewest best tokens that reach ``top_p``."""
    weights = {i: math.exp(v / temperature) for i, v in enumerate(LOGITS.tolist())}
    total = sum(weights.values())
    chosen, reached = {}, 0.0
    for token, weight in sorted(weights.items(), key=lambda item: -item[1]):
        if reached < top_p and weight > 0:
            chosen[token] = weight / total
            reached += weight / total
    return {token: p / reached for token, p in chosen.items()}


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.9), (1.0, 0.5), (0.7, 0.8), (1.0, 0.01)],
)
def test_draws_follow_the_distribution(temperature: float, top_p: float) -> None:
    rng, sampling = CounterRng(seed=11), Sampling(temperature=temperature, top_p=top_p)
    counts = torch.zeros(len(LOGITS))
    for _ in range(DRAWS):
        counts[draw(LOGITS, sampling, rng)] += 1
    wanted = expected(temperature, top_p)
    assert rng.draws == DRAWS
    for token, count in enumerate(counts.tolist()):
        p = wanted.get(token, 0.0)
        # five standard deviations; never a token without probability
        assert abs(count - DRAWS * p) <= 5 * math.sqrt(DRAWS * p * (1 - p))


def test_temperature_zero_takes_the_best_token_and_draws_nothing() -> None:
    rng = CounterRng(seed=1)
    for logits in (LOGITS, -LOGITS.clamp(min=-9)):
        assert draw(logits, Sampling(temperature=0.0), rng) == int(logits.argmax())
    assert rng.draws == 0


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 5e-324])
def test_tiny_temperatures_take_the_best_token(temperature: float, top_p: float) -> None:
    rng, sampling = CounterRng(seed=1), Sampling(temperature=temperature, top_p=top_p)
    logits = LOGITS.clone()
    logits[1] = 1e4  # large, as random models have them
    assert {draw(logits, sampling, rng) for _ in range(20)} == {1}


@pytest.mark.parametrize("seed", [0, 1, 7, 2**63 - 1, 2**64, -1, -(2**40)])
def test_a_seed_repeats_its_draws(seed: int) -> None:
    first, second = CounterRng(seed), CounterRng(seed)
    numbers = [first.uniform() for _ in range(50)]
    assert numbers == [second.uniform() for _ in range(50)]
    assert all(0 <= number < 1 for number in numbers) and len(set(numbers)) == 50
    assert CounterRng(seed, draws=30).uniform() == numbers[30]  # a fork goes on exactly
    assert [CounterRng(seed + 1, n).uniform() for n in range(50)] != numbers


def test_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    rng = CounterRng(seed=5)
    numbers = torch.tensor([rng.uniform() for _ in range(4000)], dtype=torch.float64)
    counts = torch.histc(numbers, bins=10, min=0, max=1)
    assert ((counts - 400).abs() < 5 * math.sqrt(400)).all()
    centred = numbers - 0.5
    correlation = (centred[1:] * centred[:-1]).mean() / (centred**2).mean()
    assert abs(float(correlation)) < 5 / math.sqrt(4000)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=20),
    st.floats(0.05, 3.0),
    st.floats(0.01, 1.0),
)
def test_top_p_keeps_the_fewest_best_tokens(
    values: list[float], temperature: float, top_p: float
) -> None:
    logits = torch.tensor(values)
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    rng, sampling = CounterRng(3), Sampling(temperature=temperature, top_p=top_p)
    for _ in range(5):
        token = draw(logits, sampling, rng)
        better = probabilities[probabilities > probabilities[token]].sum()
        assert better < top_p + 1e-12


def test_log_probabilities_are_log_softmax() -> None:
    values = log_probabilities(LOGITS)
    total = math.log(sum(math.exp(v) for v in LOGITS.tolist()))
    assert values.tolist() == pytest.approx([v - total for v in LOGITS.tolist()], abs=1e-5)
