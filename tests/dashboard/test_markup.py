"""What comes from sessions is shown as text, and all of it can be seen."""

from __future__ import annotations

from html.parser import HTMLParser

import pandas as pd
import pytest

from dashboard import markup
from dashboard.palette import DARK, LIGHT, Palette

HOSTILE = [
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    '"><b>bold</b>',
    "**bold** $x^2$ :smile: [a](http://b) `code`",
    "&lt;i&gt;",
    "שלום עולם",
    "👩‍👩‍👧",
    "</span></div></style><style>*{display:none}",
]


class Shown(HTMLParser):
    """The text and tags of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.hovers = "", set[str](), list[str]()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.hovers += [value or "" for name, value in attrs if name == "data-t"]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def tokens(*texts: str, start: int = 10) -> pd.DataFrame:
    count = len(texts)
    return pd.DataFrame(
        {
            "logical": range(start, start + count),
            "text": texts,
            "message": 3,
            "layers": 4,
            "physical": 7,
            "class": 2,
            "next_use": 9.0,
            "score": 0.5,
        }
    )


MESSAGES = pd.DataFrame(
    [
        {"message": 3, "role": "user", "step": 2, "start": 10, "end": 30, "tokens": 20}
        | {"readers": [9], "least": 5, "most": 8, "needed": True}
    ]
)


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_is_text(text: str) -> None:
    shown = Shown(markup.token_strip(tokens(text), MESSAGES, layers=4, step=5))
    short = text if len(text) <= markup.SHOWN_CHARACTERS else text[:39] + "…"
    assert shown.text.endswith(short)
    assert shown.tags == {"div", "span"}
    assert text in shown.hovers[-1]


@pytest.mark.parametrize("text", HOSTILE)
def test_sentences_show_what_servers_say_as_text(text: str) -> None:
    shown = Shown(markup.banner("bad", text.replace("`", ""), "advice"))
    assert text.replace("`", "") in shown.text
    assert shown.tags == {"div", "b"}


def test_what_cannot_be_seen_becomes_a_sign() -> None:
    assert markup.visible("a\nb\tc\x00\x1b\x7f") == "a↵b⇥c␀␛⟨U+007F⟩"
    assert markup.visible("\u202etxt.exe\u200b") == "⟨U+202E⟩txt.exe⟨U+200B⟩"
    assert markup.visible("a\ud800b") == "a\ufffdb"  # half a pair cannot be sent to a browser
    assert markup.visible("👩‍👩‍👧 שלום") == "👩‍👩‍👧 שלום"


def test_a_token_of_10_000_characters_is_cut_and_counted() -> None:
    shown = Shown(markup.token_strip(tokens("x" * 10_000), MESSAGES, layers=4, step=5))
    assert "x" * 39 + "…" in shown.text and "x" * 41 not in shown.text
    assert "10,000 characters" in shown.hovers[-1] and len(shown.hovers[-1]) < 500


def test_the_strip_names_messages_gaps_and_everything_about_a_token() -> None:
    two = pd.concat([tokens("one", start=12), tokens("two", start=18)])
    shown = Shown(markup.token_strip(two, MESSAGES, layers=8, step=5))
    assert "message 3 · user · step 2 · 5–8 of 20 tokens resident" in shown.text
    assert shown.hovers[0] == "2 evicted tokens" and shown.hovers[2] == "5 evicted tokens"
    assert shown.hovers[1] == (
        "token 12 “one” · message 3 · read by step 9 · position 7 · 4 of 8 layers · protected · "
        "score 0.5"
    )


@pytest.mark.parametrize("colour_by", markup.STRIP_COLOURS)
def test_unknown_scores_positions_and_uses_do_not_matter(colour_by: markup.StripColour) -> None:
    some = tokens("a", "b").assign(physical=None, score=[None, 0.2], next_use=[None, 9.0])
    shown = Shown(markup.token_strip(some, MESSAGES, layers=4, step=5, colour_by=colour_by))
    assert "position" not in "".join(shown.hovers) and shown.text.endswith("ab")


def test_soon_and_old_are_bright() -> None:
    some = tokens("soon", "late").assign(next_use=[6.0, 30.0])
    html = markup.token_strip(some, MESSAGES, layers=4, step=5, colour_by="next use")
    assert html.index("k q7") < html.index("soon</span>") < html.index("k q0")


def test_no_token_is_said() -> None:
    assert "No token" in markup.token_strip(tokens(), MESSAGES, layers=4, step=5)


def test_the_budget_bar_is_in_proportion() -> None:
    html = markup.budget_bar({"sink": 4, "recent": 128, "protected": 124, "other": 0}, 512)
    assert 'style="width:25.00%"' in html and 'style="width:24.22%"' in html
    assert '<b data-gauge="class-protected">124</b>' in html


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_and_alarms_can_be_read(colours: Palette) -> None:
    """WCAG 2: contrast of at least 4.5."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        line = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * line[0] + 0.7152 * line[1] + 0.0722 * line[2]

    for colour in (colours.text, colours.faint, colours.bad, colours.good):
        pair = sorted((luminance(colour), luminance(colours.background)))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, colour
