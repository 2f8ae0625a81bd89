"""What a plan protects and what it measures, against token-by-token definitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequest
from engine.log import ForkableLog
from engine.plan import (
    Interval,
    MessageSpan,
    Plan,
    StepStart,
    needed_now,
    next_use,
    protected,
    residency,
    rotary_gap,
)
from engine.retention import NO_USE
from engine.turn import assign_steps
from engine.types import Message, PlanSegment, PlanUpdate
from tests.reference import plan as reference
from tests.reference.plan import Span

Logs = tuple[ForkableLog[StepStart], ForkableLog[MessageSpan]]


def logs_of(spans: list[Span]) -> Logs:
    starts: ForkableLog[StepStart] = ForkableLog()
    messages: ForkableLog[MessageSpan] = ForkableLog()
    for index, span in enumerate(spans):
        if index == 0 or spans[index - 1].step != span.step:
            starts.append(StepStart(span.step, index))
        messages.append(MessageSpan(span.start, span.end, span.role, span.step, b""))
    return starts, messages


@st.composite
def sessions(draw: Any) -> tuple[list[Span], dict[int, tuple[int, ...]], list[Any]]:
    """Spans of a session with gaps in its step numbers, a plan and segments over it."""
    spans: list[Span] = []
    step = draw(st.sampled_from([0, 1]))
    for _ in range(draw(st.integers(1, 9))):
        start = spans[-1].end if spans else 0
        spans.append(Span(start, start + draw(st.integers(1, 5)), "user", step))
        step += draw(st.sampled_from([0, 1, 1, 3]))
    steps = sorted({span.step for span in spans})
    plan = draw(
        st.dictionaries(
            st.integers(1, 14), st.lists(st.sampled_from(steps), max_size=3).map(tuple), max_size=4
        )
    )
    plan = {reader: tuple(s for s in read if s < reader) for reader, read in plan.items()}
    indices = st.lists(st.integers(0, len(spans) - 1), max_size=3).map(tuple)
    segments = []
    for _ in range(draw(st.integers(0, 3))):
        chosen = draw(indices)
        least = max([1, *(spans[index].step for index in chosen)])
        readers = st.lists(st.integers(least, least + 9), max_size=3).map(tuple)
        segments.append((chosen, draw(readers)))
    return spans, plan, segments


def planned(spans: list[Span], plan: Any, segments: Any) -> Plan:
    change = PlanUpdate(plan=plan, segments=tuple(PlanSegment(*s) for s in segments))
    made, unresolved = Plan().update(change, 0, logs_of(spans)[0], len(spans))
    assert not unresolved
    return made


@settings(derandomize=True, max_examples=150, deadline=None)
@given(sessions(), st.integers(0, 15))
def test_next_use_is_the_smallest_reader_not_past(session: Any, step: int) -> None:
    spans, plan, segments = session
    starts, messages = logs_of(spans)
    intervals = protected(planned(*session), starts, messages, step)
    assert all(a.end <= b.start for a, b in itertools.pairwise(intervals))
    tokens = torch.arange(spans[-1].end + 3).repeat(2, 1)
    expected = [
        reference.next_use(spans, plan, segments, token, step) for token in tokens[0].tolist()
    ]
    numbers = [NO_USE if use is None else use for use in expected]
    assert next_use(intervals, tokens).tolist() == [numbers, numbers]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(sessions(), st.data())
def test_residency_and_rotary_gap_follow_their_definitions(session: Any, data: Any) -> None:
    spans, plan, segments = session
    step, total = spans[-1].step, spans[-1].end
    starts, messages = logs_of(spans)
    wanted = reference.needed(spans, plan, segments, step)
    found = needed_now(planned(*session), starts, messages, step)
    assert [(i.start, i.end) for i in found] == [(s.start, s.end) for s in wanted]
    size = data.draw(st.integers(1, total))
    choose = st.lists(st.integers(0, total - 1), min_size=size, max_size=size, unique=True).map(
        sorted
    )
    logical = [data.draw(choose) for _ in range(2)]
    offsets = [sorted(data.draw(st.sets(st.integers(0, 99), min_size=size, max_size=size)))] * 2
    arrays = torch.tensor(logical), torch.tensor(offsets)
    assert residency(found, arrays[0]) == reference.residency(wanted, logical)
    gap = reference.rotary_gap(wanted, logical, offsets, 120)
    assert rotary_gap(found, *arrays, 120) == gap


def test_protection_ends_after_the_last_readers_step() -> None:
    spans = [Span(0, 10, "user", 1), Span(10, 20, "user", 2)]
    starts, messages = logs_of(spans)
    plan = planned(spans, {3: (1,), 6: (1,)}, [((1,), (4,))])
    first, second = Interval(0, 10, 3), Interval(10, 20, 4)
    expected = {
        1: [first, second],
        3: [first, second],
        4: [Interval(0, 10, 6), second],
        5: [Interval(0, 10, 6)],
        6: [Interval(0, 10, 6)],
        7: [],
    }
    for step, intervals in expected.items():
        assert protected(plan, starts, messages, step) == intervals
        pruned = plan.pruned(step)
        assert protected(pruned, starts, messages, step) == intervals
        assert (pruned.by_step, pruned.by_message) == (
            plan.by_step if step <= 6 else {},
            plan.by_message if step <= 4 else {},
        )


def test_parts_left_out_of_an_update_stay_and_others_are_replaced() -> None:
    starts, _ = logs_of([Span(0, 1, "user", 1), Span(1, 2, "user", 2)])
    plan, _ = Plan().update(
        PlanUpdate(plan={5: (1,)}, segments=(PlanSegment((0,), (4, 7)),)), 2, starts, 2
    )
    assert (plan.by_step, plan.by_message) == ({1: (5,)}, {0: (4, 7)})
    assert plan.update(PlanUpdate(), 2, starts, 2) == (plan, [])
    other, _ = plan.update(PlanUpdate(plan={6: (2,)}), 2, starts, 2)
    assert (other.by_step, other.by_message) == ({2: (6,)}, {0: (4, 7)})
    third, _ = plan.update(PlanUpdate(segments=()), 2, starts, 2)
    assert (third.by_step, third.by_message) == ({1: (5,)}, {})


# session with steps 1, 2, 5 and six messages; the request's first message is of step 5
UNRESOLVED = {
    "past reader": (PlanUpdate(plan={4: (1,)}), ["step 4 is past and cannot read step 1"]),
    "not earlier": (PlanUpdate(plan={7: (7,)}), ["step 7 cannot read step 7: it is not earlier"]),
    "skipped step": (PlanUpdate(plan={7: (3, 0)}), ["step 3: it does not exist", "step 0: it"]),
    "no message": (
        PlanUpdate(segments=(PlanSegment((6, -1), (7,)),)),
        ["message 6 does not exist", "message -1 does not exist"],
    ),
    "past reader of a message": (
        PlanUpdate(segments=(PlanSegment((1,), (4,)),)),
        ["step 4 is past and cannot read message 1"],
    ),
}


@pytest.mark.parametrize(("change", "texts"), UNRESOLVED.values(), ids=UNRESOLVED)
def test_what_cannot_be_resolved_is_listed_or_refused(change: PlanUpdate, texts: list[str]) -> None:
    steps = [1, 1, 2, 2, 5, 5]
    starts, _ = logs_of([Span(i, i + 1, "user", step) for i, step in enumerate(steps)])
    fine = {5: (1,), 9: (1, 2, 5, 6)}  # step 5 itself may read, step 6 is yet to come
    both = PlanUpdate(plan={**fine, **(change.plan or {})}, segments=change.segments)
    plan, unresolved = Plan().update(both, 5, starts, 6)
    assert len(unresolved) == len(texts)
    for line, text in zip(unresolved, texts, strict=True):
        assert text in line
    assert plan.by_step == {1: (5, 9), 2: (9,), 5: (9,), 6: (9,)} and plan.by_message == {}
    strict = PlanUpdate(both.plan, both.segments, strict=True)
    with pytest.raises(InvalidRequest, match=r"cannot be resolved.*" + texts[0]) as caught:
        Plan().update(strict, 5, starts, 6)
    assert caught.value.param == ("pace.segments" if change.segments else "pace.plan")
    assert Plan().update(PlanUpdate(fine, strict=True), 5, starts, 6)[1] == []


def messages_of(roles: str) -> list[Message]:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(names[role], "") for role in roles]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("current", "roles", "given", "steps"),
    [
        (0, "su", None, [0, 1]),
        (0, "su", 1, [0, 1]),
        (0, "u", 7, [7]),
        (0, "suaua", None, [0, 1, 1, 2, 2]),
        (0, "suaua", 9, [0, 1, 1, 9, 9]),
        (4, "t", None, [4]),
        (4, "tt", 4, [4, 4]),
        (4, "tu", 5, [4, 5]),
        (4, "uu", 6, [5, 6]),
        (4, "aut", 8, [4, 8, 8]),
    ],
)
def test_user_messages_count_steps(
    current: int, roles: str, given: int | None, steps: list[int]
) -> None:
    assert assign_steps(current, messages_of(roles), given) == steps


@pytest.mark.parametrize(
    ("current", "roles", "given", "wanted"),
    [
        (4, "u", 4, "at least 5"),
        (4, "u", -1, "at least 5"),
        (4, "uu", 5, "at least 6"),
        (4, "t", 5, "4, since no user message is new"),
        (4, "t", 3, "4, since no user message is new"),
        (0, "u", 0, "at least 1"),
    ],
)
def test_steps_only_rise(current: int, roles: str, given: int, wanted: str) -> None:
    with pytest.raises(InvalidRequest, match=wanted) as caught:
        assign_steps(current, messages_of(roles), given)
    assert caught.value.param == "pace.step"


def test_a_plan_all_wrong_is_answered_in_a_few_lines() -> None:
    steps, _ = logs_of([])
    wrong = PlanUpdate({3: tuple(range(4, 1004))}, (PlanSegment((7,) * 500, (9,)),))
    _, unresolved = Plan().update(wrong, 1, steps, 6)
    assert len(unresolved) == 101 and unresolved[-1] == "and 1400 more"
    with pytest.raises(InvalidRequest) as caught:
        Plan().update(PlanUpdate(wrong.plan, strict=True), 1, steps, 6)
    assert len(caught.value.message) < 10_000
