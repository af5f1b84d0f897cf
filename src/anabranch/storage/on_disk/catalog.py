"""Which file holds which entries. Data plane on the write side: one call per run, one number per entry.

A file's index is packed arrays while it is being written and its own footer, mapped, once it is full. Per ledger the
catalog keeps two numbers a file. Readers look things up from their own threads while the event loop adds: every change
is either an append to an array or the exchange of a whole object, so a reader sees the old state or the new one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from anabranch.model.position import Incarnation
from anabranch.storage.core.format import Footer, FooterRow
from anabranch.storage.core.tiered import TierPlace

# (first entry, offsets, lengths) of consecutive entries.
Places = tuple[int, Sequence[int], Sequence[int]]


class OpenIndex:
    """The index of a file being written, or of one that was scanned because it has no footer."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[int, array[int], array[int]]]] = {}

    def add(self, ledger: int, first: int, base: int, offsets: Sequence[int], lengths: array[int]) -> bool:
        """Adds a run whose buffer lies at `base`; True if it is the ledger's first in this file."""
        rows = self._rows.get(ledger)
        if rows is None:
            self._rows[ledger] = [(first, array("I", [base + one for one in offsets]), array("I", lengths))]
            return True
        start, all_offsets, all_lengths = rows[-1]
        if start + len(all_offsets) != first:
            rows.append((first, array("I", [base + one for one in offsets]), array("I", lengths)))
            return False
        # Lengths first: a reader relies on the number of offsets.
        all_lengths.extend(lengths)
        if len(offsets) == 1:
            all_offsets.append(base + offsets[0])
        else:
            all_offsets.extend([base + one for one in offsets])
        return False

    @staticmethod
    def joined(before: OpenIndex, after: OpenIndex) -> OpenIndex:
        """The index of both: of a file up to some place, and from there on."""
        made = OpenIndex()
        made._rows = {ledger: list(rows) for ledger, rows in before._rows.items()}
        for ledger, rows in after._rows.items():
            have = made._rows.setdefault(ledger, [])
            for first, offsets, lengths in rows:
                if have and have[-1][0] + len(have[-1][1]) == first:
                    start, offsets_before, lengths_before = have[-1]
                    have[-1] = (start, offsets_before + offsets, lengths_before + lengths)
                else:
                    have.append((first, offsets, lengths))
        return made

    @property
    def entry_count(self) -> int:
        return sum(len(offsets) for rows in self._rows.values() for _, offsets, _ in rows)

    def firsts(self) -> Iterator[tuple[int, int]]:
        """The ledger and the first entry of each row."""
        for ledger, rows in list(self._rows.items()):
            for first, _, _ in rows:
                yield ledger, first

    def footer_rows(self) -> Iterator[FooterRow]:
        for ledger, rows in self._rows.items():
            for first, offsets, lengths in rows:
                yield FooterRow(ledger, first, offsets, lengths)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        for ledger, rows in list(self._rows.items()):
            for first, offsets, lengths in rows:
                yield ledger, first, len(offsets), sum(lengths)

    def places(self, ledger: int, entry: int, count_max: int) -> Places | None:
        for first, offsets, lengths in self._rows.get(ledger, ()):
            start = entry - first
            if 0 <= start < len(offsets):
                stop = start + count_max
                return entry, offsets[start:stop], lengths[start:stop]
        return None

    def next_after(self, ledger: int, entry: int) -> int | None:
        return min((first for first, _, _ in self._rows.get(ledger, ()) if first > entry), default=None)


class FooterIndex:
    """The index of a full file: its footer."""

    def __init__(self, footer: Footer) -> None:
        self._footer = footer

    def firsts(self) -> Iterator[tuple[int, int]]:
        return ((ledger, first) for ledger, first, _, _ in self._footer)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        return iter(self._footer)

    def places(self, ledger: int, entry: int, count_max: int) -> Places | None:
        footer = self._footer
        for index in footer.rows_of(ledger):
            _, first, count, _ = footer.row(index)
            start = entry - first
            if 0 <= start < count:
                return entry, *footer.places(index, start, min(count, start + count_max))
        return None

    def next_after(self, ledger: int, entry: int) -> int | None:
        rows = (self._footer.row(index)[1] for index in self._footer.rows_of(ledger))
        return min((first for first in rows if first > entry), default=None)


