"""Thoughts, calls and text of an answer: the same however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parsers import AnswerParser, Part, Reasoning, Text, opens_reasoning
from engine.tool_calls import (
    DEEPSEEK,
    GLM,
    LLAMA,
    QWEN,
    Call,
    CallFormat,
    call_format,
    read_schemas,
)

F = {
    "n": {"type": "integer"},
    "s": {"type": "string"},
    "o": {"type": "object"},
}
SCHEMAS = read_schemas(
    [{"type": "function", "function": {"name": "f", "parameters": {"properties": F}}}]
)

GLM_CALLS = (
    "<tool_call>f<arg_key>n</arg_key><arg_value>123</arg_value><arg_key>s</arg_key>"
    "<arg_value>123</arg_value><arg_key>t</arg_key><arg_value>123abc</arg_value><arg_key>o</arg_key>"
    '<arg_value>{"k": 1}</arg_value></tool_call><tool_call>get_current_time</tool_call>'
)
QWEN_CALLS = (
    '\n<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
DEEPSEEK_CALLS = (
    "\n\n<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="s" string="true">São Paulo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>"
)


def parse(
    pieces: Iterable[str],
    calls: CallFormat | None = None,
    *,
    reasoning: bool = False,
    thinks: bool = True,
) -> list[Part]:
    """Neighbours of one kind joined."""
    parser = AnswerParser(calls, SCHEMAS, reasoning=reasoning, thinks=thinks)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + part.text)
        else:
            joined.append(part)
    return joined


def call(name: str, **arguments: object) -> Call:
    return Call(name, json.dumps(arguments, ensure_ascii=False))


ANSWERS: Sequence[tuple[CallFormat | None, bool, str, list[Part]]] = [
    (None, True, "2+2 is", [Reasoning("2+2 is")]),
    (None, False, "<think>a</think>b", [Reasoning("a"), Text("b")]),
    (None, False, "\n<think>\na b\n\n</think>\n\nc d \n", [Reasoning("a b"), Text("c d \n")]),
    (None, False, "4", [Text("4")]),
    (None, False, "say <think> and </think>", [Text("say <think> and </think>")]),
    (None, False, "<thin", [Text("<thin")]),
    (None, True, "a < b </thin </think>x", [Reasoning("a < b </thin"), Text("x")]),
    (None, True, "</think>x", [Text("x")]),
    (None, False, "", []),
    (GLM, False, GLM_CALLS, [
        call("f", n=123, s="123", t="123abc", o={"k": 1}), call("get_current_time"),
    ]),
    (GLM, True, "why</think>Well.\n" + GLM_CALLS[-40:], [
        Reasoning("why"), Text("Well.\n" + GLM_CALLS[-40:].split("<tool_call>")[0]),
        call("get_current_time"),
    ]),
    (QWEN, False, "Let me see." + QWEN_CALLS, [Text("Let me see."), call("f", n=1), call("g")]),
    (QWEN, False, "<tool_call>{broken</tool_call> and on", [
        Text("<tool_call>{broken</tool_call> and on"),
    ]),
    (QWEN, False, '<tool_call>{"name": "f"', [Text('<tool_call>{"name": "f"')]),
    (QWEN, False, "a <tool", [Text("a <tool")]),
    (DEEPSEEK, True, "hm</think>" + DEEPSEEK_CALLS, [
        Reasoning("hm"), call("f", s="São Paulo", n=3), call("g"),
    ]),
    (DEEPSEEK, False, "a <｜DSML｜ b", [Text("a <｜DSML｜ b")]),
    (LLAMA, False, ' {"name": "f", "parameters": {"n": 1}}', [call("f", n=1)]),
    (LLAMA, False, '{"a": 1} is JSON', [Text('{"a": 1} is JSON')]),
    (LLAMA, False, "Hello {you}", [Text("Hello {you}")]),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "reasoning", "text", "expected"), ANSWERS)
def test_every_single_cut_gives_the_same_parts(
    calls: CallFormat | None, reasoning: bool, text: str, expected: list[Part]
):
    for cut in range(len(text) + 1):
        assert parse([text[:cut], text[cut:]], calls, reasoning=reasoning) == expected
    assert parse(text, calls, reasoning=reasoning) == expected


pieces_of_tags = st.sampled_from([
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="f">',
    "</｜DSML｜invoke>", "<", "/", "th", "ink>", " ", "\n", "{", "}", '"name": "f"', "a", "é",
])  # fmt: skip


@given(
    st.lists(pieces_of_tags, max_size=25).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from([None, GLM, QWEN, DEEPSEEK, LLAMA]),
    st.booleans(),
    st.booleans(),
)
def test_every_chunking_gives_the_same_parts(
    text: str, cuts: list[int], calls: CallFormat | None, reasoning: bool, thinks: bool
):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    whole = parse([text], calls, reasoning=reasoning, thinks=thinks)
    assert parse(chunks, calls, reasoning=reasoning, thinks=thinks) == whole
    assert parse(text, calls, reasoning=reasoning, thinks=thinks) == whole
    if not thinks and not reasoning and calls is None:
        assert whole == ([Text(text)] if text else [])


def test_text_that_can_be_no_tag_is_told_at_once():
    parser = AnswerParser(GLM, SCHEMAS, reasoning=False)
    assert parser.push("Hello, ") == [Text("Hello,")]
    assert parser.push("a <to") == [Text(" a")]
    assert parser.push("p>") == [Text(" <top>")]


def test_the_prompts_end_says_whether_thoughts_are_open():
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_reasoning("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("architecture", "template", "expected"),
    [
        ("deepseek_v32", "", DEEPSEEK),
        ("glm_moe_dsa", "{{tools}}<tool_call>{{n}}<arg_key>", GLM),
        ("qwen3", "{{tools}}<tool_call>", QWEN),
        ("llama", "{{tools}}<|eot_id|>", LLAMA),
        ("llama", "<|im_start|>", None),
        ("gemma3", "<start_of_turn>", None),
    ],
)
def test_the_format_follows_from_the_template(
    architecture: str, template: str, expected: CallFormat | None
):
    assert call_format(architecture, template) is expected
