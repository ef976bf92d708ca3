"""Renders a checkpoint's Jinja template without trusting it.

A template comes out of a model file. Jinja's sandbox keeps it from Python's internals. On top of
that, its work is bounded: loops and macro calls by a budget of rounds, texts by a size, and the
few operations that could make a huge text in one step are checked or absent.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.types import EngineError, ModelFileError

_MAX_SOURCE_CHARACTERS = 512 * 1024
# per render: text made, and rounds of loops and calls of macros together
MAX_TEXT_CHARACTERS = 16 * 1024 * 1024
MAX_ROUNDS = 200_000

# Names of our own in a template's scope; a template that spells them is refused.
_OURS = "_baton_"
_ROUND = _OURS + "round"
_CONCATENATED = _OURS + "concatenated"

# Filters of chat templates in use. Those that pad or repeat a text to any width are not among them.
# fmt: off
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "int", "items", "join", "last", "length", "list", "lower",
    "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "sort", "string", "striptags", "sum", "title", "trim", "unique",
    "upper",
)
# fmt: on
_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill", "translate"})


_SEQUENCES = (str, list, tuple)


class TemplateRefusedError(EngineError):
    """The model's chat template does not take these messages. The sentence says why."""


class _Bounds:
    """What one render may still spend."""

    def __init__(self) -> None:
        self.rounds = MAX_ROUNDS

    def round(self) -> str:
        self.rounds -= 1
        if self.rounds < 0:
            raise TemplateRefusedError(
                "The model's chat template takes too many rounds. Send fewer or shorter messages."
            )
        return ""


def _refuse_size(characters: int) -> None:
    if characters > MAX_TEXT_CHARACTERS:
        raise TemplateRefusedError(
            "The conversation is too long for the model's chat template. Send a shorter one."
        )


class _Generation(Extension):
    """`{% generation %}` marks the model's own words for training; here it only groups."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateRefusedError("The model's chat template uses **, which is not allowed.")
        if operator == "%" and isinstance(left, str):
            raise TemplateRefusedError("The model's chat template uses % on a text.")
        if operator == "*":
            _refuse_size(_product_size(left, right))
        if operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
            _refuse_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise TemplateRefusedError("The model's chat template uses format on a text.")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            _refuse_size(_replaced_size(owner, str(args[0]), str(args[1])))
        if isinstance(owner, str) and name == "join" and args:
            args = (_joinable(owner, args[0]), *args[1:])
        return super().call(context, obj, *args, **kwargs)


def _product_size(left: Any, right: Any) -> int:
    """Length of text or list x number; numbers themselves must stay small as well."""
    for some, times in ((left, right), (right, left)):
        if isinstance(some, _SEQUENCES) and isinstance(times, int):
            return len(some) * times
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    return 0


def _replaced_size(text: str, old: str, new: str) -> int:
    return len(text) + (len(text) + 1 if not old else text.count(old)) * len(new)


def _joinable(separator: str, parts: Any) -> list[str]:
    texts = [str(part) for part in parts]
    _refuse_size(sum(map(len, texts)) + len(separator) * len(texts))
    return texts


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _refuse_size(_replaced_size(text, old, new))
    return text.replace(old, new, -1 if count is None else count)


def _join(parts: Any, separator: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        parts = [part[attribute] for part in parts]
    return str(separator).join(_joinable(str(separator), parts))


def _concatenated(*parts: Any) -> str:
    return _join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes <, >, & and ' for HTML, which models never saw."""
    # Non-ASCII text always stays as it is: the caller's mark must remain one character.
    del ensure_ascii
    indent = None if indent is None else min(int(indent), 8)
    return json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusedError(f"The model's chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(str(pattern)[:100])


def _count_rounds(tree: nodes.Template) -> None:
    """Put a call of `_ROUND` at the head of every loop body and macro."""
    for body in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        call = nodes.Call(nodes.Name(_ROUND, "load"), [], [], None, None)
        body.body.insert(0, nodes.Output([call], lineno=body.lineno))


def _bound_concatenations(node: nodes.Node) -> None:
    """a ~ b becomes `_CONCATENATED(a, b)`, which looks at the size first."""
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, field, _bounded(value))
        elif isinstance(value, list):
            setattr(node, field, [_bounded(v) if isinstance(v, nodes.Node) else v for v in value])


def _bounded(node: nodes.Node) -> nodes.Node:
    _bound_concatenations(node)
    if isinstance(node, nodes.Concat):
        name = nodes.Name(_CONCATENATED, "load")
        return nodes.Call(name, node.nodes, [], None, None, lineno=node.lineno)
    return node


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    if len(source) > _MAX_SOURCE_CHARACTERS:
        raise ModelFileError("The model's chat template is too long to be one.")
    if _OURS in source:
        raise ModelFileError(f"The model's chat template uses names with {_OURS}, which are taken.")
    sandbox = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], cache_size=0
    )
    sandbox.filters = {name: sandbox.filters[name] for name in _FILTERS}
    sandbox.filters |= {"tojson": _to_json, "replace": _replace, "join": _join}
    sandbox.globals = {name: sandbox.globals[name] for name in ("range", "dict", "namespace")} | {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        _CONCATENATED: _concatenated,
    }
    try:
        tree = sandbox.parse(source)
        _count_rounds(tree)
        _bound_concatenations(tree)
        code = sandbox.compile(tree, filename="<chat template>")
        return jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None))
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
        raise ModelFileError(
            f"The model's chat template cannot be used ({str(error)[:200]}). "
            "Choose another file of the model."
        ) from None


def render(source: str, variables: Mapping[str, Any]) -> str:
    """Raises TemplateRefusedError where the template refuses or fails on these variables, and
    ModelFileError where it is no usable template."""
    template = _compiled(source)
    parts: list[str] = []
    size = 0
    try:
        for part in template.generate(**variables, **{_ROUND: _Bounds().round}):
            size += len(part)
            _refuse_size(size)
            parts.append(part)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
            AttributeError, RecursionError, MemoryError) as error:  # fmt: skip
        raise TemplateRefusedError(
            f"The model's chat template cannot render these messages ({str(error)[:200]}). "
            "It may not know one of their roles or fields."
        ) from None
    return "".join(parts)
