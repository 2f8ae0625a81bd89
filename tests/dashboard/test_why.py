"""The sentence that says why: one story for each way a message can go, or stay."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.why import Kind, layer_ranges, why

PACE = {"name": "pace", "retention": "plan_aware", "budget": 1024}
H2O = {"name": "h2o", "retention": "h2o", "budget": 1024}
STREAMING = {"name": "streaming", "retention": "streaming", "budget": 1024}


def message(least: int, most: int, *readers: int, step: int | None = 4) -> dict[str, Any]:
    """Message 7, of 20 tokens."""
    about = {"message": 7, "role": "user", "step": step, "tokens": 20}
    return about | {"readers": list(readers), "least": least, "most": most}


def eviction(
    step: int,
    lost: tuple[int, ...] = (20, 18),
    *,
    of: int = 7,
    score: float | None = 0.25,
    kept: tuple[float | None, ...] = (0.5, 0.75),
    displaced: int = 0,
) -> dict[str, Any]:
    """An eviction that took ``lost`` tokens of message ``of``, by layer."""
    spans = {"message": [2, of], "lost": [[1, 1], list(lost)], "highest_lost_score": [9.0, score]}
    data = {"at": 100 * step, "spans": spans, "lowest_kept_score": list(kept)}
    return {"seq": step, "kind": "eviction", "step": step, "data": data | {"displaced": displaced}}


STORIES: list[tuple[str, Kind, dict[str, Any], list[dict[str, Any]], dict[str, Any], list[str]]] = [
    (
        "the cache is not full yet",
        "nothing evicted",
        message(20, 20, 9),
        [],
        PACE,
        ["is whole: all 20 tokens are in every layer", "budget of 1,024 is not full"],
    ),
    (
        "an eviction of a later step does not count yet",
        "nothing evicted",
        message(20, 20),
        [eviction(11)],
        PACE,
        ["nothing has been evicted yet"],
    ),
    (
        "still resident, as a step will read it",
        "resident",
        message(20, 20, 3, 12, 15),
        [eviction(8, of=3)],
        PACE,
        ["is whole", "kept because step 12 reads it"],
    ),
    (
        "still resident without a plan",
        "resident",
        message(20, 20),
        [eviction(8, of=3)],
        H2O,
        ["is whole", "kept by score"],
    ),
    (
        "never planned, lost by score",
        "never planned",
        message(0, 2),
        [eviction(8)],
        PACE,
        ["0–2 of 20 tokens", "No step was planned", "at step 8", "0.25", "at least 0.5"],
    ),
    (
        "planned, and the plan asked for too much",
        "displaced",
        message(0, 0, 10),
        [eviction(8, displaced=38, kept=(None, None))],
        PACE,
        ["none of its 20 tokens", "planned for step 10", "at step 8", "budget of 1,024"],
    ),
    (
        "its last reader has passed",
        "last reader passed",
        message(0, 0, 3, 6),
        [eviction(8)],
        PACE,
        ["last reader was step 6", "at step 8 it lost", "0.25"],
    ),
    (
        "planned, but it was gone before",
        "planned too late",
        message(0, 0, 10),
        [eviction(8, displaced=0)],
        PACE,
        ["before a plan named it", "step 10"],
    ),
    (
        "planned, but the policy does not read plans",
        "plan ignored",
        message(0, 2, 10),
        [eviction(8, displaced=20)],
        H2O,
        ["Step 10 needs it", "'h2o' does not look at the plan", "at step 8 it lost by score"],
    ),
    (
        "planned, but only the newest are kept",
        "plan ignored",
        message(0, 0, 10),
        [eviction(8, displaced=20)],
        STREAMING,
        ["keeps only the newest tokens", "at step 8"],
    ),
    (
        "the ledger has forgotten",
        "unknown",
        message(0, 4),
        [eviction(8, of=3)],
        PACE,
        ["is only partly there", "not in the ledger"],
    ),
]


@pytest.mark.parametrize(
    ("kind", "about", "evictions", "policy", "words"),
    [story[1:] for story in STORIES],
    ids=[story[0] for story in STORIES],
)
def test_every_story_has_its_sentence(
    kind: Kind,
    about: dict[str, Any],
    evictions: list[dict[str, Any]],
    policy: dict[str, Any],
    words: list[str],
) -> None:
    found = why(about, 10, evictions, policy)
    assert found.kind == kind
    assert found.sentence.startswith("Message 7 (user, step 4) is ")
    for word in words:
        assert word in found.sentence


def test_the_eviction_that_took_most_is_the_one_told_of() -> None:
    evictions = [eviction(6, (2, 1), score=0.1), eviction(8, (15, 17)), eviction(9, (3, 0))]
    found = why(message(0, 2), 10, evictions, PACE)
    assert "at step 8" in found.sentence
    assert [(loss.step, loss.least, loss.most, loss.layers) for loss in found.losses] == [
        (6, 1, 2, (0, 1)),
        (8, 15, 17, (0, 1)),
        (9, 0, 3, (0,)),
    ]
    assert list(found.frame()["tokens lost"]) == ["1–2", "15–17", "0–3"]


def test_what_comes_after_the_step_is_not_told() -> None:
    found = why(message(18, 19), 7, [eviction(6, (2, 1)), eviction(8)], PACE)
    assert [loss.step for loss in found.losses] == [6]


def test_a_score_between_the_layers_is_told_as_one() -> None:
    found = why(message(0, 2), 10, [eviction(8, score=0.6)], PACE)
    assert "at least 0.5 to 0.75, by layer" in found.sentence


def test_no_slot_left_to_scores_is_told() -> None:
    found = why(message(0, 2), 10, [eviction(8, kept=(None, None))], PACE)
    assert "no slot was left to scores" in found.sentence


def test_the_advice_names_the_step_to_plan() -> None:
    assert '"plan": {"T": [4]}' in why(message(0, 2), 10, [eviction(8)], PACE).advice
    alone = why(message(0, 2, step=None), 10, [eviction(8)], PACE)
    assert alone.sentence.startswith("Message 7 (user) ") and "segments" in alone.advice


def test_layers_are_told_as_ranges() -> None:
    assert layer_ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert layer_ranges([]) == ""
