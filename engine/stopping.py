"""Stop texts in a stream: find the first to complete, and never show any part of it.

Each stop text is followed by a Knuth-Morris-Pratt matcher, so every letter costs O(1) per stop
text, however the stream is cut, and the matcher's state is exactly the number of letters that
have to wait.
"""

from __future__ import annotations

from collections.abc import Sequence


def _borders(text: str) -> list[int]:
    """For each prefix length, the longest proper prefix that is also its suffix."""
    table = [0] * (len(text) + 1)
    matched = 0
    for index in range(1, len(text)):
        while matched and text[index] != text[matched]:
            matched = table[matched]
        if text[index] == text[matched]:
            matched += 1
        table[index + 1] = matched
    return table


class StopText:
    """Filters one answer. The stop text whose last letter comes first ends it.

    Of several that end at the same letter the longest counts, so less is shown.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Empty stop texts are ignored."""
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._tables = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether the answer has ended.

        After the end everything is swallowed.
        """
        if self.stopped:
            return "", True
        if not self._stops:
            return text, False
        pending = self._held + text
        for index in range(len(self._held), len(pending)):
            complete = self._advance(pending[index])
            if complete:
                self.stopped = True
                self._held = ""
                return pending[: index + 1 - complete], True
        free = len(pending) - max(self._matched)
        self._held = pending[free:]
        return pending[:free], False

    def flush(self) -> str:
        """The text that waited for a stop text which never came; nothing after a stop."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, letter: str) -> int:
        """Feed one letter; the length of the longest stop text that it completes, or 0."""
        complete = 0
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != letter:
                matched = self._tables[which][matched]
            if stop[matched] == letter:
                matched += 1
            self._matched[which] = matched
            if matched == len(stop):
                complete = max(complete, matched)
        return complete
