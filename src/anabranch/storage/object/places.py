"""Which numbers of a log hold a ledger's entries. Two integers a run, in packed arrays. Data plane, per run."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from anabranch.storage.object.core.objects import PlacesNote


class EntryPlaces:
    def __init__(self) -> None:
        # By ledger: the first entry of each run, and the number it is in, in order of entries.
        self._rows: dict[int, tuple[array[int], array[int]]] = {}
        # By number, the bytes of its object.
        self._sizes: dict[int, int] = {}
        self.total_bytes = 0

    @property
    def numbers(self) -> Collection[int]:
        """The numbers that are known to hold an object."""
        return self._sizes.keys()

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

    def add(self, ledger: int, first: int, number: int) -> None:
        """Entries of `ledger` from `first` on are in that number. A row that is there already changes nothing."""
        rows = self._rows.get(ledger)
        if rows is None:
            rows = self._rows[ledger] = (array("Q"), array("Q"))
        firsts, numbers = rows
        if not firsts or first > firsts[-1]:
            firsts.append(first)
            numbers.append(number)
            return
        at = bisect_left(firsts, first)
        if firsts[at] != first:
            firsts.insert(at, first)
            numbers.insert(at, number)

    def add_notes(self, notes: Iterable[PlacesNote]) -> None:
        for note in notes:
            for first, number in zip(note.firsts, note.numbers, strict=True):
                self.add(note.ledger, first, number)

    def locate(self, ledger: int, entry: int) -> Iterator[int]:
        """The number that has the entry, if any has it, and those that have what follows. Each number once in turn."""
        firsts, numbers = self._rows.get(ledger, ((), ()))
        last = -1
        for at in range(max(bisect_right(firsts, entry) - 1, 0), len(firsts)):
            if (number := numbers[at]) != last:
                last = number
                yield number

    def next_after(self, ledger: int, entry: int) -> int | None:
        """The first entry of the first run above `entry`."""
        firsts, _ = self._rows.get(ledger, ((), ()))
        at = bisect_right(firsts, entry)
        return firsts[at] if at < len(firsts) else None

    def trim(self, ledger: int, first_live: int) -> None:
        """Runs that lie below `first_live` as a whole are forgotten."""
        rows = self._rows.get(ledger)
        if rows is not None and (count := bisect_right(rows[0], first_live) - 1) > 0:
            del rows[0][:count], rows[1][:count]

    def drop(self, ledger: int) -> None:
        self._rows.pop(ledger, None)

    def live_numbers(self, first_live: Callable[[int], int | None]) -> set[int]:
        """The numbers that hold anything live, where `first_live` says from which entry on a ledger lives, if it
        does."""
        found: set[int] = set()
        for ledger, (firsts, numbers) in self._rows.items():
            first = first_live(ledger)
            if first is not None:
                found.update(numbers[max(0, bisect_right(firsts, first) - 1) :])
        return found


class NewPlaces:
    """The places of commits that are in no checkpoint yet."""

    def __init__(self) -> None:
        self._rows: dict[int, PlacesNote] = {}
        self._sizes: dict[int, int] = {}

    def add(self, ledger: int, first: int, number: int) -> None:
        note = self._rows.get(ledger)
        if note is None:
            note = self._rows[ledger] = PlacesNote(ledger, [], [])
        note.firsts.append(first)
        note.numbers.append(number)

    def add_size(self, number: int, size: int) -> None:
        self._sizes[number] = size

    def drop(self, ledger: int) -> None:
        self._rows.pop(ledger, None)

    def taken(self) -> tuple[list[PlacesNote], dict[int, int]]:
        """All of them; what is added from now on is for the checkpoint after."""
        rows, sizes = list(self._rows.values()), self._sizes
        self._rows, self._sizes = {}, {}
        return rows, sizes
