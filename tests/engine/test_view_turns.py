"""What readers see when turns are redone, fail or come many to a step, and what they do not see."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from engine import readers
from engine.engine import KVEngine
from engine.errors import SessionNotFound, StepNotFound
from engine.runner import ModelRunner
from engine.types import PlanUpdate, TurnDone, Window
from tests.engine.conftest import MakeEngine
from tests.engine.support import policy_config, request
from tests.engine.test_views import NOW, RULES, TURNS, grow, text
from tests.support.scale import scaled


@pytest.fixture
def own(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    """The same, to go on with."""
    return grow(make_engine(tiny, {"test": policy_config(RULES)}))


def test_a_redone_turn_takes_the_place_of_the_first(own: KVEngine) -> None:
    before = own.steps("", "s")
    own.run(request("s", "another end", base="previous"))
    after = own.steps("", "s")
    assert after[:-1] == before[:-1]
    assert (after[-1]["step"], after[-1]["turn"]) == (TURNS, TURNS + 1)
    assert after[-1]["messages"] == before[-1]["messages"]
    assert own.messages("", "s", Window(8))["data"][0]["preview"] == "another end"
    # the step before it is still what it was
    assert own.residency("", "s", Window(step=TURNS - 1))["at"] == before[-2]["at"]


def test_a_turn_that_fails_leaves_nothing(own: KVEngine, monkeypatch: Any) -> None:
    def shown() -> list[Any]:
        return [
            own.steps("", "s"),
            own.residency("", "s", NOW),
            own.tokens("", "s", NOW, True),
            own.messages("", "s", NOW),
        ]

    before = shown()
    with monkeypatch.context() as patch:
        patch.setattr("engine.engine.step_row", lambda *_: 1 / 0)  # as late as can be
        with pytest.raises(Exception, match="the turn failed"):
            own.run(request("s", "never"))
    assert shown() == before
    own.run(request("s", "later"))
    assert own.residency("", "s", Window(step=TURNS))["at"] == before[1]["at"]


def test_a_new_plan_is_seen_at_once(own: KVEngine) -> None:
    own.blueprint("", "s", PlanUpdate(plan={9: (5,)}))
    message = own.messages("", "s", Window(8, 9))["data"][0]
    assert (message["readers"], message["next_use"]) == ([9], 9)
    uses = own.tokens("", "s", Window(message["start"]), True)["data"]
    assert set(uses["next_use"]) == {9}
    assert own.messages("", "s", Window(0, 1))["data"][0]["readers"] == []


def test_what_did_read_a_message_is_told_after_the_plan_has_changed(own: KVEngine) -> None:
    step = own.session("", "s")["step"]
    own.blueprint("", "s", PlanUpdate(plan={step + 1: (1,)}))
    own.run(request("s", "reads step 1"))
    own.blueprint("", "s", PlanUpdate(plan={}))
    own.run(request("s", "reads nothing"))
    for asked, read in ((step, False), (step + 1, True), (step + 2, True)):
        rows = own.messages("", "s", Window(step=asked))["data"]
        told = {row["step"] for row in rows if step + 1 in row["read_by"]}
        assert told == ({1} if read else set())
    assert not [row for row in rows if row["readers"]]


def test_what_a_plan_names_in_vain_is_told(own: KVEngine) -> None:
    step = own.session("", "s")["step"] + 1
    plan = PlanUpdate(plan={step + 3: (step + 9,), step + 4: (1,)})
    turn = replace(request("s", "plan"), plan=plan)
    done = own.run(turn)[-1]
    assert isinstance(done, TurnDone)
    (row,) = own.steps("", "s", step - 1)
    assert row["unresolved"] == list(done.pace.unresolved) and len(row["unresolved"]) == 1


def test_a_step_of_several_turns_is_shown_as_its_last_left_it(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    engine.run(request("s", "first"))
    ends = []
    for turn in range(3):
        engine.run(request("s", ("tool", f"result {turn}")))
        ends.append(engine.residency("", "s", NOW)["at"])
    engine.run(request("s", "second"))
    rows = engine.steps("", "s")
    assert [(row["step"], row["turn"]) for row in rows] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5)]
    assert [row["held"] for row in rows] == [False, False, False, True, True]
    assert engine.residency("", "s", Window(step=1))["at"] == ends[-1]


def test_what_is_not_there(own: KVEngine, tiny: ModelRunner, make_engine: MakeEngine) -> None:
    views = (own.residency, own.tokens, own.messages)
    for view in views:
        for step in (0, 77):
            with pytest.raises(StepNotFound) as caught:
                view("", "s", Window(step=step))
            assert caught.value.param == "step"
        for owner, name in (("", "other"), ("else", "s")):
            with pytest.raises(SessionNotFound):
                view(owner, name, NOW)
    with pytest.raises(SessionNotFound):
        own.steps("else", "s")
    assert own.residency("", "s", NOW, (7, 9))["data"] == []
    assert own.residency("", "s", NOW, (2, 1), 4)["bins"]["counts"] == []
    silent = make_engine(tiny, {"test": policy_config(RULES)}, summary_bytes=0, ledger_steps=2)
    for turn in range(1, 5):
        silent.run(request("s", text(turn)))
    with pytest.raises(StepNotFound):
        silent.residency("", "s", Window(step=3))
    assert [(row["step"], row["held"]) for row in silent.steps("", "s")] == [(3, False), (4, True)]


def test_reads_beside_running_turns_show_committed_states_only(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """Also while the last turn is redone again and again: no answer mixes two versions."""
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    engine.run(request("s", text(1)))
    versions, seen, stop = [], [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            for resident in (True, False):
                found = engine.tokens("", "s", NOW, resident)
                seen.append((found["tokens"], found["data"]["logical"], found["data"]["id"]))
            rows = engine.residency("", "s", NOW)
            held = {token for row in rows["data"] for token in row["logical"]}
            assert max(held) < rows["at"] and engine.messages("", "s", NOW)["data"]

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read) for _ in range(3)]
        try:
            for turn in range(scaled(10)):
                base = "previous" if turn % 4 else "current"
                engine.run(request("s", f"{turn} is " + "xyz"[turn % 3] * 30, base=base))
                versions.append(list(engine.store.table.get("", "s").state.tokens))
        finally:
            stop.set()
        for reader in reading:
            reader.result()
    engine_first = versions[0][: seen[0][0]]
    for tokens, logical, ids in seen:
        fitting = [v for v in [engine_first, *versions] if len(v) == tokens]
        assert any([v[i] for i in logical] == ids for v in fitting)
    assert len(seen) > 20 and len({tokens for tokens, _, _ in seen}) > 2


def test_answers_are_formatted_without_the_lock(own: KVEngine, monkeypatch: Any) -> None:
    free: list[bool] = []

    def take() -> bool:
        taken = own.store.lock.acquire(timeout=1)
        if taken:
            own.store.lock.release()
        return taken

    def watched(whole: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            free.append(pool.submit(take).result())
        return unpacked(whole)

    unpacked = readers._unpacked
    monkeypatch.setattr(readers, "_unpacked", watched)
    own.residency("", "s", Window(step=2), bins=4)
    own.tokens("", "s", Window(step=2), True)
    own.messages("", "s", Window(step=2))
    assert free == [True] * 3


@pytest.mark.parametrize("resident", [True, False])
def test_a_turn_redone_amid_a_read_is_read_again(
    own: KVEngine, monkeypatch: Any, resident: bool
) -> None:
    unpacked, redone = readers._unpacked, []

    def meanwhile(whole: Any) -> Any:
        if not redone:
            redone.append(own.run(request("s", "short", base="previous")))
        return unpacked(whole)

    monkeypatch.setattr(readers, "_unpacked", meanwhile)
    found = own.tokens("", "s", NOW, resident)
    tokens = list(own.store.table.get("", "s").state.tokens)
    assert redone and found["tokens"] == len(tokens)
    data = found["data"]
    assert data["id"] == [tokens[token] for token in data["logical"]]


def test_a_plan_of_thousands_of_readers_is_shown_in_part(own: KVEngine) -> None:
    own.blueprint("", "s", PlanUpdate(plan={step: (1, 2) for step in range(6, 5_006)}))
    for message in own.messages("", "s", Window(0, 4))["data"]:
        assert message["readers"] == list(range(6, 70)) and message["next_use"] == 6
