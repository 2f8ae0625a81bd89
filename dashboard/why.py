"""Why a message is, or is not, in the cache: one plain sentence, told from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

Kind = Literal[
    "nothing evicted",
    "resident",
    "plan ignored",
    "displaced",
    "planned too late",
    "last reader passed",
    "never planned",
    "unknown",
]
PLAN_READING = "plan_aware"
"""The retention rule that looks at the plan."""
NEWEST_ONLY = "streaming"
READS_PLAN = "Begin the session with a policy that reads the plan, such as `pace`."


@dataclass(frozen=True, slots=True)
class Loss:
    """What one eviction took of a message.

    Attributes:
        step, at: when: step, and tokens written by then.
        least, most: tokens lost, over layers.
        layers: those that lost any.
        lost_score: the highest score among the lost tokens.
        kept_scores: lowest score that was kept by score, [lowest, highest] over layers; None where
            no slot was left to scores.
        next_use: the next step after it that reads the message by today's plan.
        displaced: planned tokens this eviction took, of any message, in the worst layer.
    """

    step: int
    at: int
    least: int
    most: int
    layers: tuple[int, ...]
    lost_score: float | None
    kept_scores: tuple[float, float] | None
    next_use: int | None
    displaced: int


@dataclass(frozen=True, slots=True)
class Why:
    """``sentence`` first; ``advice`` may be empty; ``losses`` oldest first."""

    kind: Kind
    sentence: str
    advice: str
    losses: tuple[Loss, ...]

    def frame(self) -> pd.DataFrame:
        """The losses, one a line, for people."""
        return pd.DataFrame(
            [
                {
                    "step": loss.step,
                    "at token": loss.at,
                    "tokens lost": _range(loss.least, loss.most),
                    "layers": layer_ranges(loss.layers),
                    "best lost score": loss.lost_score,
                    "lowest kept score": _score_range(loss.kept_scores),
                }
                for loss in self.losses
            ]
        )


def why(
    message: Mapping[str, Any],
    step: int,
    evictions: Sequence[Mapping[str, Any]],
    policy: Mapping[str, Any],
) -> Why:
    """Why ``message`` is resident or not after ``step``.

    Args:
        message: a line of ``data.messages`` as of ``step``: message, role, step, tokens, readers,
            least, most (resident tokens over layers).
        evictions: the ledger's ``eviction`` events, oldest first.
        policy: the session's ``policy_settings``.
    """
    losses = _losses(message, step, evictions)
    name, tokens = label(message), int(message["tokens"])
    if int(message["least"]) >= tokens:
        happened = any(event["step"] <= step for event in evictions)
        return _resident(message, name, step, happened, policy)
    gone = _gone(message, name)
    if not losses:
        return Why(
            "unknown",
            f"{gone}. When is no longer known: the evictions that took it are not in the ledger, "
            "which keeps the newest ones.",
            "Raise `engine.ledger_events` in the server's configuration to keep more.",
            (),
        )
    decisive = max(losses, key=lambda loss: (loss.most, loss.least))
    return _lost(message, gone, losses, decisive, policy)


def label(message: Mapping[str, Any]) -> str:
    """Such as ``Message 7 (user, step 4)``."""
    step = message.get("step")
    place = "" if step is None or pd.isna(step) else f", step {int(step)}"
    return f"Message {int(message['message'])} ({message['role']}{place})"


def layer_ranges(layers: Sequence[int]) -> str:
    """Rising layers as ``0–3, 7``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(_range(first, last) for first, last in runs)


def _losses(
    message: Mapping[str, Any], step: int, evictions: Sequence[Mapping[str, Any]]
) -> tuple[Loss, ...]:
    found = []
    for event in evictions:
        data, spans = event["data"], event["data"]["spans"]
        if event["step"] > step or message["message"] not in spans["message"]:
            continue
        at = spans["message"].index(message["message"])
        lost = spans["lost"][at]
        kept = [score for score in data["lowest_kept_score"] if score is not None]
        found.append(
            Loss(
                step=event["step"],
                at=data["at"],
                least=min(lost),
                most=max(lost),
                layers=tuple(layer for layer, count in enumerate(lost) if count),
                lost_score=spans["highest_lost_score"][at],
                kept_scores=(min(kept), max(kept)) if kept else None,
                next_use=min((r for r in message["readers"] if r >= event["step"]), default=None),
                displaced=data["displaced"],
            )
        )
    return tuple(found)


