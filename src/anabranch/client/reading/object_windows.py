"""Data plane. The entries of a plan of objects, window by window as Arrow wants them, or one by one as they are.

A run of such a plan has other records of its ledger among the entries (`columns/mixed_runs.py`). A record that does not
fit into a window as a whole is kept for the next one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from anabranch.client.reading.object_parts import (
    PART_BYTES,
    ObjectParts,
    parts_of,
    source_of,
    stretches_of,
)
from anabranch.model.position import Position
from anabranch.model.wanted import Wanted
from anabranch.storage.core import format as fmt
from anabranch.storage.core.read_plan import PlannedRun, TopicPlan
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import Entry, LogDamagedError

if TYPE_CHECKING:
    from anabranch.columns.records import Located

_HEADER: Final = fmt.RECORD_BYTES
# Requests for little are no smaller than this.
_PART_BYTES_MIN: Final = 256 << 10
_NOT_FOUND: Final = -1


def object_windows(
    plan: TopicPlan, bytes_max: int, wanted: Wanted | None = None, root: str | None = None
) -> Generator[Located]:
    """The entries of one buffer after the other; each result is valid until the next one."""
    from anabranch.columns.records import Walk

    with _parts(plan, root, bytes_max) as parts:
        windows = _Windows(plan, parts, bytes_max)
        while not windows.is_done:
            pieces = windows.fill()
            runs, bad = windows.runs_in(pieces)
            walk = Walk(runs)
            walk.is_in_memory(pieces[-1].stop)
            while not walk.is_done:
                located, is_bad = walk.records(windows.buffer, wanted)
                yield located
                if is_bad:
                    ledger, entry, _, at = walk.at
                    piece = next(one for one in pieces if one.start <= at < one.stop)
                    raise _damaged(plan, piece, ledger, entry, at - piece.start)
            if bad is not None:
                raise bad
            windows.keep_rest()


def object_entries(plan: TopicPlan, root: str | None = None) -> Iterator[tuple[Position, int, memoryview]]:
    """(position, number of messages, bytes) of each entry. Views stay valid while held."""
    with _parts(plan, root, PART_BYTES) as parts:
        for stretch in stretches_of(plan.runs):
            at, stop = stretch[0].offset, stretch[0].offset + stretch[0].length
            rest = memoryview(b"")
            for run in stretch:
                following = _NOT_FOUND
                # What is left of the run before has the beginning of this one, if it has anything.
                is_short = not rest
                while following <= run.last:
                    piece = _Piece(0, run.file, 0, 0, at - len(rest), is_whole=at == stop)
                    if is_short and at < stop:
                        data = parts.take(run.file, at, stop)
                        at += len(data)
                        rest = memoryview(b"".join((rest, data))) if rest else data
                    entries, used, following, is_bad = entries_of(rest, run, following)
                    for number, messages, entry in entries:
                        yield (run.ledger, number), messages, entry
                    if is_bad or (piece.is_whole and following <= run.last):
                        raise _damaged(plan, piece, run.ledger, max(following, run.first), used)
                    rest = rest[used:]
                    is_short = True


def entries_of(view: memoryview, run: PlannedRun, following: int) -> tuple[list[Entry], int, int, bool]:
    """As `mixed_runs.entries_in`, with the entries themselves, each of them checked."""
    found: list[Entry] = []
    at = 0
    while following <= run.last and at + _HEADER <= len(view):
        _, size, ledger, number, _, kind = fmt.RECORD.unpack_from(view, at)
        is_ours, length = ledger == run.ledger, _HEADER + size
        if following == _NOT_FOUND:
            if is_ours and kind == fmt.ENTRY and number == run.first:
                following = run.first
            elif is_ours and kind == fmt.ENTRY and number > run.first:
                return found, at, following, True
        elif not (is_ours and fmt.ENTRY <= kind <= fmt.CHECKPOINT):
            return found, at, following, True
        if at + length > len(view):
            break
        if following != _NOT_FOUND and kind == fmt.ENTRY:
            entry = check_entry(view, at, length, run.ledger, following)
            if entry is None:
                return found, at, following, True
            found.append(entry)
            following += 1
        at += length
    return found, at, following, False


class _Piece(NamedTuple):
    """Bytes of one stretch in the window, and the file that they are of."""

    stretch: int
    file: int
    start: int
    stop: int
    # Where the first of them is in the object.
    offset: int
    # Whether the run ends with them.
    is_whole: bool


class _Windows:
    """A buffer that goes through all runs of a plan, with what is left of a record at its beginning."""

    def __init__(self, plan: TopicPlan, parts: ObjectParts, bytes_max: int) -> None:
        self._plan = plan
        self._parts = parts
        self.buffer = memoryview(bytearray(max(_HEADER, min(bytes_max, plan.size_bytes))))
        self._stretches = stretches_of(plan.runs)
        # The next byte to be read, the run of its stretch that is looked for, and that run's next entry.
        self._at = 0
        self._offset = plan.runs[0].offset if plan.runs else 0
        self._run = 0
        self._following = _NOT_FOUND
        # What is left: that many bytes at the beginning, or for now from another place on.
        self._kept = 0
        self._kept_from = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._stretches)

    def fill(self) -> list[_Piece]:
        """Fills the buffer up; what the pieces of it are."""
        at, start = self._kept, 0
        pieces: list[_Piece] = []
        while not self.is_done and (at < len(self.buffer) or not pieces):
            run = self._stretches[self._at][0]
            stop = run.offset + run.length
            offset = self._offset - (at - start)
            while self._offset < stop and at < len(self.buffer):
                data = self._parts.take(
                    run.file, self._offset, min(stop, self._offset + len(self.buffer) - at)
                )
                self.buffer[at : at + len(data)] = data
                at += len(data)
                self._offset += len(data)
            pieces.append(_Piece(self._at, run.file, start, at, offset, self._offset == stop))
            if self._offset < stop:
                break
            self._begin_next_stretch()
            start = at
        return pieces

    def _begin_next_stretch(self) -> None:
        self._at += 1
        self._offset = 0 if self.is_done else self._stretches[self._at][0].offset

    def runs_in(self, pieces: Sequence[_Piece]) -> tuple[Any, LogDamagedError | None]:
        """The entries in these pieces as runs for a walk, and what is wrong behind them."""
        import numpy as np

        from anabranch.columns.mixed_runs import entries_in
        from anabranch.columns.records import OFFSET, RUN_WIDTH, STOP

        found = [np.empty((0, RUN_WIDTH), np.int64)]
        bad: LogDamagedError | None = None
        self._kept = 0
        for piece in pieces:
            stretch, at = self._stretches[piece.stretch], piece.start
            has_run = True
            while has_run and self._run < len(stretch):
                run = stretch[self._run]
                rows, used, following, is_bad = entries_in(
                    self.buffer[at : piece.stop], run.ledger, run.first, run.last, self._following
                )
                rows[:, [OFFSET, STOP]] += at
                found.append(rows)
                at += used
                has_run = following > run.last
                if is_bad or (piece.is_whole and not has_run):
                    bad = _damaged(self._plan, piece, run.ledger, max(following, run.first), at - piece.start)
                    return np.concatenate(found), bad
                self._following = _NOT_FOUND if has_run else following
                self._run += has_run
            if has_run:
                self._run = 0
                if not piece.is_whole:
                    # What follows in this stretch is not wanted.
                    self._begin_next_stretch()
            else:
                self._kept, self._kept_from = piece.stop - at, at
        return np.concatenate(found), bad

    def keep_rest(self) -> None:
        """Moves what is left to the beginning of the buffer; of a larger one, if it is full of one record."""
        if not self._kept:
            return
        rest = self.buffer[self._kept_from : self._kept_from + self._kept]
        if self._kept == len(self.buffer):
            run = self._stretches[self._at][0]
            record = _HEADER + int.from_bytes(rest[4:8], "little")
            left = self._kept + run.offset + run.length - self._offset
            self.buffer = memoryview(bytearray(min(record, left)))
        # Through a copy: the two may overlap.
        self.buffer[: self._kept] = bytes(rest)


def _parts(plan: TopicPlan, root: str | None, bytes_max: int) -> ObjectParts:
    part_bytes = min(PART_BYTES, max(_PART_BYTES_MIN, bytes_max))
    runs = [stretch[0] for stretch in stretches_of(plan.runs)]
    return ObjectParts(source_of(plan, root), parts_of(runs, part_bytes=part_bytes))


def _damaged(plan: TopicPlan, piece: _Piece, ledger: int, entry: int, used: int) -> LogDamagedError:
    key = plan.files[piece.file]
    return LogDamagedError(ledger, entry, None, f"{plan.root.partition('?')[0]}/{key}", piece.offset + used)
