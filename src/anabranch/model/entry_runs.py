"""Sets of entries of a log as runs, each [first, end) of a ledger, compact and fast. Pure values.

Attempts that write in turn leave one run for each entry, hundreds of thousands of them. So the numbers are kept in
arrays, and operations on all of them use built-in functions.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, islice, pairwise, zip_longest
from operator import attrgetter, gt, sub
from typing import Any, Final, NamedTuple

from anabranch.model.position import Position

# Entries [first, end) of a ledger.
EntryRun = tuple[int, int, int]

# Up to this many runs are stored one by one, a form that every release can read.
_PLAIN_MAX: Final = 1000
_SIZES: Final = ((1 << 8, "B"), (1 << 16, "H"), (1 << 32, "I"), (1 << 63, "Q"))


class Edges(NamedTuple):
    """The runs of one ledger, ordered and not touching: where each begins, and where each ends."""

    firsts: Sequence[int]
    ends: Sequence[int]


_NONE: Final = Edges((), ())


class EntryRuns:
    """Ordered runs that do not touch each other. Immutable: adding runs gives a new value."""

    __slots__ = ("_ledgers", "_packed")

    def __init__(self, ledgers: dict[int, Edges] | None = None) -> None:
        """Takes the runs by ledger, in the order of ledger ids."""
        self._ledgers: dict[int, Edges] = ledgers or {}
        self._packed: list[Any] | None = None

    @staticmethod
    def of(runs: Iterable[EntryRun]) -> EntryRuns:
        """From any runs in any order; runs that touch or overlap are joined."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        for ledger, first, end in runs:
            firsts, ends = found.setdefault(ledger, ([], []))
            firsts.append(first)
            ends.append(end)
        return _united(found)

    @staticmethod
    def gathered(many: Iterable[GrowingRuns]) -> EntryRuns:
        """The union of all of them; fast for a hundred thousand attempts."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        for growing in many:
            growing.add_to(found)
        return _united(found)

    def __len__(self) -> int:
        return sum(len(edges.firsts) for edges in self._ledgers.values())

    def __iter__(self) -> Iterator[EntryRun]:
        for ledger, edges in self._ledgers.items():
            for first, end in zip(edges.firsts, edges.ends, strict=True):
                yield ledger, first, end

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, EntryRuns) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # Not used as keys.

    @property
    def entries(self) -> int:
        return sum(sum(map(sub, edges.ends, edges.firsts)) for edges in self._ledgers.values())

    @property
    def first(self) -> Position:
        """The position of the first entry. There must be at least one run."""
        ledger, edges = next(iter(self._ledgers.items()))
        return ledger, edges.firsts[0]

    @property
    def last_end(self) -> Position:
        """The position after the last entry. There must be at least one run."""
        ledger = next(reversed(self._ledgers))
        return ledger, self._ledgers[ledger].ends[-1]

    @property
    def ledgers(self) -> dict[int, Edges]:
        return self._ledgers

    def of_ledger(self, ledger: int) -> Edges:
        return self._ledgers.get(ledger, _NONE)

    def merged(self, *others: EntryRuns) -> EntryRuns:
        """The union of these runs and those of others."""
        added = [other for other in others if other]
        if not added:
            return self
        parts = sorted([self, *added] if self else added, key=_place)
        if all(one.last_end < other.first for one, other in pairwise(parts)):
            return _joined(parts)
        found: dict[int, tuple[list[int], list[int]]] = {}
        for one in parts:
            for ledger, edges in one.ledgers.items():
                firsts, ends = found.setdefault(ledger, ([], []))
                firsts += edges.firsts
                ends += edges.ends
        return _united(found)

    def from_(self, upto: Position) -> EntryRuns:
        """Without the runs below that position; the same object if there are none."""
        ledger, entry = upto
        kept = {one: edges for one, edges in self._ledgers.items() if one >= ledger}
        if (edges := kept.get(ledger)) is not None and (gone := bisect_right(edges.ends, entry)):
            if gone == len(edges.ends):
                del kept[ledger]
            else:
                kept[ledger] = Edges(edges.firsts[gone:], edges.ends[gone:])
        return self if len(kept) == len(self._ledgers) and _is_same(kept, self._ledgers) else EntryRuns(kept)

    # -- storing

    def packed(self) -> list[Any]:
        """Plain values: a few runs number by number, many as gaps and lengths of as few bytes as they need."""
        if self._packed is None:
            if len(self) <= _PLAIN_MAX:
                self._packed = _plain(self)
            else:
                self._packed = [_Track.of(edges).packed(ledger) for ledger, edges in self._ledgers.items()]
        return self._packed

    @staticmethod
    def unpacked(packed: Sequence[Any]) -> EntryRuns:
        return GrowingRuns.unpacked(packed).value()


class GrowingRuns:
    """Runs that are added in order, collected cheaply."""

    __slots__ = ("_tracks",)

    def __init__(self) -> None:
        self._tracks: dict[int, _Track] = {}

    def __bool__(self) -> bool:
        return bool(self._tracks)

    @property
    def first(self) -> Position | None:
        for ledger, track in self._tracks.items():
            return ledger, track.first
        return None

    @property
    def entries(self) -> int:
        return sum(sum(track.lengths) for track in self._tracks.values())

    def add(self, ledger: int, first: int, end: int) -> None:
        """Adds a run, which must not begin before the last one does."""
        track = self._tracks.get(ledger)
        if track is None:
            track = self._tracks[ledger] = _Track(first)
        track.add(first, end)

    def add_to(self, found: dict[int, tuple[list[int], list[int]]]) -> None:
        """Adds the beginnings and ends of all runs to `found`, by ledger."""
        for ledger, track in self._tracks.items():
            firsts, ends = found.setdefault(ledger, ([], []))
            if not track.gaps:
                firsts.append(track.first)
                ends.append(track.end)
            else:
                edges = track.edges()
                firsts += edges.firsts
                ends += edges.ends

    def value(self) -> EntryRuns:
        """The runs added so far, as an immutable value."""
        return EntryRuns({ledger: track.edges() for ledger, track in self._tracks.items()})

    def packed(self) -> list[Any]:
        """As `EntryRuns.packed`."""
        if sum([len(track.lengths) for track in self._tracks.values()]) <= _PLAIN_MAX:
            return [number for ledger, track in self._tracks.items() for number in track.plain(ledger)]
        return [track.packed(ledger) for ledger, track in self._tracks.items()]

    @staticmethod
    def unpacked(packed: Sequence[Any]) -> GrowingRuns:
        found = GrowingRuns()
        if packed and not isinstance(packed[0], int):
            found._tracks = {ledger: _Track.unpacked(*rest) for ledger, *rest in packed}
            return found
        numbers = iter(packed)
        for ledger, first, end in sorted(zip(numbers, numbers, numbers, strict=True)):
            found.add(ledger, first, end)
        return found


class _Track:
    """The runs of one ledger: where they begin, the length of each, and the gap before each but the first."""

    __slots__ = ("end", "first", "gaps", "lengths")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.gaps, self.lengths = array("B"), array("B")

    @staticmethod
    def of(edges: Edges) -> _Track:
        track = _Track(edges.firsts[0])
        track.end = edges.ends[-1]
        track.gaps = _narrow(list(map(sub, islice(edges.firsts, 1, None), edges.ends)))
        track.lengths = _narrow(list(map(sub, edges.ends, edges.firsts)))
        return track

    def add(self, first: int, end: int) -> None:
        if not self.lengths:
            self.lengths = _with(self.lengths, end - first)
        elif first <= self.end:
            if end <= self.end:
                return
            length = self.lengths.pop() + end - self.end
            self.lengths = _with(self.lengths, length)
        else:
            self.gaps = _with(self.gaps, first - self.end)
            self.lengths = _with(self.lengths, end - first)
        self.end = end

    def edges(self) -> Edges:
        steps = chain.from_iterable(zip(self.lengths, chain(self.gaps, (0,)), strict=True))
        both = array("q", accumulate(steps, initial=self.first))
        return Edges(both[:-1:2], both[1::2])

    def plain(self, ledger: int) -> list[int]:
        """Number by number, without temporary arrays: most attempts have one run."""
        at = self.first
        found: list[int] = []
        for length, gap in zip_longest(self.lengths, self.gaps, fillvalue=0):
            found += (ledger, at, at + length)
            at += length + gap
        return found

    def packed(self, ledger: int) -> list[Any]:
        return [ledger, self.first, *_bytes(self.gaps), *_bytes(self.lengths)]

    @staticmethod
    def unpacked(first: int, gap_code: str, gaps: bytes, length_code: str, lengths: bytes) -> _Track:
        track = _Track(first)
        track.gaps, track.lengths = _numbers(gap_code, gaps), _numbers(length_code, lengths)
        track.end = first + sum(track.gaps) + sum(track.lengths)
        return track


def _plain(runs: Iterable[EntryRun]) -> list[int]:
    return [number for run in runs for number in run]


def _narrow(numbers: Sequence[int]) -> array[int]:
    largest = max(numbers, default=0)
    return array(next(code for limit, code in _SIZES if largest < limit), numbers)


def _with(numbers: array[int], number: int) -> array[int]:
    """The array with one more number; a new array of a wider type if the number does not fit."""
    try:
        numbers.append(number)
    except OverflowError:
        numbers = _narrow([*numbers, number])
    return numbers


def _bytes(numbers: array[int]) -> tuple[str, bytes]:
    """Type code and bytes, in little-endian order on every machine."""
    if sys.byteorder != "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.typecode, numbers.tobytes()


def _numbers(code: str, data: bytes) -> array[int]:
    found = array(code)
    found.frombytes(data)
    if sys.byteorder != "little":
        found.byteswap()
    return found


_place: Final = attrgetter("first")


def _joined(parts: Iterable[EntryRuns]) -> EntryRuns:
    """The concatenation of the parts, each of which begins after the one before it ends."""
    found: dict[int, list[Edges]] = {}
    for part in parts:
        for ledger, edges in part.ledgers.items():
            found.setdefault(ledger, []).append(edges)
    return EntryRuns({ledger: _in_a_row(some) for ledger, some in found.items()})


def _in_a_row(some: list[Edges]) -> Edges:
    if len(some) == 1:
        return some[0]
    firsts, ends = array("q"), array("q")
    for edges in some:
        firsts.extend(edges.firsts)
        ends.extend(edges.ends)
    return Edges(firsts, ends)


def _united(found: dict[int, tuple[list[int], list[int]]]) -> EntryRuns:
    """The runs with these beginnings and ends, by ledger, in any order."""
    return EntryRuns({ledger: _edges(*found[ledger]) for ledger in sorted(found)})


def _edges(firsts: list[int], ends: list[int]) -> Edges:
    """In order, with runs that touch or overlap joined: between two runs, as many have begun as have ended."""
    firsts.sort()
    ends.sort()
    is_gap = list(map(gt, islice(firsts, 1, None), ends))
    return Edges(
        array("q", chain(firsts[:1], compress(islice(firsts, 1, None), is_gap))),
        array("q", chain(compress(ends, is_gap), ends[-1:])),
    )


def _is_same(one: dict[int, Edges], other: dict[int, Edges]) -> bool:
    return all(edges is other[ledger] for ledger, edges in one.items())
