"""Cuts slices into pieces, so that a batch has at least so many tasks. Pure.

Pieces have about as many entries each, whichever segment they belong to. Where the entries of a slice cannot be
counted, it stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.spark.plan.plan import SegmentSlice

# A segment's ledgers in order, and one past the last entry of each.
Ledgers = Sequence[tuple[int, int]]


def cut_up(slices: Sequence[tuple[SegmentSlice, Ledgers]], pieces_min: int) -> list[list[SegmentSlice]]:
    """The pieces of each slice: together at least that many, if there are so many entries."""
    spans = [_spans(one, ledgers) for one, ledgers in slices]
    counts = [sum(last - first for _, first, last in span) for span in spans]
    total = sum(counts)
    found: list[list[SegmentSlice]] = []
    for (one, _), span, count in zip(slices, spans, counts, strict=True):
        # Rounded up, so that all together are not fewer than requested.
        pieces = max(1, min(count, -(-count * pieces_min // total) if total else 1))
        cuts = [_position(span, count * n // pieces) for n in range(1, pieces)]
        starts, ends = [one.start, *cuts], [*cuts, one.end]
        pairs = zip(starts, ends, strict=True)
        made = [replace(one, start=start, end=end, chunks_from=None) for start, end in pairs]
        found.append([replace(made[0], chunks_from=one.chunks_from), *made[1:]])
    return found


def _spans(one: SegmentSlice, ledgers: Ledgers) -> list[tuple[int, int, int]]:
    """The entries of a slice: ledger, first, and one past the last."""
    start, end = one.start or BEGINNING, one.end
    if not ledgers and end is not None and start[0] == end[0]:
        ledgers = [(start[0], _entries_before(end))]
    found: list[tuple[int, int, int]] = []
    for ledger, count in sorted(ledgers):
        first = start[1] if ledger == start[0] else 0
        last = count if end is None or ledger != end[0] else min(count, _entries_before(end))
        if ledger >= start[0] and (end is None or ledger <= end[0]) and first < last:
            found.append((ledger, first, last))
    return found


def _entries_before(end: MessagePosition) -> int:
    """The number of entries before `end`, including one of which only some messages are before it."""
    return end[1] + (1 if end[2] else 0)


def _position(spans: Sequence[tuple[int, int, int]], number: int) -> MessagePosition:
    """The position of an entry, by its number among those of the slice."""
    for ledger, first, last in spans:
        if number < last - first:
            return (ledger, first + number, 0)
        number -= last - first
    raise AssertionError("a piece begins within its slice")


def needs_ledgers(one: SegmentSlice) -> bool:
    """Whether the positions of a slice do not determine its number of entries."""
    return one.start is None or one.end is None or one.start[0] != one.end[0]
