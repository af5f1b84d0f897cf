"""The recent-entries cache: the committed buffers themselves, evicted whole by commit, oldest first. Data plane.

The budget is exact: a commit counts with its buffers, its arrays and the objects around them. A view that a reader
holds keeps its buffer alive after eviction; that is the reader's memory, bounded by what it may have in flight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from sys import getsizeof

from anabranch.storage.core.format import MESSAGES_AT, RECORD_BYTES, RECORD_CRC
from anabranch.storage.on_disk.commit import CommitRun
from anabranch.storage.port import Entry

_unpack_u32 = RECORD_CRC.unpack_from

# What a run costs besides its buffer and arrays: the run itself and its place in the lists. Measured with tracemalloc
# over commits of one entry, in one ledger and in ten thousand: 335 to 460 bytes.
RUN_OVERHEAD_BYTES = 460


def cost(run: CommitRun) -> int:
    # The allocated size, not the used one: a buffer that grew has up to an eighth to spare.
    return getsizeof(run.buffer) + getsizeof(run.offsets) + getsizeof(run.lengths) + RUN_OVERHEAD_BYTES


class _Recent:
    """One ledger's cached runs. `head` counts runs evicted from the front and not yet cut off."""

    __slots__ = ("firsts", "head", "runs")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.runs: list[CommitRun | None] = []
        self.head = 0


class EntryCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ledgers: dict[int, _Recent] = {}
        self._commits: deque[tuple[int, Sequence[CommitRun]]] = deque()
        self.bytes = 0

    def add(self, runs: Sequence[CommitRun]) -> None:
        """Adds the runs of a confirmed commit; those without entries are not kept."""
        kept = []
        size = 0
        for run in runs:
            if not run.offsets:
                continue
            ledger = run.writer.ledger
            recent = self._ledgers.get(ledger)
            if recent is None:
                recent = self._ledgers[ledger] = _Recent()
            recent.firsts.append(run.first)
            recent.runs.append(run)
            kept.append(run)
            size += cost(run)
        if kept:
            self._commits.append((size, kept))
            self.bytes += size
            while self.bytes > self._bytes_max and self._commits:
                self._evict()

    def _evict(self) -> None:
        size, runs = self._commits.popleft()
        self.bytes -= size
        for run in runs:
            recent = self._ledgers.get(run.writer.ledger)
            if recent is None:
                continue
            # A ledger that was dropped and cached again since then has another run here.
            if recent.head < len(recent.runs) and recent.runs[recent.head] is run:
                recent.runs[recent.head] = None
                recent.head += 1
                if recent.head == len(recent.runs):
                    del self._ledgers[run.writer.ledger]
                elif recent.head > 64 and recent.head * 2 > len(recent.runs):
                    del recent.runs[: recent.head], recent.firsts[: recent.head]
                    recent.head = 0

    def drop(self, ledger: int) -> None:
        """Forgets a ledger; its bytes stay counted until their commit is evicted, because they stay in memory."""
        self._ledgers.pop(ledger, None)

    def read(self, ledger: int, first: int, end: int, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Entries [first, end) as far as limits allow; None if `first` is not cached."""
        recent = self._ledgers.get(ledger)
        if recent is None:
            return None
        at = bisect_right(recent.firsts, first, recent.head) - 1
        if at < recent.head:
            return None
        found: list[Entry] = []
        stop = min(end, first + entries_max)
        runs = recent.runs
        size = 0
        while first < stop and at < len(runs):
            run = runs[at]
            assert run is not None
            buffer, offsets, lengths, base = run.buffer, run.offsets, run.lengths, run.first
            view = memoryview(buffer)
            for i in range(first - base, min(stop - base, len(offsets))):
                length = lengths[i]
                size += length - RECORD_BYTES
                if size > bytes_max and found:
                    return found
                start = offsets[i]
                (messages,) = _unpack_u32(buffer, start + MESSAGES_AT)
                found.append((base + i, messages, view[start + RECORD_BYTES : start + length]))
            first = run.entries_end
            at += 1
        return found
