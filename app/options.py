"""What every command shares: its settings, and how it refuses wrong ones in one sentence."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from app.process import EXIT_CONFIGURATION, PARENT_VARIABLE
from app.settings import Settings

_PREFIX = "BATON_"
# ours from parent to child, and the examples' API key
_OTHER_VARIABLES = frozenset({PARENT_VARIABLE, "BATON_KEY"})

DataFolder = Annotated[
    Path | None,
    typer.Option(help="Database, store and secrets. [default: BATON_DATA_FOLDER or ./data]"),
]


def settings_from(**overrides: object) -> Settings:
    """The settings with the given options on top. A wrong value, or a variable that is none of
    ours, ends the process with one sentence."""
    _check_variables()
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            refuse(f"{message}. See docs/configuration.md.")
        name = "_".join(str(part) for part in first["loc"]).upper()
        refuse(f"{_PREFIX}{name} is wrong: {message}. See docs/configuration.md.")


def _check_variables() -> None:
    known = {_PREFIX + name.upper() for name in Settings.model_fields} | _OTHER_VARIABLES
    for name in sorted(os.environ):
        if name.upper().startswith(_PREFIX) and name.upper() not in known:
            nearest = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f" Did you mean {nearest[0]}?" if nearest else ""
            refuse(f"There is no setting {name}.{hint} See docs/configuration.md.")


def refuse(sentence: str) -> NoReturn:
    """End the process with a sentence: the set-up is wrong."""
    typer.echo(f"baton: {sentence}", err=True)
    raise typer.Exit(EXIT_CONFIGURATION)
