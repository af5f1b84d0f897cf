"""Which objects of a log hold a ledger's entries. Three integers a run, in packed arrays. Data plane, per run."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from anabranch.storage.object.core.objects import PlacesNote

# Which entries [first, end) of a ledger are wanted; None if none are. Without an end, all from the first on are.
Wanted = Callable[[int], tuple[int, int | None] | None]

# After how many rows other work gets its turn.
_ROWS_AT_A_TIME: Final = 5000
# The same of objects, where they are taken over as a whole.
_OBJECTS_AT_A_TIME: Final = 100_000


class PlaceRow(NamedTuple):
    """Entries from `first` on lie in the object `number`, in so many bytes; 0 bytes if that is not known."""

    first: int
    number: int
    size: int


class MovedRun(NamedTuple):
    """Entries [first, end) lie in the object `number` from now on, in so many bytes."""

    first: int
    end: int
    number: int
    size: int


class _Rows:
    """The rows of one ledger, in order of entries."""

    __slots__ = ("firsts", "numbers", "sizes")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.numbers = array("Q")
        self.sizes = array("I")

    def add(self, first: int, number: int, size: int) -> None:
        if not self.firsts or first > self.firsts[-1]:
            self.firsts.append(first)
            self.numbers.append(number)
            self.sizes.append(size)
            return
        at = bisect_left(self.firsts, first)
        if self.firsts[at] != first:
            self.firsts.insert(at, first)
            self.numbers.insert(at, number)
            self.sizes.insert(at, size)

    def moved(self, sources: Collection[int], runs: Iterable[MovedRun]) -> _Rows:
        """With those runs in the place of what `sources` held of their entries. A ledger may have a million rows: those
        between the runs are copied as a whole."""
        made = _Rows()
        at = 0
        for run in sorted(runs):
            # The first row that goes may begin before what is wanted of it.
            start = max(at, bisect_right(self.firsts, run.first) - 1)
            if (
                start < len(self.numbers)
                and self.numbers[start] not in sources
                and self.firsts[start] < run.first
            ):
                start += 1
            made._extend(self, at, start)
            stop = bisect_left(self.firsts, run.end, start)
            kept = [one for one in range(start, stop) if self.numbers[one] not in sources]
            made.add(run.first, run.number, run.size)
            for one in kept:
                made.add(self.firsts[one], self.numbers[one], self.sizes[one])
            at = stop
        made._extend(self, at, len(self.firsts))
        return made

    def _extend(self, other: _Rows, start: int, stop: int) -> None:
        self.firsts += other.firsts[start:stop]
        self.numbers += other.numbers[start:stop]
        self.sizes += other.sizes[start:stop]

    def copy(self) -> _Rows:
        made = _Rows()
        made.firsts, made.numbers, made.sizes = self.firsts[:], self.numbers[:], self.sizes[:]
        return made

    def span(self, first: int, end: int | None) -> range:
        """The rows that have entries of [first, end), if they have any from their own first one on."""
        if end is not None and first >= end:
            return range(0)
        stop = len(self.firsts) if end is None else bisect_left(self.firsts, end)
        return range(max(0, bisect_right(self.firsts, first) - 1), stop)


class EntryPlaces:
    def __init__(self) -> None:
        self._rows: dict[int, _Rows] = {}
        # By number, the bytes of its object.
        self._sizes: dict[int, int] = {}
        self.total_bytes = 0

    @property
    def numbers(self) -> Collection[int]:
        """The numbers that are known to hold an object."""
        return self._sizes.keys()

    @property
    def ledgers(self) -> Collection[int]:
        return self._rows.keys()

    @property
    def rows(self) -> int:
        return sum([len(rows.firsts) for rows in self._rows.values()])

    def size(self, number: int) -> int:
        """The bytes of its object; 0 if unknown."""
        return self._sizes.get(number, 0)

    def set_sizes(self, sizes: Mapping[int, int]) -> None:
        for number, size in sizes.items():
            self.total_bytes += size - self._sizes.get(number, 0)
            self._sizes[number] = size

    def remove(self, number: int) -> None:
        """The object is gone."""
        self.total_bytes -= self._sizes.pop(number, 0)

    def add(self, ledger: int, first: int, number: int, size: int = 0) -> None:
        """Entries of `ledger` from `first` on are in that object. A row that is there already changes nothing."""
        rows = self._rows.get(ledger)
        if rows is None:
            rows = self._rows[ledger] = _Rows()
        rows.add(first, number, size)

    def add_notes(self, notes: Iterable[PlacesNote]) -> None:
        for note in notes:
            sizes = note.sizes or [0] * len(note.firsts)
            for first, number, size in zip(note.firsts, note.numbers, sizes, strict=True):
                self.add(note.ledger, first, number, size)

    def rows_of(self, ledger: int) -> list[PlaceRow]:
        rows = self._rows.get(ledger)
        if rows is None:
            return []
        return [PlaceRow(*row) for row in zip(rows.firsts, rows.numbers, rows.sizes, strict=True)]

    def has(self, ledger: int, first: int, number: int) -> bool:
        """Whether a run that begins with that entry is known to lie in that object."""
        rows = self._rows.get(ledger)
        if rows is None:
            return False
        at = bisect_left(rows.firsts, first)
        return at < len(rows.firsts) and rows.firsts[at] == first and rows.numbers[at] == number

    def locate(self, ledger: int, entry: int, end: int | None = None) -> Iterator[int]:
        """The number that has the entry, if any has it, and those that have what follows, up to before the entry `end`.
        Each number once in turn."""
        rows = self._rows.get(ledger)
        if rows is None:
            return
        stop = len(rows.firsts) if end is None else bisect_left(rows.firsts, end)
        last = -1
        for at in range(max(bisect_right(rows.firsts, entry) - 1, 0), stop):
            # Rows may be trimmed while a caller waits between two numbers.
            if at < len(rows.numbers) and (number := rows.numbers[at]) != last:
                last = number
                yield number

    def next_after(self, ledger: int, entry: int) -> int | None:
        """The first entry of the first run above `entry`."""
        rows = self._rows.get(ledger)
        if rows is None:
            return None
        at = bisect_right(rows.firsts, entry)
        return rows.firsts[at] if at < len(rows.firsts) else None

    def trim(self, ledger: int, first_live: int) -> None:
        """Runs that lie below `first_live` as a whole are forgotten."""
        rows = self._rows.get(ledger)
        if rows is not None and (count := bisect_right(rows.firsts, first_live) - 1) > 0:
            del rows.firsts[:count], rows.numbers[:count], rows.sizes[:count]

    def drop(self, ledger: int) -> None:
        self._rows.pop(ledger, None)

    async def live_bytes(self, wanted: Wanted) -> dict[int, int]:
        """The bytes of wanted runs in each object that has any. Where a run's bytes are not known, all of the object
        counts; so does all of a run of which some entries are wanted."""
        found: dict[int, int] = {}
        done = 0
        for ledger in list(self._rows):
            rows, entries = self._rows.get(ledger), wanted(ledger)
            if rows is None or entries is None:
                continue
            span = rows.span(*entries)
            if len(span) > _ROWS_AT_A_TIME:
                # They may be trimmed while others have their turn.
                rows = rows.copy()
            for start in range(span.start, span.stop, _ROWS_AT_A_TIME):
                some = slice(start, min(start + _ROWS_AT_A_TIME, span.stop))
                for number, size in zip(rows.numbers[some], rows.sizes[some], strict=True):
                    found[number] = found.get(number, 0) + (size or self.size(number))
                done += some.stop - some.start
                if done >= _ROWS_AT_A_TIME:
                    done = 0
                    await asyncio.sleep(0)
        return found

    def swap(self, sources: Collection[int], moved: Mapping[int, Iterable[MovedRun]]) -> None:
        """What lay in `sources` of these ledgers lies elsewhere now. Ledgers dropped meanwhile stay so."""
        for ledger, runs in moved.items():
            if (rows := self._rows.get(ledger)) is not None:
                self._rows[ledger] = rows.moved(sources, runs)

    def copy(self) -> EntryPlaces:
        made = EntryPlaces()
        made._rows = {ledger: rows.copy() for ledger, rows in self._rows.items()}
        made._sizes = dict(self._sizes)
        made.total_bytes = self.total_bytes
        return made

    # -- as bytes

    def packed_sizes(self) -> tuple[bytes, bytes]:
        """The numbers of all objects, and their bytes."""
        return array("Q", self._sizes.keys()).tobytes(), array("I", self._sizes.values()).tobytes()

    async def unpack_sizes(self, numbers: bytes, sizes: bytes) -> None:
        """Those of a map, into places that have none."""
        found, lengths = array("Q"), array("I")
        found.frombytes(numbers)
        lengths.frombytes(sizes)
        if len(found) != len(lengths):
            raise ValueError("columns of objects differ in length")
        for at in range(0, len(found), _OBJECTS_AT_A_TIME):
            some = slice(at, at + _OBJECTS_AT_A_TIME)
            self._sizes.update(zip(found[some], lengths[some], strict=True))
            await asyncio.sleep(0)
        self.total_bytes = sum(lengths)

    def packed(self, ledger: int) -> tuple[bytes, bytes, bytes]:
        """The columns of a ledger's rows."""
        rows = self._rows.get(ledger) or _Rows()
        return rows.firsts.tobytes(), rows.numbers.tobytes(), rows.sizes.tobytes()

    def unpack(self, ledger: int, columns: tuple[bytes, bytes, bytes]) -> None:
        rows = _Rows()
        rows.firsts.frombytes(columns[0])
        rows.numbers.frombytes(columns[1])
        rows.sizes.frombytes(columns[2])
        if not len(rows.firsts) == len(rows.numbers) == len(rows.sizes):
            raise ValueError(f"columns of ledger {ledger} differ in length")
        if rows.firsts:
            self._rows[ledger] = rows


class NewPlaces:
    """The places of commits that are in no checkpoint yet."""

    def __init__(self) -> None:
        self._rows: dict[int, PlacesNote] = {}
        self._sizes: dict[int, int] = {}

    def add(self, ledger: int, first: int, number: int, size: int) -> None:
        note = self._rows.get(ledger)
        if note is None:
            note = self._rows[ledger] = PlacesNote(ledger, [], [])
        note.firsts.append(first)
        note.numbers.append(number)
        note.sizes.append(size)

    def add_size(self, number: int, size: int) -> None:
        self._sizes[number] = size

    def drop(self, ledger: int) -> None:
        self._rows.pop(ledger, None)

    def taken(self) -> tuple[list[PlacesNote], dict[int, int]]:
        """All of them; what is added from now on is for the checkpoint after."""
        rows, sizes = list(self._rows.values()), self._sizes
        self._rows, self._sizes = {}, {}
        return rows, sizes
