"""How fast this device reads memory: a kernel that only reads, over data that no cache holds."""

from __future__ import annotations

from statistics import median

import torch
import triton
import triton.language as tl

SAMPLE_BYTES = 4 * 2**30
BLOCK = 16384


@triton.jit
def _read(data, sums, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(data + places, eviction_policy="evict_first")
    tl.store(sums + tl.program_id(0), tl.sum(values))


def read_bytes_per_second(passes: int = 15) -> float:
    data = torch.ones(SAMPLE_BYTES // 4, dtype=torch.int32, device="cuda")
    programs = len(data) // BLOCK
    sums = torch.zeros(programs, dtype=torch.int32, device="cuda")
    seconds: list[float] = []
    for _ in range(passes + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        _read[(programs,)](data, sums, BLOCK=BLOCK, num_warps=8)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    if int(sums[0]) != BLOCK:
        raise RuntimeError("The read kernel did not read.")
    return SAMPLE_BYTES / median(seconds[2:])
