"""HTML of the parts that are no figures. Everything that comes from a session is escaped here.

Token text is anybody's: it is shown as text, with what cannot be seen made visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Literal

import pandas as pd

from dashboard.palette import CLASS_MEANING, CLASSES, SEQUENTIAL, Palette, level

StripColour = Literal["class", "next use", "score", "age"]
STRIP_COLOURS: tuple[StripColour, ...] = ("class", "next use", "score", "age")
SHOWN_CHARACTERS = 40
"""Most characters of one token in the strip; the hover says how many there are."""
_HOVER_CHARACTERS = 200
# What has no shape, or turns the text around it: controls, bidirectional marks, invisible spaces.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
_NAMED = {"\n": "↵", "\t": "⇥", "\r": "␍"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    """``text`` with every character visible: line ends, controls and marks as signs."""
    return _UNSEEN.sub(_sign, _SURROGATE.sub("\ufffd", text))


def banner(kind: Literal["good", "bad", "plain"], text: str, advice: str = "") -> str:
    """A sentence, and below it what to do."""
    sign = {"good": "✓", "bad": "✗", "plain": "i"}[kind]
    more = f'<div class="pace-advice">{code_marked(advice)}</div>' if advice else ""
    return (
        f'<div class="pace-banner pace-{kind}" role="status"><b>{sign}</b>'
        f"<div>{code_marked(text)}{more}</div></div>"
    )


def code_marked(text: str) -> str:
    """Escaped ``text`` in which only `…` means something: code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(visible(text)))


def gauges(cells: Sequence[tuple[str, str, str, str]]) -> str:
    """A row of figures: (name, label, value, what it means) each. ``name`` is for programs."""
    return (
        '<div class="pace-gauges">'
        + "".join(
            f'<div title="{escape(meaning)}"><span>{escape(label)}</span>'
            f'<b data-gauge="{escape(name)}">{escape(value)}</b></div>'
            for name, label, value, meaning in cells
        )
        + "</div>"
    )


def budget_bar(by_class: Mapping[str, int], budget: int) -> str:
    """The slots of one layer, by class, in proportion to the budget."""
    room = max(budget, sum(by_class.values()), 1)
    parts = [
        f'<i class="c{code}" style="width:{100 * by_class.get(name, 0) / room:.2f}%" '
        f'title="{name}: {by_class.get(name, 0):,} — {CLASS_MEANING[name]}"></i>'
        for code, name in enumerate(CLASSES)
    ]
    names = [
        f'<span title="{CLASS_MEANING[name]}"><i class="c{code}"></i>{name} '
        f'<b data-gauge="class-{name}">{by_class.get(name, 0):,}</b></span>'
        for code, name in enumerate(CLASSES)
    ]
    return (
        f'<div class="pace-bar">{"".join(parts)}</div>'
        f'<div class="pace-legend">{"".join(names)}</div>'
    )


def live(words: Sequence[str], *, looking: bool) -> str:
    """The line that says what is shown; ``looking``: at something that is not the newest."""
    sign = "<i></i>" if looking else '<i class="on"></i>'
    return f'<div class="pace-live">{sign}{escape(" · ".join(words))}</div>'


def token_strip(
    tokens: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    layers: int,
    step: int,
    colour_by: StripColour = "class",
) -> str:
    """The resident text, message by message; what was evicted between shows as a gap.

    Args:
        tokens: lines of ``data.resident_tokens``.
        messages: lines of ``data.messages``; names and readers of the messages.
    """
    if tokens.empty:
        return '<div class="pace-strip"><em>No token of this range is in any layer.</em></div>'
    about = messages.set_index("message", drop=False).to_dict("index") if len(messages) else {}
    shades = _shades(tokens, about, step, colour_by)
    parts: list[str] = []
    last_message, last = None, None
    for row, shade in zip(tokens.to_dict("records"), shades, strict=True):
        message = about.get(row["message"], {})
        if row["message"] != last_message:
            parts.append(_message_head(row["message"], message))
            gap = row["logical"] - message.get("start", row["logical"])
        else:
            gap = row["logical"] - (last if last is not None else row["logical"]) - 1
        if gap > 0:
            parts.append(f'<i class="g" data-t="{gap:,} evicted tokens">⋯</i>')
        parts.append(_token(row, message, shade, layers))
        last_message, last = row["message"], row["logical"]
    return f'<div class="pace-strip"><div class="pace-text">{"".join(parts)}</div></div>'


