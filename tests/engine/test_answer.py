"""Streaming an answer: what is given out is final, complete, and what a one-shot decode gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine.answer import Answer
from engine.types import Sampling, TextDelta
from tests.support.protocol_model import byte_tokenizer

BYTES = byte_tokenizer()
END = 258
FLAT = torch.zeros(261)
LETTERS = "aé€😀\ufffd"  # of one to four bytes, and the replacement character itself


def stream(
    tokens: list[int], sampling: Sampling, tokenizer: object = BYTES, vocabulary: int = 261
) -> tuple[Answer, list[TextDelta]]:
    """Push ``tokens`` until the answer ends; the deltas that came out."""
    answer = Answer(tokenizer, sampling, frozenset({END}) if tokenizer is BYTES else frozenset())
    deltas = []
    for token in tokens:
        delta = answer.push(token, torch.zeros(vocabulary))
        if delta is not None:
            deltas.append(delta)
        if answer.finish:
            break
    return answer, deltas


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[TextDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 260).filter(lambda t: t != END), min_size=1, max_size=40))
def test_any_tokens_stream_to_their_one_shot_text(tokens: list[int]) -> None:
    answer, deltas = stream(tokens, Sampling(max_tokens=len(tokens)))
    assert text_of(deltas) == answer.text == BYTES.decode(tokens, skip_special_tokens=True)
    assert ids_of(deltas) == answer.tokens == tokens
    assert answer.finish == "length"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(b"a\x80\x82\x98\x9f\xc3\xe2\xf0\xf4"), min_size=1, max_size=40))
def test_broken_characters_stream_to_their_one_shot_text(tokens: list[int]) -> None:
    answer, deltas = stream(tokens, Sampling(max_tokens=len(tokens)))
    assert text_of(deltas) == answer.text == BYTES.decode(tokens)


def test_bytes_that_never_make_a_character_do_not_pile_up() -> None:
    _, deltas = stream([0x80] * 100, Sampling(max_tokens=100))
    assert len(deltas) > 20 and max(len(delta.token_ids) for delta in deltas) < 10


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(LETTERS, min_size=1, max_size=12))
def test_a_character_comes_out_whole_with_its_last_byte(text: str) -> None:
    tokens = list(text.encode())
    answer = Answer(BYTES, Sampling(max_tokens=1000), frozenset({END}))
    given_out = ""
    for count, token in enumerate(tokens, start=1):
        delta = answer.push(token, FLAT)
        given_out += delta.text if delta else ""
        complete = bytes(tokens[:count]).decode(errors="ignore")
        assert text.startswith(given_out)
        # all complete characters are out, but for replacement characters at the end
        assert given_out.startswith(complete.rstrip("\ufffd"))
    last = answer.push(END, FLAT)
    assert given_out + (last.text if last else "") == text


@pytest.fixture(scope="module")
def language(smollm2: Path) -> object:
    return AutoTokenizer.from_pretrained(smollm2)


def test_random_tokens_of_a_real_vocabulary_stream_to_their_one_shot_text(language: object) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        tokens = torch.randint(3, 49_152, (30,), generator=generator).tolist()
        answer, deltas = stream(tokens, Sampling(max_tokens=30), language, vocabulary=1)
        assert text_of(deltas) == answer.text == language.decode(tokens, skip_special_tokens=True)
        assert ids_of(deltas) == tokens


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.text("abc€", min_size=1, max_size=30),
    st.lists(st.text("abc€", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_text_ends_before_the_first_stop_string_to_be_complete(text: str, stops: list[str]) -> None:
    """The reference reads one character after the other and looks at the end of what it has."""
    expected = text
    for count in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:count].endswith(stop)]
        if ended:
            expected = text[: count - max(map(len, ended))]
            break
    tokens = list(text.encode())
    answer, deltas = stream([*tokens, END], Sampling(max_tokens=1000, stop=tuple(stops)))
    assert text_of(deltas) == answer.text == expected
    assert answer.finish == "stop"
    assert ids_of(deltas) == answer.tokens
    # nothing was sampled beyond the token that completed the stop string
    sampled = len(tokens) + 1 if expected == text else len(text[:count].encode())
    assert len(answer.tokens) == sampled


def test_what_may_begin_a_stop_string_is_held_back_and_flushed_at_the_end() -> None:
    sampling = Sampling(max_tokens=6, stop=("xyzzy",))
    answer = Answer(BYTES, sampling, frozenset({END}))
    texts = []
    for char in "abxyzx":
        delta = answer.push(ord(char), FLAT)
        texts.append(delta.text if delta else None)
    assert texts == ["a", "b", None, None, None, "xyzx"]
    assert answer.finish == "length"
    answer = Answer(BYTES, sampling, frozenset({END}))
    held = [answer.push(token, FLAT) for token in (*b"xyz", END)]
    assert held[:3] == [None] * 3
    assert held[3] == TextDelta("xyz", (*b"xyz", END))
    assert answer.finish == "stop"


@pytest.mark.parametrize(
    ("text", "stop", "given_out"),
    [
        ("STOP here", "STOP", ""),  # at the very beginning
        ("aaab", "aab", "a"),  # overlaps itself
        ("ababac", "abac", "ab"),
        ("one two", " t", "one"),
        ("a€b", "€", "a"),  # multi-byte
        ("abcd", "d", "abc"),
    ],
)
def test_stop_strings(text: str, stop: str, given_out: str) -> None:
    answer, deltas = stream(list(text.encode()), Sampling(max_tokens=99, stop=(stop,)))
    assert (answer.text, text_of(deltas), answer.finish) == (given_out, given_out, "stop")


def test_of_two_stop_strings_in_one_token_the_earlier_one_counts(language: object) -> None:
    (token,) = language(" function")["input_ids"]
    sampling = Sampling(max_tokens=9, stop=("tion", "unc", "zzz"))
    answer, deltas = stream([token], sampling, language, vocabulary=1)
    assert text_of(deltas) == " f" and answer.finish == "stop"


def test_the_stop_string_may_end_with_the_last_token_allowed() -> None:
    answer, deltas = stream(list(b"ab.."), Sampling(max_tokens=4, stop=("..",)))
    assert (text_of(deltas), answer.finish) == ("ab", "stop")


def test_the_end_token_has_no_text_and_can_be_ignored() -> None:
    tokens = [*b"hi", END, *b"ho"]
    answer, deltas = stream(tokens, Sampling(max_tokens=9))
    assert (text_of(deltas), ids_of(deltas), answer.finish) == ("hi", [*b"hi", END], "stop")
    answer, deltas = stream(tokens, Sampling(max_tokens=5, ignore_eos=True))
    assert (text_of(deltas), ids_of(deltas), answer.finish) == ("hiho", tokens, "length")


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    for last in ([], [END]):
        tokens = [*b"a\xe2\x82", *last]
        answer, deltas = stream(tokens, Sampling(max_tokens=3 + len(last)))
        assert text_of(deltas) == answer.text == "a\ufffd"
        assert ids_of(deltas) == tokens


def test_no_room_for_another_token_ends_the_answer() -> None:
    answer = Answer(BYTES, Sampling(max_tokens=100, stop=("bcd",)), frozenset({END}))
    assert answer.push(ord("a"), FLAT, room=True) is not None and answer.finish is None
    assert answer.push(ord("b"), FLAT, room=False) == TextDelta("b", (ord("b"),))
    assert answer.finish == "length"


def test_logprobs_are_of_the_unscaled_distribution() -> None:
    logits = torch.full((261,), -5.0)
    logits[ord("x")], logits[0xE2], logits[ord("y")] = 3.0, 2.0, 1.0
    total = math.log(math.exp(3) + math.exp(2) + math.exp(1) + 258 * math.exp(-5))
    sampling = Sampling(max_tokens=9, temperature=0.1, logprobs=True, top_logprobs=2)
    answer = Answer(BYTES, sampling, frozenset({END}))
    delta = answer.push(ord("y"), logits)
    assert delta is not None
    (entry,) = delta.logprobs
    assert (entry.token, entry.token_id, entry.bytes) == ("y", ord("y"), (ord("y"),))
    assert entry.logprob == pytest.approx(1 - total, abs=1e-5)
    assert [(t.token_id, t.bytes) for t in entry.top] == [(ord("x"), (ord("x"),)), (0xE2, (0xE2,))]
    assert [t.logprob for t in entry.top] == pytest.approx([3 - total, 2 - total], abs=1e-5)
    assert entry.top[1].token == "\ufffd"  # no character, but its byte is exact


def test_logprobs_come_with_the_tokens_they_belong_to() -> None:
    sampling = Sampling(max_tokens=5, logprobs=True)
    _, deltas = stream(list("a€b".encode()), sampling)
    assert [len(delta.logprobs) for delta in deltas] == [len(d.token_ids) for d in deltas]
    assert [[e.token_id for e in d.logprobs] for d in deltas] == [
        [ord("a")],
        list("€".encode()),
        [ord("b")],
    ]
    assert all(entry.top == () for delta in deltas for entry in delta.logprobs)
    _, bare = stream(list(b"ab"), Sampling(max_tokens=2))
    assert all(delta.logprobs == () for delta in bare)
