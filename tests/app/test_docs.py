"""The documents say what the code does: settings, events, the tree."""

from __future__ import annotations

import re
from pathlib import Path

from app.settings import Settings

ROOT = Path(__file__).parents[2]


def _documented_settings() -> dict[str, str]:
    rows = re.findall(
        r"^\| `BATON_(\w+)` \| (.+?) \|", (ROOT / "docs/configuration.md").read_text("utf-8"), re.M
    )
    return {name.lower(): default for name, default in rows}


def test_every_setting_is_documented_and_no_other():
    assert set(_documented_settings()) == set(Settings.model_fields)


def test_documented_defaults_are_the_real_ones():
    for name, written in _documented_settings().items():
        default = Settings.model_fields[name].default
        if default is None:
            expected = "unset"
        elif isinstance(default, bool):
            expected = str(default).lower()
        else:
            expected = f"`{default}`"
        assert written == expected, name


def test_every_top_folder_stands_in_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    for folder in ("app", "engine", "static", "templates", "tests", "docs"):
        assert f"{folder}/" in readme


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", readme)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_make_target_has_a_line_of_help():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)[0].split()
    for target in phony:
        assert re.search(rf"^{target}:.*## \S", makefile, re.M), target


def test_every_test_that_the_scenarios_name_exists():
    text = (ROOT / "docs" / "testing.md").read_text()
    named = re.findall(r"`((?:app|faults|browser)/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, name in named:
        source = (ROOT / "tests" / file).read_text()
        assert f"def {name}(" in source if name else "def test_" in source, (file, name)
