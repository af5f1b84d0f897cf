"""Recovers a log that another incarnation wrote: what did it hold when its writer ended?

Starts at the last checkpoint and follows the commits. A commit below the confirmed end that a later header names was
synced once: if it is bad now, that is damage, which is reported and kept. A bad commit above it is a torn tail: this
commit and all bytes after it are ignored. Pure decisions over bytes; `takeover.py` reads the bytes and stores the
answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from anabranch.model.position import LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.catalog import OpenIndex
from anabranch.storage.port import LedgerState

PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were confirmed once and cannot be read. `ledger` is None where the commit's header is gone."""

    file: int
    offset: int
    ledger: int | None


@dataclass(slots=True)
class ScannedRun:
    ledger: int
    first: int
    entries: int
    base: int
    # Offsets of the entries found, within the run. Fewer than `entries` if a bad record hid those behind it.
    offsets: array[int]
    lengths: array[int]
    # (number, kind, bytes) of state records, and offsets of records that are bad.
    states: list[tuple[int, int, bytes]]
    bad: list[int]
    # In the entries found; a bad record counts as one.
    messages: int = 0


@dataclass(slots=True)
class ScannedCommit:
    file: int
    at: int
    header: fmt.CommitHeader
    runs: list[ScannedRun]
    parts: list[tuple[int, fmt.CheckpointPart]]
    is_good: bool

    @property
    def end(self) -> int:
        return self.at + self.header.total


@dataclass(frozen=True, slots=True)
class FileStretch:
    """A file's bytes, and where in it to begin. `is_whole` if that is the file's beginning, so that it can be
    indexed."""

    file: int
    view: memoryview
    start: int
    is_whole: bool


def scan_headers(
    stretch: FileStretch, nonce: int, *, is_thorough: bool
) -> Iterator[tuple[int, fmt.CommitHeader]]:
    """Every commit header that is good, in order, whatever lies between them. Unless thorough, only those before the
    first zeros where a header should be: as a rule nothing was written there yet."""
    pattern = fmt.commit_pattern(nonce)
    at, view = stretch.start, stretch.view
    while True:
        header = fmt.decode_commit_header(view, at, nonce, stretch.file)
        if header is None:
            if not is_thorough and not any(view[at : at + fmt.COMMIT_BYTES]):
                return
            at = _find(view, pattern, at + 1)
            if at < 0:
                return
            continue
        yield at, header
        # A commit that a crash cut off may claim bytes beyond the file.
        at = min(at + header.total, len(view))


def _find(view: memoryview, pattern: bytes, at: int) -> int:
    """Where the pattern is next, or -1. Piece by piece: no other thread of the process runs while one is searched."""
    while at < len(view):
        found = bytes(view[at : at + PIECE_BYTES + len(pattern) - 1]).find(pattern)
        if found >= 0:
            return at + found
        at += PIECE_BYTES
    return -1


def scan_commit(view: memoryview, file: int, at: int, header: fmt.CommitHeader) -> ScannedCommit:
    """The commit at `at`, whose header is good: what its records say, and which of them are bad."""
    base = at + fmt.COMMIT_BYTES + fmt.RUN_BYTES * header.runs
    end = min(at + header.total, len(view))
    is_good = end == at + header.total
    runs = []
    for row in fmt.decode_run_table(view, at, header.runs):
        run = _scan_run(view, row, base, min(base + row.length, end))
        is_good = is_good and not run.bad
        runs.append(run)
        base += row.length
    parts = []
    while base < end:
        record = fmt.read_record(view, base, end)
        if record is None or not record.is_good or record.kind != fmt.CHECKPOINT:
            is_good = False
            break
        parts.append((record.ledger, fmt.decode_part(view[base + fmt.RECORD_BYTES : base + record.size])))
        base += record.size
    return ScannedCommit(file, at, header, runs, parts, is_good)


def _scan_run(view: memoryview, row: fmt.RunRow, base: int, end: int) -> ScannedRun:
    run = ScannedRun(row.ledger, row.first, row.entries, base, array("I"), array("I"), [], [])
    at = base
    expected = row.first
    while at < end:
        record = fmt.read_record(view, at, end)
        if record is None or record.ledger != row.ledger:
            run.bad.append(at)
            return run
        if not record.is_good:
            run.bad.append(at)
        if record.kind == fmt.ENTRY:
            if record.number != expected:
                if record.is_good:
                    run.bad.append(at)
                return run
            # A bad record keeps its place in the index, so that readers learn where the damage lies.
            run.offsets.append(at - base)
            run.lengths.append(record.size)
            run.messages += record.messages if record.is_good else 1
            expected += 1
        elif record.is_good:
            run.states.append(
                (record.number, record.kind, bytes(view[at + fmt.RECORD_BYTES : at + record.size]))
            )
        at += record.size
    if at < base + row.length or expected - row.first != row.entries:
        run.bad.append(at)
    return run


