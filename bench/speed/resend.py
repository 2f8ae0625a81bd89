"""A persistent session against sending the whole transcript at every turn."""

from __future__ import annotations

from itertools import islice

from bench.speed.setting import ANSWER_TOKENS, PACE, Figures, Setting
from engine.types import Message, Sampling, TextDelta, TurnDone, TurnRequest


def persistent_over_resent(setting: Setting, tokens: int) -> Figures:
    """A session of about ``tokens`` tokens, its turns in alternation with the same turns sent with
    everything before them to a session of their own (paper, section 5.7).

    ``resend_seconds_ratio`` and ``resend_tokens_ratio``: resending ÷ persistent, over all turns.
    """
    count = max(2, round(tokens / setting.turn_tokens))
    transcript: list[Message] = []
    seconds, computed = [0.0, 0.0], [0, 0]
    for number, text in enumerate(islice(setting.texts(), count)):
        setting.report(f"resending: turn {number + 1} of {count}")
        transcript.append(Message("user", text))
        answer = ""
        for which, messages in enumerate(((transcript[-1],), tuple(transcript))):
            name = "kept" if which == 0 else f"resent-{number}"
            start = setting.now()
            answer, done = _turn(setting, name, messages, answer)
            seconds[which] += setting.now() - start
            computed[which] += done.usage.prompt_tokens - done.usage.cached_tokens + ANSWER_TOKENS
            if which == 1:
                setting.forget(name)
        transcript.append(Message("assistant", answer))
    setting.forget("kept")
    return {
        "resend_turns": count,
        "resend_session_tokens": computed[0],
        "resend_seconds_ratio": seconds[1] / seconds[0],
        "resend_tokens_ratio": computed[1] / computed[0],
    }


def _turn(
    setting: Setting, name: str, messages: tuple[Message, ...], before: str
) -> tuple[str, TurnDone]:
    """One turn; its answer, or ``before`` when that was given: both ways go on with the same."""
    sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=0, ignore_eos=True)
    events = setting.engine.run(TurnRequest(name, messages, policy=PACE, sampling=sampling))
    done = events[-1]
    assert isinstance(done, TurnDone)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return before or text, done
