"""`baton convert`: a downloaded model into one file of weights per device."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import typer

from app.options import refuse

_REFRESH_SECONDS = 0.5


def convert(model_dir: Path, save_dir: Path, model_type: str, shards: int, verify: bool) -> None:
    """Convert, and with `verify` compare every byte with the source afterwards. A fault ends the
    process with one sentence."""
    from engine.types import EngineError
    from engine.weights.converting import Conversion

    try:
        conversion = Conversion(model_dir, save_dir, shards, model_type)
        made = conversion.run(_Bar("Written").show)
        if verify:
            conversion.verify(_Bar("Verified").show)
    except EngineError as error:
        refuse(str(error))
    went_on = f", {made.resumed_bytes / 1e9:.2f} GB of it earlier" if made.resumed_bytes else ""
    checked = " and verified" if verify else ""
    print(
        f"{len(made.files)} files with {made.size_bytes / 1e9:.2f} GB written to "
        f"{save_dir}{went_on}{checked}. Serve them with: baton serve --model {save_dir}"
    )


class _Bar:
    """Progress on a terminal, one line that is written over; nothing where nobody looks."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown_s = 0.0
        self._started_s = time.monotonic()
        self._first_bytes: int | None = None

    def show(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if self._first_bytes is None:
            self._first_bytes = done_bytes
        over = done_bytes >= total_bytes
        if not sys.stderr.isatty() or (now_s - self._shown_s < _REFRESH_SECONDS and not over):
            return
        self._shown_s = now_s
        rate = (done_bytes - self._first_bytes) / max(now_s - self._started_s, 1e-3)
        left = f", {(total_bytes - done_bytes) / rate:.0f} s left" if rate and not over else ""
        text = f"{self._what} {done_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB{left}"
        typer.echo(f"\r{text:<70}", err=True, nl=over)
