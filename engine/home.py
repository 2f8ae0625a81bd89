"""``$PACE_HOME``: where PACE keeps models and state, and how files get there whole or not at all.

A writer takes the ``lock`` of what it makes, builds beside the final place and renames. Readers
need no lock: what they see is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from engine.errors import ConfigError

_POLL_S = 0.05
_NAME = re.compile(r"[\w.-]{1,128}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def pace_home() -> Path:
    """Absolute path of PACE's folder: ``$PACE_HOME``, else ``~/.cache/pace``. May not exist yet."""
    return Path(os.environ.get("PACE_HOME") or "~/.cache/pace").expanduser().absolute()


def ensure_dir(path: Path) -> Path:
    """Create a folder of ``$PACE_HOME`` (readable by the owner only) and return it.

    Raises:
        ConfigError: it cannot be created or written to.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unwritable(path, "no permission")
    return path


IN_USE = "in-use"
"""The lock that whoever needs what is in ``$PACE_HOME`` shares; who empties it, holds it alone."""


def in_use() -> AbstractContextManager[None]:
    """Keep ``$PACE_HOME`` from being emptied meanwhile."""
    return lock(IN_USE, shared=True)


@contextmanager
def lock(
    name: str,
    *,
    shared: bool = False,
    timeout: float | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the lock ``name`` of ``$PACE_HOME`` against all other threads and processes.

    The kernel frees it when the holder dies. Not reentrant.

    Args:
        name: letters, digits, ``_ . -``; one lock per name.
        shared: others may share it too; it excludes only who wants it alone.
        timeout: seconds to wait; None waits as long as it takes.
        on_wait: called once when the lock is not free at first.

    Raises:
        TimeoutError: another holder kept it for ``timeout`` seconds.
        ConfigError: ``$PACE_HOME`` is not writable.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"lock name {name!r} must match {_NAME.pattern}")
    deadline = None if timeout is None else time.monotonic() + timeout
    waited = False
    while True:
        path, handle = _open_lock(name)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            # A file removed meanwhile locks nobody out: the next one makes another.
            if _is_same_file(handle, path):
                break
            os.close(handle)
            continue
        except BlockingIOError as error:
            os.close(handle)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is held by another process") from error
        except BaseException:
            os.close(handle)
            raise
        if not waited and on_wait is not None:
            on_wait()
        waited = True
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(handle)


def _open_lock(name: str) -> tuple[Path, int]:
    path = ensure_dir(pace_home() / "locks") / f"{name}.lock"
    try:
        return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the folder went between the two lines
        return _open_lock(name)
    except OSError as error:
        raise _unwritable(path, error) from error


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def publish_file(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """Give a temporary path to write; on success it becomes ``path`` in one step.

    The body writes (or replaces) the temporary file. When it raises, or is interrupted, the
    temporary file is removed and ``path`` is as before.
    """
    ensure_dir(path.parent)
    draft = _beside(path, "tmp")
    try:
        with _room_for(path):
            yield draft
            os.chmod(draft, mode)
            _sync(draft)
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` by ``data``; readers see the old file or the new one."""
    with publish_file(path, mode=mode) as draft:
        # Created with the final mode: a secret is never readable by others, not even briefly.
        draft.touch(mode=mode, exist_ok=False)
        draft.write_bytes(data)


@contextmanager
def publish_dir(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder to fill; on success it becomes the folder ``path``.

    An existing ``path`` is replaced. When the body raises, or is interrupted, the temporary
    folder is removed and ``path`` is as before. The caller holds the lock of ``path``, and calls
    ``sweep`` first to undo what a killed process left.
    """
    ensure_dir(path.parent)
    draft, old = _beside(path, "tmp"), _beside(path, "old")
    draft.mkdir(mode=0o700)
    try:
        with _room_for(path):
            yield draft
            for file in draft.rglob("*"):
                _sync(file)
        if path.exists():
            os.rename(path, old)
        try:
            os.rename(draft, path)
        except BaseException:
            if old.exists():
                os.rename(old, path)
            raise
        _sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def sweep(path: Path) -> None:
    """Undo what a killed ``publish_dir`` or ``publish_file`` of ``path`` left behind.

    The caller holds the lock of ``path``, so nothing swept is in use.
    """
    for old in path.parent.glob(f".{path.name}.old-*"):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, path)
    for draft in path.parent.glob(f".{path.name}.tmp-*"):
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                draft.unlink()


def _beside(path: Path, kind: str) -> Path:
    """A fresh hidden name in the folder of ``path``: same file system, so renames are atomic."""
    return path.with_name(f".{path.name}.{kind}-{uuid4().hex[:12]}")


def _sync(path: Path) -> None:
    """Flush a file or folder to disk: a rename must not outlive the data it names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """A full disk becomes a ConfigError that names ``path``; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): make room there or set PACE_HOME to "
            "another folder",
            param="PACE_HOME",
        ) from error


def _unwritable(path: Path, why: object) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written ({why}): make it writable or set PACE_HOME to another folder",
        param="PACE_HOME",
    )