def percent(value: Any) -> str:
    """A share; – for none."""
    return "–" if value is None or pd.isna(value) else f"{value:.1%}"


def number(value: Any) -> str:
    """A whole number; – for none."""
    return "–" if value is None or pd.isna(value) else f"{int(value):,}"


def mib(value: Any) -> str:
    """Bytes; – for none."""
    return "–" if value is None or pd.isna(value) else f"{value / (1 << 20):,.1f} MiB"


def styles(palette: Palette) -> str:
    """The style sheet of all of it."""
    faint, grid, text = palette.faint, palette.grid, palette.text
    classes = "".join(
        f".c{code}{{background:{colour}}}.k.c{code}{{background:{palette.tint(colour, 0.45)}}}"
        for code, colour in enumerate(palette.classes)
    )
    levels = "".join(
        f".k.q{n}{{background:{colour};color:{'#fff' if n < 5 else '#111'}}}"
        for n, colour in enumerate(SEQUENTIAL)
    )
    kinds = "".join(
        f".pace-{kind}{{border-color:{colour};background:{palette.tint(colour, 0.1)}}}"
        f".pace-{kind}>b{{color:{colour}}}"
        for kind, colour in (("good", palette.good), ("bad", palette.bad), ("plain", faint))
    )
    return f"""<style>
[data-testid=stMainBlockContainer]{{padding:4.25rem 2.2rem 2rem;max-width:1500px}}
[data-testid=stMain] [data-testid=stVerticalBlock]{{gap:.55rem}}
.pace-title{{font-size:1.35rem;font-weight:650;line-height:1.2;overflow-wrap:anywhere}}
.pace-title small{{font-size:.85rem;font-weight:400;color:{faint};margin-left:.6rem}}
.pace-head{{font-size:.95rem;font-weight:650}}
.pace-head small{{font-weight:400;color:{faint};margin-left:.5rem}}
.pace-banner{{display:flex;gap:.6rem;border-left:4px solid;border-radius:4px;
 padding:.5rem .8rem;font-size:.95rem;line-height:1.4;overflow-wrap:anywhere}}
.pace-banner>b{{font-size:1.05rem}}
.pace-advice{{color:{faint};font-size:.88rem}}
{kinds}
.pace-gauges{{display:flex;flex-wrap:wrap;border:1px solid {grid};border-radius:6px}}
.pace-gauges>div{{flex:1 1 auto;padding:.35rem .6rem;border-left:1px solid {grid};min-width:3.6rem}}
.pace-gauges>div:first-child{{border-left:0}}
.pace-gauges span{{display:block;font-size:.76rem;color:{faint};white-space:nowrap}}
.pace-gauges b{{font-size:1.12rem;font-weight:600;white-space:nowrap;
 font-variant-numeric:tabular-nums}}
.pace-bar{{display:flex;height:14px;border-radius:3px;overflow:hidden;background:{grid}}}
.pace-bar i{{height:100%}}
.pace-legend{{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.82rem;color:{faint};
 margin-top:.25rem}}
.pace-legend i{{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:.3rem}}
.pace-legend b{{color:{text};font-weight:600}}
.pace-live{{font-size:.88rem;color:{faint};white-space:nowrap;}}
.pace-live i{{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:.4rem;
 border:1.5px solid {faint}}}
.pace-live i.on{{background:{palette.good};border-color:{palette.good}}}
.pace-strip{{position:relative;border:1px solid {grid};border-radius:6px;padding-bottom:2.1rem}}
.pace-text{{max-height:340px;overflow-y:auto;padding:.5rem .8rem;line-height:1.75;
 font-family:"Source Code Pro",monospace;font-size:.84rem;overflow-wrap:anywhere}}
.pace-text .h{{display:block;font:600 .82rem "Source Sans",sans-serif;color:{faint};
 margin:.45rem 0 .1rem;border-top:1px solid {grid};padding-top:.3rem}}
.pace-text .h:first-child{{border-top:0;margin-top:0}}
.pace-text .h.miss{{color:{palette.bad}}}
.k{{unicode-bidi:isolate;white-space:pre-wrap;border-radius:2px;padding:1px 0;margin-right:1px}}
.k.few{{opacity:.55}}
.pace-text .g{{color:{faint};font-style:normal;margin:0 .25em}}
.pace-text [data-t]:hover{{outline:1.5px solid {text}}}
.pace-text [data-t]:hover::after{{content:attr(data-t);position:absolute;left:0;right:0;bottom:0;
 padding:.3rem .8rem;background:{palette.background};color:{text};border-top:1px solid {grid};
 font:.82rem "Source Sans",sans-serif;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;
 border-radius:0 0 6px 6px;opacity:1}}
{classes}{levels}</style>"""


