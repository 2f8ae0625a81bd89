"""Validated, frozen configuration: policies, model profiles, the engine.

Files are YAML; unknown keys are rejected. A broken rule raises ``ConfigError`` naming the
file, the key, the value and the rule.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.errors import ConfigError
from engine.policies import retention_names
from engine.yaml_text import parse_yaml

T = TypeVar("T", bound=BaseModel)


def _known_retention(name: str) -> str:
    if name not in retention_names():
        raise ValueError(f"must be one of {', '.join(map(repr, retention_names()))}")
    return name


def known_device(name: str) -> str:
    """``name``, a device that ``EngineConfig`` takes. Raises ValueError when it is none."""
    if not _DEVICE.fullmatch(name):
        raise ValueError("must be auto, cpu, cuda or cuda:N")
    return name


Retention = Annotated[str, AfterValidator(_known_retention)]
Device = Annotated[str, AfterValidator(known_device)]
Foresight = Literal["strict", "additive"]
Renumber = Literal["limit", "eviction"]

_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
# pydantic's words for what people get wrong most, in the words of a configuration file
_RULES = {"extra_forbidden": "unknown key", "model_type": "must be a mapping of keys to values"}
# A device file would be read for ever.
_MOST_BYTES = 1 << 20


class Frozen(BaseModel):
    """Base of all configuration: immutable, unknown keys rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class RopeConfig(Frozen):
    """Rotary table of a session. ``yarn`` stretches the model's range ``factor`` times."""

    type: Literal["default", "yarn"] = "default"
    factor: float = Field(default=1.0, ge=1.0)

    @model_validator(mode="after")
    def _factor_needs_scaling(self) -> Self:
        if self.type == "default" and self.factor != 1.0:
            raise ValueError(f"factor {self.factor} needs a scaling type: set rope.type to yarn")
        return self


class ModelProfile(Frozen):
    """Cache sizes measured to suit a model (tokens), and the dtype that is faster here."""

    budget: int = Field(default=2048, gt=0)
    interval: int = Field(default=64, gt=0)
    chunk: int = Field(default=4096, gt=0)
    position_limit: int = Field(default=8192, gt=0)
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None


class PolicyConfig(Frozen):
    """A preset of ``configs/policies``. Sizes left out come from the model's profile.

    ``retention`` names a module of ``engine.policies``; ``foresight`` is for ``plan_aware``.
    ``position_limit: null`` leaves positions as written; a number bounds them, ``range`` is the
    model's. ``renumber``: when they reach the limit, or after every eviction.
    """

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    description: str = ""
    retention: Retention
    foresight: Foresight = "strict"
    budget: int | None = Field(default=None, gt=0)
    sinks: int = Field(default=4, ge=0)
    recent: int = Field(default=128, ge=0)
    interval: int | None = Field(default=None, gt=0)
    chunk: int | None = Field(default=None, gt=0)
    position_limit: int | Literal["profile", "range"] | None = "profile"
    renumber: Renumber = "limit"
    rope: RopeConfig = RopeConfig()

    def resolve(self, profile: ModelProfile, model_range: int) -> CachePolicy:
        """Fill the sizes left out from ``profile`` and check the result against the model.

        Args:
            profile: the model's sizes.
            model_range: the model's own position range (``max_position_embeddings``).

        Raises:
            ConfigError: a rule of DESIGN §3.5 or §3.6 is broken.
        """
        named = {"profile": profile.position_limit, "range": model_range}
        limit = self.position_limit
        try:
            return CachePolicy(
                name=self.name,
                retention=self.retention,
                foresight=self.foresight,
                budget=self.budget or profile.budget,
                sinks=self.sinks,
                recent=self.recent,
                interval=self.interval or profile.interval,
                chunk=self.chunk or profile.chunk,
                position_limit=named[limit] if isinstance(limit, str) else limit,
                renumber=self.renumber,
                rope=self.rope,
                model_range=model_range,
            )
        except ValidationError as error:
            raise config_error(error, f"policy {self.name}") from error


