"""From JSON text and pydantic's complaints to one clear ``InvalidRequest``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from engine.errors import InvalidRequest

T = TypeVar("T", bound=BaseModel)

UNSUPPORTED = "unsupported_value"
_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    UNSUPPORTED: UNSUPPORTED,
}


# Each unknown key of an object costs pydantic a complaint; no object here has as many fields.
MAX_KEYS = 100


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""JSON has one kind of number: 5.0 is the integer 5."""


class Wire(BaseModel):
    """Base of request models: immutable, no coercion between JSON types, no unknown fields.

    One complaint is enough for an answer, and millions of them would fill the memory: lists
    stop at the first (``fail_fast``), objects with many keys are refused as a whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise refuse(f"it has {len(value)} keys; at most {MAX_KEYS} work")
        return value


def refuse(message: str, *, unsupported: bool = False) -> PydanticCustomError:
    """An error for a validator to raise; the field's path becomes the answer's ``param``."""
    # pydantic formats {} in templates; braces in our own text must survive.
    kind = UNSUPPORTED if unsupported else "invalid_value"
    return PydanticCustomError(kind, "{text}", {"text": message})


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``.

    Raises:
        InvalidRequest: not JSON (NaN, lone surrogates and too deep nesting included), or not
            an object.
    """
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        # The parser's message states what and where, without quoting the text.
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return value


def validate(kind: type[T], body: Mapping[str, Any], *, prefix: str = "") -> T:
    """``body`` as a ``kind``. ``prefix`` is put before the path of a field at fault.

    Raises:
        InvalidRequest: naming the first field at fault.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _first_complaint(error, prefix) from None


def _first_complaint(error: ValidationError, prefix: str) -> InvalidRequest:
    item = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = [str(part) for part in item["loc"] if not str(part).startswith("<")]  # no tags of unions
    param = ".".join([*([prefix] if prefix else []), *path])
    code = _CODES.get(item["type"], "invalid_value")
    match item["type"]:
        case "missing":
            message = f"Missing required parameter: '{param}'."
        case "extra_forbidden":
            message = f"Unknown parameter: '{param}'."
        case _:
            message = f"Invalid value for '{param}': {item['msg'].rstrip('.')}."
    return InvalidRequest(message, param=param if path or prefix else None, code=code)
