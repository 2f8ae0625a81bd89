"""Residents, tokens, steps and messages as readers see them, against a reference of plain lists."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from engine.engine import KVEngine
from engine.runner import ModelRunner
from engine.types import CLASSES, PlanUpdate, Sampling, Window
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    RANGE,
    build_engine,
    check_engine,
    policy_config,
    request,
    tiny_llama,
)
from tests.reference import plan as plans
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession

RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
PLAN = {3: (1,), 5: (2, 3), 6: (1, 4)}
TURNS = 5
NOW = Window()


def text(turn: int) -> str:
    return f"turn {turn}: " + "abcdefg " * (4 + turn)


class Expected:
    """What a reference session holds after a turn, one token at a time."""

    def __init__(self, session: ReferenceSession, step: int) -> None:
        self.step, self.at, self.tokens = step, session.written, list(session.tokens)
        self.spans, self.logical = list(session.spans), session.logical
        self.physical, self.scores = session.physical, session.scores

    def use(self, token: int) -> int | None:
        return plans.next_use(self.spans, PLAN, (), token, self.step)

    def kind(self, layer: int, slot: int) -> int:
        held = self.logical[layer]
        if held[slot] < RULES.sinks:
            return 0
        if slot >= len(held) - RULES.recent:
            return 1
        return 2 if self.use(held[slot]) is not None else 3

    def kinds(self, layer: int) -> list[int]:
        return [self.kind(layer, slot) for slot in range(len(self.logical[layer]))]

    def message(self, token: int) -> int:
        return next(i for i, span in enumerate(self.spans) if span.start <= token < span.end)


@pytest.fixture(scope="module")
def expected() -> list[Expected]:
    """By turn, from 0."""
    session = ReferenceSession(DenseLlama(tiny_llama(), RANGE), RULES)
    found = []
    for turn in range(1, TURNS + 1):
        session.turn([("user", text(turn))], 8, PLAN if turn == 1 else None)
        found.append(Expected(session, turn))
    return found


def grow(engine: KVEngine) -> KVEngine:
    for turn in range(1, TURNS + 1):
        plan = PlanUpdate(plan=PLAN if turn == 1 else None)
        engine.run(request("s", text(turn), plan=plan))
    return engine


@pytest.fixture(scope="module")
def engine(tiny: ModelRunner) -> Iterator[KVEngine]:
    """Its session is looked at only."""
    made = grow(build_engine(tiny, {"test": policy_config(RULES)}))
    yield made
    made.close()
    check_engine(made)


def close(values: list[float], rel: float) -> Any:
    return pytest.approx(values, rel=rel, abs=1e-12)


def test_every_slot_of_every_step(engine: KVEngine, expected: list[Expected]) -> None:
    for want in expected:
        now = want is expected[-1]
        found = engine.residency("", "s", NOW if now else Window(step=want.step))
        assert found["source"] == ("row" if now else "summary")
        assert (found["step"], found["at"], found["tokens"]) == (
            want.step,
            want.at,
            len(want.tokens),
        )
        assert found["resident"] == len(want.logical[0]) and found["layers"] == 3
        assert found["classes"] == list(CLASSES) and found["next_layer"] is None
        for layer, row in enumerate(found["data"]):
            assert row["layer"] == layer and row["logical"] == want.logical[layer]
            size = len(row["logical"])
            assert row["physical"] == (want.physical[layer] if now else [None] * size)
            assert row["class"] == want.kinds(layer)
            assert row["next_use"] == [want.use(token) for token in want.logical[layer]]
            assert row["score"] == close(want.scores[layer], 1e-5 if now else 0.05)
    both = [engine.residency("", "s", Window(step=TURNS)), engine.residency("", "s", NOW)]
    assert both[0] == both[1]


@pytest.mark.parametrize("bins", [1, 7, 1024])
@pytest.mark.parametrize("window", [(0, None), (30, 200), (5, 6), (200, 100), (10**9, None)])
def test_bins_are_sums_over_slots(
    engine: KVEngine, expected: list[Expected], bins: int, window: tuple[int, int | None]
) -> None:
    for want in (expected[2], expected[-1]):
        found = engine.residency("", "s", Window(*window, step=want.step), (1, 2), bins)
        edges = found["bins"]["edges"]
        end = len(want.tokens) if window[1] is None else window[1]
        start = min(window[0], end)
        assert (edges[0], edges[-1]) == (start, end) and len(edges) - 1 == min(bins, end - start)
        widths = {b - a for a, b in pairwise(edges)}
        assert len(widths) <= 2 and 0 not in widths, "as equal as whole numbers allow"
        assert found["first_layer"] == 1 and len(found["bins"]["counts"]) == 2
        for row, layer in enumerate((1, 2)):
            held: list[list[int]] = [[] for _ in edges[1:]]
            for slot, token in enumerate(want.logical[layer]):
                if start <= token < end:
                    held[bisect_right(edges, token) - 1].append(slot)
            kinds, uses, scores = [], [], []
            for slots in held:
                of = [want.kind(layer, slot) for slot in slots]
                kinds.append(max(range(4), key=of.count) if of else -1)
                reads = [want.use(want.logical[layer][slot]) for slot in slots]
                uses.append(min((use for use in reads if use is not None), default=None))
                scores.append(max((want.scores[layer][slot] for slot in slots), default=None))
            got = {name: values[row] for name, values in found["bins"].items() if name != "edges"}
            assert got["counts"] == list(map(len, held))
            assert got["class"] == kinds and got["next_use"] == uses
            pairs = list(zip(got["score"], scores, strict=True))
            assert all((a is None) == (b is None) for a, b in pairs)
            assert [a for a, _ in pairs if a is not None] == close(
                [b for b in scores if b is not None], 0.05
            )


def test_tokens_that_some_layer_holds(engine: KVEngine, expected: list[Expected]) -> None:
    for want in (expected[1], expected[-1]):
        now = want is expected[-1]
        found = engine.tokens("", "s", Window(step=want.step), resident=True)["data"]
        union = sorted(set().union(*want.logical))
        assert found["logical"] == union and found["id"] == [want.tokens[i] for i in union]
        assert found["message"] == [want.message(token) for token in union]
        for at, token in enumerate(union):
            places = [
                (layer, held.index(token))
                for layer, held in enumerate(want.logical)
                if token in held
            ]
            assert found["layers"][at] == len(places)
            lowest = min(want.physical[layer][slot] for layer, slot in places)
            assert found["physical"][at] == (lowest if now else None)
            assert found["class"][at] == want.kind(*places[0])
            assert found["next_use"][at] == want.use(token)
            highest = max(want.scores[layer][slot] for layer, slot in places)
            assert found["score"][at] == pytest.approx(highest, rel=1e-5 if now else 0.05)


def test_plain_tokens_and_their_pages(engine: KVEngine, expected: list[Expected]) -> None:
    want = expected[-1]
    for resident in (False, True):
        whole = engine.tokens("", "s", NOW, resident)["data"]
        paged: dict[str, list[Any]] = {key: [] for key in whole}
        at: int | None = 0
        while at is not None:
            answer = engine.tokens("", "s", Window(at, limit=37), resident)
            assert len(answer["data"]["id"]) <= 37
            paged = {key: paged[key] + answer["data"][key] for key in paged}
            at = answer["next"]
        assert paged == whole
    plain = engine.tokens("", "s", NOW)["data"]
    assert plain["id"] == want.tokens and plain["logical"] == list(range(len(want.tokens)))
    shown = "".join(engine.tokens("", "s", Window(6, 16))["data"]["text"])
    assert shown == text(1)[:10]
    past = engine.tokens("", "s", Window(step=2))["data"]["id"]
    assert past == expected[1].tokens, "what came later is not shown"
    for nothing in (Window(9, 9), Window(10**12), Window(5, 3)):
        assert engine.tokens("", "s", nothing)["data"]["id"] == []
        assert engine.tokens("", "s", nothing, True)["data"]["id"] == []


def test_messages_of_every_step(engine: KVEngine, expected: list[Expected]) -> None:
    for want in expected:
        found = engine.messages("", "s", Window(step=want.step))
        assert found["next"] is None and len(found["data"]) == len(want.spans)
        for index, (row, span) in enumerate(zip(found["data"], want.spans, strict=True)):
            assert (row["message"], row["role"], row["step"]) == (index, span.role, span.step)
            assert (row["start"], row["end"]) == (span.start, span.end)
            held = [sum(span.start <= m < span.end for m in layer) for layer in want.logical]
            assert row["resident"] == [min(held), max(held)]
            # a plan forgets a reader that is past when the last of a message's is
            readers = plans.readers(want.spans, PLAN, (), index)
            coming = sorted(reader for reader in readers if reader >= want.step)
            assert [reader for reader in row["readers"] if reader >= want.step] == coming
            assert set(row["readers"]) <= readers
            assert row["next_use"] == (coming[0] if coming else None)
            assert row["read_by"] == sorted(readers - set(coming) | readers & {want.step})
            if span.role == "user":
                assert row["preview"] == text(span.step)[:200]
    page = engine.messages("", "s", Window(2, limit=3))
    assert [row["message"] for row in page["data"]] == [2, 3, 4] and page["next"] == 5


def test_steps_are_what_the_ledger_says(engine: KVEngine, expected: list[Expected]) -> None:
    rows = engine.steps("", "s")
    turns = [event.data for event in engine.events("", "s") if event.kind == "turn"]
    evictions = [event for event in engine.events("", "s") if event.kind == "eviction"]
    assert [row["turn"] for row in rows] == [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    messages = 0
    for row, data, want in zip(rows, turns, expected, strict=True):
        same = ("evicted", "renumbers", "displaced", "residency", "rotary_gap", "times")
        same += ("new_tokens", "cached_tokens", "completion_tokens", "restored_tokens")
        assert {name: row[name] for name in same} == {name: data[name] for name in same}
        assert row["messages"] == [messages, len(want.spans)] and row["held"] is True
        messages = len(want.spans)
        assert (row["at"], row["resident"]) == (want.at, len(want.logical[0]))
        kinds = [want.kinds(layer) for layer in range(3)]
        mean = {name: sum(k.count(i) for k in kinds) / 3 for i, name in enumerate(CLASSES)}
        assert row["by_class"] == pytest.approx(mean)
        last = [event.data for event in evictions if event.step == row["step"]][-1:]
        for name, extreme in (("lowest_kept_score", min), ("highest_unprotected_score", max)):
            scores = [score for data in last for score in data[name] if score is not None]
            assert row[name] == (extreme(scores) if scores else None)
        # 3 layers, 2 heads of 8 float64 each, keys and values
        assert row["full_kv_bytes"] == len(want.tokens) * 3 * 2 * 8 * 8 * 2
    assert engine.steps("", "s", since=3) == rows[3:] and engine.steps("", "s", 1, 2) == rows[1:3]
    (listed,) = engine.sessions("")
    assert (listed["residency"], listed["rotary_gap"]) == (
        rows[-1]["residency"],
        rows[-1]["rotary_gap"],
    )
    assert listed["sizes"] | {"x": 0} == {
        "budget": 80,
        "capacity": 88,
        "sinks": 4,
        "recent": 12,
        "reserve": 10,
        "position_limit": 128,
        "x": 0,
    }


def test_figures_of_a_step_follow_from_what_is_shown(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Residency and rotary gap, from slots and messages alone, whenever nothing was evicted
    between their measure (the last prompt token) and the end of the turn."""
    rules = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=40, chunk=10, limit=160)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    plan = {step: tuple(range(1, step)) for step in range(2, 12)}
    seen = []
    for turn in range(1, 12):
        update = PlanUpdate(plan=plan if turn == 1 else None)
        once = Sampling(max_tokens=1, temperature=0)
        asked = request("s", "abcdefg " * 5 + "x" * turn, plan=update, sampling=once)
        done = engine.run(asked)[-1]
        rows = engine.residency("", "s", NOW)
        last = [event.data["at"] for event in engine.events("", "s") if event.kind == "eviction"]
        if turn == 1 or (last and last[-1] == rows["at"]):
            continue
        messages = engine.messages("", "s", NOW)["data"]
        needed = {
            token
            for message in messages
            if turn in message["readers"] and message["step"] < turn
            for token in range(message["start"], message["end"])
        }
        held = [len(needed & set(row["logical"])) for row in rows["data"]]
        gaps = [
            row["physical"][-1] - min(p for m, p in pairs if m in needed)
            for row in rows["data"]
            if (pairs := list(zip(row["logical"], row["physical"], strict=True)))
        ]
        pace = done.pace  # type: ignore[union-attr]
        assert (min(held) / len(needed), max(gaps)) == (pace.residency, pace.rotary_gap)
        seen.append(pace.residency)
    assert len(seen) > 5 and min(seen) < 0.5


def test_renumber_events_map_old_positions_to_new(engine: KVEngine) -> None:
    renumbers = [event.data for event in engine.events("", "s") if event.kind == "renumber"]
    assert renumbers
    for data in renumbers:
        runs = data["runs"]
        rows = list(zip(runs["new"], runs["count"], strict=True))
        assert rows[0][0] == 0 and sum(count for _, count in rows) == data["after"]
        assert all(a + n == b for (a, n), (b, _) in pairwise(rows))
        assert runs["old_last"][-1] == data["before"] - 1 and len(rows) <= 64
        for (new, count), old, last in zip(rows, runs["old_first"], runs["old_last"], strict=True):
            assert old >= new and last - old >= count - 1
        assert runs["old_first"] == sorted(runs["old_first"])
