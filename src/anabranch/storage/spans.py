"""The readable stretches of a topic's log, in order, and arithmetic over them. Pure apart from a growing last end.

A span is [first, end) of one ledger. A ledger with skipped damage or dropped entries in it gives several spans.
Positions between spans hold nothing: `normalise` steps over them. With a `stop`, what is kept ends there: entries from
it on are for nobody yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from anabranch.model.position import BEFORE_ALL, Position
from anabranch.storage.topic_record import Skip, TopicRecord


@dataclass(slots=True)
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


class Spans:
    """Every kept entry of a topic. The last span is where it ends, and may be empty: unless something stops readers
    before, it belongs to the ledger being written."""

    __slots__ = ("_before", "_is_stopped", "_keys", "_limit", "_spans")

    def __init__(
        self,
        record: TopicRecord,
        open_end: int = 0,
        *,
        dropped: Iterable[Skip] = (),
        stop: Position | None = None,
    ) -> None:
        """`open_end` is how far the record's last ledger, the one being written, is confirmed.

        What is dropped is confirmed."""
        trimmed_ledger, trimmed_entry = record.trimmed
        skips_of: dict[int, list[Skip]] = {}
        for skip in (*record.skips, *dropped):
            skips_of.setdefault(skip.ledger, []).append(skip)
        spans: list[Span] = []
        for index, ledger in enumerate(record.ledgers):
            is_last = index == len(record.ledgers) - 1
            if ledger.id < trimmed_ledger and not is_last:
                continue
            first = trimmed_entry if ledger.id == trimmed_ledger else 0
            skips = skips_of.get(ledger.id, [])
            end = ledger.end
            if end is None:
                end = max([first, open_end, *(s.next for s in skips)])
            spans += [Span(ledger.id, ledger.incarnation, a, b) for a, b in readable(first, end, skips)]
            if is_last and (not spans or (spans[-1].ledger, spans[-1].end) != (ledger.id, end)):
                spans.append(Span(ledger.id, ledger.incarnation, end, end))
        # How far the last span may still grow: None is without bounds, and a stopped one does not.
        self._limit: int | None = None
        self._is_stopped = False
        if stop is not None:
            spans = self._stopped(spans, stop)
        self._spans = spans
        self._keys = [(s.ledger, s.first) for s in spans]
        # How many entries lie in the spans before each. Only the last one grows.
        self._before = [0, *accumulate(s.end - s.first for s in spans[:-1])]

    def _stopped(self, spans: list[Span], stop: Position) -> list[Span]:
        last = spans[-1]
        if (last.ledger, last.end) < stop:
            self._limit = stop[1]  # Not confirmed yet.
            return spans
        self._is_stopped = True
        kept = [span for span in spans if (span.ledger, span.first) < stop]
        if kept and kept[-1].ledger == stop[0] and kept[-1].end >= stop[1]:
            kept[-1].end = stop[1]
        else:
            # The end is the very entry, whatever lies before it: it must not fall back when one is hidden.
            kept.append(Span(stop[0], "", stop[1], stop[1]))
        return kept

    @property
    def last_span(self) -> Span:
        return self._spans[-1]

    def extend(self, end: int) -> None:
        """The ledger being written is now confirmed up to `end`."""
        if not self._is_stopped:
            self._spans[-1].end = end if self._limit is None else min(end, self._limit)

    def stop_at(self, stop: Position | None, open_end: int) -> bool:
        """Ends before `stop` from now on; False, and nothing is changed, if that takes making them anew."""
        last = self._spans[-1]
        if self._is_stopped or (stop is not None and (stop[0] != last.ledger or stop[1] < last.end)):
            return False
        self._limit = None if stop is None else stop[1]
        self.extend(open_end)
        return True

    @property
    def first(self) -> Position:
        for span in self._spans:
            if span.first < span.end:
                return span.ledger, span.first
        return self.end

    @property
    def end(self) -> Position:
        last = self._spans[-1]
        return last.ledger, last.end

    @property
    def last(self) -> Position:
        return self.before(self.end)

    def span_at(self, at: Position) -> Span:
        """The span that holds normalised `at`, or the last one."""
        return self._spans[max(0, bisect_right(self._keys, at) - 1)]

    def normalise(self, at: Position) -> Position:
        index = bisect_right(self._keys, at) - 1
        if index >= 0:
            span = self._spans[index]
            if span.ledger == at[0] and at[1] < span.end:
                return at
        for n in range(index + 1, len(self._spans)):
            span = self._spans[n]
            if span.first < span.end:
                return span.ledger, span.first
        return self.end

    def after(self, at: Position) -> Position:
        return self.normalise((at[0], at[1] + 1))

    def before(self, at: Position) -> Position:
        index = bisect_right(self._keys, at) - 1
        while index >= 0:
            span = self._spans[index]
            if span.first < span.end and (span.ledger, span.first) < at:
                end = min(span.end, at[1]) if span.ledger == at[0] else span.end
                return span.ledger, end - 1
            index -= 1
        return BEFORE_ALL

    def count(self, start: Position, stop: Position) -> int:
        return max(0, self._below(stop) - self._below(start))

    def _below(self, at: Position) -> int:
        """How many kept entries lie below that place."""
        index = bisect_right(self._keys, at) - 1
        if index < 0:
            return 0
        span = self._spans[index]
        end = min(span.end, at[1]) if span.ledger == at[0] else span.end
        return self._before[index] + end - span.first

    def at_index(self, index: int) -> Position:
        """The position of the index-th kept entry; the end if there are fewer."""
        number = bisect_right(self._before, index) - 1
        while number >= 0 and self._spans[number].first == self._spans[number].end:
            number -= 1  # Only where there is nothing at all.
        if number < 0:
            return self.end
        span = self._spans[number]
        return min((span.ledger, span.first + index - self._before[number]), self.end)
