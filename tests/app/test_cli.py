"""The command line: helps, refuses in one sentence, and lets options override variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from app import cli, serve
from app.options import settings_from
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
    for command in ("serve", "web", "node", "bench", "convert", "user", "key"):
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


@pytest.mark.parametrize("command", [("web",), ("user", "list")])
def test_a_damaged_database_is_one_sentence(tmp_path: Path, command: tuple[str, ...]):
    (tmp_path / "baton.db").write_bytes(b"no database at all " * 500)
    done = baton(*command, folder=tmp_path, BATON_REDIS_URL="unix:///nowhere/s")
    assert done.returncode == 2, done.stderr
    assert "baton.db" in done.stderr
    assert "damaged" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"BATON_REDIS_URL": "garbage"}, "BATON_REDIS_URL is wrong: it must be redis://"),
        ({"BATON_REDIS_URL": "http://:secret@h"}, "BATON_REDIS_URL is wrong"),
        ({"BATON_NODE_DEAD_SECONDS": "2"}, "BATON_NODE_STOP_SECONDS, and that less"),
        ({"BATON_HEARTBEAT_SECONDS": "3"}, "BATON_HEARTBEAT_SECONDS must be less"),
        (
            {"BATON_RECONNECT_GRACE_SECONDS": "0.5"},
            "BATON_RECONNECT_GRACE_SECONDS is wrong: it must be at",
        ),
        ({"BATON_SLICE_SECOND": "3"}, "Did you mean BATON_SLICE_SECONDS?"),
    ],
)
@pytest.mark.parametrize("command", [("web",), ("user", "list"), ("key", "list", "eva")])
def test_wrong_variables_stop_every_command_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    variables: dict[str, str],
    said: str,
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "secret" not in done.output


def test_the_examples_key_is_no_unknown_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATON_KEY", "sk-1")
    assert settings_from().port


@pytest.mark.parametrize(
    ("arguments", "threads"), [((), None), (("--nodes", "2"), "3"), (("--threads", "5"), "5")]
)
def test_one_node_chooses_its_threads_itself_and_several_share_the_cores(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    threads: str | None,
):
    started: list[tuple[str, ...]] = []

    def run_serve(options: serve.ServeOptions, _: Settings) -> int:
        started.append(options.node_arguments)
        return 0

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(serve, "run_serve", run_serve)
    output_of("serve", "--data-folder", str(tmp_path), *arguments)
    words = list(started[0])
    assert (words[words.index("--threads") + 1] if "--threads" in words else None) == threads


def test_options_override_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATON_PORT", "1234")
    monkeypatch.setenv("BATON_HOST", "0.0.0.0")
    settings: Settings = settings_from(port=4321, host=None)
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


def a_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "glm_moe_dsa", "num_attention_heads": 4}')
    save_file({"lm_head.weight": torch.ones(8, 4)}, folder / "model.safetensors")
    return folder


def test_a_model_is_converted_and_verified(tmp_path: Path):
    source, saved = a_model(tmp_path / "in"), tmp_path / "out"
    text = output_of(
        "convert", "--model_type", "glm-5", "--model_dir", str(source), "--save_dir", str(saved),
        "--shards", "2", "--verify",
    )  # fmt: skip
    assert text.startswith("2 files with 0.00 GB written to")
    assert "and verified" in text
    assert load_file(saved / "model-00002-of-00002.safetensors")["lm_head.weight"].shape == (4, 4)


def test_a_model_that_cannot_be_converted_is_refused_in_one_sentence(tmp_path: Path):
    done = baton("convert", "--model_dir", str(tmp_path), "--save_dir", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "no config.json" in done.stderr
    assert "Traceback" not in done.stderr
