"""The browser's scripts, tested by Node's own test runner, and their agreement with the server."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

from app.chat.events import EVENTS

ROOT = Path(__file__).parent.parent.parent
VENDOR = ROOT / "static" / "vendor"


def node() -> str:
    found = shutil.which("node")
    assert found, "These tests need Node 20.19 or newer: install it, and have `node` on the PATH."
    return found


def test_scripts_pass_their_own_tests() -> None:
    files = sorted(str(file) for file in Path(__file__).parent.glob("*.test.mjs"))
    assert files
    run = subprocess.run(
        [node(), "--test", *files], capture_output=True, text=True, timeout=110, check=False
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_scripts_know_exactly_the_servers_events() -> None:
    ask = "import { EVENTS } from './static/js/stream.js'; console.log(JSON.stringify(EVENTS))"
    run = subprocess.run(
        [node(), "--input-type=module", "-e", ask],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert sorted(json.loads(run.stdout)) == sorted(EVENTS)


def test_vendored_files_are_the_ones_that_are_written_down() -> None:
    rows = re.findall(
        r"^\| (\S+\.js) \|.* ([0-9a-f]{64}) \|$", (VENDOR / "README.md").read_text(), re.M
    )
    assert {name for name, _ in rows} == {file.name for file in VENDOR.glob("*.js")}
    for name, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
        package = name.split(".")[0]
        assert list(VENDOR.glob(f"{package}.LICENSE*")), f"{name} has no licence beside it"
