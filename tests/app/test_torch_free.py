"""The web process starts on a machine without torch."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys
from app.main import create_app
create_app()
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "gguf", "safetensors"})
assert not heavy, heavy
"""


def test_web_process_loads_neither_torch_nor_numpy():
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
