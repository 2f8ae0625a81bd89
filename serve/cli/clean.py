"""``pace clean``: removes what PACE made under ``$PACE_HOME``, and nothing else.

PACE makes no symbolic links; one that is there is somebody's own, and is neither followed nor
removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

import engine
from engine.catalog import CATALOG, PROFILE_FILE
from engine.errors import ConfigError
from engine.home import IN_USE, lock, pace_home

Kind = Literal["model", "token", "left over", "lock"]
# What a killed process leaves: drafts and replaced folders of ``publish_*``, probes of the doctor.
_LEFT_OVER = re.compile(r"\.(.+\.(tmp|old)-[0-9a-f]{12}|doctor-[0-9]+)")
_LOCK = re.compile(rf"({re.escape(IN_USE)}|ray-token|model-.+)\.lock")


@dataclass(frozen=True, slots=True)
class Made:
    """Something PACE made: ``size`` bytes at ``path``."""

    kind: Kind
    path: Path
    size: int


@click.command()
@click.option("--models", "models_only", is_flag=True, help="Only models, and parts of models.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(models_only: bool, yes: bool) -> int:
    """Remove what PACE made in $PACE_HOME: models, the server's token, locks, leftovers.

    Shows it and asks first. Models come back with pace model add.
    """
    home = pace_home()
    if not home.is_dir():
        click.echo(f"Nothing to remove: {home} does not exist.")
        return 0
    check_home(home)
    found = _chosen(home, models_only)
    if not found:
        click.echo(f"Nothing to remove in {home}.")
        return 0
    with _alone(home):
        pass  # no question that cannot be acted on
    _show(found)
    if not yes and not click.confirm(f"Remove {_count(found)}?"):
        click.echo("Nothing was removed.")
        return 1
    with _alone(home):
        found = _chosen(home, models_only)
        for made in found:
            _remove(made.path)
        if not models_only:
            for folder in (home / "models", home / "locks", home):
                with suppress(OSError):  # not there, not empty, or a link
                    folder.rmdir()
    click.echo(f"Removed {_count(found)}.")
    left = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
    if left and not models_only:
        click.echo(f"Left in {home}, since PACE did not make it: {', '.join(left)}")
    return 0


def check_home(home: Path) -> None:
    """Refuse a folder that cannot be PACE's own.

    Raises:
        ConfigError: it is the root, somebody's home folder or above it, holds PACE's own code, or
            belongs to another user.
    """
    real = home.resolve()
    code = Path(engine.__file__).resolve()
    if Path.home().resolve().is_relative_to(real):
        why = "it is your home folder, or above it"
    elif code.is_relative_to(real):
        why = "PACE itself is installed there"
    elif real.stat().st_uid != os.getuid():
        why = "it belongs to another user"
    else:
        return
    raise ConfigError(
        f"{home} is not cleaned: {why}; set PACE_HOME to the folder PACE has to itself",
        param="PACE_HOME",
    )


def find_made(home: Path) -> list[Made]:
    """What PACE made in ``home``: models, the token, leftovers, and the locks last."""
    found = [*_models(home / "models"), *_left_over(home)]
    token = home / "ray-token"
    if _is_plain(token, stat.S_ISREG):
        found.append(Made("token", token, size_of(token)))
    if _is_plain(home / "locks", stat.S_ISDIR):
        files = [path for path in _inside(home / "locks") if _LOCK.fullmatch(path.name)]
        found += [
            Made("lock", path, size_of(path)) for path in files if _is_plain(path, stat.S_ISREG)
        ]
    return found


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links count as themselves."""
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        return about.st_size
    return sum(size_of(inner) for inner in _inside(path))


def _chosen(home: Path, models_only: bool) -> list[Made]:
    found = find_made(home)
    if not models_only:
        return found
    return [made for made in found if made.path.parent == home / "models"]


def _models(folder: Path) -> Iterator[Made]:
    if not _is_plain(folder, stat.S_ISDIR):
        return
    for path in _inside(folder):
        if _is_plain(path, stat.S_ISDIR) and (path.name in CATALOG or _was_added(path)):
            yield Made("model", path, size_of(path))
    yield from _left_over(folder)


def _was_added(folder: Path) -> bool:
    """Whether ``pace model add`` made the folder: it writes down what from."""
    try:
        about = json.loads((folder / PROFILE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and {"profile", "source"} <= about.keys()


def _left_over(folder: Path) -> Iterator[Made]:
    for path in _inside(folder):
        if _LEFT_OVER.fullmatch(path.name) and not path.is_symlink():
            yield Made("left over", path, size_of(path))


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _is_plain(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether ``path`` is there and of ``kind`` (``stat.S_ISREG``, …), not a link to one."""
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold ``home`` against everybody who uses it. Raises ConfigError when somebody does."""
    with ExitStack() as held:
        try:
            held.enter_context(lock(IN_USE, timeout=0))
        except TimeoutError:
            raise ConfigError(
                f"{home} is in use: stop the server that runs, or wait for the model that is "
                "being added",
                param="PACE_HOME",
            ) from None
        yield


def _show(found: list[Made]) -> None:
    table = Table("what", "path", "size")
    for made in found:
        table.add_row(made.kind, escape(str(made.path)), decimal(made.size))
    Console().print(table)


def _count(found: list[Made]) -> str:
    things = "1 thing" if len(found) == 1 else f"{len(found)} things"
    return f"{things}, {decimal(sum(made.size for made in found))}"


def _remove(path: Path) -> None:
    # rmtree goes by open folders and never through a link, also one put there meanwhile
    if _is_plain(path, stat.S_ISDIR):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
