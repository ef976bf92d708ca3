"""A scripted model that thinks and calls tools, in Qwen3's format."""

from __future__ import annotations

from dataclasses import replace

from app.node.kinds.scripted import Script

# offers the tools, and opens the thoughts of the answer
TEMPLATE = (
    "{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
THOUGHTS = "Ben asks for the weather. 天气 🌦 I look it up."
TEXT = "I look that up for you."
CALLS = (("weather", '{"city": "Zürich"}'), ("weather", '{"city": "Bern\\u2028"}'))


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WITH_CALLS = f"{THOUGHTS}\n</think>\n\n{TEXT}\n" + "\n".join(call_text(*one) for one in CALLS)


# slow enough to be cut anywhere
SLOW = Script(
    text=WITH_CALLS,
    template=TEMPLATE,
    tokens_per_step=1,
    prefill_ms_per_token=0,
    tokens_per_second=50,
)
FAST = replace(SLOW, tokens_per_step=4, tokens_per_second=5000)
