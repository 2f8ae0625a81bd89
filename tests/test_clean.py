"""``pace clean``: everything PACE made goes, nothing else, and never while it is in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.home import IN_USE, in_use, lock, pace_home, publish_dir, write_atomic
from serve.cli import main
from tests.support.server import free_port


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def add_model(name: str, size: int = 1000, **about: object) -> Path:
    """A model folder as ``pace model add`` leaves it, ``size`` bytes of weights in it."""
    folder = pace_home() / "models" / name
    with publish_dir(folder) as draft:
        about = about or {"source": {"package": "x==1"}}
        (draft / "pace.json").write_text(json.dumps({"profile": {}, **about}))
        (draft / "sub").mkdir()
        (draft / "sub" / "model.safetensors").write_bytes(b"w" * size)
    return folder


@pytest.fixture
def home() -> Path:
    """A home with all that PACE makes in it."""
    home = pace_home()
    add_model("smollm2-135m", 5_000_000)
    add_model("another")
    write_atomic(home / "ray-token", b"secret")
    for left in (".ray-token.tmp-0123456789ab", ".doctor-123"):
        (home / left).touch()
    for left in (".another.tmp-0123456789ab", ".another.old-0123456789ab"):
        (home / "models" / left / "deep").mkdir(parents=True)
    with lock("model-another"):
        pass
    return home


def test_everything_goes_when_the_answer_is_yes(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("click.confirm", lambda text: asked.append(text) or True)
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["clean"]) == 0
    out = capsys.readouterr().out
    assert not home.exists()
    assert len(asked) == 1 and "5.0 MB" in asked[0]
    for shown in ("smollm2-135m", "another", "ray-token", ".old-", ".doctor-123", "5.0 MB"):
        assert shown in out
    assert main(["clean", "--yes"]) == 0
    assert not home.exists(), "there was nothing to remove, so nothing is made"


def test_nothing_goes_when_it_is_no(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.confirm", lambda text: False)
    before = names(home)
    assert main(["clean"]) == 1
    assert "Nothing was removed" in capsys.readouterr().out
    assert names(home) - before <= {f"locks/{IN_USE}.lock"}


def test_without_a_person_nothing_goes(home: Path) -> None:
    pace = Path(sys.executable).parent / "pace"
    before = names(home)
    done = subprocess.run([pace, "clean"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 130 and "Error: interrupted" in done.stderr
    assert names(home) - before <= {f"locks/{IN_USE}.lock"}


def test_only_models(home: Path) -> None:
    assert main(["clean", "--models", "--yes"]) == 0
    assert not list((home / "models").iterdir())
    assert (home / "ray-token").read_bytes() == b"secret"
    assert (home / ".doctor-123").exists() and (home / "locks" / "model-another.lock").exists()


def test_what_others_put_there_stays(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model("my-own", mine=True)  # a profile, but not one that was added
    plain = home / "models" / "llama"
    (plain / "weights").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (home / "locks" / "readme").write_text("mine")
    (home / "locks" / "other-program.lock").touch()
    (home / ".hidden").write_text("mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "pace.json").write_text('{"profile": {}, "source": {}}')
    (outside / "kept").write_text("far away")
    (home / "models" / "linked").symlink_to(outside)
    (home / "models" / ".linked.tmp-0123456789ab").symlink_to(outside)
    (home / "models" / "another" / "inner").symlink_to(outside)
    assert main(["clean", "--yes"]) == 0
    assert names(home) == {
        *("models", "models/my-own", "models/my-own/pace.json", "models/my-own/sub"),
        *("models/my-own/sub/model.safetensors", "models/llama", "models/llama/weights"),
        *("models/linked", "models/.linked.tmp-0123456789ab"),
        *("notes.txt", "locks", "locks/readme", "locks/other-program.lock", ".hidden"),
    }
    assert names(outside) == {"pace.json", "kept"}
    assert "did not make it: .hidden, locks, models, notes.txt" in capsys.readouterr().out


@pytest.mark.parametrize("linked", ["models", "locks"])
def test_a_folder_behind_a_link_is_not_entered(home: Path, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (home / linked).rename(elsewhere)
    (home / linked).symlink_to(elsewhere)
    before = names(elsewhere)
    assert main(["clean", "--yes"]) == 0
    assert names(elsewhere) - before <= {f"{IN_USE}.lock"} and names(elsewhere) >= before
    assert (home / linked).is_symlink() and not (home / "ray-token").exists()


def test_a_home_behind_a_link_is_cleaned(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(home)
    monkeypatch.setenv("PACE_HOME", str(link))
    assert main(["clean", "--yes"]) == 0
    assert link.is_symlink() and list(home.iterdir()) == []


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["clean", "--yes", *args]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("Error: ") and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("where", ["/", "~", "~/..", "code"])
def test_a_folder_that_cannot_be_paces_is_refused(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    person = tmp_path / "people" / "ann"
    person.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(person))
    checkout = Path(__file__).resolve().parent.parent
    monkeypatch.setenv("PACE_HOME", str(checkout) if where == "code" else where)
    before = names(tmp_path)
    line = refused(capsys)
    assert "is not cleaned" in line and "set PACE_HOME" in line
    assert names(tmp_path) == before and not Path("/locks").exists()
    assert not (checkout / "locks").exists()


def test_the_folder_of_another_user_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: home.stat().st_uid + 1)
    assert "belongs to another user" in refused(capsys)
    assert (home / "ray-token").exists()


def test_it_is_refused_while_a_server_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``pace serve`` itself, as far as it can be run without Ray."""
    (home / "models" / "another" / "config.json").write_text("{}")
    lines: list[str] = []
    monkeypatch.setattr("serve.cli.serve.run", lambda config: lines.append(refused(capsys)) or 0)
    model = str(home / "models" / "another")
    assert main(["serve", "--port", str(free_port()), "--model", model]) == 0
    assert len(lines) == 1 and "is in use: stop the server" in lines[0]
    assert (home / "ray-token").exists()
    assert main(["clean", "--yes"]) == 0


def test_it_is_refused_while_a_model_is_added(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_use(), in_use():  # as many as like
        assert "being added" in refused(capsys, "--models")


def test_who_waited_for_a_lock_that_was_removed_takes_the_new_one(home: Path) -> None:
    order: list[str] = []
    begun, removed = threading.Event(), threading.Event()

    def wait() -> None:
        with lock(IN_USE, on_wait=begun.set):
            order.append("waited")
            assert removed.is_set()
            # the one holder there is: nobody else gets it, under the name it has now
            with pytest.raises(TimeoutError), lock(IN_USE, timeout=0):
                pytest.fail("two holders")

    waiter = threading.Thread(target=wait)
    with lock(IN_USE):
        waiter.start()
        assert begun.wait(10)
        (home / "locks" / f"{IN_USE}.lock").unlink()
        with lock(IN_USE, timeout=0):  # a new file, a new lock
            order.append("new")
            removed.set()
    waiter.join(10)
    assert order == ["new", "waited"]


def test_doctor_tells_of_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["home"]["state"] == "ok"
    assert "5.0 MB that pace clean removes" in rows["home"]["found"]


def test_every_lock_that_is_taken_is_removed(home: Path) -> None:
    for name in (IN_USE, "ray-token", "model-smollm2-135m"):
        with lock(name):
            pass
    assert main(["clean", "--yes"]) == 0
    assert not home.exists()
