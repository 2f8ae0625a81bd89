"""Every error PACE raises on purpose, as one tree.

    PaceError
    ├── ConfigError              a configuration value breaks a rule (start-up)
    ├── ModelError               a model cannot be found, fetched or supported (start-up)
    ├── InvalidRequest           the request itself is wrong
    │   └── ContextLengthExceeded
    ├── SessionNotFound
    ├── StepNotFound
    ├── Conflict                 the request contradicts the state of its session
    │   ├── SessionBusy
    │   ├── SessionDiverged
    │   │   └── ReasoningDiverged
    │   └── PolicyMismatch
    ├── CapacityExceeded         no row of the KV pool is free now
    ├── TurnCancelled            the caller went away
    └── EngineFailure            a forward or the step thread failed

``engine`` knows no HTTP: ``serve`` maps the classes to statuses in one table.
"""

from __future__ import annotations


class PaceError(Exception):
    """Base of all deliberate errors.

    Attributes:
        message: what is wrong, where, and what to do about it.
        code: short machine-readable name, stable across releases.
        param: the request field or configuration key at fault, or None.
    """

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(cls: type[PaceError], message: str, attributes: dict[str, object]) -> PaceError:
    """Recreate an error on the other side of a process boundary."""
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error


class ConfigError(PaceError):
    """A configuration value breaks a rule; the message names file, key, value and rule."""

    code = "invalid_config"


class ModelError(PaceError):
    """A model is missing, cannot be fetched, or is not supported; the message says what to do."""

    code = "model_error"


class InvalidRequest(PaceError):
    """The request is malformed or asks for something unsupported."""

    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """The session would outgrow ``max_session_tokens`` or the model's (scaled) range."""

    code = "context_length_exceeded"

    def __init__(self, limit: int, asked: int, *, param: str = "messages") -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens in this session; "
            f"the request would reach {asked} tokens. Start a new session or choose a policy "
            "with bounded positions.",
            param=param,
        )
        self.limit = limit
        self.asked = asked


class SessionNotFound(PaceError):
    """No session of that id exists in the caller's namespace."""

    code = "session_not_found"


class StepNotFound(PaceError):
    """The session has no such step, or keeps nothing of it any more."""

    code = "step_not_found"


class Conflict(PaceError):
    """The request contradicts the state of its session."""

    code = "conflict"


class SessionBusy(Conflict):
    """Another turn of this session is running."""

    code = "session_busy"


class SessionDiverged(Conflict):
    """The transcript contradicts what the session holds."""

    code = "session_diverged"


class ReasoningDiverged(SessionDiverged):
    """A message's reasoning came back changed."""


class PolicyMismatch(Conflict):
    """The session was created with another policy."""

    code = "policy_mismatch"


class CapacityExceeded(PaceError):
    """No room in the KV pool now; ``retry_after`` is in seconds."""

    code = "capacity_exceeded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TurnCancelled(PaceError):
    """The caller cancelled the turn; the session is as before it."""

    code = "cancelled"


class EngineFailure(PaceError):
    """A forward or the step thread failed; the session is as before the turn."""

    code = "engine_failure"
