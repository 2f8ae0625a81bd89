"""``engine.fetch``: an embedded model is added whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import psutil
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from engine.catalog import ModelSource, load_profile, model_path
from engine.errors import ConfigError, ModelError
from engine.fetch import Converted, Progress, add_model
from engine.gguf_convert import convert_gguf
from engine.home import pace_home
from tests.support.tiny_wheel import MEMBER, TinyWheel, make_tiny_wheel

# Runs `pace model add` with a catalog of one pickled source.
ADD = """
import pickle, sys
from engine import catalog
source = pickle.loads(open(sys.argv[1], "rb").read())
catalog.CATALOG = {source.name: source}
from serve.cli import main
sys.exit(main(["model", "add", source.name]))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyWheel:
    return make_tiny_wheel(tmp_path_factory.mktemp("tiny"))


def fake_convert(gguf: Path, target: Path, progress: Progress) -> Converted:
    assert gguf.read_bytes()[:4] == b"GGUF"
    (target / "config.json").write_text("{}")
    return Converted("bfloat16", {})


def left() -> list[str]:
    """Everything in ``$PACE_HOME`` but the lock files."""
    home = pace_home()
    return sorted(
        str(p.relative_to(home))
        for p in home.rglob("*")
        if p.is_file() and p.parent.name != "locks"
    )


def start_add(source: ModelSource, tmp_path: Path) -> subprocess.Popen[str]:
    file = tmp_path / f"{source.name}.pickle"
    file.write_bytes(pickle.dumps(source))
    return subprocess.Popen(
        [sys.executable, "-c", ADD, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- the whole way


def test_two_processes_add_one_model_with_pip_and_it_works(tiny: TinyWheel, tmp_path: Path) -> None:
    processes = [start_add(tiny.source, tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sorted("already there" in out for out, _ in outputs) == [False, True]

    folder = model_path("tiny")
    assert not [name for name in left() if not name.startswith("models/tiny/")]
    assert not list(folder.glob(".*"))
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    profile = load_profile(folder)
    assert profile.dtype in ("float32", "bfloat16")
    assert profile.model_copy(update={"dtype": None}) == tiny.source.profile

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    with zipfile.ZipFile(tiny.path) as archive:
        archive.extract(MEMBER, tmp_path)
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / MEMBER).tensors}
    down = tensors["blk.0.ffn_down.weight"]
    wanted = torch.from_numpy(gguf.quants.dequantize(down.data, down.tensor_type))
    assert torch.equal(model.model.layers[0].mlp.down_proj.weight.data, wanted)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("xab<|im_end|>") == [120, 259, 258]


def test_pip_finds_the_package_and_progress_is_told(tiny: TinyWheel) -> None:
    stages: list[str] = []
    path, made = add_model(
        tiny.source,
        progress=lambda stage, done, total: stages.append(stage),
        convert=fake_convert,
    )
    assert made and path == model_path("tiny")
    assert left() == ["models/tiny/config.json", "models/tiny/pace.json"]
    assert set(stages) == {"download", "verify", "extract"}
    assert load_profile(path).dtype == "bfloat16"


def test_what_is_there_is_left_alone_unless_forced(tiny: TinyWheel) -> None:
    def add(force: bool) -> bool:
        return add_model(tiny.source, wheel=tiny.path, convert=fake_convert, force=force)[1]

    assert add(False)
    mark = model_path("tiny") / "mark"
    mark.touch()
    assert not add(False) and mark.exists()
    assert add(True) and not mark.exists()
    assert tiny.path.exists()  # the caller's own wheel stays


# ---- failures leave nothing behind


def broken_zip(folder: Path) -> Path:
    path = folder / "broken.whl"
    path.write_bytes(b"not a zip file")
    return path


def raises(error: BaseException) -> Callable[[Path, Path, Progress], Converted]:
    def convert(gguf: Path, target: Path, progress: Progress) -> Converted:
        (target / "model.safetensors").write_bytes(b"half")
        raise error

    return convert


@pytest.mark.parametrize("existing", [False, True], ids=["fresh", "existing"])
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ConfigError, "make room there"),
        (OSError(errno.EIO, "bad disk"), ModelError, "bad disk"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (SystemExit(143), SystemExit, None),
        (ModelError("unreadable"), ModelError, "unreadable"),
        (RuntimeError("a bug"), RuntimeError, "a bug"),
    ],
)
def test_a_failed_conversion_changes_nothing(
    tiny: TinyWheel,
    error: BaseException,
    expected: type[BaseException],
    message: str | None,
    existing: bool,
) -> None:
    if existing:
        add_model(tiny.source, wheel=tiny.path, convert=fake_convert)
    before = left()
    with pytest.raises(expected, match=message):
        add_model(tiny.source, wheel=tiny.path, convert=raises(error), force=True)
    assert left() == before
    assert os.listdir(pace_home() / "models") == (["tiny"] if existing else [])