class CachePolicy(Frozen):
    """A policy with every size known (tokens). Fixed for the life of a session."""

    name: str
    retention: Retention
    foresight: Foresight = "strict"
    budget: int
    sinks: int
    recent: int
    interval: int
    chunk: int
    position_limit: int | None
    renumber: Renumber = "limit"
    rope: RopeConfig
    model_range: int

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.foresight != "strict" and self.retention != "plan_aware":
            raise ValueError(f"foresight {self.foresight} needs retention plan_aware")
        if self.renumber == "eviction" and self.position_limit is None:
            raise ValueError("renumber eviction needs a position_limit")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        b, e, c, limit = self.budget, self.interval, self.chunk, self.position_limit
        if self.sinks + self.recent + self.reserve >= b and self.retention != "none":
            raise ValueError(
                f"budget {b} must be larger than sinks {self.sinks} + recent {self.recent} "
                f"+ reserve {self.reserve} = {self.sinks + self.recent + self.reserve}"
            )
        if limit is None:
            return self
        if limit < b + e + c:
            raise ValueError(
                f"position_limit {limit} must be at least budget {b} + interval {e} + chunk {c} "
                f"= {b + e + c}"
            )
        if limit > self.model_range:
            raise ValueError(
                f"position_limit {limit} must not exceed the model's range {self.model_range}"
            )
        return self

    @property
    def reserve(self) -> int:
        """Slots of the budget that planned tokens may not take (DESIGN §3.5)."""
        strict = self.retention == "plan_aware" and self.foresight == "strict"
        return self.budget // 8 if strict else 0

    @property
    def capacity(self) -> int:
        """Slots of a row: budget + interval; without eviction just the budget."""
        return self.budget if self.retention == "none" else self.budget + self.interval

    @property
    def position_range(self) -> int:
        """Physical positions are below this number: L, or the (scaled) model range."""
        if self.position_limit is not None:
            return self.position_limit
        return int(self.model_range * self.rope.factor)


class EngineConfig(Frozen):
    """How one engine runs. Sizes in tokens unless the name says bytes.

    ``chat_template`` is a file, or the name of one in ``configs/templates``; null: the model's own.
    ``thinking`` sets the template's switch for reasoning, if it has one; null: its own default.
    """

    model: str = "smollm2-135m"
    served_name: str | None = None
    chat_template: str | None = None
    thinking: bool | None = None
    device: Device = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    threads: int | None = Field(default=None, gt=0)
    profile: ModelProfile | None = None
    default_policy: str = "pace"
    pool_bytes: int | None = Field(default=None, gt=0)
    max_sessions: int = Field(default=64, gt=0)
    max_session_tokens: int = Field(default=10_000_000, gt=0)
    keep_previous_turn: bool = True
    ledger_events: int = Field(default=2048, gt=0)
    ledger_steps: int = Field(default=4096, gt=0)
    summary_bytes: int = Field(default=8 * 1024 * 1024, ge=0)
    stuck_after_s: float = Field(default=300.0, gt=0)

    @property
    def model_name(self) -> str:
        """The name clients use: the one configured, else the last part of ``model``."""
        return self.served_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def thread_count(self) -> int:
        """CPU threads of a forward: as configured, else all cores this process may run on."""
        return self.threads or available_cores()


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def config_dir() -> Path:
    """Folder of the shipped configuration: the checkout's, else the installed package's."""
    here = Path(__file__).resolve().parent.parent / "configs"
    if here.is_dir():
        return here
    installed = Path(sysconfig.get_path("data")) / "share" / "pace" / "configs"
    if installed.is_dir():
        return installed
    raise ConfigError(f"the configuration folder is missing: looked at {here} and {installed}")


def config_error(error: ValidationError, where: str | Path) -> ConfigError:
    """One readable line per broken rule, each naming file, key, value and rule."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        message = _RULES.get(item["type"], item["msg"].removeprefix("Value error, "))
        value = "" if isinstance(item["input"], dict) else f" (value: {item['input']!r})"
        lines.append(f"{where}: {key + ': ' if key else ''}{message}{value}")
    first = ".".join(str(part) for part in error.errors()[0]["loc"])
    return ConfigError("\n".join(lines), param=first or None)


def load_yaml(path: Path, kind: type[T], overrides: dict[str, Any] | None = None) -> T:
    """Read one YAML file into a validated ``kind``; ``overrides`` replace top-level keys."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ConfigError(f"{path}: is larger than {_MOST_BYTES} bytes: not a configuration")
        data = parse_yaml(raw.decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, not {type(data).__name__}")
    try:
        return kind.model_validate({**data, **(overrides or {})})
    except ValidationError as error:
        raise config_error(error, path) from error


def load_policies(folder: Path | None = None) -> dict[str, PolicyConfig]:
    """All presets of ``configs/policies``, by name. The file's stem is the name."""
    folder = config_dir() / "policies" if folder is None else folder
    policies = {}
    for path in sorted(folder.glob("*.yaml")):
        policy = load_yaml(path, PolicyConfig)
        if policy.name != path.stem:
            raise ConfigError(
                f"{path}: name: {policy.name!r} must equal the file's name {path.stem!r}"
            )
        policies[policy.name] = policy
    if not policies:
        raise ConfigError(f"{folder}: holds no policy files (*.yaml)")
    return policies
