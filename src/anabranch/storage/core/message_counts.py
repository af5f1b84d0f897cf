"""How many messages lie below an entry of a topic's log. Pure. Data plane on the side that adds.

An entry knows how many messages it holds, and a topic's figures count messages, so for the ledger being written running
totals are kept: one for each of the newest entries, and one for every MARK_ENTRIES entries before those. A count is
exact where both of its ends lie on a total. Between two marks it goes by the mean of that stretch, which is exact if
all entries there hold the same number of messages.

Ledgers that an earlier incarnation wrote have one total each, in the topic's record: within them a count goes by the
mean of the ledger. Of ledgers that have no total, written by releases that stored none, each entry counts as one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

# The newest entries, at least so many, have a total each: 8 bytes an entry.
RECENT_ENTRIES: Final = 4096
MARK_ENTRIES: Final = 64


class MessageCounts:
    """The running totals of the ledger being written."""

    __slots__ = ("_first", "_marks", "_recent", "total")

    def __init__(self) -> None:
        self.total = 0
        # `_marks[n]` is the total below entry n * MARK_ENTRIES, up to `_first`; `_recent[n]` the total up to and
        # including entry `_first` + n. `_first` is a multiple of MARK_ENTRIES.
        self._marks = array("Q", [0])
        self._recent = array("Q")
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._recent)

    def add(self, messages: Sequence[int]) -> None:
        """Entries were appended with so many messages each."""
        recent = self._recent
        recent.extend(islice(accumulate(messages, initial=self.total), 1, None))
        if recent:
            self.total = recent[-1]
        if len(recent) >= 2 * RECENT_ENTRIES:
            self._thin_out()

    def add_one(self, messages: int) -> None:
        """The same for one entry."""
        self.total += messages
        recent = self._recent
        recent.append(self.total)
        if len(recent) >= 2 * RECENT_ENTRIES:
            self._thin_out()

    def _thin_out(self) -> None:
        count = (len(self._recent) - RECENT_ENTRIES) // MARK_ENTRIES * MARK_ENTRIES
        self._marks.extend(self._recent[MARK_ENTRIES - 1 : count : MARK_ENTRIES])
        del self._recent[:count]
        self._first += count

    def below(self, entry: int) -> int:
        """How many messages the entries below that one hold."""
        if entry <= 0:
            return 0
        if entry >= self._first:
            index = entry - self._first
            if not index:
                return self._marks[-1]
            return self._recent[min(index, len(self._recent)) - 1] if self._recent else self._marks[-1]
        number, rest = divmod(entry, MARK_ENTRIES)
        low = self._marks[number]
        return low + (self._marks[number + 1] - low) * rest // MARK_ENTRIES if rest else low


def below_in(total: int, end: int, entry: int) -> int:
    """The same in a ledger of `end` entries that hold `total` messages together; -1 if that is not known."""
    entry = max(0, min(entry, end))
    if total < 0 or not end:
        return entry
    return total * entry // end
