"""DESIGN §3.5: who stays, against a sort written out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.retention import NO_USE, Candidates, select_keep
from tests.engine.support import resolved
from tests.reference.retention import Rules, kept

# few different scores and uses, so that ties are the rule
SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.0])
USES = st.sampled_from([None, None, None, 3, 4, 9, 1000])
STEP = 3


@st.composite
def cases(draw: Any) -> tuple[Rules, list[list[int]], list[list[float]], list[list[int | None]]]:
    retention = draw(st.sampled_from(["h2o", "plan_aware", "additive", "snapkv", "streaming"]))
    budget = draw(st.integers(4, 40))
    sizes = (budget, draw(st.integers(0, 6)), draw(st.integers(0, 20)), 4, 8)
    rules = Rules(retention, *sizes)
    if retention == "additive":
        rules = Rules("plan_aware", *sizes, foresight="additive")
    assume(rules.sinks + rules.recent + rules.reserve < budget)
    count = draw(st.integers(1, budget + 30))
    logical, scores, uses = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 50]), min_size=count, max_size=count))
        start = draw(st.sampled_from([0, 1, 3, 500]))
        logical.append(list(itertools.accumulate(gaps[1:], initial=start)))
        scores.append(draw(st.lists(SCORES, min_size=count, max_size=count)))
        uses.append(draw(st.lists(USES, min_size=count, max_size=count)))
    return rules, logical, scores, uses


def select(
    rules: Rules,
    logical: list[list[int]],
    scores: list[list[float]],
    uses: list[list[int | None]],
    dtype: torch.dtype = torch.float32,
) -> list[list[int]]:
    numbers = [[NO_USE if use is None else use for use in layer] for layer in uses]
    candidates = Candidates(
        torch.tensor(logical), torch.tensor(scores, dtype=dtype), torch.tensor(numbers), STEP
    )
    before = [array.clone() for array in (candidates.logical, candidates.score)]
    keep: list[list[int]] = select_keep(resolved(rules), candidates).tolist()
    assert torch.equal(before[0], candidates.logical) and torch.equal(before[1], candidates.score)
    return keep


@settings(derandomize=True, max_examples=200, deadline=None)
@given(cases())
def test_the_selection_is_the_reference_selection(case: Any) -> None:
    rules, logical, scores, uses = case
    expected = [kept(rules, *layer, STEP) for layer in zip(logical, scores, uses, strict=True)]
    assert select(rules, logical, scores, uses) == expected
    assert select(rules, logical, scores, uses, torch.float64) == expected


def one_layer(rules: Rules, scores: list[float], uses: list[int | None]) -> list[int]:
    (keep,) = select(rules, [list(range(len(scores)))], [scores], [uses])
    return keep


PLAN = Rules("plan_aware", budget=16, sinks=2, recent=3, interval=4, chunk=8)  # reserve 2, quota 9


def test_up_to_the_budget_everything_stays() -> None:
    for count in (1, 15, 16):
        assert one_layer(PLAN, [0.0] * count, [None] * count) == list(range(count))


def test_sinks_and_the_recent_window_stay_whatever_their_score() -> None:
    scores = [0.0, 0.0] + [9.0] * 25 + [0.0] * 3
    keep = one_layer(PLAN, scores, [5] * 30)
    assert {0, 1, 27, 28, 29} <= set(keep) and len(keep) == 16


def test_the_soonest_read_come_first_and_leave_the_reserve_to_scores() -> None:
    # 5 tokens read at step 3, 10 at step 8, 12 unread ones with the highest scores of all
    uses: list[int | None] = [None] * 2 + [8] * 10 + [3] * 5 + [None] * 12 + [None] * 3
    scores = [0.0] * 2 + [2.0] * 10 + [1.0] * 5 + [9.0] * 12 + [0.0] * 3
    keep = one_layer(PLAN, scores, uses)
    assert [i for i in keep if uses[i] == 3] == list(range(12, 17))
    assert [i for i in keep if uses[i] == 8] == [8, 9, 10, 11]  # 4 of the quota of 9 are left
    assert [i for i in keep if uses[i] is None and 2 <= i < 29] == [27, 28]  # reserve: 2


def test_protected_tokens_beyond_the_quota_compete_by_score() -> None:
    uses: list[int | None] = [None] * 2 + [3] * 20 + [None] * 6
    scores = [0.0] * 2 + [5.0] * 20 + [1.0] * 6
    keep = one_layer(PLAN, scores, uses)
    assert [i for i in keep if uses[i] == 3] == list(range(11, 22))


def test_equal_scores_keep_the_newer_token() -> None:
    rules = Rules("h2o", budget=6, sinks=1, recent=1, interval=4, chunk=8)
    assert one_layer(rules, [1.0] * 12, [None] * 12) == [0, 7, 8, 9, 10, 11]


def test_sinks_are_logical_positions_not_slots() -> None:
    rules = Rules("h2o", budget=4, sinks=3, recent=0, interval=4, chunk=8)
    scores = [[0.0, 0.0, 5.0, 4.0, 3.0, 2.0]]
    (keep,) = select(rules, [[1, 2, 30, 31, 32, 33]], scores, [[None] * 6])
    assert keep == [0, 1, 2, 3]


def test_the_additive_bonus_is_the_papers() -> None:
    """At step 3: read at step 3 gives 1e5, at step 5 gives 74,829.27, never 0 (Eq. 2)."""
    rules = Rules("plan_aware", 3, 0, 0, 4, 8, foresight="additive")
    uses: list[int | None] = [3, 5, None, 5, None, 5]
    # attention breaks ties and outweighs distance only when it is larger than the bonus
    assert one_layer(rules, [0.0, 1.0, 74_829.0, 2.0, 74_831.3, 1.0], uses) == [0, 3, 4]
    assert one_layer(rules, [0.0, 1.0, 74_829.0, 2.0, 74_830.0, 1.5], uses) == [0, 3, 5]


def test_snapkv_takes_neighbours_along() -> None:
    rules = Rules("snapkv", budget=8, sinks=0, recent=1, interval=4, chunk=8)
    scores = [0.0] * 30
    scores[10] = 1.0
    assert one_layer(rules, scores, [None] * 30) == [7, 8, 9, 10, 11, 12, 13, 29]


def test_streaming_keeps_sinks_and_the_newest_whatever_their_scores() -> None:
    rules = Rules("streaming", budget=6, sinks=2, recent=1, interval=4, chunk=8)
    assert one_layer(rules, [9.0] * 10 + [0.0] * 10, [5] * 20) == [0, 1, 16, 17, 18, 19]
