"""The transcript of a demo session: facts stated early, code in between, questions at the end.

Steps (user messages, from 1): one states each fact, then each filler step pastes code, then
one asks for each fact. The plan names, for every asking step, the step that stated its fact.
The transcript depends on the seed, the Python and the count of tokens only; every policy gets
the same one.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from serve.demo.filler import Count, estimate_tokens, slices

SYSTEM = "You are a helpful assistant. Answer every question in one short sentence."
FILLER_ANSWER_TOKENS = 8
FACT_ANSWER_TOKENS = 10

_FILLER_TOKENS = 1450
# The chat template's own tokens around a message and its answer, and a filler's answer.
_TURN_OVERHEAD = 10
_LEAST_FILLERS = 2

# All words are one token for the embedded model, so that spelling decides nothing.
_WORDS: Mapping[str, str] = {
    "release animal": "falcon bison moose tiger lion eagle wolf bear fox hawk horse rabbit turtle "
    "dolphin whale shark owl camel zebra penguin elephant monkey snake spider beetle crow goat "
    "sheep deer duck goose mouse frog lizard crab octopus salmon trout",
    "lead reviewer": "Alice Emma Peter Laura David Maria Sarah Daniel Anna James Lucy Martin "
    "Rachel Simon Helen Victor Julia Felix Clara Arthur Diana Hugo Nina Ivan Carlos Omar Rosa Kate "
    "Frank Grace Henry Jane Leo Susan Kevin Brian Eric",
    "staging city": "Oslo Lima Cairo Dublin Nairobi Lisbon Prague Denver Athens Seoul Paris London "
    "Berlin Madrid Rome Vienna Tokyo Boston Chicago Dallas Sydney Toronto Delhi Mumbai Moscow "
    "Warsaw Stockholm Geneva Milan Beijing Seattle Montreal Barcelona Amsterdam Istanbul",
    "partner country": "France Germany Spain Italy Japan China India Brazil Mexico Canada Egypt "
    "Kenya Peru Chile Norway Sweden Poland Greece Turkey Ireland Austria Portugal Denmark Finland "
    "Iceland Cuba Ghana Nigeria Nepal Vietnam Thailand Argentina",
    "theme color": "amber violet ivory olive indigo coral turquoise yellow purple orange "
    "pink brown gray silver gold",
    "test fruit": "mango papaya cherry lemon plum grape peach banana fig kiwi apple strawberry "
    "pineapple coconut pear lime",
    "cluster planet": "Mercury Venus Mars Jupiter Saturn Uranus Neptune Pluto Titan Europa Orion "
    "Apollo",
}
_NUMBERS: Mapping[str, range] = {
    "service port": range(2100, 9900),
    "ticket number": range(200, 1000),
    "retry limit": range(13, 100),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """``The {key} is {value}.``"""

    key: str
    value: str

    @property
    def opening(self) -> str:
        """How an answer begins, up to the value."""
        return f"The {self.key} is"

    @property
    def statement(self) -> str:
        """The whole fact as a sentence; also the natural answer."""
        return f"{self.opening} {self.value}."

    @property
    def question(self) -> str:
        """Asks for the value and does not reveal it."""
        return f"What is the {self.key}?"

    def is_in(self, text: str) -> bool:
        """Whether ``text`` holds the value as a word of its own, in any case."""
        return re.search(rf"(?<!\w){re.escape(self.value)}(?!\w)", text, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a session says. ``facts[i]`` is stated in step i + 1."""

    seed: int
    facts: tuple[Fact, ...]
    fillers: tuple[str, ...]

    @property
    def opening(self) -> list[dict[str, str]]:
        """The system prompt and the steps that stated the facts, with their answers."""
        messages = [{"role": "system", "content": SYSTEM}]
        for fact in self.facts:
            messages.append(user(f"{fact.statement} {fact.question}"))
            messages.append({"role": "assistant", "content": fact.statement})
        return messages

    @property
    def plan(self) -> dict[str, list[int]]:
        """Asking step → the step that stated its fact, as the wire wants it."""
        first = len(self.facts) + len(self.fillers) + 1
        return {str(first + index): [index + 1] for index in range(len(self.facts))}

    @property
    def steps(self) -> int:
        """User messages of the whole session."""
        return 2 * len(self.facts) + len(self.fillers)

    @property
    def turns(self) -> int:
        """Requests that play it: the opening comes with the first filler."""
        return len(self.fillers) + len(self.facts)


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


def make_transcript(seed: int, tokens: int, count: Count = estimate_tokens) -> Transcript:
    """The session of ``seed``, at least ``tokens`` tokens long by ``count``.

    The default, an estimate, suits the embedded model; a tokenizer with a larger vocabulary
    makes fewer tokens of the same text.

    Raises:
        ValueError: the standard library does not hold that much code.
    """
    rng = random.Random(f"facts {seed}")
    facts = [Fact(key, rng.choice(words.split())) for key, words in _WORDS.items()]
    facts += [Fact(key, str(rng.choice(numbers))) for key, numbers in _NUMBERS.items()]
    rng.shuffle(facts)
    talk = sum(count(3 * fact.statement + 2 * fact.question) + 2 * _TURN_OVERHEAD for fact in facts)
    wanted = max(0, tokens - talk)
    number = max(_LEAST_FILLERS, round(wanted / _FILLER_TOKENS))
    size = math.ceil(wanted / number - count(_filler("name.py", "")))
    found = islice(slices(seed, size, count=count), number)
    fillers = tuple(_filler(*piece) for piece in found)
    if len(fillers) < number:
        raise ValueError(f"the standard library has no {tokens} tokens of code to paste")
    return Transcript(seed, tuple(facts), fillers)


def _filler(name: str, code: str) -> str:
    return f"Here is {name}:\n```python\n{code}\n```\nWhat is the file name?"
