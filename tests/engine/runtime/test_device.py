"""Which device is taken, and that a machine without a GPU imports nothing of the GPU level."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.engine import Engine
from engine.runtime import device
from engine.runtime.device import choose_device
from engine.types import EngineError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.tiny_llama import TinyLlama


@pytest.fixture
def file(tmp_path: Path) -> GgufCheckpoint:
    return GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has a GPU and triton."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def found(_name: str) -> Any:
        return object()

    monkeypatch.setattr(device.importlib.util, "find_spec", found)


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", "auto", file) == "cpu"
    with pytest.raises(EngineError, match=r"no CUDA device.*cpu"):
        choose_device("cuda", "auto", file)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("wanted", "level", "expected"),
    [
        ("auto", "auto", "cuda"),
        ("auto", "bf16", "cuda"),
        ("cuda", "auto", "cuda"),
        ("cpu", "auto", "cpu"),
        ("auto", "int4", "cpu"),
    ],
)
def test_with_a_gpu_the_level_decides(file: GgufCheckpoint, wanted: str, level: str, expected: str):
    assert choose_device(wanted, level, file) == expected


@pytest.mark.usefixtures("gpu")
def test_an_old_gpu_or_an_odd_head_is_no_gpu(file, tmp_path, monkeypatch):
    odd = GgufCheckpoint.open(TinyLlama(layers=1, head_width=24).write(tmp_path / "odd.gguf"))
    assert choose_device("auto", "auto", odd) == "cpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Old")
    with pytest.raises(EngineError, match="Old"):
        choose_device("cuda", "auto", file)


@pytest.mark.usefixtures("gpu")
def test_a_cpu_level_on_the_gpu_is_refused(file: GgufCheckpoint):
    with pytest.raises(EngineError, match="int8"):
        choose_device("cuda", "int8", file)


def test_a_device_that_does_not_exist_is_refused(file: GgufCheckpoint):
    with pytest.raises(ValueError, match="auto, cpu, cuda"):
        choose_device("tpu", "auto", file)


def test_on_the_cpu_nothing_of_the_gpu_level_is_imported(smollm2_path: Path):
    heavy = ("triton", "engine.kernels.cuda", "engine.runtime.cuda_llama")
    code = (
        "import sys\nfrom engine.engine import Engine\n"
        f"Engine.load({str(smollm2_path)!r}, device='cpu').close()\n"
        f"print(*(m for m in {heavy} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # PyTorch's CUDA builds bring triton in by themselves
    assert [m for m in done.stdout.split() if m != "triton"] == []


def test_the_cpu_s_label_names_the_level(smollm2_path: Path):
    engine = Engine.load(smollm2_path, device="cpu", level="int4")
    assert "/int4/" in engine.card.numerics
    engine.close()
