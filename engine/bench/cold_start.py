"""What a start costs, each measured in a process of its own: time to ready, and peak memory.

    python -m engine.bench.cold_start MODEL_FILE     one line of JSON

Peak memory is the process's own high-water mark (`VmHWM`, so Linux only): `ru_maxrss` would also
count what the parent held when it started the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PROMPT_TOKENS, ANSWER_TOKENS = 512, 16


@dataclass(frozen=True, slots=True)
class ColdStart:
    # imports done -> the engine can take a request
    load_seconds: float
    # through loading, and an answer to a prompt of `PROMPT_TOKENS`
    peak_bytes: int


def peak_bytes() -> int:
    """Most memory that this process ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("This system does not say how much memory a process held; Linux does.")


def measure(path: Path) -> ColdStart:
    """In a fresh process. Raises RuntimeError with its last words if it fails."""
    return ColdStart(**json.loads(_last_line("-m", "engine.bench.cold_start", str(path))))


def bare_torch_bytes() -> int:
    """Peak memory of a process that imports torch and nothing else of weight."""
    code = "import torch; from engine.bench.cold_start import peak_bytes; print(peak_bytes())"
    return int(_last_line("-c", code))


def _last_line(*arguments: str) -> str:
    done = subprocess.run(
        (sys.executable, *arguments), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"A measured start failed: {words[-1]}")
    return done.stdout.splitlines()[-1]


def _start(path: Path) -> ColdStart:
    # here, because `bare_torch_bytes` imports this module and must not bring the engine along
    from engine.engine import Engine
    from engine.types import GenerateRequest, SamplingParams

    began_s = time.perf_counter()
    engine = Engine.load(path, device="cpu")
    load_seconds = time.perf_counter() - began_s
    request = GenerateRequest(
        (5,) * PROMPT_TOKENS, ANSWER_TOKENS, SamplingParams(temperature=0, ignore_eos=True)
    )
    for _ in engine.generate(request, threading.Event()):
        pass
    engine.close()
    return ColdStart(load_seconds, peak_bytes())


if __name__ == "__main__":
    print(json.dumps(asdict(_start(Path(sys.argv[1])))))
