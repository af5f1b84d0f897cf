"""Reads a topic's entries from the log's files or objects, without its broker. Data plane; blocking, in the caller's
thread.

    for piece in record_batches(planner, start, end):     # planner(start, end) -> TopicPlan, from the topic's owner
        piece.batch, piece.end                            # messages as Arrow; one past the last entry in it

    for position, messages, data in entries(planner, start, end): …      # the entries as they are, without Arrow

All of [start, end) is returned, in order and once, or an error is raised: missing or damaged data is never skipped.
Files are read, not mapped: a failing disk raises an error here, where a mapping would end the process, and a reused
buffer stays in the processor's caches. All files of a plan are opened before the first is read, because an open file
outlives its name. Objects do not: one that is gone is planned again (`object_windows.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from anabranch.client.reading.failures import (
    DataLostError,
    DirectReadError,
    FilesUnreachableError,
    NeedsClientError,
    PlanOutdatedError,
)
from anabranch.errors import AnabranchError
from anabranch.model.position import Position
from anabranch.model.wanted import Wanted
from anabranch.storage.core.read_plan import PlannedRun, TopicPlan, position_text, runs_of
from anabranch.storage.on_disk.catalog import FooterIndex
from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.on_disk.indexing import load_file
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import LogDamagedError, LogMissingError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import metadata_span
from anabranch.wire.sizes import UNPACKED_BYTES_MAX
from anabranch.wire.stamps import span_of

if TYPE_CHECKING:
    from anabranch.columns import Pool
    from anabranch.columns.records import Located

# How much is read before it is decoded, unless one record is longer.
WINDOW_BYTES: Final = 4 << 20
# Other ledgers' records up to this length are read along rather than skipped.
_GAP_BYTES_MAX: Final = 16 << 10
_HEADER: Final = 32
# Of a record's header: its ledger and its number, and the kind that entries have.
_RECORD_NAMES: Final = Struct("<8xqq").unpack_from
_ENTRY_KIND: Final = (1).to_bytes(4, "little")
# How much of a record tells whose messages it has, and from which length on it is worth looking there first.
_HEAD_BYTES: Final = 1 << 10
_RECORD_BYTES_MIN: Final = 16 << 10
# How many plans in a row may be outdated before any of them could be read.
_PLANS_MAX: Final = 5

# Plans from the first position to before the second. None means the first entry kept, and the confirmed end.
Planner = Callable[[Position | None, Position | None], TopicPlan]


class ReadPiece(NamedTuple):
    """The messages of the entries from one position to before another. Nothing else was ever between the two."""

    batch: Any  # pa.RecordBatch of anabranch.columns.SCHEMA
    start: Position
    end: Position


class EntryFacts(NamedTuple):
    """What entries state about themselves: their positions, numbers of messages and bytes, and times."""

    positions: list[Position]
    messages: list[int]
    bytes: list[int]
    times_ms: list[int]
    end: Position


Entry = tuple[Position, int, memoryview]


def record_batches(
    planner: Planner,
    start: Position | None,
    end: Position | None,
    *,
    pool: Pool | None = None,
    bytes_max: int = WINDOW_BYTES,
    rows_max: int = 1 << 20,
    versions: bool = False,
    may_lose: bool = False,
    may_pass_end: bool = False,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    wanted: Wanted | None = None,
    root: str | None = None,
) -> Iterator[ReadPiece]:
    """The messages of [start, end). No batch exceeds the limits, except a batch of one entry.

    With `wanted`, only the messages of some entry buckets come. Entries that have none of these are not unpacked, and
    need no client; pieces may be empty.
    With `versions` there is one more column: the version of the schema that each message was written with.

    Without a start, reading starts at the first entry kept; without an end, it ends at the end confirmed when it
    begins. With `may_pass_end`, it ends there too if the given end lies behind that.
    An entry that unpacks to more than `unpacked_bytes_max`, and to more than its broker stores, raises OversizePayload.
    `root` is the path of the log's folder here, if it differs from the broker's.
    """
    from anabranch.columns import Pool

    shared = pool or Pool()

    def read(plan: TopicPlan) -> Iterator[ReadPiece]:
        return plan_batches(
            plan,
            shared,
            bytes_max=bytes_max,
            rows_max=rows_max,
            versions=versions,
            unpacked_bytes_max=unpacked_bytes_max,
            wanted=wanted,
            root=root,
        )

    return _follow(planner, start, end, read, lambda piece: piece.end, may_lose, may_pass_end)


def entries(
    planner: Planner,
    start: Position | None,
    end: Position | None,
    *,
    may_lose: bool = False,
    root: str | None = None,
) -> Iterator[Entry]:
    """(position, number of messages, bytes) of each entry of [start, end). Views stay valid while held."""

    def read(plan: TopicPlan) -> Iterator[Entry]:
        return plan_entries(plan, root=root)

    return _follow(planner, start, end, read, lambda one: (one[0][0], one[0][1] + 1), may_lose)


def facts(
    planner: Planner,
    start: Position | None,
    end: Position | None,
    *,
    may_lose: bool = False,
    may_pass_end: bool = False,
    root: str | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[EntryFacts]:
    """What the entries of [start, end) state about themselves, about `window_bytes` at a time. Raises NeedsClientError
    at a chunk of a message."""

    def read(plan: TopicPlan) -> Iterator[EntryFacts]:
        return plan_facts(plan, root=root, window_bytes=window_bytes)

    return _follow(planner, start, end, read, lambda some: some.end, may_lose, may_pass_end)


def _follow(
    planner: Planner,
    start: Position | None,
    end: Position | None,
    read: Callable[[TopicPlan], Iterator[Any]],
    behind: Callable[[Any], Position],
    may_lose: bool,
    may_pass_end: bool = False,
) -> Iterator[Any]:
    """Plans, reads, and plans again where a plan ended or its files are gone."""
    plans, missing = 0, ""
    while start is None or end is None or start < end:
        plan = planner(start, end)
        start = plan.start
        if end is None or (may_pass_end and end > plan.log_end):
            end = plan.log_end
        if plan.has_lost and not may_lose:
            raise DataLostError(plan)
        plans += 1
        try:
            for one in read(plan):
                yield one
                start = behind(one)
                plans, missing = 0, ""
        except PlanOutdatedError as error:
            if error.path == missing:
                # The broker has that file: it never names a file again that it has rewritten or deleted.
                where = "object store" if plan.in_objects else "folder"
                raise FilesUnreachableError(
                    f"{missing} is named again and is not here: this is not the {where} of {plan.topic}'s broker"
                ) from error
            missing = error.path
            if plans == _PLANS_MAX:
                raise
            continue
        if plan.end < end and plan.end >= plan.log_end:
            raise LogMissingError(
                f"{plan.topic} is confirmed up to {position_text(plan.log_end)}, and {position_text(end)} was asked for"
            )
        if plan.end <= start and not plan.runs and plan.end < end:
            raise LogMissingError(f"{plan.topic}: no entry from {position_text(start)} on was planned")
        start = plan.end


# -- one plan


def plan_batches(
    plan: TopicPlan,
    pool: Pool,
    *,
    bytes_max: int,
    rows_max: int,
    versions: bool = False,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    wanted: Wanted | None = None,
    root: str | None = None,
) -> Iterator[ReadPiece]:
    unpacked_bytes_max = max(unpacked_bytes_max, plan.message_bytes_max)
    with closing(_windows(plan, root, bytes_max, wanted)) as windows:
        for every in windows:
            located = every if wanted is None else every.that_meet(wanted)
            stop = located.unaided
            behind: Position | None = None
            for i, j in located.cut(stop, bytes_max, rows_max):
                decoded = located.decode(pool, i, j, unpacked_bytes_max=unpacked_bytes_max, wanted=wanted)
                last = located.position(j - 1)
                behind = (last[0], last[1] + 1)
                batch = decoded.with_versions() if versions else decoded.batch
                yield ReadPiece(batch, located.position(i), behind)
            if stop < len(located):
                raise NeedsClientError(located.position(stop), located.why(stop))
            if len(every) and (end := _behind_last(every)) != behind:
                # The entries up to there were passed over: a reader that plans again begins behind them.
                yield ReadPiece(_no_rows(versions), behind or every.position(0), end)


def _behind_last(located: Located) -> Position:
    ledger, entry = located.position(len(located) - 1)
    return ledger, entry + 1


def _no_rows(versions: bool) -> Any:
    from anabranch.columns.decode import without_rows

    return without_rows(versions=versions)


def plan_facts(
    plan: TopicPlan, *, root: str | None = None, window_bytes: int = WINDOW_BYTES
) -> Iterator[EntryFacts]:
    with closing(_windows(plan, root, window_bytes)) as windows:
        for located in windows:
            stop = located.whole
            if stop:
                last = located.position(stop - 1)
                yield EntryFacts(*located.told(stop), (last[0], last[1] + 1))
            if stop < len(located):
                raise NeedsClientError(located.position(stop), located.why(stop))


def _windows(
    plan: TopicPlan, root: str | None, bytes_max: int, wanted: Wanted | None = None
) -> Generator[Located]:
    """The entries of one buffer after the other; each result is valid until the next one."""
    if plan.in_objects:
        from anabranch.client.reading.object_windows import object_windows

        yield from object_windows(plan, min(bytes_max, WINDOW_BYTES), wanted, _root_of(plan, root))
        return
    with _Files(plan, root) as files:
        yield from _file_windows(plan, files, bytes_max, wanted)


def _file_windows(plan: TopicPlan, files: _Files, bytes_max: int, wanted: Wanted | None) -> Iterator[Located]:
    from anabranch.columns.records import Walk

    # Small slices need no large buffer.
    buffer = memoryview(bytearray(max(_HEADER, min(bytes_max, WINDOW_BYTES, plan.size_bytes))))
    runs = _located_runs(plan, files)
    walk = Walk(runs if wanted is None else _runs_that_meet(runs, files, wanted))
    while not walk.is_done:
        size = _read_segments(files, walk.segments(len(buffer), _GAP_BYTES_MAX), buffer)
        located, is_bad = walk.records(buffer[:size], wanted)
        if not len(located) and not is_bad:
            left = walk.run_stop - walk.at[3]
            if left > len(buffer):
                buffer = _grown(buffer, left)
                continue
            # The buffer holds the rest of the run, and it contains no record.
            is_bad = True
        yield located
        if is_bad:
            ledger, entry, file, offset = walk.at
            raise LogDamagedError(ledger, entry, None, files.opened[file][1], offset)


def _located_runs(plan: TopicPlan, files: _Files) -> Any:
    import numpy as np

    from anabranch.columns import records

    found = [
        records.runs_of(run.file, run.ledger, run.first, *files.places(run))
        if run.is_indexed
        else records.run_of(
            run.file, run.ledger, run.first, run.last + 1, run.offset, run.offset + run.length
        )
        for run in plan.runs
    ]
    return np.concatenate(found) if found else np.empty((0, records.RUN_WIDTH), np.int64)


def _runs_that_meet(runs: Any, files: _Files, wanted: Wanted) -> Any:
    """The runs without long records that have no wanted messages, as far as their first bytes tell.

    Nothing is checked here but what leads from one record to the next. A record that is not as expected stays in its
    run, where the walk finds out; and whatever a damaged stamp says, one of the readers whose ranges make the ring
    takes the record for its own.
    """
    import numpy as np

    from anabranch.columns import records

    found: list[list[int]] = []
    for row in runs.tolist():
        file, ledger, first, end, offset, stop = row
        if stop - offset < (end - first) * _RECORD_BYTES_MIN:
            found.append(row)
            continue
        fd = files.opened[file][0]
        number, at, kept_from = first, offset, (first, offset)
        while number < end:
            head = os.pread(fd, min(_HEAD_BYTES, stop - at), at)
            if len(head) < _HEADER or (*_RECORD_NAMES(head), head[28:32]) != (ledger, number, _ENTRY_KIND):
                break
            behind = at + _HEADER + int.from_bytes(head[4:8], "little")
            if behind > stop or (number + 1 == end and behind != stop):
                break
            if not _may_meet(head[_HEADER:], wanted):
                if kept_from[0] < number:
                    found.append([file, ledger, kept_from[0], number, kept_from[1], at])
                kept_from = number + 1, behind
            number, at = number + 1, behind
        if kept_from[0] < end:
            found.append([file, ledger, kept_from[0], end, kept_from[1], stop])
    return np.array(found, np.int64).reshape(-1, records.RUN_WIDTH)


def _may_meet(head: bytes, wanted: Wanted) -> bool:
    """Whether an entry that begins like this may have wanted messages."""
    try:
        start, end = metadata_span(memoryview(head))
        return end > len(head) or wanted.meets(span_of(pb.MessageMetadata.FromString(head[start:end])))
    except (AnabranchError, DecodeError):
        return True


def _read_segments(files: _Files, segments: Sequence[tuple[int, int, int]], buffer: memoryview) -> int:
    """Reads parts of files into the buffer, one behind the other; returns the number of bytes."""
    size = 0
    for file, start, stop in segments:
        fd, path = files.opened[file]
        _fill(fd, buffer[size : size + stop - start], start, path)
        size += stop - start
    # The disk reads ahead while this part is decoded. Only a hint: nothing waits for unneeded data.
    os.posix_fadvise(fd, stop, WINDOW_BYTES, os.POSIX_FADV_WILLNEED)
    return size


def _grown(buffer: memoryview, size_max: int) -> memoryview:
    """A larger buffer for the one record that begins the full buffer and exceeds it."""
    length = _HEADER + int.from_bytes(buffer[4:8], "little") if len(buffer) >= _HEADER else 2 * _HEADER
    return memoryview(bytearray(min(length, size_max)))


def plan_entries(plan: TopicPlan, *, root: str | None = None) -> Iterator[Entry]:
    if plan.in_objects:
        from anabranch.client.reading.object_windows import object_entries

        yield from object_entries(plan, _root_of(plan, root))
        return
    with _Files(plan, root) as files:
        for run in files.runs():
            fd, path = files.opened[run.file]
            number, at, stop = run.first, run.offset, run.offset + run.length
            size = WINDOW_BYTES
            while number <= run.last:
                view = memoryview(bytearray(min(size, stop - at)))
                _fill(fd, view, at, path)
                found = 0
                for entry, used in _records(view, run.ledger, number, run.last, path, at, stop):
                    yield entry
                    number += 1
                    found = used
                # The header of a record that exceeds the buffer shows its length, which cannot exceed the run's.
                size = WINDOW_BYTES if found else stop - at
                at += found


def _records(
    view: memoryview, ledger: int, number: int, last: int, path: str, base: int, stop: int
) -> Iterator[tuple[Entry, int]]:
    """The entries of whole records in `view`, and where each ends in it."""
    at = 0
    while number <= last and at + _HEADER <= len(view):
        length = _HEADER + int.from_bytes(view[at + 4 : at + 8], "little")
        if at + length > len(view) and base + at + length <= stop:
            return
        entry = check_entry(view, at, length, ledger, number)
        if entry is None or (number == last and base + at + length != stop):
            raise LogDamagedError(ledger, number, None, path, base + at)
        at += length
        yield ((ledger, number), entry[1], entry[2]), at
        number += 1
    if base + len(view) == stop and number <= last:
        raise LogDamagedError(ledger, number, None, path, base + at)


def _root_of(plan: TopicPlan, root: str | None) -> str | None:
    """The caller's root, if it is of the plan's kind: a log may have files in a folder, and objects."""
    return root if root is not None and ("://" in root) == plan.in_objects else None


class _Files:
    """The files of a plan, all open at once."""

    def __init__(self, plan: TopicPlan, root: str | None) -> None:
        self._root = _root_of(plan, root) or plan.root
        self._plan = plan
        self._stack = ExitStack()
        self.opened: list[tuple[int, str]] = []
        self._indexes: dict[int, FooterIndex] = {}

    def __enter__(self) -> _Files:
        with ExitStack() as stack:
            indexed = {run.file for run in self._plan.runs if run.is_indexed}
            for file, name in enumerate(self._plan.files):
                path = os.path.join(self._root, name)
                fd = self._open(path)
                stack.callback(os.close, fd)
                self.opened.append((fd, path))
                if file in indexed:
                    self._indexes[file] = _load_index(path)
            self._stack = stack.pop_all()
        return self

    def _open(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if not os.path.isdir(self._root):
                raise FilesUnreachableError(
                    f"no folder {self._root} here: read on the broker's machine, or say where its log is found"
                ) from None
            raise PlanOutdatedError(path) from None
        except OSError as error:
            raise FilesUnreachableError(f"cannot open {path}: {error.strerror}") from error

    def __exit__(self, *_: object) -> None:
        self._indexes.clear()
        self._stack.close()

    def places(self, run: PlannedRun) -> tuple[memoryview, memoryview]:
        """The offsets and lengths of the records of an indexed run."""
        count = run.last - run.first + 1
        found = self._indexes[run.file].places(run.ledger, run.first, count)
        if found is None or len(found[1]) != count:
            path = self.opened[run.file][1]
            raise LogMissingError(
                f"the index of {path} lacks entries of [{run.first}, {run.last}] of ledger {run.ledger}"
            )
        return found[1], found[2]  # type: ignore[return-value]  # A footer's tables are views.

    def runs(self) -> Iterator[PlannedRun]:
        """The plan's runs, each with its place."""
        for run in self._plan.runs:
            if run.is_indexed:
                yield from runs_of(run.ledger, run.first, run.file, *self.places(run))
            else:
                yield run


def _load_index(path: str) -> FooterIndex:
    loaded = load_file(OsFiles(), Path(path), 0)
    if loaded is not None and isinstance(loaded.index, FooterIndex):
        return loaded.index
    if not os.path.exists(path):
        raise PlanOutdatedError(path)
    raise LogMissingError(f"{path} has no index that can be read")


def _fill(fd: int, view: memoryview, offset: int, path: str) -> None:
    """Reads exactly as many bytes as the view holds."""
    done = 0
    while done < len(view):
        try:
            size = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise DirectReadError(f"cannot read {path} at byte {offset + done}: {error.strerror}") from error
        if not size:
            raise LogMissingError(f"{path} ends at byte {offset + done}, before what was planned")
        done += size
