"""`survey.Compactor` by compiled kernels, where Numba and pyarrow are installed: the same results, many times faster.

Python handles each entry of which only some messages are left, and those that kernels cannot read: pieces of large
messages, and encrypted or malformed entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from anabranch.broker.compaction.entries import DROP, EMPTY_SLOT, KEEP, Looked, look, rebuilt, rebuilt_from
from anabranch.broker.compaction.kept import Survivors
from anabranch.broker.compaction.pieces import Pieces
from anabranch.broker.compaction.survey import InputChangedError
from anabranch.columns.compaction import (
    Flags,
    KeyTable,
    OpenedEntries,
    groups,
    mark_keyless,
    open_entries,
    without,
)
from anabranch.wire.frames import Buffer

# 24 bytes each, three quarters of them in use: three million keys in a hundred megabytes.
SLOTS_MAX: Final = 1 << 22


class FastCompactor:
    def __init__(self, *, secret: bytes, slots_max: int = SLOTS_MAX, keeps_keyless: bool = False) -> None:
        self._table = KeyTable(secret, slots_max)
        self._keeps_keyless = keeps_keyless
        self._next = 0
        self._slots = -1
        self._kept = Survivors()
        self._pieces = Pieces()
        self.passes = 0
        self.removed = 0

    # -- finding the latest messages

    def survey(self, entries: Sequence[Buffer]) -> None:
        for first, stop in groups(entries):
            self._survey(entries[first:stop])

    def _survey(self, entries: Sequence[Buffer]) -> None:
        opened = open_entries(entries)
        odd = np.flatnonzero(opened.plain == 0).tolist()
        if not odd:
            self._table.note(opened, self._next)
            self._next += opened.total
            return
        # In order: entries for Python lie between entries for kernels.
        for first, stop in _runs(odd, len(entries)):
            if stop - first == 1 and not opened.plain[first]:
                self._survey_odd(entries[first])
            else:
                part = open_entries(entries[first:stop])
                self._table.note(part, self._next)
                self._next += part.total

    def _survey_odd(self, entry: Buffer) -> None:
        looked, keys = self._look(entry)
        if looked.piece_of is not None:
            self._pieces.note(looked, self._next)
        for hash_, is_deleted in looked.slots:
            if hash_ >= 0:
                key = next(keys)
                if looked.piece_of is None or looked.is_last_piece:
                    self._table.put(key, self._next, is_deleted=is_deleted)
            self._next += 1

    def _look(self, entry: Buffer) -> tuple[Looked, Iterator[bytes]]:
        """The slots of an entry, and the keys of its messages that have one."""
        keys: list[bytes] = []

        def seen(key: bytes) -> int:
            keys.append(key)
            return 0

        return look(entry, seen, keeps_keyless=self._keeps_keyless), iter(keys)

    def end_pass(self) -> bool:
        if self._slots < 0:
            self._slots = self._next
        self._check_count()
        self._pieces.end_pass()
        self.passes += 1
        latest, is_done = self._table.end_pass()
        packed = array("q")
        packed.frombytes(latest.tobytes())
        self._kept.add(packed, is_only=is_done and self.passes == 1)
        return is_done

    # -- removing the others

    def compact(self, entries: Sequence[Buffer]) -> list[Buffer | None]:
        return [left for first, stop in groups(entries) for left in self._compact(entries[first:stop])]

    def _compact(self, entries: Sequence[Buffer]) -> list[Buffer | None]:
        opened = open_entries(entries)
        odd = np.flatnonzero(opened.plain == 0).tolist()
        if not odd:
            return self._compact_plain(entries, opened)
        left: list[Buffer | None] = []
        for first, stop in _runs(odd, len(entries)):
            some = entries[first:stop]
            if stop - first == 1 and not opened.plain[first]:
                left.append(self._compact_odd(some[0]))
            else:
                left += self._compact_plain(some, open_entries(some))
        return left

    def _compact_plain(self, entries: Sequence[Buffer], opened: OpenedEntries) -> list[Buffer | None]:
        flags = self._flags(opened)
        kept = np.add.reduceat(flags, opened.starts, dtype=np.int64)
        self.removed += opened.messages - int(kept.sum())
        self._next += opened.total
        left: list[Buffer | None] = list(entries)
        for place in np.flatnonzero(kept == 0).tolist():
            left[place] = None
        for place in np.flatnonzero((kept > 0) & (kept < opened.slots)).tolist():
            start = int(opened.starts[place])
            own = flags[start : start + int(opened.slots[place])]
            payload = without(opened, place, own, EMPTY_SLOT)
            left[place] = rebuilt_from(entries[place], payload, np.flatnonzero(own).tolist())
        return left

    def _flags(self, opened: OpenedEntries) -> Flags:
        """1 for each slot that is kept, as far as kernels can tell."""
        flags = np.zeros(opened.total, np.uint8)
        end = self._next + opened.total
        for run in self._kept.runs:
            numbers = np.frombuffer(run, np.int64)
            low, high = np.searchsorted(numbers, (self._next, end)).tolist()
            flags[numbers[low:high] - self._next] = 1
        mark_keyless(opened, flags, is_kept=self._keeps_keyless)
        return flags

    def _compact_odd(self, entry: Buffer) -> Buffer | None:
        """Compacts an entry that kernels could not read. Python may read more than they do: it may find a whole
        batch."""
        looked, _ = self._look(entry)
        if looked.piece_of is not None:
            last = self._pieces.end_of(looked)
            flags = [last == KEEP or (last >= 0 and self._kept.has(last))]
        else:
            flags = [
                self._kept.has(number) if hash_ >= 0 else hash_ != DROP
                for number, (hash_, _) in enumerate(looked.slots, self._next)
            ]
        self._next += len(flags)
        self.removed += len(flags) - sum(flags)
        return rebuilt(entry, flags)

    def finish(self) -> None:
        self._check_count()
        self._kept.close()

    def _check_count(self) -> None:
        if self._next != self._slots:
            raise InputChangedError(
                f"a pass found {self._next} messages and the first one {self._slots}: the topic was changed meanwhile"
            )
        self._next = 0


def _runs(odd: list[int], count: int) -> list[tuple[int, int]]:
    """[0, count) cut so that each odd place is a range of its own."""
    found = []
    at = 0
    for place in odd:
        if at < place:
            found.append((at, place))
        found.append((place, place + 1))
        at = place + 1
    if at < count:
        found.append((at, count))
    return found
