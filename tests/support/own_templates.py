"""Chat templates as models have them: each does what makes the real ones unstable.

Written for the tests; only the formats are the models'.
"""

from __future__ import annotations

CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
HERMES_HEAD = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
)
HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)
MERGED_RESULTS = (
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def hermes(answer: str, results: str = MERGED_RESULTS, prompt: str = PROMPT) -> str:
    return (
        HERMES_HEAD
        + "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
        + answer
        + HERMES_CALLS
        + "{{ '<|im_end|>\n' }}"
        + results
        + "{% else %}"
        + CHATML
        + "{% endif %}{% endfor %}"
        + prompt
    )


LAST_THOUGHT_ONLY = (
    "{% if loop.last %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}"
    "{% endif %}{{ m.content }}"
)
QWEN3 = hermes(LAST_THOUGHT_ONLY)
QWEN3_THINKING = hermes(
    LAST_THOUGHT_ONLY, prompt=PROMPT.replace("assistant\n", "assistant\n<think>\n")
)
QWEN25 = hermes("{{ m.content }}")


def mistral(gap: str, *, v7: bool) -> str:
    """Tools, and before v7 the system message, stand with the newest question."""
    return (
        "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
        + (
            "{% if messages[0].role != 'system' %}"
            "[SYSTEM_PROMPT]{{ strftime_now('%d') }}[/SYSTEM_PROMPT]{% endif %}"
            if v7
            else ""
        )
        + "{% for m in messages %}{% if m.role == 'user' %}{% if m == asked[-1] and tools %}"
        f"[AVAILABLE_TOOLS]{gap}" + "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        f"[INST]{gap}"
        + (
            ""
            if v7
            else "{% if loop.last and messages[0].role == 'system' %}"
            "{{ messages[0].content + '\n\n' }}{% endif %}"
        )
        + "{{ m.content }}[/INST]"
        + (
            "{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
            if v7
            else ""
        )
        + "{% elif m.role == 'assistant' and m.tool_calls %}"
        + f"[TOOL_CALLS]{gap}["
        + "{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] + ', ' }}"
        "{{ '\"id\": \"' + c.id + '\"}' }}"
        "{% endfor %}]{{ eos_token }}"
        "{% elif m.role == 'assistant' %}" + f"{gap}" + "{{ m.content + eos_token }}"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
        "{% endif %}{% endfor %}"
    )


LLAMA_OWN = (
    "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' }}"
    "{{ strftime_now('%d %b %Y') }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}{% endif %}{{ '<|eot_id|>' }}"
    "{% for m in messages %}{% if m.role != 'system' %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
