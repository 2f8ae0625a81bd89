"""The code in answers as models write them."""

from __future__ import annotations

import pytest

from bench.extract import code_blocks

CODE = "def fee_for(entry):\n    return 1"
IMPORT = "from decimal import Decimal"
EXAMPLE = "print(fee_for(None))"


@pytest.mark.parametrize(
    ("answer", "blocks"),
    [
        (f"```python\n{CODE}\n```", [CODE]),
        (f"Here it is:\n\n```py\n{CODE}\n```\nHope it helps.", [CODE]),
        (f"```\n{CODE}\n```", [CODE]),
        (f"~~~Python\n{CODE}\n~~~", [CODE]),
        (f"````python title='x'\n{CODE}\n````", [CODE]),
        (f"```python\r\n{CODE}\r\n```\r\n".replace("    r", "    r"), [CODE]),
        (f"The function: ```python\n{CODE}\n```", [CODE]),
        (f"```python\n{CODE}```", [CODE]),
        (f"```python\n{CODE}", [CODE]),
        (f"1. Write:\n\n   ```python\n   {CODE.replace(chr(10), chr(10) + '   ')}\n   ```", [CODE]),
        (CODE, [CODE]),
        (f"Sure, here you go.\n\n{CODE}\n\nThis returns 1.", [CODE + "\n"]),
        (f"{IMPORT}\n\n{CODE}\n", [f"{IMPORT}\n\n{CODE}\n"]),
        (f"```python\n{IMPORT}\n```\nand\n```python\n{CODE}\n```", [IMPORT, CODE]),
        (f"```python\n{CODE}\n```\nUse:\n```python\n{EXAMPLE}\n```", [CODE]),
        (f"```bash\npip install x\n```\n```python\n{CODE}\n```\n```text\n1\n```", [CODE]),
        (f"```python\n{CODE}\n```\nBetter:\n```python\n{CODE}0\n```", [CODE, CODE + "0"]),
        (f"```json\n{CODE}\n```", [CODE]),
        (f"<think>```python\nx = 1\n```</think>```python\n{CODE}\n```", [CODE]),
        ("<think>and so on", []),
        ("I do not remember.", []),
        ("", []),
        (f"```python\n{EXAMPLE}\n```", [EXAMPLE]),
        ("```python\ndef fee_for(entry):\n    return (1", ["def fee_for(entry):\n    return (1"]),
        ("```python\ndef fee_for(entry:\n```\n```python\nx = (\n```", ["def fee_for(entry:"]),
        (f"Use `fee_for`:\n```python\n{CODE}\n```", [CODE]),
        (f"Use ```fee_for``` so:\n```python\n{CODE}\n```", [CODE]),
        (f"Say ~~~no~~~ or ``yes``.\n```python\n{CODE}\n```", [CODE]),
        ("```python\n```", [""]),
        ("def f(:\n  x", ["def f(:\n  x"]),
    ],
)  # fmt: skip
def test_the_blocks_to_run(answer: str, blocks: list[str]) -> None:
    assert code_blocks(answer, ["fee_for"]) == blocks


def test_a_docstring_may_hold_a_fence_inside_a_longer_one() -> None:
    code = 'def fee_for(entry):\n    """\n    ```\n    x\n    ```\n    """\n    return 1'
    assert code_blocks(f"````\n{code}\n````", ["fee_for"]) == [code]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "answer",
    [
        "`" * 300_000,
        "def f(" * 50_000,
        "(" * 200_000,
        "import x\n\n(\n" * 30_000,
        "```" * 99_999,
        "~" * 99_999 + "`",
    ],
)
def test_no_answer_takes_long(answer: str) -> None:
    code_blocks(answer, ["fee_for"])
