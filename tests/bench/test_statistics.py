"""The paper's own p values from its own counts; resampling against exact enumeration."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import pytest

from bench.statistics import (
    bootstrap_mean,
    compare,
    fisher,
    format_p,
    interaction,
    sign_flip,
    sign_test,
)


# paper, table 2 and sections 5.2, 5.4, 5.7; what it prints, to its digits
@pytest.mark.parametrize(
    ("better", "worse", "printed"),
    [
        (14, 2, "0.004"),
        (15, 2, "0.002"),
        (17, 0, "1.5e-05"),
        (19, 1, "4.0e-05"),
        (8, 6, "0.79"),
        (10, 7, "0.63"),
        (12, 7, "0.36"),
        (13, 0, "0.0002"),
        (1, 11, "0.006"),
        (8, 0, "0.008"),
        (6, 4, "0.75"),
        (7, 0, "0.016"),
        (15, 0, "6e-05"),
    ],
)
def test_sign_tests_of_the_paper(better: int, worse: int, printed: str) -> None:
    p = sign_test(better, worse)
    form = ".0e" if printed == "6e-05" else ".1e" if "e" in printed else f".{len(printed) - 2}f"
    assert format(p, form) == printed
    assert sign_test(worse, better) == pytest.approx(p)


def test_the_headline_is_below_one_in_a_million() -> None:
    assert sign_test(22, 0) < 1e-6 < sign_test(20, 0)
    assert sign_test(0, 0) == 1.0 == sign_test(3, 3)


def test_fisher_of_the_paper_and_by_counting() -> None:
    assert format(fisher(9, 10, 1, 10), ".3f") == "0.001"
    assert fisher(9, 10, 0, 10) < 0.001
    assert format(fisher(5, 5, 0, 5), ".3f") == "0.008"  # section 5.7, 2M tokens
    ways = [comb(10, k) * comb(10, 10 - k) for k in range(11)]
    rare = sum(way for way in ways if way <= ways[9])
    assert fisher(9, 10, 1, 10) == pytest.approx(float(Fraction(rare, sum(ways))))


def test_pairs_are_counted() -> None:
    assert compare([1, 0.5, 0.5, 0], [0, 0.5, 1, 0.1])[:3] == (1, 2, 1)
    with pytest.raises(ValueError):
        compare([1], [1, 1])


def test_sign_flips_are_exact_for_few_differences() -> None:
    values = [0.3, 0.2, -0.1, 0.4, 0.25, 0.6, -0.05]
    sums = [
        sum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in product((1, -1), repeat=len(values))
    ]
    extreme = sum(abs(total) >= sum(values) - 1e-12 for total in sums)
    assert sign_flip(values) == pytest.approx(extreme / len(sums))
    assert sign_flip([-value for value in values]) == pytest.approx(sign_flip(values))


def test_random_sign_flips_are_the_same_each_time_and_near_the_exact_ones() -> None:
    values = [1.0] * 12 + [-1.0] * 4  # as a sign test: 12 against 4
    assert sign_flip(values) == sign_flip(values)
    assert sign_flip(values) == pytest.approx(sign_test(12, 4), abs=0.01)


def test_the_bootstrap_interval_is_that_of_a_mean() -> None:
    zeros_and_ones = [0.0] * 50 + [1.0] * 50
    mean, low, high, n = bootstrap_mean(zeros_and_ones)
    assert (mean, n) == (0.5, 100) and low is not None and high is not None
    assert low == pytest.approx(0.402, abs=0.015) and high == pytest.approx(0.598, abs=0.015)
    assert bootstrap_mean([0.7, 0.7]) == (0.7, 0.7, 0.7, 2)
    assert bootstrap_mean([0.7]) == (0.7, None, None, 1)
    with pytest.raises(ValueError):
        bootstrap_mean([])


def test_the_interaction_is_what_both_add_beyond_each() -> None:
    nothing = [0.0] * 6
    added = interaction(nothing, [0.2] * 6, [0.3] * 6, [0.5] * 6)
    assert added.effect.mean == pytest.approx(0) and added.p == pytest.approx(1)
    more = interaction(nothing, [0.2] * 6, [0.3] * 6, [1.0] * 6)
    assert more.effect.mean == pytest.approx(0.5) and more.p == pytest.approx(2 / 2**6)


def test_p_values_are_printed_as_in_the_paper() -> None:
    printed = [format_p(p) for p in (0.7905, 0.0042, 0.00109, 1.526e-5, 4.77e-7, 1.0, 0.0996)]
    assert printed == [
        "p = 0.79", "p = 0.004", "p = 0.001", "p = 1.5e-5", "p < 1e-6", "p = 1.00", "p = 0.10",
    ]  # fmt: skip
