"""What an answer may be held to: JSON schemas, regular expressions, grammars. Free of torch.

The web side checks a grammar before its question joins the line, the node compiles it; both by the
same functions and limits, so what the one takes the other takes. llguidance (MIT, no dependencies)
does the parsing; it fetches nothing, whatever a schema refers to.

JSON is written with at most one blank between two elements, or a line break and up to 32 blanks: a
model that only wants blanks cannot fill its answer with them.

llguidance recurses over what it is given, and a stack that overflows takes the process with it. So
the size of a source and the depth that it can reach are bounded here, far below what it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from engine.types import Grammar, GrammarError

# A JSON object with anything inside, as `response_format` "json_object" asks for.
ANY_OBJECT = Grammar("json_schema", '{"type": "object"}')

MAX_CHARACTERS = {"json_schema": 64 * 1024, "regex": 8 * 1024, "lark": 10 * 1024}
MAX_NAMES = {"json_schema": "schema", "regex": "regular expression", "lark": "grammar"}
# Objects and lists of a schema. With 5000 properties the first mask takes half a second.
MAX_SCHEMA_PARTS = 3000
MAX_SCHEMA_DEPTH = 64
# Levels that a chain of references can reach; the stack of a thread (8 MiB) ends at some 4000.
MAX_SCHEMA_LEVELS = 1000
# Product of the bounds of repetitions inside each other: each is unrolled.
MAX_REPETITIONS = 10_000

_SPACE = r"( |\r?\n[ \t]{0,32})"
_LIMITS = {
    "max_grammar_size": 100_000,
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    # its cost is not bounded by the fuel: seconds with a few kilobytes of repetitions
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
_REPETITION = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def limits() -> LLParserLimits:
    return LLParserLimits(**_LIMITS)


def check(grammar: Grammar) -> None:
    """Raises GrammarError with what is wrong. Up to a second of work; others may run meanwhile."""
    _refuse(LLMatcher.validate_grammar(compiled(grammar), None, limits=limits()), grammar)


def matcher(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of the answer. Raises GrammarError."""
    made = LLMatcher(tokenizer, compiled(grammar), log_level=0, limits=limits())
    _refuse(made.get_error(), grammar)
    return made


def compiled(grammar: Grammar) -> str:
    """The grammar as llguidance takes it; checked for its bounds, not for its sense."""
    source = grammar.source
    if len(source) > MAX_CHARACTERS[grammar.kind]:
        raise GrammarError(
            f"The {MAX_NAMES[grammar.kind]} has {len(source)} characters; at most "
            f"{MAX_CHARACTERS[grammar.kind]} are taken. Make it shorter."
        )
    if grammar.kind == "json_schema":
        return _compiled_schema(source)
    if repetitions(source) > MAX_REPETITIONS:
        raise GrammarError(
            f"Repetitions inside each other come to more than {MAX_REPETITIONS} in all. "
            "Use `*` or `+`, or smaller numbers."
        )
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    return LLMatcher.grammar_from_lark(_as_lark(source))


def _compiled_schema(source: str) -> str:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        raise GrammarError("The schema is not JSON, or nested too deeply.") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("A schema is a JSON object.")
    _check_bounds(cast("dict[str, Any]", schema))
    # overrides stand above what a schema may say about them itself ("x-guidance")
    return LLMatcher.grammar_from_json_schema(
        cast("dict[str, Any]", schema),
        overrides={
            "whitespace_flexible": True,
            "whitespace_pattern": _SPACE,
            "item_separator": ",",
            "key_separator": ":",
            "coerce_one_of": False,
            "lenient": False,
        },
    )


def _check_bounds(schema: dict[str, Any]) -> None:
    deepest = 0
    targets: set[str] = set()
    for parts, (part, depth) in enumerate(_parts(schema), 1):
        deepest = max(deepest, depth)
        if parts > MAX_SCHEMA_PARTS or deepest > MAX_SCHEMA_DEPTH:
            raise GrammarError(
                f"The schema is too large: at most {MAX_SCHEMA_PARTS} objects and lists are taken, "
                f"{MAX_SCHEMA_DEPTH} inside each other. Make it simpler."
            )
        if isinstance(part, dict):
            targets.update(v for k, v in part.items() if k == "$ref" and isinstance(v, str))
            pattern = part.get("pattern")
            if isinstance(pattern, str) and repetitions(pattern) > MAX_REPETITIONS:
                raise GrammarError(f"The pattern {pattern[:80]!r} repeats too much. Simplify it.")
    if (1 + len(targets)) * deepest > MAX_SCHEMA_LEVELS:
        raise GrammarError(
            f"The schema refers to {len(targets)} definitions, up to {deepest} levels deep: too "
            "much to follow. Use fewer of them."
        )


def _parts(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any] | list[Any], int]]:
    """Every object and list with its depth, 1 for the schema itself."""
    rest: list[tuple[dict[str, Any] | list[Any], int]] = [(schema, 1)]
    while rest:
        part, depth = rest.pop()
        yield part, depth
        inside = part.values() if isinstance(part, dict) else part
        rest += [(one, depth + 1) for one in inside if isinstance(one, dict | list)]


def repetitions(source: str) -> int:
    """The largest product of `{n}` and `{n,m}` inside each other; outside of parentheses they are
    counted as inside each other too, where one follows the other's group."""
    # for each open group the largest product inside
    open_groups = [1]
    closed = 1
    at = 0
    while at < len(source):
        letter = source[at]
        at += 1
        if letter == "\\":
            at += 1
            closed = 1
        elif letter == "(":
            open_groups.append(1)
        elif letter == ")" and len(open_groups) > 1:
            closed = open_groups.pop()
            open_groups[-1] = max(open_groups[-1], closed)
        elif letter == "{" and (found := _REPETITION.match(source, at - 1)):
            most = max(int(number[:9]) if number else 1 for number in found.groups(default=""))
            closed *= max(1, most)
            open_groups[-1] = max(open_groups[-1], closed)
            at = found.end()
        elif letter not in "*+? ":
            closed = 1
    return max(open_groups)


def _as_lark(source: str) -> str:
    """GBNF, llama.cpp's notation, is known by its `::=`."""
    if "::=" not in source:
        return source
    try:
        return gbnf_to_lark(source)
    except (GbnfToLarkError, RecursionError, IndexError) as error:
        raise GrammarError(f"The grammar cannot be read: {str(error)[:200]}") from None


def _refuse(fault: str, grammar: Grammar) -> None:
    """Raises GrammarError where there is a fault."""
    if fault:
        # what follows quotes the whole source
        first = " ".join(fault.split("\n   1 |")[0].split())[:300]
        raise GrammarError(f"The {MAX_NAMES[grammar.kind]} cannot be used: {first}")
