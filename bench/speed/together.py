"""Decode rate of several sessions at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

from bench.speed.setting import Figures, Setting

SESSIONS = (1, 2, 4, 8, 16)


def decode_scaling(setting: Setting, rounds: int, tokens: int) -> Figures:
    """Aggregate decode rate of 1 to 16 sessions, rounds interleaved: ``decode_tokens_per_s_N`` and,
    against one session in the same round, ``decode_speedup_N`` (medians)."""
    names = [f"decode-{index}" for index in range(max(SESSIONS))]
    for name in names:
        setting.turn(name, "Tell a long story.", 2)

    def decode(count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            # turns of a few prompt tokens: nearly all of the time is decode
            start = setting.now()
            futures = [pool.submit(setting.turn, name, "Go on.", tokens) for name in names[:count]]
            for future in futures:
                future.result()
        return count * tokens / (setting.now() - start)

    rates: dict[int, list[float]] = {count: [] for count in SESSIONS}
    for number in range(rounds):
        setting.report(f"decode: round {number + 1} of {rounds}")
        for count in SESSIONS:
            rates[count].append(decode(count))
    setting.forget(*names)
    figures = {f"decode_tokens_per_s_{count}": median(found) for count, found in rates.items()}
    for count in SESSIONS[1:]:
        pairs = zip(rates[count], rates[1], strict=True)
        figures[f"decode_speedup_{count}"] = median(many / one for many, one in pairs)
    return figures
