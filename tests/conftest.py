"""Isolation of all tests from the user's environment, shared models, and the session-end check."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import leftovers

# Workers of pytest-xdist start in the environment that the session itself has made.
REAL_HOME_VARIABLE = "PACE_TEST_REAL_HOME"
REAL_PACE_HOME = os.environ.get(
    REAL_HOME_VARIABLE, os.environ.get("PACE_HOME") or os.path.expanduser("~/.cache/pace")
)
CHECKOUT = Path(__file__).resolve().parent.parent
# Set for the whole session, and before any library reads it: fixtures of wider scope and child
# processes see the same world as the tests.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    # waiting threads sleep: on a shared machine spinning costs several times the work itself
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_THREAD_TIMEOUT": "4",
}
REMOVED = ("RAY_ADDRESS", "HF_ENDPOINT", "HF_TOKEN", "PACE_API_KEYS_FILE", "OPENAI_API_KEY")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--editing",
        action="store_true",
        help="files that appear in the checkout while the tests run are not the tests' fault",
    )


def _hear_ctrl_c(config: pytest.Config) -> None:
    """Who starts the tests in the background has them, and all their children, ignore Ctrl-C;
    tests that press it in a child need it heard."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        config.add_cleanup(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))


def pytest_configure(config: pytest.Config) -> None:
    _hear_ctrl_c(config)
    home = tempfile.TemporaryDirectory(prefix="pace-test-home-")
    config.add_cleanup(home.cleanup)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for name in REMOVED:
        patch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    patch.setenv(REAL_HOME_VARIABLE, REAL_PACE_HOME)
    patch.setenv("PACE_HOME", home.name)
    patch.setenv(leftovers.MARK, leftovers.new_mark())
    config.stash[leftovers.FILES_BEFORE] = leftovers.untracked_files(CHECKOUT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for ``-n``: a file's tests stay together, and so do those of the shared server; a
    module may name a group of its own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        shared = "server" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("server" if shared else item.path.stem))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    config = session.config
    found = leftovers.processes() + leftovers.listening_sockets()
    if not config.getoption("--editing"):
        found += leftovers.new_files(CHECKOUT, config.stash[leftovers.FILES_BEFORE])
    if (output := getattr(config, "workeroutput", None)) is not None:  # one of several (-n)
        output[leftovers.OF_WORKER] = found
    found = config.stash.setdefault(leftovers.FOUND, []) + found
    config.stash[leftovers.FOUND] = found
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker left behind; one that crashed says nothing, and fails by that."""
    found = getattr(node, "workeroutput", {}).get(leftovers.OF_WORKER, [])
    node.config.stash.setdefault(leftovers.FOUND, []).extend(found)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    found = config.stash.get(leftovers.FOUND, [])
    if found:
        terminalreporter.section("left behind by the tests", red=True)
        for line in found:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a ``$PACE_HOME`` of its own, and no Ray address from outside."""
    monkeypatch.setenv("PACE_HOME", str(tmp_path / "pace-home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="session")
def real_pace_home() -> Path:
    """The user's own ``$PACE_HOME``; read from it, never write."""
    return Path(REAL_PACE_HOME).absolute()


@pytest.fixture(scope="session")
def smollm2(real_pace_home: Path) -> Path:
    """Folder of the embedded SmolLM2-135M-Instruct."""
    folder = real_pace_home / "models" / "smollm2-135m"
    if not (folder / "pace.json").is_file():
        pytest.fail(
            f"the embedded model is missing at {folder}; run: pace model add smollm2-135m",
            pytrace=False,
        )
    return folder


@pytest.fixture(scope="session")
def protocol_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the protocol model (see ``tests/support/protocol_model.py``)."""
    from tests.support.protocol_model import make_protocol_model

    return make_protocol_model(tmp_path_factory.mktemp("models") / "protocol")