def _message_head(index: int, message: Mapping[str, Any]) -> str:
    if not message:
        return f'<span class="h">message {index}</span>'
    least, most, tokens = message["least"], message["most"], message["tokens"]
    held = f"{least:,}" if least == most else f"{least:,}–{most:,}"
    step = "" if pd.isna(message["step"]) else f" · step {int(message['step'])}"
    missing = " miss" if message.get("needed") and least < tokens else ""
    return (
        f'<span class="h{missing}">message {index} · {escape(str(message["role"]))}{step} · '
        f"{held} of {tokens:,} tokens resident</span>"
    )


def _token(row: Mapping[str, Any], message: Mapping[str, Any], shade: str, layers: int) -> str:
    text = visible(str(row["text"]))
    shown = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    readers = message.get("readers") or []
    about = [
        f"token {row['logical']:,} “{text[:_HOVER_CHARACTERS]}”",
        *([f"{len(text):,} characters"] if len(text) > SHOWN_CHARACTERS else []),
        f"message {row['message']}",
        "read by step " + ", ".join(map(str, readers[:6])) if readers else "read by no step",
        *(
            [f"position {int(row['physical']):,}"]
            if row.get("physical") is not None and not pd.isna(row["physical"])
            else []
        ),
        f"{int(row['layers'])} of {layers} layers",
        CLASSES[int(row["class"])],
        *(
            [f"score {row['score']:.3g}"]
            if row.get("score") is not None and not pd.isna(row["score"])
            else []
        ),
    ]
    few = " few" if row["layers"] * 2 < layers else ""
    line = "<br>" if "\n" in str(row["text"]) else ""
    return (
        f'<span class="k {shade}{few}" dir="auto" data-t="{escape(" · ".join(about))}">'
        f"{escape(shown)}</span>{line}"
    )


def _shades(
    tokens: pd.DataFrame, about: Mapping[int, Mapping[str, Any]], step: int, by: StripColour
) -> Iterator[str]:
    """A CSS class per token."""
    if by == "class":
        return (f"c{int(code)}" for code in tokens["class"])
    if by == "next use":  # bright: soon
        values = step - pd.to_numeric(tokens["next_use"], errors="coerce")
    elif by == "score":
        values = pd.to_numeric(tokens["score"], errors="coerce").rank()
    else:  # bright: old
        steps = [about.get(index, {}).get("step") for index in tokens["message"]]
        values = step - pd.to_numeric(pd.Series(steps, index=tokens.index), errors="coerce")
    low, high = values.min(), values.max()
    return ("" if pd.isna(v) else f"q{level(float(v), float(low), float(high))}" for v in values)


def _sign(match: re.Match[str]) -> str:
    character = match[0]
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"
