"""DeepSeek-V3.2's chat format: markers, thoughts that are dropped, calls and their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.chat_template import prompt_ids, template_stop_texts
from engine.deepseek_encoding import BEGIN, END, encode
from engine.jinja_sandbox import TemplateRefusedError
from engine.tokenizer import Tokenizer
from engine.tool_calls import DEEPSEEK
from engine.types import ModelCard

CALL = {"function": {"name": "lookup", "arguments": {"city": "São Paulo", "n": 3}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!", "reasoning_content": "old thoughts"},
    {"role": "user", "content": "Weather?"},
]
BEFORE = f"{BEGIN}Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello!{END}<｜User｜>Weather?<｜Assistant｜>"


def test_only_the_last_turn_is_thought_about():
    assert encode(TALK) == BEFORE + "</think>"
    assert encode(TALK, thinking=True) == BEFORE + "<think>"


def test_thoughts_are_kept_between_the_calls_of_one_turn():
    calling = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]}
    results = [{"role": "tool", "content": "sun"}, {"role": "tool", "content": "rain"}]
    text = encode([*TALK, calling, *results], thinking=True)
    made = text.removeprefix(BEFORE + "<think>hm</think>")
    calls, _, rest = made.partition(END)
    assert rest == (
        "\n\n<function_results>\n<result>sun</result>\n<result>rain</result>\n"
        "</function_results>\n\n<think>"
    )
    assert '<｜DSML｜parameter name="city" string="true">São Paulo</｜DSML｜parameter>' in calls
    assert '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>' in calls
    inside = calls.strip().removeprefix(DEEPSEEK.begin).removesuffix(DEEPSEEK.end)
    (read,) = DEEPSEEK.read(inside, {})
    assert (read.name, read.arguments) == ("lookup", '{"city": "São Paulo", "n": 3}')


def test_a_role_that_the_format_lacks_is_refused():
    with pytest.raises(TemplateRefusedError, match="no role 'critic'"):
        encode([{"role": "critic", "content": "x"}])


def test_a_model_without_a_template_gets_this_format(
    smollm2_card: ModelCard, smollm2_tokenizer: Tokenizer
):
    card = replace(smollm2_card, architecture="deepseek_v32", chat_template=None)
    ids = prompt_ids(smollm2_tokenizer, card, TALK)
    assert ids == smollm2_tokenizer.encode(BEFORE + "</think>")
    assert template_stop_texts(card) == ()
