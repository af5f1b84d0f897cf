"""Taking ledgers from another incarnation: fence, recover, store the answer once. Blocking; runs on a thread.

The answer is stored create-only, so that every later owner gets the same one without reading the log. Files that their
writer did not finish get an index beside them (`NNNNNNNN.idx`, the footer it would have written): the files themselves
are never changed, because a writer thought dead may still wake up and write.

The cost is proportional to what was written since the last checkpoint: older files are not even opened. Processes that
want ledgers of one incarnation take turns, so that the first one's answer serves the others: a dead writer's log is
recovered once, for all its ledgers. A turn is only an economy, and a process that waits too long for it goes ahead.

Bytes that the writer did not record as synced are written again before they become part of an answer. A sync that fails
leaves pages that look clean and are not on the disk: reading them proves nothing, and another sync does nothing. This
is done always, because a writer may have been killed before it could report a failed sync
(docs/decisions/0012-failed-syncs.md).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.model.position import LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk import fences
from anabranch.storage.on_disk.fences import FinalStates
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.indexing import load_file, open_stretch, read_part, read_trailer, wal_numbers
from anabranch.storage.on_disk.recovery import FileStretch, Recovered, RecoveredLedger, are_good_commits, fold
from anabranch.storage.on_disk.wal import wal_path
from anabranch.storage.port import LogError

log = logging.getLogger(__name__)

LOCK = "lock"
# Held by the process that takes ledgers of the incarnation.
TURN = "turn"
# How long a process waits for its turn, and how often it looks: the one before may be stopped.
TURN_MAX_S = 5.0
TURN_STEP_S = 0.01

# How often a log that changes while it is read is read again. Such changes are rare, and rarely come twice.
_TRIES = 10


@dataclass(slots=True)
class Tail:
    """The recovered part of a log: the result, and the files without a footer, which were read whole."""

    found: Recovered
    scanned: list[int] = field(default_factory=list)
    nonce: int = 0


def recover(files: Files, folder: Path) -> Tail:
    """Recovers from the last checkpoint on, or from an earlier one if that is damaged, or else from the log's
    beginning."""
    tail = Tail(fold([], 0, is_from_beginning=True))
    stretches: list[FileStretch] = []
    numbers = wal_numbers(files, folder)
    for number in reversed(numbers):
        finished = read_trailer(files, wal_path(folder, number))
        if finished is None or not finished[0].checkpoint_start:
            opened = open_stretch(files, folder, number)
            # A file without a header was being created when its writer ended: nothing was ever written to it.
            if opened is not None:
                stretches.insert(0, opened[0])
                tail.scanned.append(number)
                tail.nonce = opened[1]
            continue
        trailer = finished[0]
        tail.nonce = trailer.nonce
        view = files.map(wal_path(folder, number), 0, trailer.data_end)
        start = FileStretch(number, view, trailer.checkpoint_start, is_whole=False)
        tail.found = fold([start, *stretches], tail.nonce, is_from_beginning=False)
        if not any(one.file == number for one in tail.found.damage):
            return tail
        stretches.insert(0, FileStretch(number, view, fmt.FILE_BYTES, is_whole=False))
    if stretches:
        tail.found = fold(stretches, tail.nonce, is_from_beginning=stretches[0].file == 1)
        _add_ends(files, folder, numbers, tail.found)
    return tail


def _add_ends(files: Files, folder: Path, numbers: list[int], found: Recovered) -> None:
    """Without a good checkpoint, the footers still say how far each ledger went: no entry may be forgotten."""
    for number in numbers:
        file = load_file(files, wal_path(folder, number), number)
        for ledger, first, count, _ in file.index.rows() if file is not None else ():
            known = found.ledgers.setdefault(LedgerId(ledger), RecoveredLedger())
            known.entries_end = max(known.entries_end, first + count)
            known.messages = -1


def take(
    files: Files, folder: Path, ledgers: Collection[LedgerId] | None, known: FinalStates | None = None
) -> FinalStates:
    """Final states of those ledgers (None: all), fenced first unless an earlier answer has them. `known` holds the
    answers that the caller has read before."""
    taken = fences.load_taken(files, folder, known)
    if taken.has(ledgers):
        files.sync_folder(folder / fences.TAKEN)
        return taken
    with _turn(files, folder):
        return _take(files, folder, ledgers, taken)


@contextlib.contextmanager
def _turn(files: Files, folder: Path) -> Iterator[None]:
    ends_s = time.monotonic() + TURN_MAX_S
    while (lock := files.lock(folder / TURN, is_shared=False)) is None and time.monotonic() < ends_s:
        time.sleep(TURN_STEP_S)
    try:
        yield
    finally:
        if lock is not None:
            files.close(lock)


def _take(
    files: Files, folder: Path, ledgers: Collection[LedgerId] | None, known: FinalStates
) -> FinalStates:
    while True:
        taken = fences.load_taken(files, folder, known)
        if taken.has(ledgers):
            # The broker that stored the answer may have ended before the file's name was durable.
            files.sync_folder(folder / fences.TAKEN)
            return taken
        # A dead writer is fenced whole at once: its other ledgers will be asked for soon.
        lock = files.lock(folder / LOCK, is_shared=False)
        try:
            scope = None if lock is not None else ledgers
            fences.raise_fence(files, folder, scope)
            tail = _recover_durably(files, folder)
            answer = _answer(taken, tail.found, scope)
            if answer.is_final:
                _store_indexes(files, folder, tail)
            if fences.store_taken(files, folder, answer, taken.results):
                _report(folder, tail.found)
        finally:
            if lock is not None:
                files.close(lock)


def _answer(taken: FinalStates, found: Recovered, scope: Collection[LedgerId] | None) -> FinalStates:
    wanted = found.ledgers.keys() if scope is None else [one for one in scope if one in found.ledgers]
    new = [one for one in wanted if one not in taken.states and one not in taken.absent]
    return FinalStates(
        states={one: found.ledgers[one].state() for one in new},
        namespaces={one: found.ledgers[one].namespace for one in new},
        absent=set() if scope is None else set(scope) - found.ledgers.keys(),
        is_final=scope is None,
        damage=list(found.damage),
    )


def _recover_durably(files: Files, folder: Path) -> Tail:
    """What was read may be in memory only. It becomes part of an answer, so it must be on the disk before that."""
    for _ in range(_TRIES):
        try:
            tail = recover(files, folder)
            is_durable = all(_rewrite_doubtful(files, folder, tail, number) for number in tail.scanned)
        except FileNotFoundError:
            # A living writer removes files of its own. It may have done so between the listing and the read, or before
            # they were written again.
            files.list(folder)
            continue
        if is_durable:
            files.sync_folder(folder)
            return tail
    raise LogError(f"the log in {folder} changes while it is read")


def _rewrite_doubtful(files: Files, folder: Path, tail: Tail, number: int) -> bool:
    """Makes a file durable up to the end of the log; False if the file has changed since it was read.

    It writes the same bytes to the same place, so it does not disturb a writer that is still at work there.
    """
    path = wal_path(folder, number)
    stop = tail.found.ends.get(number, 0)
    file, end = tail.found.confirmed
    start = 0 if file < number else end if file == number else stop
    if start >= stop:
        files.rewrite(path, [])
        return True
    # A copy, checked again: pages may have been dropped since they were read, and then these come from the disk.
    data = memoryview(read_part(files, path, start, stop))
    if len(data) != stop - start:
        return False
    if not start and fmt.decode_file_header(data) is None:
        return False
    if not are_good_commits(data if start else data[fmt.FILE_BYTES :], tail.nonce, number):
        return False
    files.rewrite(path, [(start, data)])
    return True


def _store_indexes(files: Files, folder: Path, tail: Tail) -> None:
    for number in tail.scanned:
        rows = list(tail.found.indexes[number].footer_rows())
        end = tail.found.end[1] if tail.found.end[0] == number else 0
        data = fmt.encode_footer(tail.nonce, number, rows, end, 0, 0)
        fences.create_only(files, wal_path(folder, number).with_suffix(".idx"), data)


def _report(folder: Path, found: Recovered) -> None:
    for one in found.damage:
        whose = f"of ledger {one.ledger} " if one.ledger is not None else ""
        log.error("damaged record %sin %s at byte %d", whose, wal_path(folder, one.file), one.offset)
