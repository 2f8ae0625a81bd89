"""The statistics of the paper (section 4.2), by scipy: what is paired, counted and resampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

RESAMPLES = 9_999
_SEED = 20261106  # resampling is part of a report: two reports of the same files are the same


class Paired(NamedTuple):
    """Pairs in which one arm did better, worse and the same, with the two-sided sign test's p."""

    better: int
    worse: int
    tied: int
    p: float


class Interval(NamedTuple):
    """A mean with its 95 % bootstrap interval; ``low`` and ``high`` are None for one value."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Interaction(NamedTuple):
    """Of two factors: the effect of both beyond the sum of each, and its sign-flip p."""

    effect: Interval
    p: float


def sign_test(better: int, worse: int) -> float:
    """Two-sided p of ``better`` against ``worse`` pairs; ties do not count. 1 without pairs."""
    if better + worse == 0:
        return 1.0
    return float(stats.binomtest(better, better + worse, 0.5).pvalue)


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Sign test of two arms on the same (session, probe) pairs, in the same order.

    Raises ValueError when they are not equally many.
    """
    pairs = list(zip(ours, theirs, strict=True))
    better = sum(a > b for a, b in pairs)
    worse = sum(a < b for a, b in pairs)
    return Paired(better, worse, len(pairs) - better - worse, sign_test(better, worse))


def fisher(passed: int, total: int, other_passed: int, other_total: int) -> float:
    """Two-sided p of Fisher's exact test on two pass rates."""
    table = [[passed, total - passed], [other_passed, other_total - other_passed]]
    return float(stats.fisher_exact(table).pvalue)


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """Mean of independent ``values`` with its 95 % percentile bootstrap interval.

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("no values to average")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, None, None, 1)
    found = stats.bootstrap(
        (np.asarray(values, dtype=float),),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high), len(values))


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p that the mean of paired ``differences`` is zero, by flipping their signs.

    Exact for up to 13 differences, else from random flips. Raises ValueError without any.
    """
    if not differences:
        raise ValueError("no differences to test")
    found = stats.permutation_test(
        (np.asarray(differences, dtype=float),),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)


def interaction(
    neither: Sequence[float], first: Sequence[float], second: Sequence[float], both: Sequence[float]
) -> Interaction:
    """Interaction of two factors over the same pairs: (both − second) − (first − neither).

    Raises ValueError when the four are not equally many, or empty.
    """
    effects = [(b - s) - (f - n) for n, f, s, b in zip(neither, first, second, both, strict=True)]
    return Interaction(bootstrap_mean(effects), sign_flip(effects))


def format_p(p: float) -> str:
    """``p = 0.79``, ``p = 0.004``, ``p = 1.5e-5``, ``p < 1e-6``."""
    if p < 1e-6:
        return "p < 1e-6"
    if p < 1e-3:
        mantissa, exponent = f"{p:.1e}".split("e")
        return f"p = {mantissa}e{int(exponent)}"
    return f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"