def _resident(
    message: Mapping[str, Any], name: str, step: int, evicted: bool, policy: Mapping[str, Any]
) -> Why:
    """All of it is there."""
    start = f"{name} is whole: all {_tokens(message['tokens'])} are in every layer"
    upcoming = [reader for reader in message["readers"] if reader >= step]
    if not evicted:
        budget = policy["budget"]
        text = f"{start}, as nothing has been evicted yet: the budget of {budget:,} is not full."
        return Why("nothing evicted", text, "", ())
    if upcoming and policy["retention"] == PLAN_READING:
        return Why("resident", f"{start}, kept because step {min(upcoming)} reads it.", "", ())
    if policy["retention"] == NEWEST_ONLY:
        return Why("resident", f"{start}: it is among the newest or the first tokens.", "", ())
    return Why("resident", f"{start}: new enough to be kept anyway, or kept by score.", "", ())


def _lost(
    message: Mapping[str, Any],
    gone: str,
    losses: tuple[Loss, ...],
    decisive: Loss,
    policy: Mapping[str, Any],
) -> Why:
    """Some of it is gone; ``decisive`` is the eviction that took most."""
    readers, when = message["readers"], f"at step {decisive.step}"
    if policy["retention"] == NEWEST_ONLY:
        text = f"{gone}: the policy keeps only the newest tokens, and {when} it was too old."
        advice = READS_PLAN if readers else ""
        return Why("plan ignored" if readers else "never planned", text, advice, losses)
    if decisive.next_use is not None and policy["retention"] != PLAN_READING:
        text = (
            f"{gone}. Step {decisive.next_use} needs it, but the policy '{policy['name']}' does "
            f"not look at the plan: {when} it lost by score ({_scores(decisive)})."
        )
        return Why("plan ignored", text, READS_PLAN, losses)
    if decisive.next_use is not None and decisive.displaced == 0:
        text = (
            f"{gone}. It went {when}, before a plan named it: nothing planned was lost then, so "
            f"the plan that has step {decisive.next_use} read it came later."
        )
        return Why("planned too late", text, "Send the plan before the cache fills.", losses)
    if decisive.next_use is not None:
        text = (
            f"{gone}. It was planned for step {decisive.next_use}, but {when} the plan asked for "
            f"more than the budget of {policy['budget']:,} holds: what is read sooner, or scored "
            "higher, displaced it."
        )
        advice = "Let the plan name less (`segments` names single messages), or raise the budget."
        return Why("displaced", text, advice, losses)
    if readers:
        text = (
            f"{gone}. Its last reader was step {max(readers)}; from then on it was kept by score "
            f"only, and {when} it lost ({_scores(decisive)})."
        )
        return Why(
            "last reader passed", text, "If a later step reads it, say so in the plan.", losses
        )
    text = (
        f"{gone}. No step was planned to read it, so it was kept by score only, and {when} it lost "
        f"({_scores(decisive)})."
    )
    advice = (
        f'Name it in the plan: `"plan": {{"T": [{int(message["step"])}]}}` keeps it for step T.'
        if not _missing(message.get("step"))
        else "Name it in the plan's `segments`."
    )
    return Why("never planned", text, advice, losses)


def _gone(message: Mapping[str, Any], name: str) -> str:
    tokens, least, most = (int(message[key]) for key in ("tokens", "least", "most"))
    if most == 0:
        return f"{name} is gone: none of its {_tokens(tokens)} is in any layer"
    return f"{name} is only partly there: {_range(least, most)} of {_tokens(tokens)}, by layer"


def _scores(loss: Loss) -> str:
    mine = "unknown" if loss.lost_score is None else f"{loss.lost_score:.3g}"
    if loss.kept_scores is None:
        return f"its best lost token scored {mine}; no slot was left to scores"
    low, high = loss.kept_scores
    if loss.lost_score is not None and loss.lost_score <= low:
        return f"its best lost token scored {mine}, what was kept by score at least {low:.3g}"
    return (
        f"its best lost token scored {mine}, what was kept by score at least {low:.3g} to "
        f"{high:.3g}, by layer"
    )


def _tokens(count: int) -> str:
    return f"{count:,} token" + ("" if count == 1 else "s")


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _score_range(scores: tuple[float, float] | None) -> str:
    return "–" if scores is None else f"{scores[0]:.3g} … {scores[1]:.3g}"


def _missing(value: object) -> bool:
    return value is None or bool(pd.isna(value))
