"""The readable stretches of a topic's log, in order, and arithmetic over them. Pure apart from a growing last end.

A span is [first, end) of one ledger. A ledger with skipped damage or dropped entries in it gives several spans.
Positions between spans hold nothing: `normalise` steps over them. With a `stop`, the spans end there: entries at or
after it are not visible yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import itemgetter, sub
from typing import Final

from anabranch.model.entry_runs import Edges, EntryRuns
from anabranch.model.position import BEFORE_ALL, Position
from anabranch.storage.core.topic_record import Skip, TopicRecord


@dataclass(slots=True)  # Not frozen: one is made for each read, and that would take twice as long.
class Span:
    ledger: int
    incarnation: str
    first: int
    end: int


def readable(first: int, end: int, skips: list[Skip]) -> list[tuple[int, int]]:
    """[first, end) without the skipped ranges."""
    pieces = []
    for skip in sorted(skips, key=lambda s: s.first):
        if skip.first > first:
            pieces.append((first, min(skip.first, end)))
        first = max(first, skip.next)
    if first < end:
        pieces.append((first, end))
    return [(a, b) for a, b in pieces if a < b]


NOTHING_DROPPED: Final = EntryRuns()


class Spans:
    """Every kept entry of a topic. The last span is the end of the log, and may be empty: unless a `stop` lies before
    it, it belongs to the ledger being written."""

    __slots__ = ("_before", "_ends", "_incarnations", "_is_stopped", "_keys", "_limit")

    def __init__(
        self,
        record: TopicRecord,
        open_end: int = 0,
        *,
        dropped: EntryRuns = NOTHING_DROPPED,
        stop: Position | None = None,
    ) -> None:
        """`open_end` is the confirmed end of the record's last ledger, the one being written.

        Dropped entries are confirmed ones.
        """
        trimmed_ledger, trimmed_entry = record.trimmed
        skips_of: dict[int, list[Skip]] = {}
        for skip in record.skips:
            skips_of.setdefault(skip.ledger, []).append(skip)
        # Where each span begins and ends, in lists: dropped entries may leave a hundred thousand spans.
        self._keys: list[Position] = []
        self._ends: list[int] = []
        self._incarnations = {ledger.id: ledger.incarnation for ledger in record.ledgers}
        for index, ledger in enumerate(record.ledgers):
            is_last = index == len(record.ledgers) - 1
            if ledger.id < trimmed_ledger and not is_last:
                continue
            first = trimmed_entry if ledger.id == trimmed_ledger else 0
            skips, gone = skips_of.get(ledger.id, []), dropped.of_ledger(ledger.id)
            end = ledger.end
            if end is None:
                end = max([first, open_end, *(s.next for s in skips), *gone.ends[-1:]])
            if skips:
                skips += map(Skip, repeat(ledger.id), *gone)
                pieces = readable(first, end, skips)
                firsts, ends = [a for a, _ in pieces], [b for _, b in pieces]
            else:
                firsts, ends = _between(first, end, gone)
            self._keys += zip(repeat(ledger.id), firsts)
            self._ends += ends
            if is_last and (not self._keys or (self._keys[-1][0], self._ends[-1]) != (ledger.id, end)):
                self._keys.append((ledger.id, end))
                self._ends.append(end)
        # How far the last span may still grow: None for no limit; it does not grow at all once stopped.
        self._limit: int | None = None
        self._is_stopped = False
        if stop is not None:
            self._stop(stop)
        # How many entries lie in the spans before each. Only the last one grows.
        sizes = map(sub, self._ends[:-1], map(itemgetter(1), self._keys))
        self._before: list[int] = list(accumulate(sizes, initial=0))

    def _stop(self, stop: Position) -> None:
        if self.end < stop:
            self._limit = stop[1]  # Not confirmed yet.
            return
        self._is_stopped = True
        kept = bisect_left(self._keys, stop)
        del self._keys[kept:], self._ends[kept:]
        if kept and self._keys[-1][0] == stop[0] and self._ends[-1] >= stop[1]:
            self._ends[-1] = stop[1]
        else:
            # The end is exactly this entry, whatever lies before it: it must not move back when an entry before it is
            # hidden.
            self._keys.append(stop)
            self._ends.append(stop[1])
            self._incarnations.setdefault(stop[0], "")

    def extend(self, end: int) -> None:
        """The ledger being written is now confirmed up to `end`."""
        if not self._is_stopped:
            self._ends[-1] = end if self._limit is None else min(end, self._limit)

    def stop_at(self, stop: Position | None, open_end: int) -> bool:
        """Ends the spans before `stop` from now on; False, with nothing changed, if they must be rebuilt for that."""
        ledger, end = self.end
        if self._is_stopped or (stop is not None and (stop[0] != ledger or stop[1] < end)):
            return False
        self._limit = None if stop is None else stop[1]
        self.extend(open_end)
        return True

    @property
    def first(self) -> Position:
        keys, ends = self._keys, self._ends
        for n in range(len(keys)):
            if keys[n][1] < ends[n]:
                return keys[n]
        return self.end

    @property
    def end(self) -> Position:
        return self._keys[-1][0], self._ends[-1]

    @property
    def last(self) -> Position:
        return self.before(self.end)

    def span_at(self, at: Position) -> Span:
        """The span that holds normalised `at`, or the last one."""
        index = max(0, bisect_right(self._keys, at) - 1)
        ledger, first = self._keys[index]
        return Span(ledger, self._incarnations[ledger], first, self._ends[index])

    def normalise(self, at: Position) -> Position:
        keys, ends = self._keys, self._ends
        index = bisect_right(keys, at) - 1
        if index >= 0 and keys[index][0] == at[0] and at[1] < ends[index]:
            return at
        for n in range(index + 1, len(keys)):
            if keys[n][1] < ends[n]:
                return keys[n]
        return self.end

    def after(self, at: Position) -> Position:
        return self.normalise((at[0], at[1] + 1))

    def before(self, at: Position) -> Position:
        index = bisect_right(self._keys, at) - 1
        while index >= 0:
            key, end = self._keys[index], self._ends[index]
            if key[1] < end and key < at:
                return key[0], (min(end, at[1]) if key[0] == at[0] else end) - 1
            index -= 1
        return BEFORE_ALL

    def count(self, start: Position, stop: Position) -> int:
        return max(0, self._below(stop) - self._below(start))

    def _below(self, at: Position) -> int:
        """How many kept entries lie below that position."""
        index = bisect_right(self._keys, at) - 1
        if index < 0:
            return 0
        ledger, first = self._keys[index]
        end = min(self._ends[index], at[1]) if ledger == at[0] else self._ends[index]
        return self._before[index] + end - first

    def pieces(self, start: Position, stop: Position, pieces_max: int) -> list[tuple[int, int, int]] | None:
        """(ledger, first, end) of each stretch of kept entries in [start, stop); None if there are more than so
        many."""
        low = max(0, bisect_right(self._keys, start) - 1)
        high = bisect_left(self._keys, stop)
        if high - low > pieces_max:
            return None
        found = []
        for n in range(low, high):
            (ledger, first), end = self._keys[n], self._ends[n]
            if (ledger, first) < start:
                first = max(first, start[1]) if ledger == start[0] else end
            if ledger == stop[0]:
                end = min(end, stop[1])
            if first < end:
                found.append((ledger, first, end))
        return found

    def at_index(self, index: int) -> Position:
        """The position of the index-th kept entry; the end if there are fewer."""
        number = bisect_right(self._before, index) - 1
        while number >= 0 and self._keys[number][1] == self._ends[number]:
            number -= 1  # Only when there are no entries at all.
        if number < 0:
            return self.end
        ledger, first = self._keys[number]
        return min((ledger, first + index - self._before[number]), self.end)


def _between(first: int, end: int, gone: Edges) -> tuple[list[int], list[int]]:
    """Beginnings and ends of the stretches of [first, end) outside `gone`."""
    low, high = bisect_right(gone.ends, first), bisect_left(gone.firsts, end)
    firsts, ends = [first, *gone.ends[low:high]], [*gone.firsts[low:high], end]
    if firsts[0] >= ends[0]:
        del firsts[0], ends[0]
    if firsts and firsts[-1] >= ends[-1]:
        del firsts[-1], ends[-1]
    return firsts, ends
