"""What this machine is, in the words of its own makers: shown to whoever uses the node."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

GPU_LEVEL = "engine.runtime.cuda_llama"


def describe_hardware(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The GPU if the kind computes on one, else the processor and the cores this process may use.

    A kind computes on the GPU where it has loaded the engine's level for it.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and GPU_LEVEL in sys.modules:
        return str(torch.cuda.get_device_name())
    cores = _usable_cores()
    return f"{_processor(cpuinfo)}, {cores} core{'s' if cores != 1 else ''}"


def _processor(cpuinfo: Path) -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.M)
    except OSError:  # not Linux
        found = None
    name = found.group(1) if found else platform.processor() or platform.machine()
    # marks and clock rates say nothing here
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*$|\b\d+-Core Processor\b|\bProcessor\b", " ", name)
    return " ".join(name.split())


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
