"""How far a limited batch goes: the oldest messages of all segments of all topics, as many as are allowed. Pure.

A limit is spent on the oldest messages first, whichever segment they are in: segments that are read together stay close
in time. Rows and bytes are both limited, to the message; one message is always taken.

Where children wait for their parents, a batch ends at a segment's end while others could continue: rows of later
batches would then be much older than those of this one, and a watermark would drop them. So with `skew_ms` no message
is taken that is newer than the last message of such a segment by more than that. Messages behind it are newer, so no
row of a later batch is older than one of this batch by more than the skew (as far as times rise within a segment).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from anabranch.model.cut import BEGINNING, MessagePosition

Key = TypeVar("Key", bound=Any)  # Keys of stretches. Their order breaks ties.

_ALL: Final = 1 << 62
# Smaller shares are not worth a separate measurement.
ROWS_MIN: Final = 100
BYTES_MIN: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a batch. None: unlimited."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def is_set(self) -> bool:
        return self.rows is not None or self.bytes is not None

    def share(self, of: int) -> Limit:
        """The share of each of so many segments, but at least as much as is worth measuring."""
        return Limit(
            None if self.rows is None else min(self.rows, max(ROWS_MIN, -(-self.rows // of))),
            None if self.bytes is None else min(self.bytes, max(BYTES_MIN, -(-self.bytes // of))),
        )

    def times(self, factor: int, most: Limit) -> Limit:
        """So many times as much, but not more than `most`."""
        rows = None if self.rows is None else min(self.rows * factor, most.rows or self.rows * factor)
        size = None if self.bytes is None else min(self.bytes * factor, most.bytes or self.bytes * factor)
        return Limit(rows, size)


UNLIMITED: Final = Limit()


@dataclass(frozen=True, slots=True)
class Step:
    """The messages of one entry from a position on."""

    at: MessagePosition
    rows: int
    bytes: int
    time_ms: int = 0

    def behind(self, rows: int) -> MessagePosition:
        """The position once so many of them are read."""
        ledger, entry, index = self.at
        return (ledger, entry + 1, 0) if rows >= self.rows else (ledger, entry, index + rows)


@dataclass(frozen=True, slots=True)
class Steps:
    """All messages of a segment from its starting position on, as far as `until`."""

    steps: Sequence[Step] = ()
    until: MessagePosition = BEGINNING


@dataclass(frozen=True, slots=True)
class SegmentStretch:
    """What may be read of a segment: from a position up to another."""

    start: MessagePosition
    bound: MessagePosition
    steps: Steps
    has_waiting: bool = False  # A later batch reads more behind its bound.

    def path(self) -> Iterator[tuple[Step, int]]:
        """The steps within it, each with the latest time up to it: generated lazily, since there may be many."""
        start, bound = self.start, self.bound
        latest = 0
        for step in self.steps.steps:
            ledger, entry, index = at = step.at
            if at < start and (ledger, entry) != start[:2]:
                continue
            if at >= bound:
                break
            if step.time_ms > latest:
                latest = step.time_ms
            if (ledger, entry) != start[:2] and (ledger, entry) != bound[:2]:
                yield step, latest
                continue
            first = start[2] if (ledger, entry) == start[:2] else index
            last = bound[2] if (ledger, entry) == bound[:2] else index + step.rows
            if first < last or not step.rows:
                share = step.bytes * (last - first) // step.rows if step.rows else step.bytes
                yield Step((ledger, entry, first), last - first, share, step.time_ms), latest

    @property
    def is_measured(self) -> bool:
        return self.steps.until >= self.bound

    @property
    def rows(self) -> int:
        """The number of rows, as far as it is known."""
        return sum(step.rows for step, _ in self.path())


def spend(
    stretches: Mapping[Key, SegmentStretch], limit: Limit, skew_ms: int | None = None
) -> dict[Key, MessagePosition]:
    """How far each stretch is read; without those that are not read."""
    return spent(stretches, limit, skew_ms)[0]


def spent(
    stretches: Mapping[Key, SegmentStretch], limit: Limit, skew_ms: int | None = None
) -> tuple[dict[Key, MessagePosition], set[Key]]:
    """The same, and the stretches whose measures are too short: all measured messages of them are taken, and there are
    more. With longer measures, older messages might have been taken."""
    return _Spending(stretches, limit, skew_ms).run()


class _Spending:
    def __init__(self, stretches: Mapping[Key, SegmentStretch], limit: Limit, skew_ms: int | None) -> None:
        self._stretches = stretches
        self._rows_left = _ALL if limit.rows is None else limit.rows
        self._bytes_left = _ALL if limit.bytes is None else limit.bytes
        self._skew_ms = skew_ms
        self._latest_allowed: float = float("inf")
        self._has_taken = False
        self._ends: dict[Any, MessagePosition] = {}

    def run(self) -> tuple[dict[Any, MessagePosition], set[Any]]:
        paths = {key: one.path() for key, one in self._stretches.items()}
        # Times may fall within a segment, so the latest time up to a step counts.
        heap: list[tuple[int, Any, Step]] = []
        done: set[Any] = set()
        for key, path in paths.items():
            first = next(path, None)
            if first is None:
                done.add(key)
            else:
                heap.append((first[1], key, first[0]))
        heapq.heapify(heap)
        while heap:
            time_ms, key, step = heap[0]
            if time_ms > self._latest_allowed or not self._takes_all(key, step):
                break
            following = next(paths[key], None)
            if following is not None:
                heapq.heapreplace(heap, (following[1], key, following[0]))
                continue
            heapq.heappop(heap)
            done.add(key)
            if self._stretches[key].has_waiting or not self._stretches[key].is_measured:
                self._leaves_more_behind(time_ms)
        for key in done:
            if self._stretches[key].is_measured:
                self._ends[key] = self._stretches[key].bound
        return self._ends, {key for key in done if not self._stretches[key].is_measured}

    def _takes_all(self, key: Any, step: Step) -> bool:
        """Takes the step from the limit, or the part that fits; False if only a part fits."""
        rows = min(step.rows, self._rows_left)
        if step.bytes > self._bytes_left:
            rows = max(0, min(rows, self._bytes_left * step.rows // step.bytes))
        if not rows and step.rows and not self._has_taken:
            rows = 1
        if rows or not step.rows:
            self._ends[key] = step.behind(rows)
            self._has_taken = self._has_taken or rows > 0
        self._rows_left -= rows
        self._bytes_left -= step.bytes
        return rows >= step.rows

    def _leaves_more_behind(self, time_ms: int) -> None:
        if self._skew_ms is not None:
            self._latest_allowed = min(self._latest_allowed, time_ms + self._skew_ms)
