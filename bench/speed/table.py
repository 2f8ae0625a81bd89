"""What the figures are, and a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from bench.speed.setting import Figures

MEANINGS: Mapping[str, str] = {
    "tokens": "tokens of the long session",
    "turns": "turns of it that evicted",
    "ms_per_token_first_tenth": "ms per new token, first tenth",
    "ms_per_token_last_tenth": "ms per new token, last tenth",
    "raw_late_over_early": "last tenth ÷ first tenth, not corrected for the machine",
    "late_over_early": "last tenth ÷ a young session at the same moment, median",
    "early_over_early": "the same in the first tenth, where it must be 1: the error of the method",
    "pace_over_h2o": "pace ÷ h2o, median over pairs of turns",
    "memory_growth": "memory at the end ÷ right after the budget filled, minus 1",
    "kv_bytes": "KV bytes of the session",
    "full_kv_bytes": "KV bytes if everything were kept (computed)",
    "resend_turns": "turns of the resent session",
    "resend_session_tokens": "tokens of it",
    "resend_seconds_ratio": "time, resending everything ÷ persistent turns",
    "resend_tokens_ratio": "tokens computed, resending everything ÷ persistent turns",
    "full_tokens": "tokens in transformers' full cache at the end",
    "full_kv_bytes_measured": "bytes of it",
}


def meaning(name: str) -> str:
    """A figure's name in words."""
    if name in MEANINGS:
        return MEANINGS[name]
    what, _, number = name.rpartition("_")
    return {
        "decode_tokens_per_s": f"tokens decoded per second, {number} sessions together",
        "decode_speedup": f"decode rate of {number} sessions ÷ one, median over rounds",
        "full_over_pace": f"transformers with a full cache ÷ pace, quarter {number} of the turns",
    }[what]


def speed_table(figures: Figures, curve: Sequence[tuple[int, float]], title: str) -> Table:
    """All figures; at the end the cost along the session."""
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    for name, value in figures.items():
        table.add_row(meaning(name), f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
    for tokens, cost in curve:
        table.add_row(f"ms per new token up to {tokens:,} tokens", f"{cost:.3g}")
    return table
