"""How the families of models write calls of tools, and reading them.

What a model writes may be anything: a call that does not follow its format is no call, and what
is said for it is an empty list. Nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

# tool -> argument -> its JSON schema
Schemas = Mapping[str, Mapping[str, Any]]

_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_D = "｜DSML｜"
_INVOKE = re.compile(rf'<{_D}invoke name="([^"]*)">(.*?)</{_D}invoke>', re.DOTALL)
_PARAMETER = re.compile(
    rf'<{_D}parameter name="([^"]*)" string="(true|false)">(.*?)</{_D}parameter>', re.DOTALL
)
_NAME = re.compile(r"[\w.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    # a JSON object
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    begin: str
    end: str
    # What stands between the tags -> the calls; none if it cannot be read.
    read: Callable[[str, Schemas], list[Call]]
    # no tags: the whole answer is one JSON object
    bare: bool = False
    # what it is called on the way to a node
    name: str = ""


def read_schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The arguments' schemas of tools as the API takes them."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function: Any = tool.get("function")
        if isinstance(function, Mapping):
            whole = cast("Mapping[str, Any]", function)
            parameters: Any = whole.get("parameters")
            properties: Any = parameters.get("properties") if isinstance(parameters, dict) else None
            found[str(whole.get("name"))] = properties if isinstance(properties, dict) else {}
    return found


def _read_json(inside: str, _: Schemas) -> list[Call]:
    """{"name": ..., "arguments" or "parameters": {...}}"""
    try:
        value = json.loads(inside)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return []
    call = cast("dict[str, Any]", value)
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _value(arguments)
    return _call(call.get("name"), arguments)


def _read_glm(inside: str, schemas: Schemas) -> list[Call]:
    """name<arg_key>k</arg_key><arg_value>v</arg_value>..."""
    name, mark, rest = inside.partition("<arg_key>")
    name = name.strip()
    known = schemas.get(name, {})
    found = {key.strip(): text for key, text in _ARGUMENT.findall(mark + rest)}
    if _ARGUMENT.sub("", mark + rest).strip():
        return []
    return _call(name, {key: _typed(text, known.get(key)) for key, text in found.items()})


def _read_dsml(inside: str, _: Schemas) -> list[Call]:
    """<｜DSML｜invoke name="..."> with one <｜DSML｜parameter name="..." string="true|false"> each."""
    calls: list[Call] = []
    for name, body in _INVOKE.findall(inside):
        arguments = {
            key: text if is_string == "true" else _value(text)
            for key, is_string, text in _PARAMETER.findall(body)
        }
        calls += _call(name, arguments)
    return calls


def _call(name: object, arguments: object) -> list[Call]:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(arguments, dict):
        return []
    return [Call(name, json.dumps(arguments, ensure_ascii=False))]


def _typed(text: str, schema: object) -> Any:
    """A value that says nothing of its type: the schema does, or what it looks like."""
    if isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("type") == "string":
        return text
    return _value(text)


def _value(text: str) -> Any:
    """JSON, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


GLM = CallFormat("<tool_call>", "</tool_call>", _read_glm, name="glm")
QWEN = CallFormat("<tool_call>", "</tool_call>", _read_json, name="qwen")
DEEPSEEK = CallFormat(
    f"<{_D}function_calls>", f"</{_D}function_calls>", _read_dsml, name="deepseek"
)
LLAMA = CallFormat("", "", _read_json, bare=True, name="llama")
FORMATS: Mapping[str, CallFormat] = {one.name: one for one in (GLM, QWEN, DEEPSEEK, LLAMA)}
# Control tokens that a model writes as parts of calls.
MARKS = frozenset({
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", _D,
})  # fmt: skip


def call_format(architecture: str, chat_template: str) -> CallFormat | None:
    """How this model writes calls; None if its template offers it no tools."""
    if architecture == "deepseek_v32":
        return DEEPSEEK
    if "tools" not in chat_template:
        return None
    if "<arg_key>" in chat_template:
        return GLM
    if "<tool_call>" in chat_template:
        return QWEN
    return LLAMA if "<|eot_id|>" in chat_template else None