@dataclass(slots=True)
class RecoveredLedger:
    entries_end: int = 0
    size: int = 0
    # -1 if not known: the checkpoint was written by a release that did not count them.
    messages: int = 0
    state_end: int = 0
    namespace: str = ""
    snapshot: bytes | None = None
    deltas: list[bytes] = field(default_factory=list)
    # A state record is missing: later deltas wait for a full state, so that nothing counts as acknowledged wrongly.
    is_stale: bool = False

    def add_run(self, run: ScannedRun) -> None:
        self.entries_end = max(self.entries_end, run.first + run.entries)
        self.size += sum(run.lengths) - fmt.RECORD_BYTES * len(run.lengths)
        if self.messages >= 0:
            self.messages += run.messages + run.entries - len(run.offsets)
        for number, kind, data in run.states:
            if kind == fmt.SNAPSHOT:
                self.snapshot, self.deltas, self.is_stale = data, [], False
            else:
                self.is_stale = self.is_stale or number != self.state_end
                if not self.is_stale:
                    self.deltas.append(data)
            self.state_end = number + 1

    def set_part(self, part: fmt.CheckpointPart) -> None:
        self.entries_end = max(self.entries_end, part.entries_end)
        self.size, self.state_end, self.namespace = part.size, part.state_end, part.namespace
        self.messages = part.messages
        self.snapshot, self.deltas, self.is_stale = part.snapshot, list(part.deltas), False

    def state(self) -> LedgerState:
        return LedgerState(self.entries_end, self.snapshot, tuple(self.deltas), self.size, self.messages)


@dataclass(slots=True)
class Recovered:
    ledgers: dict[LedgerId, RecoveredLedger]
    # By file number, only for files that were scanned from their beginning.
    indexes: dict[int, OpenIndex]
    damage: list[Damage]
    # Where the log ends: (file, offset). Bytes after it are ignored.
    end: tuple[int, int]
    # Below this, the writer itself recorded that it had synced the log. Bytes between this and the end may be in memory
    # only.
    confirmed: tuple[int, int]
    # By file number, the end of its last commit that counts.
    ends: dict[int, int] = field(default_factory=dict)
    # The number of the commit that comes next; None if no commit was found.
    next_number: int | None = None


def fold(
    stretches: Sequence[FileStretch],
    nonce: int,
    *,
    is_from_beginning: bool,
    next_number: int | None = None,
    is_thorough: bool = True,
) -> Recovered:
    """The sum of the commits. The stretches are in log order, from a checkpoint's beginning or the log's, or from the
    commit of that number on. Unless thorough, commits behind damage may be missed."""
    confirmed = (0, 0)
    # Before the commits are looked at: their writer may go on, and what a header calls confirmed is found then.
    for stretch in stretches:
        for _, header in scan_headers(stretch, nonce, is_thorough=is_thorough):
            confirmed = max(confirmed, (header.confirmed_file, header.confirmed_end))
    start = (stretches[0].file, stretches[0].start) if stretches else (0, 0)
    found = Recovered({}, {one.file: OpenIndex() for one in stretches if one.is_whole}, [], start, confirmed)
    expected = found.next_number = 1 if is_from_beginning else next_number
    for stretch in stretches:
        for at, header in scan_headers(stretch, nonce, is_thorough=is_thorough):
            place = (stretch.file, at)
            has_gap = header.number != expected if expected is not None else place != start
            if has_gap:
                # Commits are missing between the last good one and this one.
                if found.end >= confirmed:
                    return found
                found.damage.append(Damage(*found.end, None))
            commit = scan_commit(stretch.view, stretch.file, at, header)
            if not commit.is_good:
                if place >= confirmed:
                    return found
                found.damage += _damage_of(commit)
            _apply(found, commit)
            expected = found.next_number = header.number + 1
            found.end = (stretch.file, commit.end)
            found.ends[stretch.file] = commit.end
    return found


def are_good_commits(data: memoryview, nonce: int, file: int) -> bool:
    """True if these are commits one after the other, each of them good to the last byte."""
    at = 0
    while at < len(data):
        header = fmt.decode_commit_header(data, at, nonce, file)
        if header is None or not scan_commit(data, file, at, header).is_good:
            return False
        at += header.total
    return True


def _damage_of(commit: ScannedCommit) -> list[Damage]:
    bad = [Damage(commit.file, run.bad[0], run.ledger) for run in commit.runs if run.bad]
    return bad or [Damage(commit.file, commit.at, None)]


def _apply(found: Recovered, commit: ScannedCommit) -> None:
    index = found.indexes.get(commit.file)
    for run in commit.runs:
        ledger = LedgerId(run.ledger)
        found.ledgers.setdefault(ledger, RecoveredLedger()).add_run(run)
        if index is not None and run.offsets:
            index.add(ledger, run.first, run.base, run.offsets, run.lengths)
    for number, part in commit.parts:
        found.ledgers.setdefault(LedgerId(number), RecoveredLedger()).set_part(part)
