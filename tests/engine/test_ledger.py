"""The ledger tells what happened to the cache, and stays small."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from engine.events import touched_messages
from engine.ledger import Ledger, Notes, page
from engine.plan import MessageSpan
from engine.runner import ModelRunner
from engine.types import LedgerEvent, PlanUpdate, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import RANGE, outcome, policy_config, request, tiny_llama
from tests.reference import plan as plans
from tests.reference.llama import DenseLlama
from tests.reference.plan import Span, Steps
from tests.reference.retention import Rules
from tests.reference.session import LayerEviction, ReferenceSession

RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
LISTED_LOSSES, LISTED_RESIDENTS = 24, 64
Turn = list[tuple[str, str]]


@dataclass
class WatchedSession(ReferenceSession):
    """A reference that remembers what each layer held after each chunk of a prompt."""

    chunks: list[tuple[int, list[list[int]]]] = field(default_factory=list)

    def _write(self, tokens: list[int], measure: int | None) -> Any:
        logits = super()._write(tokens, measure)
        if measure is not None:
            self.chunks.append((self.written, self.logical))
        return logits


def new_reference(rules: Rules) -> WatchedSession:
    return WatchedSession(DenseLlama(tiny_llama(), RANGE), rules)


def extremes(values: Sequence[int]) -> list[int]:
    return [min(values), max(values)]


def first_of(order: list[tuple[Any, int]], count: int) -> list[int]:
    """The messages of the ``count`` smallest entries, in the order of the session."""
    return sorted(message for _, message in sorted(order)[:count])


def expected_eviction(rules: Rules, spans: list[Span], layers: list[LayerEviction]) -> Any:
    """The data of an eviction, from the reference's candidates, one token at a time."""
    classes: dict[str, list[list[int]]] = {"kept": [], "lost": []}
    names = ["sink", "recent", "protected", "other"]
    lowest, lost_scores, unprotected = [], [], []
    lost: dict[int, list[int]] = {}
    highest: dict[int, float] = {}
    planned_lost: dict[int, int] = {}
    for number, layer in enumerate(layers):
        count = len(layer.logical)
        counts = {"kept": [0] * 4, "lost": [0] * 4}
        kept_scores, gone_scores, free_scores = [], [], []
        for i, token in enumerate(layer.logical):
            kind = 3
            if token < rules.sinks:
                kind = 0
            elif i >= count - rules.recent:
                kind = 1
            elif layer.uses[i] is not None:
                kind = 2
            stays, score = i in layer.stay, layer.scores[i]
            counts["kept" if stays else "lost"][kind] += 1
            if kind == 3:
                free_scores.append(score)
                if stays:
                    kept_scores.append(score)
            if not stays:
                gone_scores.append(score)
                message = next(m for m, s in enumerate(spans) if s.start <= token < s.end)
                lost.setdefault(message, [0] * len(layers))[number] += 1
                highest[message] = max(score, highest.get(message, 0.0))
                planned = layer.uses[i] is not None
                planned_lost[message] = planned_lost.get(message, 0) + planned
        for which in ("kept", "lost"):
            classes[which].append(counts[which])
        lowest.append(min(kept_scores, default=None))
        lost_scores.append(max(gone_scores))
        unprotected.append(max(free_scores, default=None))
    order = [((-planned_lost[m], -sum(lost[m])), m) for m in lost]
    listed = first_of(order, LISTED_LOSSES)
    beyond = [lost[m] for m in lost if m not in listed]
    size, kept = len(layers[0].logical), len(layers[0].stay)
    return {
        "at": layers[0].logical[-1] + 1,
        "candidates": size,
        "kept": kept,
        "evicted": size - kept,
        "displaced": max(counts[2] for counts in classes["lost"]),
        "kept_by_class": {
            name: extremes([counts[k] for counts in classes["kept"]])
            for k, name in enumerate(names)
        },
        "lost_by_class": {
            names[k]: extremes([counts[k] for counts in classes["lost"]]) for k in (2, 3)
        },
        "kept_protected": [counts[2] for counts in classes["kept"]],
        "lowest_kept_score": lowest,
        "highest_lost_score": lost_scores,
        "highest_unprotected_score": unprotected,
        "spans": {
            "message": listed,
            "lost": [lost[m] for m in listed],
            "highest_lost_score": [highest[m] for m in listed],
        },
        "more_spans": {
            "spans": len(beyond),
            "lost": extremes([sum(each[k] for each in beyond) for k in range(len(layers))]),
        },
    }


