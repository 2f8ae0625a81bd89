"""What can be looked at of the sessions of an engine. Readers hold its lock to copy what they need
of the committed state; they format it, in pages below 1 MB, after they let it go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from engine import ledger
from engine.chat import ChatFormat
from engine.history import reads_of
from engine.integrity import integrity_report
from engine.paging import page
from engine.plan import MessageSpan, next_reader, readers_of
from engine.report import describe, summarize
from engine.residents import PackedResidents, Residents
from engine.retention import NO_USE
from engine.scheduler import Scheduler
from engine.sessions import Session
from engine.state import SessionState
from engine.store import SessionStore
from engine.types import CLASSES, LedgerEvent, Window
from engine.views import binned, layer_rows, resident_of, resident_tokens

MOST_TOKENS = 10_000
MOST_MESSAGES = 500
MOST_READERS = 64
PREVIEW_CHARACTERS = 200
# Tokens that hold so many characters and the template's frame: mostly, and if each is one byte.
_PREVIEW_TOKENS = (300, 900)


class SessionReaders:
    """The reading half of ``engine.protocol.Engine``. Any thread may call it."""

    def __init__(self, store: SessionStore, scheduler: Scheduler, chat: ChatFormat) -> None:
        self.store = store
        self.scheduler = scheduler
        self.chat = chat
        self._counters: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)

    def sessions(self, namespace: str | None) -> list[dict[str, Any]]:
        """See ``Engine.sessions``."""
        with self.store.lock:
            return [
                summarize(session, self.store.pool)
                for session in self.store.table
                if session.turns and namespace in (None, session.namespace)
            ]

    def session(self, namespace: str, session_id: str, check: bool = False) -> dict[str, Any]:
        """See ``Engine.session``."""
        with self.store.lock:
            session = self.store.table.get(namespace, session_id)
            checked = {"integrity": integrity_report(session)} if check else {}
            return describe(session, self.store.pool) | checked

    def events(
        self,
        namespace: str,
        session_id: str,
        since: int = 0,
        limit: int | None = None,
        kinds: Collection[str] = ledger.KINDS,
    ) -> list[LedgerEvent]:
        """See ``Engine.events``."""
        with self.store.lock:
            found = self.store.table.get(namespace, session_id).ledger.since(since, kinds)
        return ledger.page(found, limit)

    def steps(
        self, namespace: str, session_id: str, since: int = 0, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """See ``Engine.steps``."""
        with self.store.lock:
            found = self.store.table.get(namespace, session_id).history.since(since)
        return page((row.as_json(held) for row, held in found), limit)

    def residency(
        self,
        namespace: str,
        session_id: str,
        window: Window,
        layers: tuple[int, int | None] = (0, None),
        bins: int | None = None,
    ) -> dict[str, Any]:
        """See ``Engine.residency``."""
        with self.store.lock:
            _, found = self._find(namespace, session_id, window.step)
        whole = _unpacked(found)
        first, last = layers[0], whole.layers - 1 if layers[1] is None else layers[1]
        if bins is None:
            rows = layer_rows(whole, window, first, last)
        else:
            rows = binned(whole, window, bins, first, last)
        return {
            **_head(session_id, whole),
            "object": "session.residency",
            "resolution": "exact",
            "layers": whole.layers,
            "resident": whole.count,
            "classes": list(CLASSES),
            "first_layer": first,
            **rows,
        }

    def tokens(
        self, namespace: str, session_id: str, window: Window, resident: bool = False
    ) -> dict[str, Any]:
        """See ``Engine.tokens``."""
        most = min(window.limit or MOST_TOKENS, MOST_TOKENS)
        while True:
            with self.store.lock:
                session, found = self._find(namespace, session_id, window.step)
                turns = session.turns
            whole = _unpacked(found)
            start, end = window.within(whole.tokens)
            if resident:  # one more tells whether there is more
                columns = resident_tokens(whole, window, most + 1)
            else:
                columns = {"logical": list(range(start, min(end, start + most + 1)))}
            with self.store.lock:
                if session.turns == turns:  # else the last turn may have been redone
                    state, logical = session.state, columns["logical"][:most]
                    ids, messages = state.tokens.pick(logical), _messages_of(state, logical)
                    break
        # a text for each id once: decoding one takes longer than all else here
        text = {one: self.chat.tokenizer.decode([one]) for one in set(ids)}
        more = columns.pop("logical")[most:]
        data = {"logical": logical, "id": ids, "text": [text[one] for one in ids]}
        data |= {"message": messages} | {key: values[:most] for key, values in columns.items()}
        fits = len(page(zip(*data.values(), strict=True)))
        return {
            **_head(session_id, whole),
            "object": "list",
            "data": {key: values[:fits] for key, values in data.items()},
            "next": next(iter([*logical[fits:], *more]), None),
        }

    def messages(self, namespace: str, session_id: str, window: Window) -> dict[str, Any]:
        """See ``Engine.messages``."""
        with self.store.lock:
            session, found = self._find(namespace, session_id, window.step)
            state, (start, end) = session.state, window.within(found.messages)
            stop = min(end, start + min(window.limit or MOST_MESSAGES, MOST_MESSAGES))
            spans = state.messages[start:stop]
            before = state.messages[start - 1].role if start else None
            most = _PREVIEW_TOKENS[-1]
            heads = [state.tokens[s.start : min(s.end, s.start + most)] for s in spans]
            past = session.history.until(found.step)
        whole = _unpacked(found)
        by_step, by_message = reads_of(past)
        bounds = np.array([span.start for span in spans] + [s.end for s in spans[-1:]], np.int64)
        counts = resident_of(whole, bounds) if spans else []
        roles = [before, *(span.role for span in spans)]
        rows = []
        for at, span in enumerate(spans):
            readers = readers_of(whole.plan, start + at, span.step)
            use = next_reader(readers, whole.step)
            rows.append(
                {
                    "message": start + at,
                    "role": span.role,
                    "step": span.step,
                    "start": span.start,
                    "end": span.end,
                    "readers": readers[:MOST_READERS],
                    "read_by": _read_by(by_step, by_message, start + at, span.step),
                    "next_use": None if use == NO_USE else use,
                    "resident": counts[at],
                    "preview": self._preview(roles[at], span, heads[at]),
                }
            )
        data = page(rows)
        following = start + len(data)
        return {
            **_head(session_id, whole),
            "object": "list",
            "data": data,
            "next": following if following < end else None,
        }

    def stats(self) -> dict[str, float]:
        """See ``Engine.stats``. Names ending in _total are counters, the others gauges."""
        store = self.store
        with store.lock:
            running = sum(session.task is not None for session in store.table)
            values = {f"{name}_total": value for name, value in self._counters.items()}
            return values | {
                "sessions": float(len(store.table)),
                "sessions_running": float(running),
                "sessions_dropped_total": float(store.dropped),
                "pool_bytes": float(store.pool.bytes_allocated),
                "pool_used_bytes": float(store.pool.byte_limit - store.pool.room),
                "pool_limit_bytes": float(store.pool.byte_limit),
                "forwards_total": float(self.scheduler.steps),
            }

    def _count(self, **amounts: float) -> None:
        with self.store.lock:
            for name, amount in amounts.items():
                self._counters[name] += amount

    def _find(
        self, namespace: str, session_id: str, step: int | None
    ) -> tuple[Session, Residents | PackedResidents]:
        session = self.store.table.get(namespace, session_id)
        return session, session.history.at(step)

    def _preview(self, before: str | None, span: MessageSpan, ids: Sequence[int]) -> str:
        """The beginning of a message's text, without what the template puts around it."""
        head, tail = self.chat.frame(before, span.role)
        text = ""
        for most in _PREVIEW_TOKENS:
            text = self.chat.tokenizer.decode(list(ids[:most])).removeprefix(head)
            if len(text) > PREVIEW_CHARACTERS:
                break
        if len(ids) == span.end - span.start:
            text = text.removesuffix(tail)
        return text[:PREVIEW_CHARACTERS]


_COUNTERS = (
    "turns",
    "turns_failed",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "evicted_tokens",
    "displaced_tokens",
    "renumbers",
)


def _read_by(
    by_step: Mapping[int, list[int]], by_message: Mapping[int, list[int]], message: int, step: int
) -> list[int]:
    """The newest steps that read a message of ``step`` by the plan of their time, rising."""
    found = {*by_step.get(step, ()), *by_message.get(message, ())}
    return sorted(reader for reader in found if reader > step)[-MOST_READERS:]


def _unpacked(found: Residents | PackedResidents) -> Residents:
    return found.unpack() if isinstance(found, PackedResidents) else found


def _head(session_id: str, whole: Residents) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "step": whole.step,
        "at": whole.at,
        "tokens": whole.tokens,
        "source": "summary" if whole.physical is None else "row",
    }


def _messages_of(state: SessionState, logical: Sequence[int]) -> list[int]:
    """The message of each of the rising positions. O(positions + messages touched)."""
    found: list[int] = []
    end = -1
    for position in logical:
        if position >= end:
            message = bisect_right(state.messages, position, key=lambda span: span.start) - 1
            end = state.messages[message].end
        found.append(message)
    return found
