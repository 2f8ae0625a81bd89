"""Cost per new token along one long session, beside ``h2o`` and beside sessions that stay young."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median

from bench.speed.setting import H2O, PACE, Figures, Setting, resident_bytes

YOUNG_TURNS = 6
CURVE = 10
"""Points of the curve along the session."""


class Young:
    """Sessions that never grow old: the control for the cost of a long one.

    Fed the same text at the same moment as the long session, so that neither the text nor the
    neighbours of a shared machine count.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._turns = 0

    def cost(self, text: str) -> float | None:
        """Seconds per new token of a turn right after the budget filled; None while it fills."""
        if self._turns == YOUNG_TURNS:
            self._setting.forget("young")
            self._turns = 0
        self._turns += 1
        seconds, done = self._setting.timed("young", text)
        return seconds if self._turns > 1 and done.pace.evicted else None


def long_session(setting: Setting, tokens: int) -> tuple[Figures, list[tuple[int, float]]]:
    """Feed both arms until each holds ``tokens``.

    Returns:
        Figures (``bench.speed.table`` says what they are; a ratio to young sessions is left out
        where no turn of theirs counts), and the curve: tokens in the session and ms per new token
        there.
    """
    device = setting.engine.runner.device
    budget_full = 6 * setting.profile.budget
    young = Young(setting)
    along: list[tuple[int, float]] = []
    over_h2o: list[float] = []
    over_young: dict[str, list[float]] = {"first": [], "last": []}
    memory: list[int] = []
    reached = 0
    for number, text in enumerate(setting.texts()):
        # the arm that goes first alternates too
        order = (PACE, H2O) if number % 2 == 0 else (H2O, PACE)
        found = {arm: setting.timed(arm, text, arm) for arm in order}
        ours, done = found[PACE]
        theirs, _ = found[H2O]
        reached = done.usage.prompt_tokens
        is_first = reached < max(tokens / 10, budget_full)
        place = "first" if is_first else "last" if reached > 0.9 * tokens else None
        control = young.cost(text) if place else None
        if done.pace.evicted:
            along.append((reached, ours))
            over_h2o.append(ours / theirs)
            memory.append(resident_bytes(device))
            if place and control:
                over_young[place].append(ours / control)
        setting.report(f"long session: {reached} of {tokens} tokens, {1000 * ours:.2f} ms/token")
        if reached >= tokens:
            break
    summary = setting.engine.session("", PACE)
    setting.forget(PACE, H2O, "young")
    costs = [cost for _, cost in along]
    tenth = max(1, len(costs) // 10)
    early, late = mean(costs[:tenth]), mean(costs[-tenth:])
    # the first pairs still warm up allocator and page cache
    settled = memory[min(tenth, len(memory) - 1)]
    figures = {
        "tokens": reached,
        "turns": len(costs),
        "ms_per_token_first_tenth": 1000 * early,
        "ms_per_token_last_tenth": 1000 * late,
        "raw_late_over_early": late / early,
        # a young session may see no turn that counts there: few turns are in a tenth, or small ones
        **{
            name: median(over_young[place])
            for name, place in (("late_over_early", "last"), ("early_over_early", "first"))
            if over_young[place]
        },
        "pace_over_h2o": median(over_h2o),
        "memory_growth": memory[-1] / settled - 1,
        "kv_bytes": summary["kv_bytes"],
        "full_kv_bytes": summary["full_kv_bytes"],
    }
    return figures, _curve(along)


def _curve(along: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Mean ms per new token of ``CURVE`` equal parts, at the tokens where each ends."""
    parts = min(CURVE, len(along))
    cuts = [round(i * len(along) / parts) for i in range(parts + 1)]
    return [
        (along[end - 1][0], 1000 * mean(cost for _, cost in along[start:end]))
        for start, end in pairwise(cuts)
    ]
