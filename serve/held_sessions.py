"""Names of sessions the engine has answered in, remembered outside it.

An engine that died takes its sessions along. Who sends only new messages would begin another
session without noticing: the name tells that something is lost.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.errors import SessionNotFound

_MOST = 10_000


class HeldSessions:
    """Names by namespace, the latest 10,000. A hint, no state: used in one event loop."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add(self, namespace: str, session_id: str) -> None:
        """A turn of the session was committed."""
        self._names[namespace, session_id] = None
        self._names.move_to_end((namespace, session_id))
        while len(self._names) > _MOST:
            self._names.popitem(last=False)

    def forget(self, namespace: str, session_id: str) -> None:
        """The client does not want it any more: the name may begin another session."""
        self._names.pop((namespace, session_id), None)

    def check_begins(self, namespace: str, session_id: str) -> None:
        """Raise SessionNotFound when messages appended to a session would begin it again."""
        if (namespace, session_id) in self._names:
            raise SessionNotFound(
                f"session {session_id!r} is lost: the engine that held it was replaced; send its "
                "whole transcript to begin it again",
                param="session_id",
            )
