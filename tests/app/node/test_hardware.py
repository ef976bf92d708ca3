"""The machine in its makers' words."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from app.node.hardware import GPU_LEVEL, describe_hardware


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C"),
    ],
)
def test_the_processor_is_named_without_marks(tmp_path: Path, stated: str, shown: str):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: {stated}\nflags\t: x\n")
    assert describe_hardware(cpuinfo).startswith(f"{shown}, ")
    assert describe_hardware(cpuinfo).endswith(("core", "cores"))


def test_a_machine_that_says_nothing_still_has_a_name(tmp_path: Path):
    assert len(describe_hardware(tmp_path / "missing")) > len(", 1 core")


def test_the_gpu_is_named_only_where_the_engine_computes_on_it(monkeypatch: pytest.MonkeyPatch):
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_name=lambda: "NVIDIA H200"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, GPU_LEVEL, raising=False)
    assert describe_hardware() != "NVIDIA H200"
    monkeypatch.setitem(sys.modules, GPU_LEVEL, ModuleType(GPU_LEVEL))
    assert describe_hardware() == "NVIDIA H200"
