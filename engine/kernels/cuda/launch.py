"""The two halves of programmatic dependent launch; nothing where PDL is off."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_last(PDL: tl.constexpr):
    """Until the kernel before this one is complete and its writes can be seen."""
    if PDL:
        gdc_wait()


@triton.jit
def start_next(PDL: tl.constexpr):
    """Let the next kernel start; it waits by itself for what it needs."""
    if PDL:
        gdc_launch_dependents()
