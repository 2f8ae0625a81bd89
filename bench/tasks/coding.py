"""The coding task (paper, section 4.1 and appendix A, in our own words): a data model, states and
a fee rule are defined early; three late probes ask for code that is right only if they are known.

The code of an answer runs against hidden checks (``bench.coding.checks``); recall of the facts is
counted apart from them (``bench.coding.recall``). Unlike in the paper's templates the duplicates'
code is stated with the exception and not in the probe, so that no probe shows a sampled value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.coding.checks import failed_checks, scoring
from bench.coding.recall import facts, missing_facts
from bench.coding.spec import CodingSpec, sample_spec
from bench.results import outcome_of
from bench.sandbox import measure
from bench.tasks import Probe, ProbeScore, Spec

_SYSTEM = """\
You are the programmer of one Python project, and this session is your only notebook. Whatever a \
step defines (names, constants, rules) holds for every later step until the session ends."""

_RECORD = """\
Define what this project keeps. Write a Python dataclass `{cls}` with these four fields, in this \
order: `{f_ref}: str`, the reference that tells one record from all others; `{f_amt}: int`, the \
amount in minor units; `{f_ccy}: str`, the ISO code of the currency; `status: str = 'new'`. Two \
constants belong to the class and are no fields of it: `{fee_name} = {fee_bps}`, the fee in basis \
points, and `{cap_name} = {fee_cap}`, the highest fee in minor units. Then write an exception \
`{err}(Exception)` whose constructor takes an integer `code` and keeps it as `self.code`; for \
duplicates this code is {dup_code}. Answer with one Python code block."""

_STATES = """\
Define the states of a record. Write a class `{status_cls}` with three string constants: \
`{s_new} = '{v_new}'` for the NEW state, `{s_done} = '{v_done}'` for the SETTLED state and \
`{s_void} = '{v_void}'` for the VOIDED state. Answer with one Python code block."""

_RULE = """\
Take down the fee rule; it has to be followed to the letter later on. With `amount` the amount of \
a record, `rate` and `cap` the two constants of its class from <step 1>:
```python
multiples = Decimal(amount) * Decimal(rate) / Decimal(10000) / Decimal({quantum})
multiples = multiples.quantize(Decimal("1"), rounding={rounding})
fee = min(int(multiples) * {quantum}, cap)
```
Answer with the single word: noted."""

_FEE = """\
Write the function `fee_for(entry)`. It takes one instance of the dataclass from <step 1> and \
returns its fee, an int in minor units. Rate and cap are the two constants of that class; the rule \
is the one from <step 3>, to the letter. Answer with one Python code block that holds this \
function and the imports it needs, nothing else."""

_SETTLE = """\
Write the function `settle(entries)`. It takes a list of instances of the dataclass from <step 1>. \
If two of them agree in the field that has to tell records apart, raise the exception class from \
<step 1> with the code for duplicates given there. Otherwise set the `status` of every entry to \
the constant for the SETTLED state of the class from <step 2>, and return the sum, over all \
entries, of the entry's amount field from <step 1> minus `fee_for(entry)`. `fee_for` is already \
there. Answer with one Python code block that holds this function, nothing else."""

_MODULE = """\
Last step: write the whole module in one Python code block. It has the dataclass and the exception \
as <step 1> defines them, the class of states of <step 2>, and the functions `fee_for(entry)` and \
`settle(entries)` as asked for before, with every name, field, constant and rule exactly as it was \
defined."""


class CodingTask:
    """See the module's text; implements ``bench.tasks.Task``."""

    name = "coding"
    topic = ("Decimal", "decimal", "quantize", "ROUND_")

    def specification(self, seed: int) -> Spec:
        return sample_spec(seed).model_dump()

    def system(self, spec: Spec) -> str:
        return _SYSTEM

    def definitions(self, spec: Spec) -> Sequence[str]:
        return [text.format(**spec) for text in (_RECORD, _STATES, _RULE)]

    def probes(self, spec: Spec) -> Sequence[Probe]:
        return [
            Probe("p1", _FEE, reads=(0, 2), forked=False, targets=(), max_tokens=500),
            Probe("p2", _SETTLE, reads=(0, 1), forked=False, targets=(), max_tokens=500),
            Probe(
                "p3",
                _MODULE,
                reads=(0, 1, 2),
                forked=False,
                targets=(),
                max_tokens=900,
                after=("p1", "p2"),
            ),
        ]

    def forbidden(self, spec: Spec) -> Sequence[str]:
        return [str(value) for value in spec.values()]

    def ready(self) -> None:
        """Raises SandboxError where answers cannot be run safely."""
        measure([], "", [])

    def scoring(self, spec: Spec) -> list[Any]:
        """The checks and facts of the probes, as JSON values."""
        sampled = CodingSpec.model_validate(spec)
        return [
            [name, scoring(sampled, name), facts(sampled, name)]
            for name in (probe.name for probe in self.probes(spec))
        ]

    def score(
        self, spec: Spec, probe: Probe, answer: str, earlier: Mapping[str, str]
    ) -> ProbeScore:
        """Raises SandboxError where answers cannot be run safely."""
        sampled = CodingSpec.model_validate(spec)
        checks, failed = failed_checks(sampled, probe.name, answer)
        known, missing = missing_facts(sampled, probe.name, answer)
        return ProbeScore(
            passed=checks - len(failed),
            total=checks,
            failed=tuple(failed),
            found=known - len(missing),
            facts=known,
            missing=tuple(missing),
            outcome=outcome_of(checks - len(failed), checks, missing),
        )


TASK = CodingTask()
