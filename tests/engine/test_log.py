"""``ForkableLog`` against plain lists that are copied on every fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.log import ForkableLog, token_log

LOGS: dict[str, Callable[[list[int]], ForkableLog[int]]] = {
    "list": ForkableLog,
    "tokens": token_log,
}
NUMBERS = st.lists(st.integers(0, 99), max_size=4)
# what a turn does on its fork: adds items, maybe replaces its last one, then commits or not
TURN = st.tuples(
    st.sampled_from(["current", "previous"]), NUMBERS, st.booleans(), NUMBERS, st.booleans()
)
SLICE = st.builds(
    slice, *[st.none() | st.integers(-12, 12)] * 2, st.none() | st.sampled_from([1, 2, -1, -3])
)


@pytest.mark.parametrize("make", LOGS.values(), ids=LOGS)
@settings(derandomize=True, max_examples=200)
@given(start=NUMBERS, turns=st.lists(TURN, max_size=8), part=SLICE)
def test_turns_on_forks_are_turns_on_copies(
    make: Callable[[list[int]], ForkableLog[int]],
    start: list[int],
    turns: list[tuple[str, list[int], bool, list[int], bool]],
    part: slice,
) -> None:
    """A session keeps two versions, continues either, and drops what it replaced."""
    logs = {"current": make(start), "previous": make(start)}
    logs["previous"] = logs["current"].fork()
    lists = {"current": list(start), "previous": list(start)}
    for base, items, replaces, more, commits in turns:
        fork, copied = logs[base].fork(), list(lists[base])
        for item in items:
            fork.append(item)
            copied.append(item)
        if replaces and items:
            fork.replace_last(-1)
            copied[-1] = -1
        fork.extend(more)
        copied += more
        assert list(fork) == copied
        if commits:
            fork.commit()
            logs = {"current": fork, "previous": logs[base]}
            lists = {"current": copied, "previous": lists[base]}
        for name in logs:
            assert list(logs[name]) == lists[name]
            assert len(logs[name]) == len(lists[name])
            assert logs[name][part] == lists[name][part]
            assert [logs[name][-i] for i in range(1, len(lists[name]) + 1)] == lists[name][::-1]


def test_forks_of_a_fork_see_its_uncommitted_items_and_no_others() -> None:
    log = ForkableLog([1])
    log.append(2)
    first, second = log.fork(), log.fork()
    first.append(3)
    second.append(4)
    assert (list(log), list(first), list(second)) == ([1, 2], [1, 2, 3], [1, 2, 4])


def test_indices_outside_raise_and_committed_items_cannot_be_replaced() -> None:
    log = ForkableLog([1, 2])
    view = log.fork()
    for index in (2, -3):
        with pytest.raises(IndexError, match="log of 2 items"):
            log[index]
    with pytest.raises(IndexError):
        log.replace_last(9)
    assert list(view) == [1, 2]
