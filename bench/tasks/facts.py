"""Facts stated one by one and asked for one by one: a task for models too small to write code.

An answer passes when it holds the fact's value. How probable the true value was, behind the words
an answer begins with, says more than a pass of so small a model: it is measured on a fork too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.tasks import Probe, ProbeScore, Spec, Target

# Common words, so that spelling decides little: most are one token for common tokenizers.
_WORDS: Mapping[str, str] = {
    "release animal": "falcon bison moose tiger lion eagle wolf bear fox hawk horse rabbit turtle "
    "dolphin whale shark owl camel zebra elephant monkey snake spider goat sheep deer duck frog",
    "lead reviewer": "Alice Emma Peter Laura David Maria Sarah Daniel Anna James Lucy Martin "
    "Rachel Simon Helen Victor Julia Felix Clara Arthur Diana Hugo Nina Ivan Carlos Omar Rosa",
    "staging city": "Oslo Lima Cairo Dublin Nairobi Lisbon Prague Denver Athens Seoul Paris London "
    "Berlin Madrid Rome Vienna Tokyo Boston Chicago Dallas Sydney Toronto Delhi Mumbai Moscow",
    "partner country": "France Germany Spain Italy Japan China India Brazil Mexico Canada Egypt "
    "Kenya Peru Chile Norway Sweden Poland Greece Turkey Ireland Austria Portugal Denmark",
    "theme color": "amber violet ivory olive indigo coral turquoise yellow purple orange pink "
    "brown gray silver gold",
    "test fruit": "mango papaya cherry lemon plum grape peach banana fig kiwi apple strawberry "
    "pineapple coconut pear lime",
    "cluster planet": "Mercury Venus Mars Jupiter Saturn Uranus Neptune Pluto Titan Europa Orion",
}
_NUMBERS: Mapping[str, range] = {
    "service port": range(2100, 9900),
    "ticket number": range(200, 1000),
    "retry limit": range(13, 100),
}
_ANSWER_TOKENS = 12


class Facts:
    """See the module's text. A specification maps each key to its value, in the order told."""

    name = "facts"
    topic: Sequence[str] = (*_WORDS, *_NUMBERS)

    def specification(self, seed: int) -> Spec:
        """Ten facts in an order of their own."""
        rng = random.Random(f"facts {seed}")
        values: dict[str, Any] = {key: rng.choice(words.split()) for key, words in _WORDS.items()}
        values |= {key: str(rng.choice(numbers)) for key, numbers in _NUMBERS.items()}
        keys = sorted(values)
        rng.shuffle(keys)
        return {key: values[key] for key in keys}

    def system(self, spec: Spec) -> str:
        """Short, as suits a small model."""
        return (
            "You help with a project over many steps. What an earlier step states stays true until "
            "the end. Answer every question in one short sentence."
        )

    def definitions(self, spec: Spec) -> list[str]:
        """One step per fact: it is stated and asked for at once."""
        return [f"{_sentence(key, value)} {_question(key)}" for key, value in spec.items()]

    def replies(self, spec: Spec) -> list[str]:
        """The definitions' answers are given: what a small model would answer to them is no part
        of what is measured."""
        return [_sentence(key, value) for key, value in spec.items()]

    def probes(self, spec: Spec) -> list[Probe]:
        """One question per fact, each on a fork: no answer helps another, and none costs more than
        its own few tokens."""
        return [
            Probe(
                name=key.replace(" ", "-"),
                prompt=_question(key),
                reads=(index,),
                forked=True,
                targets=(Target(str(value), opening=f"The {key} is "),),
                max_tokens=_ANSWER_TOKENS,
            )
            for index, (key, value) in enumerate(spec.items())
        ]

    def forbidden(self, spec: Spec) -> list[str]:
        """All values."""
        return [str(value) for value in spec.values()]

    def score(
        self, spec: Spec, probe: Probe, answer: str, earlier: Mapping[str, str]
    ) -> ProbeScore:
        """One check, which is also the one fact: the value stands in the answer as a word."""
        key = probe.name.replace("-", " ")
        found = re.search(rf"(?<!\w){re.escape(str(spec[key]))}(?!\w)", answer, re.IGNORECASE)
        lacks = () if found else (key,)
        return ProbeScore(
            passed=int(bool(found)),
            total=1,
            failed=lacks,
            found=int(bool(found)),
            facts=1,
            missing=lacks,
            outcome="pass" if found else "forgetting",
        )


def _sentence(key: str, value: str) -> str:
    return f"The {key} is {value}."


def _question(key: str) -> str:
    return f"What is the {key}?"


TASK = Facts()
