"""Stop texts in a stream: find the first to complete, and never show any part of it.

All stop texts together make one automaton (Aho and Corasick, Communications of the ACM 18, 1975):
its state is the longest end of the text so far that begins a stop text, which is exactly what has
to wait. Every letter costs O(1), however many stop texts there are and however the stream is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class _Automaton:
    """States are beginnings of stop texts; 0 is the empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.length = [0]
        # the longest proper end that is a state too
        self._shorter = [0]
        # length of the longest stop text that ends here, 0 for none
        self.complete = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for letter in stop:
            following = self._next[state].get(letter)
            if following is None:
                following = len(self._next)
                self._next[state][letter] = following
                self._next.append({})
                self.length.append(self.length[state] + 1)
                self._shorter.append(0)
                self.complete.append(0)
            state = following
        self.complete[state] = len(stop)

    def _link(self) -> None:
        """From short states to long ones, so that what a state falls back to is ready."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            shorter = self._shorter[state]
            self.complete[state] = self.complete[state] or self.complete[shorter]
            for letter, following in self._next[state].items():
                self._shorter[following] = self.after(shorter, letter)
                waiting.append(following)

    def after(self, state: int, letter: str) -> int:
        while state and letter not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(letter, 0)


class StopText:
    """Filters one answer. The stop text whose last letter comes first ends it.

    Of several that end at the same letter the longest counts, so less is shown.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Empty stop texts are ignored."""
        known = [stop for stop in stops if stop]
        self._automaton = _Automaton(known) if known else None
        self._state = 0
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether the answer has ended.

        After the end everything is swallowed.
        """
        automaton = self._automaton
        if self.stopped:
            return "", True
        if automaton is None:
            return text, False
        pending = self._held + text
        for index in range(len(self._held), len(pending)):
            self._state = automaton.after(self._state, pending[index])
            complete = automaton.complete[self._state]
            if complete:
                self.stopped = True
                self._held = ""
                return pending[: index + 1 - complete], True
        free = len(pending) - automaton.length[self._state]
        self._held = pending[free:]
        return pending[:free], False

    def flush(self) -> str:
        """The text that waited for a stop text which never came; nothing after a stop."""
        held, self._held = self._held, ""
        self._state = 0
        return held
