"""Grammars before anything is generated: what is taken, what is refused and how, and how soon."""

from __future__ import annotations

import json

import pytest

from engine.grammar import ANY_OBJECT, MAX_REPETITIONS, check, repetitions
from engine.types import Grammar, GrammarError


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def nested(depth: int) -> dict[str, object]:
    inner: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


def chained(length: int) -> dict[str, object]:
    links: dict[str, object] = {
        f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "string"}}}


TAKEN = [
    ANY_OBJECT,
    schema({}),
    schema(True),
    schema({"title": "T", "description": "d", "type": "array", "items": {"enum": ["a", 1, None]}}),
    schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"n": {"$ref": "#/$defs/a"}}}}}),
    schema(nested(20)),
    schema(chained(100)),
    schema({"type": "string", "format": "date-time"}),
    Grammar("regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    Grammar("regex", r"(yes|no)!?"),
    Grammar("lark", 'start: "a" | "b" start'),
    Grammar("lark", 'root ::= "yes" | "no" [0-9]+'),
    Grammar("lark", 'start: %json {"type": "integer"}'),
]


@pytest.mark.parametrize("grammar", TAKEN, ids=lambda g: g.source[:40])
def test_sound_grammars_are_taken(grammar: Grammar):
    check(grammar)


REFUSED = [
    (Grammar("json_schema", "{"), "not JSON"),
    (Grammar("json_schema", "[" * 30000), "not JSON"),
    (Grammar("json_schema", "[]"), "JSON object"),
    (Grammar("json_schema", " " * 70000 + "{}"), "characters"),
    (schema({"type": "banana"}), "banana"),
    (schema({"not": {"type": "string"}}), "not"),
    # what a schema says about its own reading does not count
    (schema({"not": {"type": "string"}, "x-guidance": {"lenient": True}}), "not"),
    (schema({"type": "integer", "minimum": 5, "maximum": 2}), "nsatisfiable"),
    (schema({"$ref": "http://169.254.169.254/latest"}), "does not fetch"),
    (schema({"$ref": "file:///etc/passwd"}), "does not fetch"),
    (schema(nested(40)), "too large"),
    (schema({"enum": [[n] for n in range(4000)]}), "too large"),
    (schema(chained(800)), "refers to"),
    (schema({"type": "string", "pattern": "(a{1000}){1000}"}), "repeats"),
    (Grammar("regex", "(a{1000}){1000}"), "Repetitions"),
    (Grammar("regex", "("), "unclosed"),
    (Grammar("regex", "(?=a)b"), "look-around"),
    (Grammar("regex", "(" * 4000), "cannot be used"),
    (Grammar("regex", "a" * 9000), "characters"),
    (Grammar("lark", "start: ("), "cannot be used"),
    (Grammar("lark", 'other: "a"'), "start"),
    (Grammar("lark", 'root ::= "a" | ('), "cannot be read"),
    (Grammar("lark", "start: " + "(" * 4000 + '"a"' + ")" * 4000), "deeply"),
    (Grammar("lark", "\n".join(f"r{n}: r{n + 1}" for n in range(5000))), "characters"),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "words"), REFUSED, ids=lambda v: getattr(v, "source", v)[:40])
def test_what_cannot_be_held_to_is_refused_with_a_short_sentence(grammar: Grammar, words: str):
    with pytest.raises(GrammarError, match=words) as refused:
        check(grammar)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("abc", 1),
        ("a{3}b{4}", 4),
        ("(a{3}){4}", 12),
        ("((a{2}b{5}){3,7})", 35),
        ("(a{3}){4}{5}", 60),
        (r"\(a{3}\){4}", 4),
        ("(a{3}b)(c{2}){6}", 12),
        ("a{2,}", 2),
        ("a{999999999999}", 999999999),
        ("a{x}", 1),
    ],
)
def test_repetitions_inside_each_other_multiply(source: str, most: int):
    assert repetitions(source) == most
    assert (most > MAX_REPETITIONS) == (most > 10_000)


WRAPPERS = {
    "object": lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
    "array": lambda inner: {"type": "array", "items": inner, "minItems": 1},
    "either": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "all": lambda inner: {"allOf": [inner]},
    "more": lambda inner: {"type": "object", "additionalProperties": inner},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("levels", "references"), [(28, 13), (10, 40), (1, 190)])
def test_the_deepest_schemas_that_are_taken_leave_the_process_alive(
    wrapper: str, levels: int, references: int
):
    """A few times deeper they end it: llguidance's stack overflows, which nothing can catch."""
    links: dict[str, object] = {f"d{references}": {"type": "string"}}
    for n in range(references):
        link: object = {"$ref": f"#/$defs/d{n + 1}"}
        for _ in range(levels):
            link = WRAPPERS[wrapper](link)
        links[f"d{n}"] = link
    check(schema({"$ref": "#/$defs/d0", "$defs": links}))
