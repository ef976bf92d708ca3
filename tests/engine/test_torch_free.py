"""The web process imports these modules and has neither torch nor numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = (
    "types",
    "metrics",
    "tokenizer",
    "chat_template",
    "card",
    "stopping",
    "grammar",
    "demo_model",
)
HEAVY = ("torch", "numpy", "gguf", "safetensors", "engine.weights")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_web_side_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, engine.{module}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