def test_a_wrong_wheel_hash_is_refused(tiny: TinyWheel) -> None:
    source = replace(tiny.source, wheel_sha256="0" * 64)
    with pytest.raises(ModelError, match=f"{tiny.source.wheel_sha256}, expected 0000"):
        add_model(source, convert=fake_convert)
    assert os.listdir(pace_home() / "models") == []


def test_a_wrong_gguf_hash_is_refused(tiny: TinyWheel) -> None:
    source = replace(tiny.source, gguf_sha256="0" * 64)
    with pytest.raises(ModelError, match=r"tiny\.gguf is not the expected file"):
        add_model(source, wheel=tiny.path, convert=fake_convert)
    assert os.listdir(pace_home() / "models") == []


def test_a_wheel_without_the_model_is_refused(tiny: TinyWheel) -> None:
    with pytest.raises(ModelError, match=r"does not hold other\.gguf"):
        add_model(replace(tiny.source, gguf="other.gguf"), wheel=tiny.path, convert=fake_convert)
    assert os.listdir(pace_home() / "models") == []


def test_a_truncated_wheel_is_refused(tiny: TinyWheel, tmp_path: Path) -> None:
    short = tmp_path / "short.whl"
    short.write_bytes(tiny.path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not the expected file"):
        add_model(tiny.source, wheel=short, convert=fake_convert)
    assert os.listdir(pace_home() / "models") == []


@pytest.mark.parametrize("version", ["1.0", "2.0"], ids=["broken", "absent"])
def test_a_failed_download_gives_pips_reason(tiny: TinyWheel, tmp_path: Path, version: str) -> None:
    shutil.copy(broken_zip(tmp_path), tmp_path / tiny.source.wheel)
    args = ("--no-index", "--find-links", str(tmp_path))
    source = replace(tiny.source, version=version, pip_args=args)
    with pytest.raises(ModelError, match=rf"pip could not download .*=={version}: ERROR") as caught:
        add_model(source, convert=fake_convert)
    assert "--wheel" in caught.value.message
    assert os.listdir(pace_home() / "models") == []


def test_an_unwritable_home_names_pace_home(
    tiny: TinyWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ConfigError, match="PACE_HOME"):
        add_model(tiny.source, wheel=tiny.path, convert=fake_convert)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "term"]
)
def test_a_signal_during_the_download_ends_pip_and_leaves_nothing(
    tiny: TinyWheel, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        source = replace(tiny.source, pip_args=("--index-url", url))
        process = start_add(source, tmp_path)
        silent.settimeout(30)
        connection, _ = silent.accept()  # pip is in the middle of it now
        (pip,) = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == code
    assert "Traceback" not in err
    assert not pip.is_running()
    assert os.listdir(pace_home() / "models") == []


def test_what_a_killed_process_left_is_swept(tiny: TinyWheel, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = start_add(replace(tiny.source, pip_args=("--index-url", url)), tmp_path)
        silent.settimeout(30)
        connection, _ = silent.accept()
        (pip,) = psutil.Process(process.pid).children()
        process.kill()
        process.communicate()
        connection.close()
    pip.kill()
    deadline = time.monotonic() + 10
    while pip.is_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(pace_home() / "models")) == 1
    add_model(tiny.source, wheel=tiny.path, convert=fake_convert)
    assert os.listdir(pace_home() / "models") == ["tiny"]


# ---- the conversion's own errors


@pytest.fixture
def tiny_gguf(tiny: TinyWheel, tmp_path: Path) -> Path:
    with zipfile.ZipFile(tiny.path) as archive:
        return Path(archive.extract(MEMBER, tmp_path))


@pytest.mark.parametrize(
    ("text", "number"), [("I/O error: full (os error 28)", errno.ENOSPC), ("?", errno.EIO)]
)
def test_a_full_disk_under_the_weights_is_an_os_error(
    tiny_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    number: int,
) -> None:
    def save(self: object, target: Path) -> None:
        raise SafetensorError(text)

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", save)
    with pytest.raises(OSError) as caught:
        convert_gguf(tiny_gguf, tmp_path / "out", lambda *_: None)
    assert caught.value.errno == number


def test_a_broken_gguf_is_a_model_error(tiny_gguf: Path, tmp_path: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        convert_gguf(tiny_gguf, tmp_path / "out", lambda *_: None)


def test_the_conversion_prints_nothing(
    tiny_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    convert_gguf(tiny_gguf, tmp_path / "out", lambda *_: None)
    assert capfd.readouterr() == ("", "")
