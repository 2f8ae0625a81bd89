"""``pace bench speed``: every figure it names, and that each measures what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.speed.long_session import long_session
from bench.speed.resend import persistent_over_resent
from bench.speed.setting import ANSWER_TOKENS, H2O, Setting, open_setting
from bench.speed.stock import Stock, full_over_pace
from bench.speed.table import meaning, speed_table
from bench.speed.together import SESSIONS, decode_scaling
from engine.environment import ENGINE_ENV
from engine.types import Message
from serve.cli import main
from tests.bench.runs import make_source

TOKENS = 2600
TURN = 250


class Clock:
    """Ten seconds per reading: what is measured is how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return 10.0 * self.reads


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("filler"))


@pytest.fixture(scope="module")
def setting(protocol_model: Path, source: Path) -> Iterator[Setting]:
    made = open_setting(
        str(protocol_model),
        TOKENS,
        lambda _: None,
        device="cpu",
        threads=1,
        turn_tokens=TURN,
        stdlib=source,
    )
    yield made
    made.engine.close()


def test_every_ratio_of_equal_costs_is_one(setting: Setting) -> None:
    """With a clock that counts its own readings every turn costs the same."""
    setting.now = Clock()
    figures, curve = long_session(setting, TOKENS)
    assert figures["tokens"] >= TOKENS > figures["tokens"] - 400
    # cost is per new token: turns differ by the few tokens that lines and the first turn differ
    for name in ("late_over_early", "early_over_early", "pace_over_h2o", "raw_late_over_early"):
        assert figures[name] == pytest.approx(1, rel=0.1), name
    new = TURN + len("Read this:\n") + 30
    assert figures["ms_per_token_last_tenth"] == pytest.approx(10_000 / new, rel=0.15)
    assert [tokens for tokens, _ in curve] == sorted(tokens for tokens, _ in curve)
    token = 4 * 2 * 2 * 16 * 4  # layers, key and value, heads, dimension, bytes
    assert figures["full_kv_bytes"] == pytest.approx(figures["tokens"] * token, rel=0.01)
    assert figures["kv_bytes"] < figures["full_kv_bytes"]
    assert setting.engine.sessions(None) == []


def test_h2o_can_hold_the_whole_session(protocol_model: Path, setting: Setting) -> None:
    policies = setting.engine.store._resolved
    assert policies[H2O].position_range >= 4 * 8192 and policies[H2O].retention == "h2o"
    longer = open_setting(str(protocol_model), 1_000_000, lambda _: None, device="cpu", threads=1)
    longer.engine.close()
    assert longer.engine.store._resolved[H2O].position_range > 1_000_000


def test_resending_computes_every_turn_again(setting: Setting) -> None:
    setting.now = Clock()
    figures = persistent_over_resent(setting, 4 * TURN)
    assert figures["resend_turns"] == 4
    assert figures["resend_seconds_ratio"] == 1  # the clock is read as often
    # 1 + 2 + 3 + 4 turns against 4
    assert figures["resend_tokens_ratio"] == pytest.approx(10 / 4, rel=0.1)
    assert setting.engine.sessions(None) == []


def test_decode_counts_tokens_of_all_sessions(setting: Setting) -> None:
    setting.now = Clock()
    figures = decode_scaling(setting, 1, 4)
    for count in SESSIONS:
        assert figures[f"decode_tokens_per_s_{count}"] == count * 4 / 10
    assert figures["decode_speedup_16"] == 16
    assert setting.engine.sessions(None) == []


def test_the_stock_model_is_fed_what_the_engine_is(setting: Setting) -> None:
    setting.now = Clock()
    figures = full_over_pace(setting, 700)
    assert 700 <= figures["full_tokens"] < 700 + TURN + 60
    assert figures["full_kv_bytes_measured"] == figures["full_tokens"] * 1024
    for quarter in range(1, 5):
        assert figures[f"full_over_pace_{quarter}"] == pytest.approx(1, rel=0.1)


def test_stock_and_engine_compute_the_same(setting: Setting) -> None:
    """Within the budget nothing is evicted: the model alone and the engine hold the same keys."""
    chat = setting.engine.chat
    stock = Stock(setting)
    message = Message("user", "x" * 100)
    prompt = chat.message_tokens(None, message) + chat.answer_prompt("user")
    stock.turn(prompt)
    setting.turn("same", message.content)
    row, count = setting.engine.store.table.get("", "same").state.row, stock.tokens
    assert row is not None and count == len(prompt) + ANSWER_TOKENS - 1 == row.length
    for layer, cached in enumerate(stock.cache.layers):
        values = row.value[layer, :, :count]
        torch.testing.assert_close(cached.values[0], values, rtol=1e-4, atol=1e-4)
    setting.forget("same")


def test_every_figure_has_a_meaning_and_the_command_prints_json(
    protocol_model: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENGINE_ENV.items():
        monkeypatch.setenv(name, value)  # or the command begins this process again
    command = ["bench", "speed", "--model", str(protocol_model), "--stdlib", str(source)]
    command += ["--device", "cpu", "--threads", "1", "--turn-tokens", str(TURN), "--json"]
    command += ["--tokens", str(TOKENS), "--rounds", "1", "--decode", "2"]
    assert main([*command, "--resend-tokens", "500", "--full-tokens", "400"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("on").endswith("protocol, float32, cpu")
    curve = found.pop("curve")
    assert len(curve) >= 5 and all(
        value > 0 for name, value in found.items() if "growth" not in name
    )
    assert all(meaning(name) for name in found)
    table = speed_table(found, curve, "t")
    assert table.row_count == len(found) + len(curve)
    assert main([*command, "--tokens", "1000"]) == 2
    assert main([*command, "--parts", "decode,colour"]) == 2
    assert "colour" in capsys.readouterr().err


def test_turns_too_large_for_a_control_lose_no_other_figure(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting, "turn_tokens", 1500)
    figures, curve = long_session(setting, TOKENS)
    assert figures["tokens"] >= TOKENS and figures["turns"] == len(curve) == 2
    # the only turn of the first tenth is the young session's first, which fills its budget
    assert "early_over_early" not in figures and {"late_over_early", "pace_over_h2o"} < set(figures)
