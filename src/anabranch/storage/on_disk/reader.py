"""Reading entries from storage. Data plane; blocking, on a reader thread, never on the event loop.

Records that lie close together are read in one call. Every record is checked: its checksum, its ledger and its entry
id, so a wrong index gives an error and never another topic's data.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from anabranch.storage.core import format as fmt
from anabranch.storage.core.tiered import FarEntries
from anabranch.storage.on_disk.catalog import Catalog, FooterIndex, LogFile
from anabranch.storage.on_disk.files import Files
from anabranch.storage.port import Entry, FileRun, LogDamagedError, LogMissingError

# Gaps up to this long, filled by other ledgers' records, are read over rather than around.
_GAP_BYTES_MAX = 64 << 10
# One call to the disk reads at most this (or one entry).
_SPAN_BYTES_MAX = 4 << 20
# How many records after a bad one are tried, to find the next readable one.
_PROBES_MAX = 10_000

_unpack = fmt.RECORD.unpack_from
_HEADER = fmt.RECORD_BYTES


class FileReader:
    def __init__(self, files: Files, catalog: Catalog) -> None:
        self._files = files
        self._catalog = catalog

    def read(
        self, ledger: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[Entry] | FarEntries:
        """Entries from `first` on, as far as one file and the limits go; or where they are, if the file was moved."""
        for _ in range(3):
            located = self._catalog.locate(ledger, first, min(end - first, entries_max))
            if located is None:
                raise self._absent(ledger, first, end)
            file, (_, offsets, lengths) = located
            count = _within(lengths, bytes_max)
            if file.place is not None:
                rest = file.index.places(ledger, first, end - first)
                assert rest is not None
                ledger_end = rest[1][-1] + rest[2][-1]
                return FarEntries(file.place, ledger, first, offsets[:count], lengths[:count], ledger_end)
            try:
                fd = self._files.open(file.path)
            except FileNotFoundError:
                # The file was rewritten since it was looked up: its entries are in another file by now.
                continue
            try:
                return self._read_file(fd, file, ledger, first, offsets[:count], lengths[:count])
            finally:
                self._files.close(fd)
        raise LogMissingError(f"ledger {ledger} entry {first}: its file is gone")

    def _read_file(
        self, fd: int, file: LogFile, ledger: int, first: int, offsets: Sequence[int], lengths: Sequence[int]
    ) -> list[Entry]:
        found: list[Entry] = []
        at = 0
        while at < len(offsets):
            stop = span_end(offsets, lengths, at)
            base = offsets[at]
            view = memoryview(self._files.read(fd, offsets[stop - 1] + lengths[stop - 1] - base, base))
            for i in range(at, stop):
                entry = check_entry(view, offsets[i] - base, lengths[i], ledger, first + i)
                if entry is None:
                    if found:
                        return found
                    raise self._damaged(fd, file, ledger, first, offsets[i])
                found.append(entry)
            at = stop
        return found

    def next_far(self, ledger: int, bad: int) -> int | None:
        """Where reading may go on behind a damaged entry of a moved file: it is not read to find out."""
        located = self._catalog.locate(ledger, bad + 1, 1)
        return bad + 1 if located is not None else self._catalog.next_after(ledger, bad)

    def _damaged(self, fd: int, file: LogFile, ledger: int, bad: int, offset: int) -> LogDamagedError:
        return LogDamagedError(ledger, bad, self._next_good(fd, file, ledger, bad), str(file.path), offset)

    def _next_good(self, fd: int, file: LogFile, ledger: int, bad: int) -> int | None:
        places = file.index.places(ledger, bad + 1, _PROBES_MAX)
        if places is not None:
            first, offsets, lengths = places
            for i, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
                if check_entry(
                    memoryview(self._files.read(fd, length, offset)), 0, length, ledger, first + i
                ):
                    return first + i
            bad = first + len(offsets) - 1
        return self._catalog.next_after(ledger, bad)

    def _absent(self, ledger: int, first: int, end: int) -> LogMissingError | LogDamagedError:
        """The error for entries that no index has: damage hid them when the log was recovered, or they never
        existed."""
        files = self._catalog.files_of(ledger)
        damaged = next(((file, at) for file in files for at in file.damage), None)
        following = self._catalog.next_after(ledger, first)
        if damaged is not None:
            next_good = following if following is not None and following < end else None
            return LogDamagedError(ledger, first, next_good, str(damaged[0].path), damaged[1])
        return LogMissingError(f"ledger {ledger} has no entry {first}")

    def runs(self, ledger: int, first: int, end: int) -> list[tuple[LogFile, FileRun]]:
        """Where entries [first, end) lie, for readers that read the files themselves."""
        found = []
        while first < end:
            located = self._catalog.locate(ledger, first, end - first)
            if located is None:
                raise self._absent(ledger, first, end)
            file, (_, offsets, lengths) = located
            # Views of the index, not copies: there may be as many entries as messages.
            has_index = isinstance(file.index, FooterIndex)
            found.append((file, FileRun(str(file.path), first, offsets, lengths, has_index)))
            first += len(offsets)
        return found


def _within(lengths: Sequence[int], bytes_max: int) -> int:
    """How many entries fit; the first always does."""
    size = 0
    for count, length in enumerate(lengths):
        size += length - _HEADER
        if size > bytes_max and count:
            return count
    return len(lengths)


def span_end(offsets: Sequence[int], lengths: Sequence[int], at: int) -> int:
    """One past the last record to be read together with the one at `at`."""
    start = offsets[at]
    end = start + lengths[at]
    for i in range(at + 1, len(offsets)):
        stop = offsets[i] + lengths[i]
        # Offsets grow within a file, but may not in a damaged index.
        if not 0 <= offsets[i] - end <= _GAP_BYTES_MAX or stop - start > _SPAN_BYTES_MAX:
            return i
        end = stop
    return len(offsets)


def check_entry(view: memoryview, at: int, length: int, ledger: int, number: int) -> Entry | None:
    """The entry at `at`, or None if the bytes there are not this entry of this ledger."""
    if at + length > len(view) or length < _HEADER:
        return None
    crc, size, is_of, has_number, messages, kind = _unpack(view, at)
    if is_of != ledger or has_number != number or kind != fmt.ENTRY or size + _HEADER != length:
        return None
    if crc32c(view[at + 4 : at + length]) != crc:
        return None
    return number, messages, view[at + _HEADER : at + length]
