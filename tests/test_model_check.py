"""``pace model check``: what it says of a model that is served, and of one that is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from serve.cli import main

Change = Callable[[Path], None]


def rewrite(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Standard output as one line without the table's frame, and the errors."""
    captured = capsys.readouterr()
    words = "".join(c if c.isascii() or c.isalpha() else " " for c in captured.out).split()
    errors = [line for line in captured.err.splitlines() if line.startswith("Error: ")]
    return " ".join(words), "\n".join(errors)


def test_a_served_model_is_described(
    protocol_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["model", "check", str(protocol_model), "--device", "cpu"]) == 0
    out, errors = printed(capsys)
    assert errors == ""
    for row in (
        "family llama (LlamaForCausalLM)",
        "layers 4",
        "heads 4 of queries, 2 of keys and values, 16 dimensions each",
        "rotary embedding default, 16 of 16 dimensions, in pairs of halves",
        "positions 8192",
        "dtype float32 on cpu",
        "chat template the model's own",
        'tool calls JSON with "arguments", in <tool_call> tags',
        "thinking no",
    ):
        assert row in out
    at_most = float(out.split("logits at most ")[1].split()[0])
    assert 0 < at_most < 1e-3 and "from the stock model's over 300 tokens" in out


def no_dynamic_rope(folder: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    rewrite(folder / "config.json", rope_parameters=rope)


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("change", "reason", "still_said"),
    [
        (no_dynamic_rope, "llama: rope type dynamic is not supported", "thinking no"),
        (no_template, "the model's tokenizer has no chat template", "family llama"),
        (no_weights, "cannot be loaded as a causal language model", "thinking no"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_refused_model_gets_exit_code_1_and_the_reason(
    change: Change,
    reason: str,
    still_said: str,
    protocol_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "model"
    shutil.copytree(protocol_model, folder)
    change(folder)
    assert main(["model", "check", str(folder), "--device", "cpu"]) == 1
    out, errors = printed(capsys)
    assert reason in out and still_said in out
    assert errors.startswith("Error: ") and reason in errors


def test_a_model_that_is_not_there_is_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "check", "no-such-model"]) == 1
    out, errors = printed(capsys)
    assert out == "" and "no model 'no-such-model'" in errors
