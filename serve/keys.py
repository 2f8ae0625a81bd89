"""API keys: who may use a server, and whose sessions a request sees (DESIGN §4, Security).

The file named by ``PACE_API_KEYS_FILE`` has one key a line, ``name:key`` or ``name:key:admin``.
Empty lines and lines that begin with ``#`` do not count. Keys are held as digests only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

KEYS_FILE_VARIABLE = "PACE_API_KEYS_FILE"
_MIN_KEY_CHARACTERS = 16
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_KEY = re.compile(r"[!-9;-~]+")  # visible ASCII without the colon
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. Sessions belong to ``name``; an ``admin`` sees everybody's."""

    name: str
    admin: bool = False


NOBODY = Caller("")
"""The only caller of a server without keys."""


class ApiKeys:
    """The keys of a server."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        """``callers`` by the SHA-256 digest of their key."""
        self._callers = dict(callers)

    def __len__(self) -> int:
        return len(self._callers)

    def identify(self, authorization: str | None) -> Caller | None:
        """The caller of an ``Authorization: Bearer …`` header, None when it names no key.

        Every key is compared, each in constant time.
        """
        if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
            return None
        given = _digest(authorization[len(_SCHEME) :].strip())
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(digest, given):
                found = caller
        return found


def keys_file() -> Path | None:
    """The file ``PACE_API_KEYS_FILE`` names, absolute; None when the variable is not set."""
    named = os.environ.get(KEYS_FILE_VARIABLE, "")
    return Path(named).expanduser().absolute() if named else None


def load_keys(path: Path) -> ApiKeys:
    """Read a file of keys.

    Raises:
        ConfigError: it cannot be read, holds no key, or has a bad line: which, and why. Never
            quotes a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _bad(f"{path} cannot be read: {reason}") from None
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        digest, caller = _parse(f"{path}, line {number}", line.strip())
        if digest in callers or caller.name in {other.name for other in callers.values()}:
            raise _bad(f"{path}, line {number}: the name or the key is there twice")
        callers[digest] = caller
    if not callers:
        raise _bad(f"{path} holds no key; write lines of the form name:key")
    return ApiKeys(callers)


def _parse(place: str, line: str) -> tuple[bytes, Caller]:
    name, _, rest = line.partition(":")
    key, colon, role = rest.partition(":")
    if not _NAME.fullmatch(name):
        raise _bad(f"{place}: the name must be 1 to 64 letters, digits, '_', '.' or '-'")
    if not _KEY.fullmatch(key) or len(key) < _MIN_KEY_CHARACTERS:
        raise _bad(
            f"{place}: the key of '{name}' must be at least {_MIN_KEY_CHARACTERS} visible ASCII "
            "characters without ':'"
        )
    if colon and role != "admin":
        raise _bad(f"{place}: after the key of '{name}' only ':admin' may follow")
    return _digest(key), Caller(name, admin=role == "admin")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _bad(message: str) -> ConfigError:
    return ConfigError(f"{KEYS_FILE_VARIABLE}: {message}", param=KEYS_FILE_VARIABLE)
