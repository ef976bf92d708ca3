"""`baton user` and `baton key` on a database of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.accounts.db import Database
from app.accounts.secrets import Passwords
from app.accounts.sign_ins import SignIns, WrongPasswordError
from app.parting_commands import key_app, user_app

runner = CliRunner()


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_DATA_FOLDER", str(tmp_path))
    return tmp_path


def user(*arguments: str, stdin: str = "") -> str:
    result = runner.invoke(user_app, arguments, input=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def key(*arguments: str) -> str:
    result = runner.invoke(key_app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def may_sign_in(folder: Path, name: str, password: str) -> bool:
    async def check() -> bool:
        async with Database.open(f"sqlite+aiosqlite:///{folder}/baton.db") as database:
            try:
                await SignIns(database, Passwords(), 1).check(name, password)
            except WrongPasswordError:
                return False
            return True

    return asyncio.run(check())


def test_a_user_made_here_can_sign_in(data_folder: Path):
    user("create", "Eva", stdin="correct horse\n")
    assert may_sign_in(data_folder, "eva", "correct horse")
    assert not may_sign_in(data_folder, "eva", "correct horse\n")


def test_list_shows_names_and_roles():
    user("create", "Eva", "--admin", stdin="correct horse\n")
    user("create", "Adam", stdin="correct horse\n")
    lines = user("list").splitlines()
    assert [line.split()[1:] for line in lines] == [["admin", "Eva"], ["user", "Adam"]]
    user("make-admin", "adam")
    assert user("list").splitlines()[1].split()[1] == "admin"


def test_a_new_password_replaces_the_old_one(data_folder: Path):
    user("create", "Eva", stdin="correct horse\n")
    user("set-password", "Eva", stdin="battery staple\n")
    assert may_sign_in(data_folder, "Eva", "battery staple")
    assert not may_sign_in(data_folder, "Eva", "correct horse")


def test_deleting_asks_first_and_takes_the_keys_along():
    user("create", "Eva", stdin="correct horse\n")
    key("create", "Eva", "laptop")
    assert runner.invoke(user_app, ["delete", "Eva"], input="n\n").exit_code == 1
    assert "Eva" in user("list")
    # nothing runs here that could still hold what the account asked
    assert "store is not running" in user("delete", "Eva", "--yes")
    assert user("list") == ""
    user("create", "Eva", stdin="correct horse\n")
    assert key("list", "Eva") == ""


def test_the_only_administrator_is_not_deleted_from_under_the_others():
    user("create", "Eva", "--admin", stdin="correct horse\n")
    user("create", "Adam", stdin="correct horse\n")
    result = runner.invoke(user_app, ["delete", "Eva", "--yes"])
    assert result.exit_code == 1
    assert "only administrator" in result.output
    user("delete", "Adam", "--yes")
    user("delete", "Eva", "--yes")


def test_keys_are_made_listed_and_revoked():
    user("create", "Eva", stdin="correct horse\n")
    secret = key("create", "Eva", "laptop").strip()
    public = key("create", "Eva", "shop", "--kind", "publishable", "--origin", "https://a.example")
    assert secret.startswith("sk-baton-")
    assert public.startswith("pk-baton-")
    listed = key("list", "Eva")
    assert secret not in listed
    assert "laptop" in listed
    assert "shop" in listed
    for line in listed.splitlines():
        key("revoke", "Eva", line.split()[0])
    assert key("list", "Eva") == ""


@pytest.mark.parametrize(
    ("app", "arguments", "stdin", "sentence"),
    [
        (user_app, ["create", "E"], "correct horse\n", "2 to 40 characters"),
        (user_app, ["create", "Eva"], "short\n", "8 to 200 characters"),
        (user_app, ["make-admin", "Nobody"], "", "no account named 'Nobody'"),
        (user_app, ["set-password", "Nobody"], "correct horse\n", "no account named"),
        (user_app, ["delete", "Nobody", "--yes"], "", "no account named"),
        (key_app, ["list", "Nobody"], "", "no account named"),
        (key_app, ["create", "Nobody", "x"], "", "no account named"),
    ],
)
def test_faults_are_a_sentence_and_status_1(
    app: object, arguments: list[str], stdin: str, sentence: str
):
    chosen = user_app if app is user_app else key_app
    result = runner.invoke(chosen, arguments, input=stdin)
    assert result.exit_code == 1
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_the_data_folder_may_be_given_as_an_option(
    data_folder: Path, tmp_path_factory: pytest.TempPathFactory
):
    other = tmp_path_factory.mktemp("other")
    user("create", "Eva", "--data-folder", str(other), stdin="correct horse\n")
    assert user("list") == ""
    assert "Eva" in user("list", "--data-folder", str(other))
    assert key("create", "Eva", "test", "--data-folder", str(other)).strip()
