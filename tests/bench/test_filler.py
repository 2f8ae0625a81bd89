"""Filler: exact sizes, no repetition, the topic left out, a clear end."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from bench.filler import Filler, FillerExhausted, SourcePool, token_ends
from engine.errors import ConfigError
from tests.bench.runs import make_source
from tests.support.protocol_model import byte_tokenizer

SIZE = 500


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    return Filler(SourcePool(make_source(tmp_path / "source")), token_ends(byte_tokenizer()))


def test_chunks_are_whole_lines_near_the_size_and_never_repeat(filler: Filler) -> None:
    chunks = list(filler.chunks(1, SIZE))
    lines: list[str] = []
    for chunk in chunks:
        # bytes are tokens; the longest line has 36; a chunk's last line breaks are not in its text
        assert abs(chunk.tokens - SIZE) <= 18 and abs(len(chunk.text) - chunk.tokens) <= 3
        first = next(line for line in chunk.text.splitlines() if line.startswith("def "))
        assert first.startswith(f"def {chunk.function}(")
        lines += [line for line in chunk.text.splitlines() if line]
    assert len(lines) == len(set(lines)), "a line comes twice"
    # the files' ends are used too: all of the source but less than one chunk
    there = sum(path.stat().st_size for path in filler.pool.paths)
    assert there - sum(chunk.tokens for chunk in chunks) < 2 * SIZE
    one_each = [chunk.path for chunk in chunks[: len(filler.pool.paths)]]
    assert len(set(one_each)) == len(one_each), "first one chunk of every file"


def test_order_depends_on_the_seed_only(filler: Filler) -> None:
    first, again, other = (list(islice(filler.chunks(s, SIZE), 8)) for s in (1, 1, 2))
    assert first == again and first != other


def test_the_topic_is_left_out(filler: Filler) -> None:
    topic = ("value * 3", "part_7_")
    left = list(filler.chunks(1, SIZE, topic))
    assert left and not any(word in chunk.text for chunk in left for word in topic)
    everything = list(filler.chunks(1, SIZE))
    assert [c for c in everything if not any(word in c.text for word in topic)] == left


def test_running_out_says_how_much_there_is(filler: Filler) -> None:
    there = len(list(filler.chunks(1, SIZE)))
    assert len(filler.take(1, there, SIZE)) == there
    with pytest.raises(FillerExhausted, match=f"needs {there + 1} chunks .* has {there}, in all"):
        filler.take(1, there + 1, SIZE)


def test_the_digest_tells_sources_apart_and_pins_one(tmp_path: Path) -> None:
    one, two = (SourcePool(make_source(tmp_path / name)) for name in ("a", "b"))
    assert one.digest == two.digest, "the folder's own name does not count"
    one.check(two.digest)
    one.check(None)
    (tmp_path / "b" / "module_00.py").write_text("def other(): ...\n")
    changed = SourcePool(tmp_path / "b")
    assert changed.digest != one.digest
    (tmp_path / "a" / "module_00.py").rename(tmp_path / "a" / "renamed.py")
    assert SourcePool(tmp_path / "a").digest != one.digest
    with pytest.raises(ConfigError, match=r"--stdlib"):
        changed.check(one.digest)
    with pytest.raises(ConfigError, match="no Python source files"):
        SourcePool(tmp_path / "missing")


def test_the_standard_library_without_tests_and_packages() -> None:
    pool = SourcePool()
    names = {pool.name(path) for path in pool.paths}
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= names
    assert not any(name.startswith(("test/", "site-packages/")) for name in names)
