"""The numbers of the messages that compaction keeps, as each of its passes found them: sorted, eight bytes each.

The numbers of an only pass stay in memory, where its table just was. If there are several passes, the numbers of each
go to an unnamed temporary file and are mapped: memory need not hold them.
"""

from __future__ import annotations

import mmap
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Sequence


class Survivors:
    def __init__(self) -> None:
        self._runs: list[array[int] | memoryview] = []
        # In each run, the place of the first number not below the last one queried: queries come in rising order.
        self._at: list[int] = []
        self._maps: list[mmap.mmap] = []

    def add(self, packed: array[int], *, is_only: bool) -> None:
        """Adds a run of sorted numbers of eight bytes; no number is in two runs."""
        self._at.append(0)
        if is_only or not packed:
            self._runs.append(packed)
            return
        with tempfile.TemporaryFile(prefix="anabranch-compaction-") as file:
            packed.tofile(file)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        self._runs.append(memoryview(mapped).cast("q"))

    @property
    def runs(self) -> Sequence[array[int] | memoryview]:
        return self._runs

    def flags(self, first: int, count: int) -> bytearray:
        """1 for each kept number from `first` on, for `count` numbers."""
        found = bytearray(count)
        end = first + count
        for n, run in enumerate(self._runs):
            at, size = self._at[n], len(run)
            while at < size and run[at] < end:
                if run[at] >= first:
                    found[run[at] - first] = 1
                at += 1
            self._at[n] = at
        return found

    def has(self, number: int) -> bool:
        """Whether the number is kept; for queries in any order."""
        for run in self._runs:
            at = bisect_left(run, number)
            if at < len(run) and run[at] == number:
                return True
        return False

    def close(self) -> None:
        for run in self._runs:
            if isinstance(run, memoryview):
                run.release()
        for mapped in self._maps:
            mapped.close()
        self._runs, self._maps, self._at = [], [], []
