"""Filling a commit: ledger writers copy entries into runs, one per ledger. Data plane: this is the cost of an append.

No object is made per entry: its bytes go to the end of the run's buffer, its place into two arrays. A run whose commit
has been sealed is never changed again, since readers hold views of it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from crc32c import crc32c

from anabranch.errors import unraised
from anabranch.model.position import LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.core.nobody import NOBODY
from anabranch.storage.on_disk.catalog import LogFile
from anabranch.storage.port import (
    Buffer,
    FoldingListener,
    LedgerListener,
    LogError,
    LogFailedError,
    LogFullError,
)

_pack_rest = fmt.RECORD_REST.pack
_pack_crc = fmt.RECORD_CRC.pack
_HEADER = fmt.RECORD_BYTES

# A growing buffer is copied as it grows, which for large entries costs more than copying the entries themselves.
RUN_BYTES_MAX = 256 << 10


class CommitRun:
    """The records of one ledger in one commit, or a part of them: a run is not filled beyond RUN_BYTES_MAX."""

    __slots__ = (
        "buffer",
        "entries_end",
        "first",
        "is_sealed",
        "lengths",
        "messages",
        "offsets",
        "size",
        "state_end",
        "writer",
    )

    def __init__(self, writer: FileLedgerWriter) -> None:
        self.writer = writer
        self.buffer = bytearray()
        # Places of entries only, within the buffer; lengths include the record header.
        self.offsets = array("I")
        self.lengths = array("I")
        self.first = writer.next_entry
        self.entries_end = 0
        self.state_end = 0
        self.size = 0
        # In its entries, once it is sealed.
        self.messages = 0
        self.is_sealed = False


class Commit:
    """A commit being filled, then written, then confirmed."""

    __slots__ = ("at", "began", "file", "flags", "number", "parts", "runs", "size")

    def __init__(self) -> None:
        self.runs: list[CommitRun] = []
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
        """Bytes after the header and its table."""
        return self.size + sum(map(len, self.parts))

    @property
    def end(self) -> int:
        return self.at + fmt.COMMIT_BYTES + fmt.RUN_BYTES * len(self.runs) + self.length


class Filler(Protocol):
    """The log as ledger writers see it."""

    filling: Commit | None
    is_refusing: bool
    is_closing: bool
    commit_bytes_max: int

    def begin(self) -> Commit:
        """The commit to fill; it is sealed at the end of this turn of the loop."""

    def overflow(self) -> None:
        """The commit being filled has reached its limit. This may end the log, and then the writers have their
        error."""

    def broken(self, error: BaseException) -> None:
        """The log is inconsistent: it ends at once, and owners are notified on a later turn of the loop."""


class FileLedgerWriter:
    """The writing end of one ledger, and its state for checkpoints.

    The state is needed for as long as the ledger lives, its owner only until it has heard everything."""

    __slots__ = (
        "_folding",
        "_ledger",
        "_log",
        "bytes",
        "deltas",
        "deltas_bytes",
        "entries_end",
        "error",
        "failure",
        "is_open",
        "listener",
        "messages",
        "namespace",
        "next_entry",
        "next_state",
        "part",
        "run",
        "sealed_end",
        "sealed_messages",
        "snapshot",
        "state_end",
        "told_entries",
        "told_state",
    )

    def __init__(self, log: Filler, ledger: LedgerId, listener: LedgerListener, namespace: str) -> None:
        self._log = log
        self._ledger = ledger
        self.listener = listener
        # Checked once: checking a protocol takes longer than everything else in an append.
        self._folding = listener if isinstance(listener, FoldingListener) else None
        self.namespace = namespace
        self.next_entry = 0
        # The end of the sealed runs: the next run begins here.
        self.sealed_end = 0
        self.entries_end = 0
        self.next_state = 0
        self.state_end = 0
        # What the owner has heard of as confirmed.
        self.told_entries = 0
        self.told_state = 0
        self.bytes = 0
        # In the entries appended so far, and in those of sealed runs.
        self.messages = 0
        self.sealed_messages = 0
        # The state as appended, confirmed or not: a later checkpoint in the log holds the same.
        self.snapshot: bytes | None = None
        self.deltas: list[bytes] = []
        self.deltas_bytes = 0
        # The ledger's checkpoint part, as long as nothing was appended after it was made.
        self.part: bytes | None = None
        self.run: CommitRun | None = None
        self.is_open = True
        # Set when nothing more of the ledger will be confirmed: another broker took it, or the log is over. Its copies
        # are raised: an error that was raised keeps its callers in memory, and this one lives as long as the ledger.
        self.error: LogError | None = None
        # Set when its owner raised an error. Appended records are still confirmed, but the owner is no longer notified.
        self.failure: LogError | None = None

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
        buffer = run.buffer
        at = len(buffer)
        try:
            rest = _pack_rest(size, self._ledger, number, messages, 1)
            buffer += _pack_crc(crc32c(entry, crc32c(rest)))
            buffer += rest
            buffer += entry
            run.offsets.append(at)
            size += _HEADER
            run.lengths.append(size)
            commit = log.filling
            commit.size += size  # type: ignore[union-attr]
        except BaseException as error:
            self._take_back(run, at, number, error)
            raise
        self.next_entry = number + 1
        self.messages += messages
        if commit.size > log.commit_bytes_max:  # type: ignore[union-attr]
            self._overflow()
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
        """Appends as many as fit into the run being filled. Like `append`, with its lookups made once."""
        run = self.run or self._begin()
        log, ledger, number = self._log, self._ledger, self.next_entry
        buffer, note_offset, note_length = run.buffer, run.offsets.append, run.lengths.append
        at = start = len(buffer)
        is_full = False
        try:
            commit = log.filling
            room = log.commit_bytes_max - commit.size  # type: ignore[union-attr]
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
        except BaseException as error:
            self._take_back(run, start, self.next_entry, error)
            raise
        done = number - self.next_entry
        self.next_entry = number
        self.messages += sum(messages if done == len(messages) else messages[:done])
        commit.size = log.commit_bytes_max - room  # type: ignore[union-attr]
        if room < 0:
            self._overflow()
        elif is_full:
            self.sealed(run)
        return done

    def _take_back(self, run: CommitRun, at: int, number: int, why: BaseException) -> None:
        """Undoes an append that failed half-way, whatever the reason: restores the run, or ends the log."""
        count = number - run.first
        commit = self._log.filling
        try:
            del run.buffer[at:], run.offsets[count:], run.lengths[count:]
            if commit is None or run not in commit.runs:
                raise LogFailedError(f"ledger {self._ledger} fills a run that is in no commit")
        except BaseException as error:
            self._log.broken(error)
            raise
        if isinstance(why, struct.error | TypeError | OverflowError):
            raise ValueError(f"ledger {self._ledger} cannot store this: {why}") from why

    def _overflow(self) -> None:
        self._log.overflow()
        if self.error is not None:
            raise unraised(self.error)

    def append_state(self, delta: bytes) -> int:
        return self._append_state(delta, fmt.DELTA)

    def append_snapshot(self, state: bytes) -> int:
        return self._append_state(state, fmt.SNAPSHOT)

    @property
    def is_writing(self) -> bool:
        """Whether this log alone says what the ledger holds: it is neither closed nor lost."""
        return self.is_open and self.error is None

    @property
    def can_fold(self) -> bool:
        return self.is_writing and self._folding is not None

    def fold(self, state: bytes) -> None:
        """`state` replaces all state records so far."""
        self.deltas = []
        self.deltas_bytes = 0
        self.snapshot = state

    def close(self) -> None:
        self.is_open = False
        # The run stays in its commit; without it here, the next append runs into the check.
        self.run = None
        self.let_go_if_told()

    @property
    def is_settled(self) -> bool:
        """Whether the ledger is closed and everything appended to it is confirmed: nothing will change about it."""
        return not self.is_open and (self.entries_end, self.state_end) == (self.next_entry, self.next_state)

    @property
    def has_told_all(self) -> bool:
        """Whether the ledger is closed and its owner has heard that everything appended to it is confirmed."""
        return not self.is_open and (self.told_entries, self.told_state) == (self.next_entry, self.next_state)

    def let_go(self) -> None:
        """The owner hears nothing more, and is not kept in memory."""
        self.listener = NOBODY
        self._folding = None

    def let_go_if_told(self) -> None:
        """Unless the owner is yet to hear of an error."""
        if self.has_told_all and self.error is None and self.failure is None:
            self.let_go()

    def fail(self, error: LogError) -> None:
        """Closes the ledger after its owner raised an error, as if the owner had closed it. The owner is no longer
        notified."""
        self.failure = error
        self.close()

    def encode_part(self) -> bytes:
        """The ledger's checkpoint record, as of everything appended so far. Its run has been sealed.

        If the owner's `snapshot` raises, so does this, with nothing changed.
        """
        if self.part is None:
            state, deltas = self.snapshot, tuple(self.deltas)
            if self._folding is not None and self.can_fold:
                state, deltas = self._folding.snapshot(), ()
            part = fmt.CheckpointPart(
                self.next_entry, self.next_state, self.bytes, self.namespace, state, deltas, self.messages
            )
            record = fmt.encode_record(
                self._ledger, self.next_state, 0, fmt.CHECKPOINT, fmt.encode_part(part)
            )
            if state is not None and not deltas:
                self.fold(state)
            self.part = record
        return self.part

    def sealed(self, run: CommitRun) -> None:
        """The run goes to disk unchanged; the next append starts another."""
        entries = len(run.offsets)
        if (
            run.first != self.sealed_end
            or run.first + entries != self.next_entry
            or entries != len(run.lengths)
        ):
            # Not written: readers would find it as damage, or as another entry than the acknowledged one.
            error = LogFailedError(
                f"ledger {self._ledger}: a run of {entries} entries from {run.first} on does not lead from"
                f" {self.sealed_end} to {self.next_entry}"
            )
            self._log.broken(error)
            raise error
        run.is_sealed = True
        run.entries_end = self.sealed_end = self.next_entry
        run.state_end = self.next_state
        run.size = len(run.buffer)
        run.messages = self.messages - self.sealed_messages
        self.sealed_messages = self.messages
        self.bytes += sum(run.lengths) - _HEADER * entries
        self.run = None

    def lose(self, error: LogError) -> bool:
        """Returns True the first time: the caller then notifies the listener."""
        if self.error is not None:
            return False
        self.error = error
        self.run = None
        return True

    def _append_state(self, data: bytes, kind: int) -> int:
        run = self.run or self._begin()
        number = self.next_state
        at = len(run.buffer)
        log = self._log
        try:
            record = fmt.encode_record(self._ledger, number, 0, kind, data)
            run.buffer += record
            if kind == fmt.SNAPSHOT:
                self.fold(data)
            else:
                self.deltas.append(data)
                self.deltas_bytes += len(data)
            commit = log.filling
            commit.size += len(record)  # type: ignore[union-attr]
        except BaseException as error:
            self._take_back(run, at, self.next_entry, error)
            raise
        self.next_state = number + 1
        if commit.size > log.commit_bytes_max:  # type: ignore[union-attr]
            self._overflow()
        return number

    def _begin(self) -> CommitRun:
        self._check()
        commit = self._log.filling or self._log.begin()
        run = CommitRun(self)
        commit.runs.append(run)
        self.part = None
        self.run = run
        return run

    def _check(self) -> None:
        if self.error is not None:
            raise unraised(self.error)
        if self.failure is not None:
            raise unraised(self.failure)
        if not self.is_open:
            raise LogError(f"ledger {self._ledger} is closed")
        if self._log.is_closing:
            raise LogError("the log is closing")
