"""DeepSeek-V3.2's chat format, which comes without a Jinja template.

A system text stands bare; a user's is followed by the assistant's marker and a mark of thinking:
`<think>` where the model is to think about it, `</think>` everywhere else. Thoughts of earlier
turns are dropped once the user has spoken again. Calls of tools are in DSML
(`engine/tool_calls.py`), their results follow in the order of the calls.

Definitions of tools are not encoded: their wording ships with the checkpoint as code, which is
not run here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.jinja_sandbox import TemplateRefusedError
from engine.parsers import THINK, THINK_END

ARCHITECTURE = "deepseek_v32"

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT, _D = "<｜User｜>", "<｜Assistant｜>", "｜DSML｜"


def encode(messages: Sequence[Mapping[str, Any]], *, thinking: bool = False) -> str:
    """The conversation as text. `content` of messages is a string, arguments of calls are objects.

    Raises TemplateRefusedError for a role that the format does not have.
    """
    last_user = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    made = [BEGIN]
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content") or ""
        thinks = thinking and index >= last_user
        if role == "system":
            made.append(content)
        elif role == "user":
            made.append(_USER + content + _ASSISTANT + (THINK if thinks else THINK_END))
        elif role == "assistant":
            thoughts = message.get("reasoning_content") or ""
            made.append((thoughts + THINK_END if thinks else "") + content)
            made.append(_calls(message.get("tool_calls") or []) + END)
        elif role == "tool":
            made.append(_result(messages, index) + _after_results(messages, index, thinks))
        else:
            raise TemplateRefusedError(f"The model's chat format has no role {str(role)[:40]!r}.")
    return "".join(made)


def _calls(calls: Sequence[Mapping[str, Any]]) -> str:
    if not calls:
        return ""
    lines = [f"\n\n<{_D}function_calls>"]
    for call in calls:
        function: Mapping[str, Any] = call.get("function") or {}
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, Mapping):
            raise TemplateRefusedError("The arguments of a tool call must be a JSON object.")
        lines.append(f'<{_D}invoke name="{function.get("name")}">')
        lines += [_parameter(str(key), value) for key, value in arguments.items()]
        lines.append(f"</{_D}invoke>")
    return "\n".join([*lines, f"</{_D}function_calls>"])


def _parameter(key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False)
    kind = "true" if is_text else "false"
    return f'<{_D}parameter name="{key}" string="{kind}">{text}</{_D}parameter>'


def _result(messages: Sequence[Mapping[str, Any]], index: int) -> str:
    first = index == 0 or messages[index - 1].get("role") != "tool"
    begin = "\n\n<function_results>" if first else ""
    return f"{begin}\n<result>{messages[index].get('content') or ''}</result>"


def _after_results(messages: Sequence[Mapping[str, Any]], index: int, thinks: bool) -> str:
    if index + 1 < len(messages) and messages[index + 1].get("role") == "tool":
        return ""
    return "\n</function_results>\n\n" + (THINK if thinks else THINK_END)