class LogFile:
    """One file of the log, of this incarnation or another, or a rewritten one."""

    __slots__ = (
        "damage",
        "disk_bytes",
        "id",
        "incarnation",
        "index",
        "is_finished",
        "is_rewritten",
        "number",
        "path",
        "place",
    )

    def __init__(
        self, path: Path, number: int, incarnation: Incarnation | None, *, is_rewritten: bool = False
    ) -> None:
        self.path = path
        self.number = number
        # None for a rewritten file, which may hold ledgers of several.
        self.incarnation = incarnation
        self.is_rewritten = is_rewritten
        self.index: OpenIndex | FooterIndex = OpenIndex()
        # Full, and its index is durable: nothing will be added.
        self.is_finished = False
        self.disk_bytes = 0
        # Offsets of commits that could not be read when the file was scanned.
        self.damage: list[int] = []
        # The object that has the bytes, if they were moved; `path` is the index file then.
        self.place: TierPlace | None = None
        self.id = -1

    @property
    def generation(self) -> int:
        """How often its entries have been rewritten, in effect: of two copies the higher generation counts. 0 is the
        log."""
        return int(self.path.name.partition("-")[0]) if self.is_rewritten else 0

    def outranks(self, other: LogFile) -> bool:
        """Whether this copy counts, of two of the same entries: rewritten later, or moved."""
        return (self.generation, self.place is not None) > (other.generation, other.place is not None)


class Catalog:
    """Every known file, and per ledger the files that hold it, in order of entries."""

    def __init__(self) -> None:
        self.files: dict[int, LogFile] = {}
        self._next_id = 0
        # Counts exchanges of files: a lookup that found nothing while an exchange took place is repeated.
        self._exchanges = 0
        # ledger -> the first entry in a file and the file's id, for each file in turn. One tuple of numbers, exchanged
        # whole: a topic that moves between brokers begins a ledger with each move, and every file keeps its rows.
        self._ledgers: dict[int, tuple[int, ...]] = {}

    def add_file(self, file: LogFile) -> None:
        file.id = self._next_id
        self._next_id += 1
        self.files[file.id] = file

    def add_row(self, ledger: int, first: int, file: LogFile) -> None:
        """Entries of `ledger` from `first` on are in `file`. Calls for a ledger being written come in entry order."""
        have = self._ledgers.get(ledger, ())
        at = len(have) if not have or first >= have[-2] else 2 * bisect_left(have[::2], first)
        self._ledgers[ledger] = (*have[:at], first, file.id, *have[at:])

    def add_indexed(self, file: LogFile) -> None:
        """Adds a file together with everything its index names."""
        self.add_file(file)
        for ledger, first in file.index.firsts():
            self.add_row(ledger, first, file)

    def remove(self, files: Iterable[LogFile]) -> None:
        """Removes files, and the ledgers' rows in them."""
        self._exchanges += 1
        gone = {file.id for file in files if file.id in self.files}
        touched = {ledger for one in gone for ledger, _ in self.files[one].index.firsts()}
        for ledger in touched:
            have = self._ledgers.get(ledger)
            if have is None:
                continue
            kept = [row for row in zip(have[::2], have[1::2], strict=True) if row[1] not in gone]
            if kept:
                self._ledgers[ledger] = tuple(chain.from_iterable(kept))
            else:
                del self._ledgers[ledger]
        for one in gone:
            del self.files[one]

    def clear(self) -> None:
        """Drops every file and its mapped footer."""
        for file in self.files.values():
            file.index = OpenIndex()
        self.files = {}
        self._ledgers = {}

    def files_of(self, ledger: int) -> list[LogFile]:
        have = self._ledgers.get(ledger, ())
        found = [self.files.get(one) for one in have[1::2]]
        return [file for file in found if file is not None]

    def locate(self, ledger: int, entry: int, count_max: int) -> tuple[LogFile, Places] | None:
        """The file with `entry` and the places of it and its followers there; None if no file has it."""
        while True:
            exchanges = self._exchanges
            found = self._locate(ledger, entry, count_max)
            if found is not None or exchanges == self._exchanges:
                return found

    def _locate(self, ledger: int, entry: int, count_max: int) -> tuple[LogFile, Places] | None:
        have = self._ledgers.get(ledger, ())
        # After a crash between a rewrite and the removal of its sources, files may overlap: either copy is good.
        for at in range(bisect_right(have[::2], entry) - 1, -1, -1):
            file = self.files.get(have[2 * at + 1])
            if file is not None and (places := file.index.places(ledger, entry, count_max)) is not None:
                return file, places
        return None

    def next_after(self, ledger: int, entry: int) -> int | None:
        """The first entry above `entry` that some file has: reading can continue there after a gap."""
        found = [file.index.next_after(ledger, entry) for file in self.files_of(ledger)]
        return min((one for one in found if one is not None), default=None)
