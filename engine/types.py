"""The nouns engine and callers share: messages, requests, turn events, summaries.

All are immutable. ``serve`` sends them through Ray, ``bench`` uses them in-process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool", "developer"]
Base = Literal["current", "previous", "new"]
EventKind = Literal["eviction", "renumber", "residency", "turn"]
FinishReason = Literal["stop", "length", "tool_calls"]
CLASSES = ("sink", "recent", "protected", "other")
"""Classes of resident tokens; a token is of the first that fits."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message in canonical form.

    ``content`` is plain text (parts already joined). ``tool_calls`` is canonical JSON
    (see ``engine.transcript.canonical_calls``) or None. ``reasoning`` is what an assistant
    thought before it answered; it is no part of the message's identity.
    """

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request.

    ``definitions``: JSON text of the list of tools, keys in the client's order; empty: those of
    the session. ``choice``:
    "required" forces a call, of the tool ``name`` when it is given; "none" shows the tools but
    reads no calls. ``parallel`` False: the answer ends with its first call.
    """

    definitions: str
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the answer is drawn. ``temperature`` 0 is greedy. ``seed`` None: from the session.

    ``top_logprobs`` counts alternatives per token (0–20) and needs ``logprobs``.
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """Messages (0-based in the whole transcript, system = 0) and the steps that read them."""

    messages: tuple[int, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanUpdate:
    """What a request says about the future (DESIGN §4).

    ``plan``: step → earlier steps it reads; None keeps the plan of before, a mapping
    replaces it. ``segments`` likewise. ``step`` numbers the request's last user message.
    """

    plan: Mapping[int, tuple[int, ...]] | None = None
    segments: tuple[PlanSegment, ...] | None = None
    step: int | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn: the messages a session has not seen yet, and how to answer them.

    ``base`` says which state they continue (from ``KVEngine.match``): the committed one,
    the one before the last turn, or none ("new": the session is created or its id reused
    for a first turn). ``known`` is the number of transcript messages that state holds, ``digest``
    that of the transcript up to there; the engine refuses the turn when they are no longer that
    state's (each None: whatever it holds). ``tools`` None continues with those of
    the session. ``returned``: of held messages (by index), the digest of the reasoning the
    client sent back (``engine.transcript.reasoning_digest``).
    """

    session_id: str
    messages: tuple[Message, ...]
    base: Base = "current"
    known: int | None = None
    digest: bytes | None = None
    namespace: str = ""
    policy: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    plan: PlanUpdate = field(default_factory=PlanUpdate)
    tools: ToolUse | None = None
    returned: tuple[tuple[int, bytes], ...] = ()
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """Where a transcript continues: ``known`` leading messages are held by ``base``."""

    session_id: str
    base: Base
    known: int


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One candidate token: text, raw bytes, id and natural-log probability."""

    token: str
    token_id: int
    logprob: float
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token with its natural-log probability under the unscaled distribution."""

    token: str
    token_id: int
    logprob: float
    bytes: tuple[int, ...]
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a turn. ``cached_tokens`` is the part of the prompt not computed again,
    ``reasoning_tokens`` the part of the completion spent before the answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PaceInfo:
    """What the turn did to the cache (DESIGN §4). ``residency`` and ``rotary_gap`` are None
    when the plan names nothing for this step."""

    session_id: str
    step: int
    resident_tokens: int
    residency: float | None
    rotary_gap: int | None
    evicted: int
    restored: int
    renumbers: int
    displaced: int
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A prefill chunk finished: ``done`` of ``total`` prompt tokens of this turn."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the call number ``index`` of an answer. The first piece has ``call_id`` and
    ``name``; the ``arguments`` of all pieces, joined, are its JSON text."""

    index: int
    call_id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New parts of the answer (possibly none) and the tokens that ended inside them."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The turn is committed."""

    finish_reason: FinishReason
    usage: Usage
    pace: PaceInfo


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn is rolled back; ``error`` is a ``PaceError``."""

    error: Exception


TurnEvent = ChunkDone | TextDelta | TurnDone | TurnFailed


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Continuations to score after ``messages`` on a fork; nothing is committed.

    The continuation is teacher-forced as the beginning of the assistant's answer. ``policy``:
    None, or the session's.
    """

    session_id: str
    messages: tuple[Message, ...]
    continuations: tuple[str, ...]
    namespace: str = ""
    plan: PlanUpdate = field(default_factory=PlanUpdate)
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """Per token of one continuation: id, text and natural-log probability."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Scores of all continuations, with the cache figures at the last prompt token
    (``composition``: see ``engine.events.composition_data``)."""

    continuations: tuple[ScoredContinuation, ...]
    residency: float | None
    rotary_gap: int | None
    composition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """One entry of a session's ledger; ``seq`` rises by one per session."""

    seq: int
    kind: EventKind
    step: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that is asked for: logical positions, or indices of messages, from
    ``start`` to before ``end`` (None: to the last); at most ``limit`` rows; as of the end of
    ``step`` (None: now)."""

    start: int = 0
    end: int | None = None
    limit: int | None = None
    step: int | None = None

    def within(self, length: int) -> tuple[int, int]:
        """Start and end, cut to what there is; an empty range when that is nothing."""
        end = length if self.end is None else min(self.end, length)
        return min(self.start, end), end
