"""Python imports this at its start where this folder is on PYTHONPATH: a wall clock that is wrong by
WRONG_CLOCK_SECONDS. The monotonic clock is left alone, as a wrongly set machine's is."""

import os
import time

_true_time, _true_time_ns = time.time, time.time_ns
_SECONDS = int(os.environ["WRONG_CLOCK_SECONDS"])


def _time() -> float:
    return _true_time() + _SECONDS


def _time_ns() -> int:
    return _true_time_ns() + _SECONDS * 1_000_000_000


time.time, time.time_ns = _time, _time_ns
