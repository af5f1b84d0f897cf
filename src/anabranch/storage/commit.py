"""Filling a commit: ledger writers copy entries into runs, one per ledger. Data plane: this is the cost of an append.

No object is made per entry: its bytes go to the end of the run's buffer, its place into two arrays. A run whose commit
has been sealed is never changed again, since readers hold views of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from crc32c import crc32c

from anabranch.model.position import LedgerId
from anabranch.storage import format as fmt
from anabranch.storage.catalog import LogFile
from anabranch.storage.port import Buffer, FoldingListener, LedgerListener, LogError, LogFullError

_pack_rest = fmt.RECORD_REST.pack
_pack_crc = fmt.RECORD_CRC.pack
_HEADER = fmt.RECORD_BYTES

# A growing buffer is copied as it grows, which for large entries costs more than the entries themselves.
RUN_BYTES_MAX = 256 << 10


class Run:
    """What one ledger has in one commit, or a part of that: a run is not filled beyond RUN_BYTES_MAX."""

    __slots__ = (
        "buffer",
        "entries_end",
        "first",
        "is_sealed",
        "lengths",
        "offsets",
        "size",
        "state_end",
        "writer",
    )

    def __init__(self, writer: FileLedgerWriter) -> None:
        self.writer = writer
        self.buffer = bytearray()
        # Of the entries only, within the buffer; lengths include the record header.
        self.offsets = array("I")
        self.lengths = array("I")
        self.first = writer.next_entry
        self.entries_end = 0
        self.state_end = 0
        self.size = 0
        self.is_sealed = False


class Commit:
    """A commit being filled, then written, then confirmed."""

    __slots__ = ("at", "began", "file", "flags", "number", "parts", "runs", "size")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.began = perf_counter()
        # Checkpoint parts: encoded records, written behind all runs because they describe what is in them.
        self.parts: list[bytes] = []
        # Bytes of the runs.
        self.size = 0
        self.flags = 0
        self.number = 0
        self.at = 0
        self.file: LogFile | None = None

    @property
    def length(self) -> int:
        """Bytes behind the header and its table."""
        return self.size + sum(map(len, self.parts))

    @property
    def end(self) -> int:
        return self.at + fmt.COMMIT_BYTES + fmt.RUN_BYTES * len(self.runs) + self.length


class Filler(Protocol):
    """The log, as its writers see it."""

    filling: Commit | None
    is_refusing: bool
    is_closing: bool
    commit_bytes_max: int

    def begin(self) -> Commit:
        """A commit to fill, to be sealed at the end of this turn of the loop."""

    def overflow(self) -> None:
        """The commit being filled has reached its limit."""


class FileLedgerWriter:
    """The writing end of one ledger, and what checkpoints need to know of it."""

    __slots__ = (
        "_folding",
        "_ledger",
        "_log",
        "bytes",
        "deltas",
        "deltas_bytes",
        "entries_end",
        "error",
        "is_open",
        "listener",
        "namespace",
        "next_entry",
        "next_state",
        "part",
        "run",
        "snapshot",
        "state_end",
    )

    def __init__(self, log: Filler, ledger: LedgerId, listener: LedgerListener, namespace: str) -> None:
        self._log = log
        self._ledger = ledger
        self.listener = listener
        # Asked once: checking a protocol takes longer than everything else an append does.
        self._folding = listener if isinstance(listener, FoldingListener) else None
        self.namespace = namespace
        self.next_entry = 0
        self.entries_end = 0
        self.next_state = 0
        self.state_end = 0
        self.bytes = 0
        # The state as appended, confirmed or not: what a checkpoint that follows in the log will say.
        self.snapshot: bytes | None = None
        self.deltas: list[bytes] = []
        self.deltas_bytes = 0
        # The ledger's checkpoint part, as long as nothing was appended after it was made.
        self.part: bytes | None = None
        self.run: Run | None = None
        self.is_open = True
        self.error: LogError | None = None

    @property
    def ledger(self) -> LedgerId:
        return self._ledger

    def append(self, entry: Buffer, messages: int) -> int:
        log = self._log
        if log.is_refusing:
            self._check()
            raise LogFullError("the disk is full up to its reserve: publishing resumes when space is freed")
        run = self.run or self._begin()
        number = self.next_entry
        size = len(entry)
        if run.buffer and len(run.buffer) + size > RUN_BYTES_MAX:
            self.sealed(run)
            run = self._begin()
        rest = _pack_rest(size, self._ledger, number, messages, 1)
        buffer = run.buffer
        run.offsets.append(len(buffer))
        buffer += _pack_crc(crc32c(entry, crc32c(rest)))
        buffer += rest
        buffer += entry
        self.next_entry = number + 1
        size += 32
        run.lengths.append(size)
        commit = log.filling
        commit.size += size  # type: ignore[union-attr]
        if commit.size > log.commit_bytes_max:  # type: ignore[union-attr]
            log.overflow()
        return number

    def append_many(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        if self._log.is_refusing:
            self._check()
            raise LogFullError("the disk is full up to its reserve: publishing resumes when space is freed")
        first = self.next_entry
        done = self._append_some(entries, messages)
        while done < len(entries):
            done += self._append_some(entries[done:], messages[done:])
        return first

    def _append_some(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        """As many as the run being filled takes. `append` with its lookups made once."""
        run = self.run or self._begin()
        log, ledger, number = self._log, self._ledger, self.next_entry
        buffer, note_offset, note_length = run.buffer, run.offsets.append, run.lengths.append
        commit = log.filling
        assert commit is not None
        room = log.commit_bytes_max - commit.size
        at = len(buffer)
        is_full = False
        for entry, count in zip(entries, messages, strict=True):
            size = len(entry)
            if at and at + size > RUN_BYTES_MAX:
                is_full = True
                break
            rest = _pack_rest(size, ledger, number, count, 1)
            note_offset(at)
            buffer += _pack_crc(crc32c(entry, crc32c(rest)))
            buffer += rest
            buffer += entry
            size += _HEADER
            note_length(size)
            at += size
            number += 1
            room -= size
            if room < 0:
                break
        done = number - self.next_entry
        self.next_entry = number
        commit.size = log.commit_bytes_max - room
        if room < 0:
            log.overflow()
        elif is_full:
            self.sealed(run)
        return done

    def append_state(self, delta: bytes) -> int:
        number = self._append_state(delta, fmt.DELTA)
        self.deltas.append(delta)
        self.deltas_bytes += len(delta)
        return number

    def append_snapshot(self, state: bytes) -> int:
        number = self._append_state(state, fmt.SNAPSHOT)
        self.fold(state)
        return number

    @property
    def can_fold(self) -> bool:
        return self.is_open and self._folding is not None

    def fold(self, state: bytes) -> None:
        """`state` says what all records so far say."""
        self.snapshot = state
        self.deltas = []
        self.deltas_bytes = 0

    def close(self) -> None:
        self.is_open = False
        # The run stays in its commit; without it here, the next append meets the check.
        self.run = None

    def encode_part(self) -> bytes:
        """The ledger's checkpoint record, as of everything appended so far. Its run has been sealed."""
        if self.part is None:
            assert self.run is None
            if self.can_fold:
                assert self._folding is not None
                self.fold(self._folding.snapshot())
            part = fmt.Part(
                self.next_entry,
                self.next_state,
                self.bytes,
                self.namespace,
                self.snapshot,
                tuple(self.deltas),
            )
            self.part = fmt.encode_record(
                self._ledger, self.next_state, 0, fmt.CHECKPOINT, fmt.encode_part(part)
            )
        return self.part

    def sealed(self, run: Run) -> None:
        """The run goes to disk as it is; the next append starts another."""
        run.is_sealed = True
        run.entries_end = self.next_entry
        run.state_end = self.next_state
        run.size = len(run.buffer)
        self.bytes += sum(run.lengths) - _HEADER * len(run.lengths)
        self.run = None

    def lose(self, error: LogError) -> bool:
        """True the first time: the caller then tells the listener."""
        if self.error is not None:
            return False
        self.error = error
        self.run = None
        return True

    def _append_state(self, data: bytes, kind: int) -> int:
        run = self.run or self._begin()
        number = self.next_state
        record = fmt.encode_record(self._ledger, number, 0, kind, data)
        run.buffer += record
        self.next_state = number + 1
        log = self._log
        commit = log.filling
        assert commit is not None
        commit.size += len(record)
        if commit.size > log.commit_bytes_max:
            log.overflow()
        return number

    def _begin(self) -> Run:
        self._check()
        commit = self._log.filling or self._log.begin()
        run = self.run = Run(self)
        commit.runs.append(run)
        self.part = None
        return run

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.is_open:
            raise LogError(f"ledger {self._ledger} is closed")
        if self._log.is_closing:
            raise LogError("the log is closing")