def expected_residency(
    spans: list[Span], written: int, logical: list[list[int]], step: int, plan: Steps
) -> Any:
    """The data of the residency event of ``step``."""
    counts, read = {}, set()
    for message, span in enumerate(spans):
        held = [sum(span.start <= token < span.end for token in layer) for layer in logical]
        if any(held):
            counts[message] = held
        if plans.next_use(spans, plan, (), span.start, step) is not None:
            read.add(message)
    order = [((m not in read, -max(held)), m) for m, held in counts.items()]
    listed = first_of(order, LISTED_RESIDENTS)
    beyond = [held for m, held in counts.items() if m not in listed]
    return {
        "at": written,
        "resident": len(logical[0]),
        "spans": {
            "message": listed,
            "tokens": [min(spans[m].end, written) - spans[m].start for m in listed],
            "least": [min(counts[m]) for m in listed],
            "most": [max(counts[m]) for m in listed],
        },
        "more_spans": {
            "spans": len(beyond),
            "resident": extremes([sum(h[k] for h in beyond) for k in range(len(logical))]),
        },
    }


def rounded(value: Any) -> Any:
    """``value`` with floats that two orders of adding give too."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def of_kind(events: list[LedgerEvent], kind: str) -> list[LedgerEvent]:
    return [event for event in events if event.kind == kind]


def test_evictions_and_residency_turn_by_turn(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    """With more planned than fits, displaced tokens are counted, never forgotten."""
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    reference = new_reference(RULES)
    plan, displaced = {4: (1, 2), 5: (3,)}, 0
    for turn in range(1, 6):
        text = f"turn {turn}: " + "abcdefg " * 9
        update = plan if turn == 1 else None
        got = outcome(engine.run(request("s", text, plan=PlanUpdate(plan=update))))
        before = len(reference.evictions)
        reference.turn([("user", text)], 8, update)
        new = [
            expected_eviction(RULES, reference.spans, layers)
            for _, layers in reference.evictions[before:]
        ]
        assert got.done.pace.displaced == sum(data["displaced"] for data in new)
        displaced += got.done.pace.displaced
        resident, last = engine.events("", "s")[-2:]
        assert (resident.kind, last.kind) == ("residency", "turn")
        assert resident.step == turn
        held = reference.spans, reference.written, reference.logical
        assert resident.data == expected_residency(*held, turn, plan)
    assert displaced > 50
    evictions = of_kind(engine.events("", "s"), "eviction")
    for event, (step, layers) in zip(evictions, reference.evictions, strict=True):
        assert event.step == step
        assert event.data == rounded(expected_eviction(RULES, reference.spans, layers))


def many_messages() -> Turn:
    """70 messages of all lengths, one step each two."""
    draw = random.Random(4)
    sizes = [draw.choice((1, 2, 3, 30)) for _ in range(70)]
    return [
        ("assistant" if at % 2 else "user", "".join(draw.choices("abcdef ", k=size)))
        for at, size in enumerate(sizes)
    ] + [("user", "and now?")]


@pytest.mark.parametrize(
    "rules",
    [
        Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=500, limit=640),
        Rules("h2o", budget=700, sinks=4, recent=12, interval=8, chunk=64, limit=800),
        RULES,
    ],
    ids=["many lose", "many stay", "many chunks"],
)
def test_a_transcript_in_bulk(rules: Rules, tiny: ModelRunner, make_engine: MakeEngine) -> None:
    """Messages beyond those an event lists are summed up; a step that ends a chunk has its own
    residency event."""
    engine = make_engine(tiny, {"test": policy_config(rules)})
    reference, messages, plan = new_reference(rules), many_messages(), {36: (3, 9, 30)}
    sampling = Sampling(max_tokens=3, temperature=0)
    engine.run(request("s", *messages, plan=PlanUpdate(plan=plan), sampling=sampling))
    reference.turn(messages, 3, plan)
    spans = reference.spans

    def step(token: int) -> int:
        return next(span.step for span in spans if span.start <= token < span.end)

    events = engine.events("", "s")
    evictions = [
        (step, rounded(expected_eviction(rules, spans, layers)))
        for step, layers in reference.evictions
    ]
    assert [(event.step, event.data) for event in of_kind(events, "eviction")] == evictions
    for kinds in (("eviction",), ("turn", "residency"), ()):
        asked = [event for event in events if event.kind in kinds]
        assert engine.events("", "s", kinds=kinds) == asked
        assert engine.events("", "s", asked[0].seq if asked else 0, 1, kinds) == asked[1:2]
    chunks = reference.chunks
    ending = [
        (step(at - 1), expected_residency(spans, at, logical, step(at - 1), plan))
        for (at, logical), (later, _) in itertools.pairwise(chunks)
        if step(at - 1) != step(later - 1)
    ]
    final = expected_residency(spans, reference.written, reference.logical, 36, plan)
    expected = [*ending, (36, final)]
    assert [(event.step, event.data) for event in of_kind(events, "residency")] == expected
    beyond = {
        kind: max(event.data["more_spans"]["spans"] for event in of_kind(events, kind))
        for kind in ("eviction", "residency")
    }
    assert (beyond["eviction"] > 0) == (rules.chunk == 500)
    assert (beyond["residency"] > 0) == (rules.budget == 700)
    assert len(ending) > 5 or rules.chunk == 500


def test_what_the_plan_reads_is_listed_first(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    """The smallest of 70 messages is in the list when it is planned, and not when it is not."""
    rules = Rules("plan_aware", 900, 4, 12, 8, 64, limit=1000)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    messages = [("user", "x" if at == 20 else "words") for at in range(70)]
    for name, plan in (("with", {99: (21,)}), ("without", {})):
        engine.run(request(name, *messages, plan=PlanUpdate(plan=plan)))
        (event,) = of_kind(engine.events("", name), "residency")[-1:]
        assert event.data["more_spans"]["spans"] == 71 - LISTED_RESIDENTS
        assert (20 in event.data["spans"]["message"]) == (name == "with")


def test_touched_messages_are_those_that_hold_the_positions() -> None:
    draw = random.Random(2)
    spans: list[MessageSpan] = []
    while len(spans) < 300:  # some are empty
        start = spans[-1].end if spans else 0
        spans.append(MessageSpan(start, start + draw.choice((0, 1, 2, 9)), "user", 1, b""))
    for count in (1, 2, 30, 600):
        positions = sorted(draw.sample(range(spans[-1].end), count))
        expected = {i for i, s in enumerate(spans) if any(s.start <= p < s.end for p in positions)}
        assert touched_messages(spans, positions) == sorted(expected)
    assert touched_messages(spans, []) == []


class Counted(list[MessageSpan]):
    """Messages that count how often they are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


