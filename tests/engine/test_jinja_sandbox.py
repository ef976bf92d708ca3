from __future__ import annotations

import re
from typing import Any

import pytest

from engine import jinja_sandbox
from engine.jinja_sandbox import TemplateRefusedError, render
from engine.types import ModelFileError


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n{% endif %}\n", "  a\n"),
        ("{{ {'a': '<b>é'}|tojson }}", '{"a": "<b>é"}'),
        ("{{ 'é'|tojson(ensure_ascii=true) }}", '"é"'),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "10"),
        ("{% macro twice(x) %}{{ x ~ x ~ 1 }}{% endmacro %}{{ twice('a') }}", "aa1"),
        ("{% for i in [[1, [2]]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}", "12"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{{ 'a,b'.split(',')[-1].strip() ~ 'x'.replace('x', 'y') ~ '-'.join(['1', '2']) }}", "by1-2"),
        ("{{ ['a', 'b']|join('+') ~ 'aa'|replace('a', 'b', 1) ~ ([{'n': 1}]|join(',', 'n')) }}", "a+bba1"),
        ("{{ 2 * 3 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "63abab[1, 2]"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
    ],
)  # fmt: skip
def test_what_chat_templates_use_works(source: str, text: str) -> None:
    assert render(source, {"messages": [{"role": "user"}]}) == text


def test_the_date_is_today_s() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}", {}))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now|attr('__globals__') }}",
        "{% set x = messages.__init__ %}{{ x.__globals__ }}",
    ],
)
def test_python_s_inside_stays_out_of_reach(source: str) -> None:
    with pytest.raises((TemplateRefusedError, ModelFileError)):
        render(source, {"messages": []})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10 ** 9) }}",
        "{{ 'a' * 99999999999 }}",
        "{{ 99999999999 * 'a' }}",
        "{{ [1] * 99999999999 }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ 'a'.ljust(99999999999) }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(9) %}{% set ns.x = ns.x.replace('', ns.x * 99) %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(9) %}{% set ns.x = ns.x|replace('', ns.x * 99) %}{% endfor %}",
        "{% set x = 'a' * 999999 %}{{ x.join([x, x, x, x] * 9) }}",
        "{% set x = 'a' * 999999 %}{{ ([x, x, x, x] * 9) | join(x) }}",
        "{% set x = 'a' * 999999 %}{% for i in range(99) %}{{ x }}{% endfor %}",
    ],
)
def test_work_without_end_is_refused(source: str) -> None:
    # the bound says so, not the machine's memory
    bound = "too long|too many rounds|not allowed|uses|unsafe|Range too big|recursion depth"
    with pytest.raises(TemplateRefusedError, match=bound):
        render(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 'a'|center(9) }}",
        "{% include 'other' %}",
        "{% set _baton_round = range %}",
        "x" * 600_000,
        "{{" + "(" * 5000,
    ],
)
def test_a_template_that_cannot_be_used_is_the_file_s_fault(source: str) -> None:
    with pytest.raises((ModelFileError, TemplateRefusedError), match="template"):
        render(source, {})


@pytest.mark.parametrize(
    "source",
    ["{{ messages.nothing.here }}", "{{ 'a' + none }}", "{{ 1 / 0 }}", "{{ [1][5].x }}", "{{ 1|tojson(separators=5) }}"],
)  # fmt: skip
def test_a_template_that_fails_on_the_messages_says_so(source: str) -> None:
    with pytest.raises(TemplateRefusedError, match="cannot render these messages"):
        render(source, {"messages": []})


def test_each_render_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_sandbox, "MAX_ROUNDS", 10)
    source = "{% for i in range(n) %}{{ i }}{% endfor %}"
    variables: dict[str, Any] = {"n": 10}
    assert render(source, variables) == render(source, variables) == "0123456789"
    with pytest.raises(TemplateRefusedError, match="too many rounds"):
        render(source, {"n": 11})
