"""When to look for the next token of a device that makes one after the other at an even pace.

A look costs the host a few microseconds, a sleep may end two hundred too late. So: sleep until
shortly before the token is due, then look again and again, giving the interpreter away in between.
"""

from __future__ import annotations

# Begin to look so long before the token is due, and go on so long after.
EARLY_SECONDS, LATE_SECONDS = 300e-6, 2e-3
# Between two looks where nothing is known of the pace, or the token is overdue.
PAUSE_SECONDS = 50e-6
# How much of the expected gap each new one decides.
SHARE = 0.2


class Rhythm:
    """Of one answer. All times are `time.perf_counter()`."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._gap_s: float | None = None

    def seen(self, now_s: float) -> None:
        """A token is there that was not there at the look before."""
        if self._last_s is not None:
            gap_s = now_s - self._last_s
            known_s = gap_s if self._gap_s is None else self._gap_s
            # one long pause of the device or the host says nothing of the pace
            self._gap_s = known_s + SHARE * (min(gap_s, 2 * known_s) - known_s)
        self._last_s = now_s

    def pause_seconds(self, now_s: float) -> float:
        """How long to sleep before the next look; 0: only let others run."""
        if self._last_s is None or self._gap_s is None:
            return PAUSE_SECONDS
        left_s = self._last_s + self._gap_s - now_s
        if left_s < -LATE_SECONDS:
            return PAUSE_SECONDS
        return max(0.0, left_s - EARLY_SECONDS)
