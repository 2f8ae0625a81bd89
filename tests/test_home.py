"""``engine.home``: locks between threads and processes, and all-or-nothing publishing."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.home import ensure_dir, lock, pace_home, publish_dir, publish_file, sweep, write_atomic

Publish = Callable[[Path], AbstractContextManager[Path]]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_home_is_pace_home_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE_HOME", "~/elsewhere")
    assert pace_home() == Path.home() / "elsewhere"
    monkeypatch.setenv("PACE_HOME", "relative")
    assert pace_home() == Path.cwd() / "relative"
    monkeypatch.delenv("PACE_HOME")
    assert pace_home() == Path.home() / ".cache" / "pace"


def test_ensure_dir_names_pace_home_when_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set PACE_HOME") as caught:
        ensure_dir(tmp_path / "file" / "models")
    assert caught.value.param == "PACE_HOME"


# ---- locks


def test_a_lock_excludes_other_threads() -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with lock("shared"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_a_lock_excludes_other_processes_and_dies_with_its_holder() -> None:
    code = "from engine.home import lock\nwith lock('x'):\n print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    waits: list[bool] = []
    with (
        pytest.raises(TimeoutError, match="held by another process"),
        lock("x", timeout=0.2, on_wait=lambda: waits.append(True)),
    ):
        pytest.fail("two holders")
    assert waits == [True]
    with lock("y", timeout=0):
        pass  # another name is free
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock("x", timeout=5):
        pass


def test_a_lock_is_free_again_after_an_error() -> None:
    with pytest.raises(KeyError), lock("x"):
        raise KeyError
    with lock("x", timeout=0):
        pass


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a b"])
def test_lock_names_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(ValueError, match="lock name"), lock(name):
        pytest.fail("locked")


# ---- files


@pytest.mark.parametrize("failure", [KeyError, KeyboardInterrupt, SystemExit])
def test_a_failed_file_leaves_the_old_one(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(failure), publish_file(path) as draft:
        draft.write_bytes(b"half of the new")
        raise failure
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_write_atomic_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path.parent) == ["token"]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([n]) * 200_000 for n in range(8)]
    write_atomic(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for content in contents * 5:
            write_atomic(path, content)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_bytes())
    writer.join()
    assert seen <= set(contents)


# ---- folders


def test_a_folder_is_published_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for n in ("1", "2"):
        with publish_dir(path) as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / n).touch()
            assert not (path / "sub" / n).exists()
        assert names(path / "sub") == [n]
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_folder_changes_nothing(
    tmp_path: Path, failure: type[BaseException], exists: bool
) -> None:
    path = tmp_path / "model"
    if exists:
        with publish_dir(path) as draft:
            (draft / "old").touch()
    with pytest.raises(failure), publish_dir(path) as draft:
        (draft / "new").touch()
        raise failure
    assert names(tmp_path) == (["model"] if exists else [])
    assert not exists or names(path) == ["old"]


def test_a_failed_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    with publish_dir(path) as draft:
        (draft / "old").touch()
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if ".tmp-" in source.name:
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="no"), publish_dir(path) as draft:
        (draft / "new").touch()
    assert names(tmp_path) == ["model"]
    assert names(path) == ["old"]


def test_sweep_undoes_what_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / "model"
    code = (
        "import os, pathlib, signal\nfrom engine import home\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "with home.publish_dir(path) as d:\n (d / 'old').touch()\n"
        "with home.publish_dir(path) as d:\n"
        " (d / 'new').touch()\n"
        " rename = os.rename\n"
        " os.rename = lambda a, b: (rename(a, b), os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert not path.exists() and len(names(tmp_path)) == 2  # killed between the two renames
    sweep(path)
    assert names(tmp_path) == ["model"]
    assert names(path) == ["old"]


@pytest.mark.parametrize("publish", [publish_file, publish_dir])
def test_a_full_disk_is_told_with_the_path(publish: Publish, tmp_path: Path) -> None:
    path = tmp_path / "made"
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ConfigError, match="made cannot be written") as caught, publish(path):
        raise full
    assert caught.value.param == "PACE_HOME"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionResetError), publish(path):
        raise ConnectionResetError  # not the disk's
