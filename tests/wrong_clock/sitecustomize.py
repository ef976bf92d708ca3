"""Python imports this at its start where this folder is on PYTHONPATH: a wall clock that is wrong by
WRONG_CLOCK_SECONDS. The monotonic clock is left alone, as a wrongly set machine's is."""

from __future__ import annotations

import datetime as dates
import os
import time

_true_time, _true_time_ns = time.time, time.time_ns
_SECONDS = int(os.environ["WRONG_CLOCK_SECONDS"])
_TrueDatetime = dates.datetime


def _time() -> float:
    return _true_time() + _SECONDS


def _time_ns() -> int:
    return _true_time_ns() + _SECONDS * 1_000_000_000


class _AnyDatetime(type):
    """Those that C code makes are no instances of the class below, and are to pass for them."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TrueDatetime)


class _Datetime(_TrueDatetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: dates.tzinfo | None = None) -> _Datetime:
        return cls.fromtimestamp(_time(), tz)


time.time, time.time_ns = _time, _time_ns
dates.datetime = _Datetime
