"""Whether to draft now, and how far: as far as it pays by what was measured, never on credit.

With p the share of drafts of this kind that were right lately and cost(r) the time of a pass of r
rows, a pass with k drafts gives (1 - p^(k+1)) / (1 - p) tokens in cost(1 + k) + k * (time to guess
one). The depth is the k with the most tokens per second, 0 unless that is clearly more than plain.

An estimate may be wrong, so there is an account besides: what right drafts saved goes in, what
passes with drafts took longer goes out. Where it is overdrawn by more than MOST_LOST of the time so
far, nothing is drafted until it is not. So an answer is never slower by much more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Of the time of an answer's passes; a few per cent are promised.
MOST_LOST = 0.015
# What drafting has to promise before it is done at all.
LEAST_GAIN = 1.03
# Before anything was measured: right so often by kind, and a pass longer by this per draft.
FIRST_GUESS = {"lookup 8": 0.8, "lookup 5": 0.65, "lookup 3": 0.45, "lookup 2": 0.3, "mtp": 0.75}
OTHER_GUESS = 0.6
FIRST_COST_PER_ROW = 0.15
# Weight of the newest measurement, and what a first guess weighs in drafts.
FRESH, GUESS_WEIGHT = 0.1, 4.0
# How much of what is known is kept per draft, and per occasion that was let pass.
KEEP, KEEP_UNUSED = 0.95, 0.99
# Further than that from what is usual, a time says more about the machine than about the pass.
OUTLIER = 3.0


@dataclass(slots=True)
class Record:
    """Drafts of one kind: how many were checked and right lately, and what guessing one takes."""

    guess: float
    checked: float = 0.0
    right: float = 0.0
    draft_ms: float = 0.0
    drafts: int = 0

    @property
    def share(self) -> float:
        return (self.guess * GUESS_WEIGHT + self.right) / (GUESS_WEIGHT + self.checked)

    def fade(self, keep: float) -> None:
        self.checked *= keep
        self.right *= keep


@dataclass(slots=True)
class Pace:
    """Times are milliseconds. What passes take is kept from answer to answer."""

    records: dict[str, Record] = field(default_factory=dict)
    plain_ms: float = 0.0
    # time of a pass of so many rows over the time of one
    ratios: dict[int, float] = field(default_factory=dict)
    balance_ms: float = 0.0
    total_ms: float = 0.0

    def begin(self) -> None:
        """Another answer: the account starts at zero."""
        self.balance_ms = self.total_ms = 0.0

    def forget(self) -> None:
        """How often drafts were right says something about a text; what passes take does not."""
        self.records.clear()
        self.begin()

    def depth(self, kind: str, most: int) -> int:
        """How many drafts of this kind to check in the next pass, 0 to `most`."""
        record = self._record(kind)
        # one pass on top: in a young answer a wrong draft is no loss to speak of
        if not self.plain_ms or self.balance_ms < -(MOST_LOST * self.total_ms + self.plain_ms):
            return 0
        best, depth = LEAST_GAIN / self.plain_ms, 0
        share, power, tokens = record.share, 1.0, 1.0
        for k in range(1, most + 1):
            power *= share
            tokens += power
            rate = tokens / (self.cost_ms(1 + k) + k * record.draft_ms)
            if rate > best:
                best, depth = rate, k
        if not depth:
            record.fade(KEEP_UNUSED)
        return depth

    def cost_ms(self, rows: int) -> float:
        """Of a pass; what was not measured yet lies on the line through the nearest that was."""
        if rows == 1:
            return self.plain_ms
        known = self.ratios.get(rows)
        if known is None:
            near = max((r for r in self.ratios if r < rows), default=1)
            slope = (self.ratios[near] - 1) / (near - 1) if near > 1 else FIRST_COST_PER_ROW
            known = 1 + slope * (rows - 1)
        return known * self.plain_ms

    def passed(self, rows: int, took_ms: float) -> None:
        """A pass of so many rows is over."""
        self.total_ms += took_ms
        if rows == 1:
            self.plain_ms = _towards(self.plain_ms, took_ms)
        elif self.plain_ms:
            self.ratios[rows] = _towards(self.ratios.get(rows, 0.0), took_ms / self.plain_ms)

    def checked(self, kind: str, drafts: int, right: int, draft_ms: float) -> None:
        """Of `drafts` that took `draft_ms` to guess, the first `right` were so."""
        record = self._record(kind)
        record.fade(KEEP)
        record.checked += min(drafts, right + 1)  # those behind a wrong one tell nothing
        record.right += right
        record.drafts += 1
        if record.drafts > 1:  # the first time everything is cold, or a whole prompt is read
            record.draft_ms = _towards(record.draft_ms, draft_ms / drafts)
        spent_ms = self.cost_ms(1 + drafts) - self.plain_ms + record.draft_ms * drafts
        self.balance_ms += right * self.plain_ms - spent_ms

    def _record(self, kind: str) -> Record:
        record = self.records.get(kind)
        if record is None:
            record = self.records[kind] = Record(FIRST_GUESS.get(kind, OTHER_GUESS))
        return record


def _towards(known: float, measured: float) -> float:
    if not known:
        return measured
    return known + FRESH * (min(measured, OUTLIER * known) - known)