def test_finding_messages_does_not_depend_on_how_many_there_are() -> None:
    looks = []
    for size in (1_000, 100_000):
        spans = Counted(MessageSpan(10 * i, 10 * i + 10, "user", i, b"") for i in range(size))
        positions = [0, 5, *range(10 * size - 300, 10 * size)]
        assert len(touched_messages(spans, positions)) == 31
        looks.append(spans.looks)
    # one bisection more deep: 7 halvings
    assert looks[1] <= looks[0] + 8 and looks[0] < 5 * 31


def test_a_ledger_keeps_the_newest_events_and_their_numbers() -> None:
    ledger = Ledger(limit=3)
    for step in range(1, 6):
        ledger.add("turn", step, {"n": step})
    notes = Notes(limit=2)
    notes.add("eviction", 6, {})
    ledger.extend(notes)
    assert [(event.seq, event.step) for event in ledger.since(0)] == [(4, 4), (5, 5), (6, 6)]
    assert [event.kind for event in ledger.since(5)] == ["eviction"]
    assert ledger.since(6) == []


def test_a_turn_with_more_events_than_are_kept_counts_them_all() -> None:
    ledger, notes = Ledger(limit=3), Notes(limit=3)
    for step in range(1, 12):
        notes.add("eviction", step, {})
    assert (len(list(notes)), notes.dropped) == (3, 8)
    ledger.add("turn", 0, {})
    ledger.extend(notes)
    assert [(event.seq, event.step) for event in ledger.since(0)] == [(10, 9), (11, 10), (12, 11)]


def test_a_session_keeps_ledger_events_of_its_newest_events(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Also within one turn that has more of them."""
    engines = [
        make_engine(tiny, {"test": policy_config(RULES)}, **settings)
        for settings in ({}, {"ledger_events": 5})
    ]
    for engine in engines:
        engine.run(request("s", "words " * 60))
    every, newest = (engine.events("", "s") for engine in engines)
    assert len(every) > 12 and len(newest) == 5

    def numbered(events: list[LedgerEvent]) -> list[tuple[int, str, int]]:
        return [(event.seq, event.kind, event.step) for event in events]

    assert numbered(newest) == numbered(every[-5:])
    assert [event.seq for event in every] == list(range(1, len(every) + 1))


def test_a_page_of_events_is_below_a_megabyte_and_pages_are_all_of_them() -> None:
    ledger = Ledger(limit=100)
    for step in range(100):
        ledger.add("eviction", step, {"lost": [[step] * 30] * 300, "text": "\u00e9"})
    seen: list[int] = []
    while events := page(ledger.since(seen[-1] if seen else 0)):
        body = {"data": [asdict(event) for event in events], "next": events[-1].seq}
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":"))  # as HTTP answers do
        assert len(sent.encode()) < 1_000_000
        assert len(events) > 10 or events[-1].seq == 100
        seen += [event.seq for event in events]
    assert seen == list(range(1, 101))
    assert [event.seq for event in page(ledger.since(7), limit=2)] == [8, 9]
    huge = [LedgerEvent(1, "x", 1, {"text": "a" * 10**6}), LedgerEvent(2, "x", 1, {})]
    assert [event.seq for event in page(huge)] == [1], "one that is too large is not in the way"
