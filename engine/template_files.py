"""Chat templates as files: those in ``configs/templates``, and a user's own.

Light to import: nothing here needs torch or transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import config_dir
from engine.errors import ModelError

OPTION = "engine.chat_template"
_MOST_BYTES = 1 << 20
_SUFFIX = ".jinja"


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template.

    ``text`` is Jinja source, or several by name as some tokenizers have them; ``source`` says to
    people where it is from; ``reason`` why the model's own had to give way to it, if it had.
    """

    text: str | dict[str, str]
    source: str
    reason: str | None = None


def read_template(override: str) -> Template:
    """Read a template given as a file, or by the name of a shipped one. A file goes first.

    Raises:
        ModelError: naming file, line and what is wrong there.
    """
    try:
        given = Path(override).expanduser()
        if given.is_file():
            return _read(given.absolute())
        what = "is not a file" if given.exists() else "no such file"
    except (OSError, RuntimeError) as error:  # unreadable folder, name too long, no such user
        what = str(error)
    if override in shipped_names():
        return shipped_template(override)
    raise ModelError(
        f"--chat-template {override}: {what}; give a file, or one of: {', '.join(shipped_names())}",
        param=OPTION,
    )


def shipped_template(name: str) -> Template:
    """Read a template of ``configs/templates`` by its name."""
    return _read(_folder() / f"{name}{_SUFFIX}")


def shipped_names() -> list[str]:
    """Names of the templates in ``configs/templates``."""
    return sorted(path.stem for path in _folder().glob(f"*{_SUFFIX}"))


def _folder() -> Path:
    return config_dir() / "templates"


def _read(path: Path) -> Template:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", param=OPTION) from error
    if len(raw) > _MOST_BYTES:
        raise ModelError(
            f"{path}: is larger than {_MOST_BYTES} bytes: not a chat template", param=OPTION
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{path}: line {line}: is not UTF-8", param=OPTION) from error
    if not text.strip():
        raise ModelError(f"{path}: is empty", param=OPTION)
    return Template(text, str(path))
