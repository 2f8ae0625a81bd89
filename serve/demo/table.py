"""What the demo measured, as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve.demo.results import WINDOW, PolicySummary, SessionResult

_NOTES = (
    "recalled: the greedy answer holds the true value.",
    "log-probability: natural, of the whole true value after the words “The … is”; mean.",
    "resident, rotary gap: at the last token of each question for a fact; means.",
    f"ms per token: forward, eviction and renumbering of {WINDOW} filler turns per session, "
    "by new tokens.",
)

_ROWS: tuple[tuple[str, Callable[[PolicySummary], str]], ...] = (
    ("facts recalled", lambda s: f"{s.recalled} of {s.asked}"),
    ("log-probability of the true value", lambda s: _number(s.logprob, "{:.2f}")),
    ("tokens of the fact still resident", lambda s: _number(s.residency, "{:.0%}")),
    ("rotary gap to the fact", lambda s: _number(s.rotary_gap, "{:,.0f}")),
    ("renumbers per session", lambda s: _number(s.renumbers, "{:g}")),
    ("KV cache per session", lambda s: _mib(s.kv_bytes)),
    ("a full KV cache would be", lambda s: _mib(s.full_kv_bytes)),
    ("ms per token, after the budget filled", lambda s: _number(s.ms_per_token_first, "{:.1f}")),
    ("ms per token, at the end", lambda s: _number(s.ms_per_token_last, "{:.1f}")),
)


def render(
    results: Sequence[SessionResult],
    summaries: Mapping[str, PolicySummary],
    tokens: int,
    seconds: float,
) -> RenderableType:
    """The table and what its rows mean.

    Args:
        results: the sessions behind ``summaries``.
        tokens: session length that was asked for.
        seconds: how long playing took.
    """
    shortest = min(result.tokens for result in results)
    longest = max(result.tokens for result in results)
    length = f"{shortest:,}" if shortest == longest else f"{shortest:,}–{longest:,}"
    table = Table(
        title=f"{len(results)} sessions of {length} tokens, at the same time, in {seconds:.0f} s",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("measured")
    for policy in summaries:
        table.add_column(policy, justify="right")
    for label, cell in _ROWS:
        table.add_row(label, *(cell(summary) for summary in summaries.values()))
    notes = list(_NOTES)
    if shortest < tokens:
        notes.append(
            f"This model's tokenizer made fewer tokens than the {tokens:,} asked for: "
            "give a larger --tokens."
        )
    return Group(table, *(Text(note, style="dim") for note in notes))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
