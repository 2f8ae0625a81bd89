"""Whether a JSON schema becomes a grammar in reasonable time.

Some small schemas would take the grammar engine hours and gigabytes: patterns that must all hold
at once, for one. Such work cannot be interrupted in a thread, so another process tries it first.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections import OrderedDict

from engine.errors import EngineFailure

_WALL_S = 60.0
# Up to this size, schemas with none of the words take milliseconds.
_PLAIN_BYTES = 16 * 1024
_WORDS = ("$ref", "allOf", "anyOf", "multipleOf", "not", "oneOf", "pattern", "patternProperties")
_REMEMBERED = 1024
# The limit is of processor time, so that a busy machine refuses nothing; imports do not count.
_TRY = """
import sys
from llguidance import LLMatcher, LLTokenizer
try:
    import resource
except ImportError:
    pass
else:
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
LLMatcher(LLTokenizer("byte"), sys.stdin.read(), log_level=0).compute_logit_bias()
"""


class SchemaCheck:
    """Remembers what it found. Thread-safe."""

    def __init__(self, seconds: int = 3) -> None:
        """``seconds``: processor time that a grammar may take."""
        self._seconds = seconds
        self._found: OrderedDict[bytes, bool] = OrderedDict()
        self._lock = threading.Lock()

    def feasible(self, schema: str, grammar: str) -> bool:
        """Whether making ``grammar`` ends in time.

        Args:
            schema: JSON text of what ``grammar`` was made of.

        Raises:
            EngineFailure: it could not be found out, by no fault of the schema.
        """
        size = len(schema)
        if size <= _PLAIN_BYTES and not any(f'"{word}"' in schema for word in _WORDS):
            return True
        key = hashlib.blake2b(grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        found = _try(grammar, self._seconds)
        with self._lock:
            self._found[key] = found
            while len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        return found


def _try(grammar: str, seconds: int) -> bool:
    """Also true of a grammar found wrong in time: who asked finds the same."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRY, str(seconds)],
            input=grammar.encode("utf-8", "surrogatepass"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailure("a schema could not be checked: the machine is too busy") from error
    except OSError as error:
        raise EngineFailure(f"a schema could not be checked: {error.strerror}") from error
    if done.returncode > 0:
        raise EngineFailure("a schema could not be checked: the check itself failed")
    return done.returncode == 0
