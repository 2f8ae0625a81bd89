"""The pages' flows, run by Streamlit's own test runner against a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard.server import ReadFailed, Server
from tests.dashboard.conftest import LAST, Story, answering
from tests.support.server import free_port

pytestmark = pytest.mark.xdist_group("dashboard")


def page(name: str, url: str, key: str | None) -> None:
    """The script under test: one page. It runs apart from this module."""
    import importlib

    from dashboard.app import guarded
    from dashboard.palette import LIGHT
    from dashboard.server import Server

    guarded(importlib.import_module(f"dashboard.{name}").show, Server(url, key), LIGHT)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    st.cache_data.clear()
    st.cache_resource.clear()


def opened(name: str, url: str, key: str | None = None, **params: str) -> AppTest:
    """A page as its address opens it."""
    test = AppTest.from_function(page, args=(f"{name}_page", url, key), default_timeout=30)
    for parameter, value in params.items():
        test.query_params[parameter] = value
    return run(test)


def run(test: AppTest) -> AppTest:
    test.run()
    assert not test.exception, test.exception
    return test


def html(test: AppTest) -> str:
    """All HTML of the page."""
    return "".join(str(part.proto.body) for part in test.get("html"))


class _Banners(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.found, self._depth = list[str](), 0
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "pace-banner" in (dict(attrs).get("class") or ""):
            self.found.append("")
            self._depth = 1
        elif self._depth:
            self._depth += tag == "div"

    def handle_endtag(self, tag: str) -> None:
        if self._depth:
            self._depth -= tag == "div"

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.found[-1] += data


def banners(test: AppTest) -> list[str]:
    """The sentences in boxes, top to bottom."""
    return _Banners(html(test)).found


def gauges(test: AppTest) -> dict[str, str]:
    """The figures at the top, by name."""
    return dict(re.findall(r'data-gauge="([\w-]+)">([^<]*)<', html(test)))


def last_turn(story: Story, session: str) -> dict[str, Any]:
    found: dict[str, Any] = story.get(f"/sessions/{session}/steps")["data"][-1]
    return found


def test_the_list_shows_what_the_api_says(story: Story) -> None:
    test = opened("sessions", story.url)
    shown = test.dataframe[0].value.set_index("open")
    for about in story.get("/sessions")["data"]:
        line = shown.loc[f"/session?session={about['session_id']}"]
        for name in ("policy", "step", "tokens", "residency", "rotary_gap"):
            assert line[name] == about[name], name
        assert line["kv_mib"] == about["kv_bytes"] / 2**20


@pytest.mark.parametrize("session", ["rule-pace", "rule-h2o"])
def test_the_figures_are_those_of_the_api(story: Story, session: str) -> None:
    shown, turn = gauges(opened("session", story.url, session=session)), last_turn(story, session)
    turns = story.get(f"/sessions/{session}/steps")["data"]
    assert shown["residency"] == f"{turn['residency']:.1%}"
    assert shown["rotary_gap"] == f"{turn['rotary_gap']:,}"
    assert shown["tokens"] == f"{turn['at']:,}"
    assert shown["kv_bytes"] == f"{turn['kv_bytes'] / 2**20:,.1f} MiB"
    assert shown["renumbers"] == str(sum(t["renumbers"] for t in turns))
    assert shown["displaced"] == str(sum(t["displaced"] for t in turns))
    assert shown["class-recent"] == str(round(turn["by_class"]["recent"]))


def test_the_answer_comes_first(story: Story) -> None:
    kept = banners(opened("session", story.url, session="rule-pace"))[0]
    assert kept.startswith(f"✓Step {LAST} reads messages 1 and 2 (step 1): all of it is in every")
    lost = banners(opened("session", story.url, session="rule-h2o"))[0]
    assert lost.startswith(f"✗Step {LAST} reads messages 1 and 2 (step 1), but the worst layer")
    assert "'h2o' does not look at the plan" in lost


def test_the_slider_drives_the_page_and_the_address(story: Story) -> None:
    test = opened("session", story.url, session="rule-pace")
    assert "step" not in test.query_params
    test.slider[0].set_value(3)
    run(test)
    assert test.query_params["step"] == "3"
    assert banners(test)[0] == "iStep 3 reads no earlier message by the plan."
    third = story.get("/sessions/rule-pace/steps")["data"][2]
    assert gauges(test)["tokens"] == f"{third['at']:,}"
    again = opened("session", story.url, session="rule-pace", step="3")
    assert gauges(again) == gauges(test) and again.slider[0].value == 3
    test.slider[0].set_value(LAST)
    run(test)
    assert "step" not in test.query_params


@pytest.mark.parametrize("step", ["0", "999", "x", "-1"])
def test_a_step_that_is_not_there_shows_the_nearest(story: Story, step: str) -> None:
    value = opened("session", story.url, session="rule-pace", step=step).slider[0].value
    assert value == (1 if step == "0" else LAST)


def test_a_message_of_the_address_is_explained(story: Story) -> None:
    test = opened("session", story.url, session="rule-pace", message="3")
    sentence = banners(test)[1]
    assert sentence.startswith("iMessage 3 (user, step 2) is ")
    assert "No step was planned to read it" in sentence
    losses = test.dataframe[1].value
    told = [
        event["step"]
        for event in story.get("/sessions/rule-pace/events")["data"]
        if event["kind"] == "eviction" and 3 in event["data"]["spans"]["message"]
    ]
    assert list(losses["step"]) == told


def test_what_looks_at_something_is_paused_and_goes_live_again(story: Story) -> None:
    test = opened("session", story.url, session="rule-pace", step="3", message="1")
    assert "paused" in html(test)
    test.button(key="go-live").click()
    run(test)
    assert "paused" not in html(test) and not {"step", "message"} & {*test.query_params}


@pytest.mark.parametrize("tab", ["Tokens", "Over time", "Plan", "Renumbers", "Turns"])
def test_every_tab_opens(story: Story, tab: str) -> None:
    test = opened("session", story.url, session="rule-pace")
    test.session_state["details"] = tab
    run(test)
    if tab == "Tokens":
        assert "message 1 · user · step 1" in html(test)
    # only the open tab is drawn: no chart's script is loaded before one is asked for
    charts = {"Over time": 2, "Plan": 1, "Renumbers": 1}.get(tab, 0)
    assert len(test.get("plotly_chart")) == charts
    if tab == "Turns":
        turns = story.get("/sessions/rule-pace/steps")["data"]
        shown = test.dataframe[-1].value
        assert list(shown["new"]) == [turn["new_tokens"] for turn in turns][::-1]
        assert list(shown["cached"]) == [turn["cached_tokens"] for turn in turns][::-1]


def test_a_step_whose_summary_is_gone_still_has_its_figures(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dashboard import data

    steps = data.steps

    def dropped(key: data.Key) -> Any:
        return steps(key).assign(held=lambda rows: rows["step"] > 3)

    monkeypatch.setattr(data, "steps", dropped)
    test = opened("session", story.url, session="rule-pace", step="2")
    assert banners(test) == [
        "iWhat was resident after step 2 is no longer held; that of newer steps is."
    ]
    second = story.get("/sessions/rule-pace/steps")["data"][1]
    assert gauges(test)["tokens"] == f"{second['at']:,}"
    assert opened("compare", story.url, a="rule-pace", b="rule-h2o").slider[0].min == 4


def test_two_policies_are_compared(story: Story) -> None:
    test = opened("compare", story.url)
    assert [box.value for box in test.selectbox] == ["rule-pace", "rule-h2o"]
    gap = last_turn(story, "rule-h2o")["rotary_gap"]
    assert banners(test)[0].startswith(f"iAt step {LAST} 'pace' finds 100% of what it reads")
    assert f"'h2o' finds {last_turn(story, 'rule-h2o')['residency']:.0%}" in banners(test)[0]
    assert f"{gap:,} positions away" in banners(test)[0]


# ---- when something is wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sessions", "session", "compare"])
def test_no_server_is_said_and_what_to_do(name: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (sentence,) = banners(opened(name, url))
    assert f"No server answers at {url}." in sentence and "pace serve" in sentence


def test_a_deleted_session_is_said(story: Story) -> None:
    story.begin("short-lived", "pace")
    test = opened("session", story.url, session="short-lived")
    assert gauges(test)["renumbers"] == "0"
    httpx.delete(f"{story.url}/v1/sessions/short-lived").raise_for_status()
    (sentence,) = banners(run(test))
    assert "There is no session 'short-lived' here." in sentence and "list" in sentence


@pytest.mark.parametrize("name", ["<b>x</b>", "a/../b", "*x*"])
def test_an_id_of_the_address_is_text(story: Story, name: str) -> None:
    (sentence,) = banners(opened("session", story.url, session=name))
    assert f"'{name}'" in sentence


@pytest.mark.parametrize(("key", "words"), [("wrong", "does not accept"), (None, "wants an API")])
def test_a_wrong_key_is_said(key: str | None, words: str, refusing: str) -> None:
    (sentence,) = banners(opened("sessions", refusing, key))
    assert words in sentence and "PACE_API_KEY" in sentence


@pytest.mark.parametrize("name", ["sessions", "session", "compare"])
def test_an_empty_server_says_how_to_fill_it(name: str, empty: str) -> None:
    (sentence,) = banners(opened(name, empty))
    assert "holds no session yet" in sentence and "pace demo --keep" in sentence


def test_another_kind_of_server_is_said(other: str) -> None:
    (sentence,) = banners(opened("sessions", other))
    assert "is not a PACE server" in sentence and "--url" in sentence


@pytest.mark.parametrize("odd", ["9" * 5000, "-1", "x", "٣", "²", "1.5", "\0", ""])
def test_an_address_that_says_nothing_of_use_shows_the_newest(story: Story, odd: str) -> None:
    usual = gauges(opened("session", story.url, session="rule-pace"))
    said = {"step": odd, "message": odd, "range": f"{odd}-{odd}"}
    assert gauges(opened("session", story.url, session="rule-pace", **said)) == usual


def test_a_session_is_compared_with_itself(story: Story) -> None:
    test = opened("compare", story.url, a="rule-pace", b="rule-pace", step="9" * 5000)
    first, second = banners(test)[1:]
    assert first == second and len(test.get("bidi_component")) == 2


@pytest.mark.parametrize("name", ["sessions", "session", "compare"])
def test_json_that_is_not_paces_is_no_server_either(name: str) -> None:
    for body in ({}, {"data": None}, {"data": "models"}, {"data": [1]}, {"data": [{"id": "gpt"}]}):
        with answering(200, body) as url:
            (sentence,) = banners(opened(name, url))
        assert "is not a PACE server (HTTP 200)" in sentence, body


def test_it_recovers_by_itself(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard import data

    sessions = data.sessions

    def broken(server: Server) -> Any:
        raise ReadFailed("Away.", "Wait.")

    monkeypatch.setattr(data, "sessions", broken)
    test = opened("session", story.url, session="rule-pace")
    assert banners(test) == ["✗Away.Wait."]
    monkeypatch.setattr(data, "sessions", sessions)
    assert banners(run(test))[0].startswith("✓")
