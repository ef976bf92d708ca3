"""The command line: helps, refuses in one sentence, and lets options override variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import cli
from app.settings import Settings

ROOT = Path(__file__).parents[2]


def baton(
    *arguments: str, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    if folder is not None:
        environment["BATON_DATA_FOLDER"] = str(folder)
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def output_of(*arguments: str) -> str:
    """What a command prints, without a process of its own."""
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_version_is_shown():
    assert output_of("--version").split()[0] == "baton"


def test_the_help_names_every_command():
    text = output_of("--help")
    for command in ("serve", "web", "node", "bench", "user", "key"):
        assert f"\n  {command} " in text


@pytest.mark.parametrize("command", ["serve", "web", "node"])
def test_every_option_is_explained_with_its_default(command: str):
    options = output_of(command, "--help").partition("Options:")[2]
    assert "[default: BATON_DATA_FOLDER or" in " ".join(options.split())
    assert "--listener-fd" not in options


@pytest.mark.parametrize("command", ["user", "key"])
def test_the_commands_of_accounts_are_there(command: str):
    text = output_of(command, "--help")
    assert "create" in text
    assert "completion" not in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("node", "--kind", "abacus"), "abacus"),
        (("node", "--pool", "a{b}", "--kind", "scripted"), "--pool"),
        (("serve", "--kind", "abacus"), "abacus"),
        (("node", "--model", "/nowhere/m.gguf", "--redis-url", "redis://h"), "/nowhere/m.gguf"),
        (("node", "--kind", "scripted"), "--redis-url"),
        (("bench", "--model", "/nowhere/m.gguf"), "/nowhere/m.gguf"),
        (("web",), "BATON_REDIS_URL"),
        (("web", "--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("serve", "--listen", "nonsense", "--port", "0"), "--listen"),
    ],
)
def test_a_wrong_setup_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], named: str
):
    done = baton(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_variable_is_named():
    done = baton("web", BATON_PORT="many")
    assert done.returncode == 2
    assert "BATON_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_override_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATON_PORT", "1234")
    monkeypatch.setenv("BATON_HOST", "0.0.0.0")
    settings: Settings = cli._settings(port=4321, host=None)
    assert (settings.port, settings.host) == (4321, "0.0.0.0")


def test_a_node_loads_neither_the_database_nor_the_web():
    check = (
        "import sys, app.cli, app.node.run\n"
        "heavy = sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'sqlalchemy', 'uvicorn', 'torch', 'argon2'})\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
