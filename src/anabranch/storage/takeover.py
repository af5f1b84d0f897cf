"""Taking ledgers from another incarnation: fence, recover, store the answer once. Blocking; runs on a thread.

The answer is stored create-only, so that every later owner gets the same one without reading the log. Files whose
writer did not live to finish them get an index beside them (`NNNNNNNN.idx`, the footer it would have written): the
files themselves are never changed, since a writer thought dead may still wake up and write.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage import fences
from anabranch.storage import format as fmt
from anabranch.storage.catalog import FooterIndex, LogFile
from anabranch.storage.fences import Taken
from anabranch.storage.files import Files
from anabranch.storage.recovery import Damage, Recovered, RecoveredLedger, Stretch, fold
from anabranch.storage.wal import wal_path

log = logging.getLogger(__name__)

LOCK = "lock"


@dataclass(slots=True)
class Known:
    """What this store knows of another incarnation: final states so far, and files to read from."""

    taken: Taken
    files: list[LogFile] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


def load_file(
    files: Files,
    path: Path,
    number: int,
    incarnation: Incarnation | None = None,
    *,
    is_rewritten: bool = False,
) -> tuple[LogFile, fmt.Trailer] | None:
    """A finished file with its index, or None if it has no footer (beside it or in it) or the footer is damaged."""
    file = LogFile(path, number, incarnation, is_rewritten=is_rewritten)
    for source in (path, path.with_suffix(".idx")):
        try:
            size = files.size(source)
            fd = files.open(source)
        except FileNotFoundError:
            continue
        try:
            trailer = fmt.decode_trailer(files.read(fd, fmt.TRAILER_BYTES, max(0, size - fmt.TRAILER_BYTES)))
        finally:
            files.close(fd)
        if trailer is None:
            continue
        body = files.map(source, trailer.directory_at, size - fmt.TRAILER_BYTES - trailer.directory_at)
        if crc32c(body) != trailer.crc:
            log.error("the footer of %s is damaged; its records are read instead", source)
            continue
        file.index = FooterIndex(fmt.Footer(body, trailer.rows))
        file.is_finished = True
        file.disk_bytes = files.disk_bytes(path)
        return file, trailer
    return None


def wal_numbers(files: Files, folder: Path) -> list[int]:
    return sorted(int(name[:-4]) for name in files.list(folder) if name.endswith(".wal"))


@dataclass(slots=True)
class _Seen:
    """The files of an incarnation: finished ones with their trailers, then those to be scanned from their beginning."""

    finished: list[tuple[LogFile, fmt.Trailer]] = field(default_factory=list)
    scanned: list[Stretch] = field(default_factory=list)
    nonce: int = 0


def recover(files: Files, folder: Path, incarnation: Incarnation) -> tuple[Recovered, list[LogFile], int]:
    """Reads from the last checkpoint on. Also returns every file, indexed, and the log's nonce."""
    seen = _look(files, folder, incarnation)
    found = _fold_from_checkpoint(files, seen)
    scanned = [_scanned_file(files, folder, incarnation, one, found) for one in seen.scanned]
    return found, [file for file, _ in seen.finished] + scanned, seen.nonce


def _look(files: Files, folder: Path, incarnation: Incarnation) -> _Seen:
    seen = _Seen()
    for number in wal_numbers(files, folder):
        path = wal_path(folder, number)
        loaded = load_file(files, path, number, incarnation)
        if loaded is not None and loaded[1].checkpoint_start and not seen.scanned:
            seen.finished.append(loaded)
            seen.nonce = loaded[1].nonce
            continue
        view = files.map(path, 0, files.size(path)) if files.size(path) else memoryview(b"")
        # A file without a header was being made when its writer ended: nothing was ever written to it.
        if (head := fmt.decode_file_header(view)) is not None:
            seen.nonce = head[1]
            seen.scanned.append(Stretch(number, view, fmt.FILE_BYTES, is_whole=True))
    return seen


def _fold_from_checkpoint(files: Files, seen: _Seen) -> Recovered:
    """From the last checkpoint; from an earlier one if that is damaged; from the log's beginning if there is none."""
    stretches = list(seen.scanned)
    for file, trailer in reversed(seen.finished):
        view = files.map(file.path, 0, trailer.data_end)
        start = Stretch(file.number, view, trailer.checkpoint_start, is_whole=False)
        found = fold([start, *stretches], seen.nonce, is_from_beginning=False)
        if not any(one.file == file.number for one in found.damage):
            return found
        stretches.insert(0, Stretch(file.number, view, fmt.FILE_BYTES, is_whole=False))
    is_from_beginning = bool(stretches) and stretches[0].file == 1
    found = fold(stretches, seen.nonce, is_from_beginning=is_from_beginning)
    # If every checkpoint is damaged, the footers at least say how far each ledger went: no entry may be forgotten.
    for file, _ in seen.finished:
        for ledger, first, count, _ in file.index.rows():
            known = found.ledgers.setdefault(LedgerId(ledger), RecoveredLedger())
            known.entries_end = max(known.entries_end, first + count)
    return found


def _scanned_file(
    files: Files, folder: Path, incarnation: Incarnation, stretch: Stretch, found: Recovered
) -> LogFile:
    file = LogFile(wal_path(folder, stretch.file), stretch.file, incarnation)
    file.index = found.indexes[stretch.file]
    file.disk_bytes = files.disk_bytes(file.path)
    file.damage = [one.offset for one in found.damage if one.file == stretch.file]
    return file


def look_up(files: Files, folder: Path, incarnation: Incarnation) -> Known:
    """What can be read of an incarnation, without taking anything from it."""
    taken = fences.load_taken(files, folder)
    if taken.is_final:
        loaded = [load_file(files, wal_path(folder, n), n, incarnation) for n in wal_numbers(files, folder)]
        if all(loaded):
            return _with_damage(Known(taken, [one[0] for one in loaded if one]))
    found, log_files, _ = recover(files, folder, incarnation)
    return Known(taken, log_files, found.damage)


def _with_damage(known: Known) -> Known:
    known.damage = [Damage(*one) for one in known.taken.damage]
    for file in known.files:
        file.damage = [one.offset for one in known.damage if one.file == file.number]
    return known


def take(files: Files, folder: Path, incarnation: Incarnation, ledgers: Collection[LedgerId] | None) -> Known:
    """Final states of those ledgers (None: all), fenced first unless an earlier answer has them."""
    while True:
        taken = fences.load_taken(files, folder)
        if taken.is_final or (
            ledgers is not None and all(one in taken.states or one in taken.absent for one in ledgers)
        ):
            return look_up(files, folder, incarnation)
        # A writer that is gone can be fenced whole at once: its other ledgers will be asked for soon enough.
        lock = files.lock(folder / LOCK, is_shared=False)
        try:
            scope = None if lock is not None else ledgers
            fences.raise_fence(files, folder, scope)
            found, log_files, nonce = recover(files, folder, incarnation)
            _sync_all(files, folder, log_files)
            answer = _answer(taken, found, scope)
            if answer.is_final:
                _store_indexes(files, log_files, nonce, found)
            if fences.store_taken(files, folder, answer, taken.results):
                _report(folder, found)
                return (
                    look_up(files, folder, incarnation)
                    if answer.is_final
                    else _merge(taken, answer, log_files, found)
                )
        finally:
            if lock is not None:
                files.close(lock)


def _answer(taken: Taken, found: Recovered, scope: Collection[LedgerId] | None) -> Taken:
    wanted = found.ledgers.keys() if scope is None else [one for one in scope if one in found.ledgers]
    new = [one for one in wanted if one not in taken.states and one not in taken.absent]
    return Taken(
        states={one: found.ledgers[one].state() for one in new},
        namespaces={one: found.ledgers[one].namespace for one in new},
        absent=set() if scope is None else set(scope) - found.ledgers.keys(),
        is_final=scope is None,
        damage=[(one.file, one.offset, one.ledger) for one in found.damage],
    )


def _merge(taken: Taken, answer: Taken, log_files: list[LogFile], found: Recovered) -> Known:
    taken.states |= answer.states
    taken.namespaces |= answer.namespaces
    taken.absent |= answer.absent
    taken.results += 1
    return Known(taken, log_files, found.damage)


def _sync_all(files: Files, folder: Path, log_files: list[LogFile]) -> None:
    """What was read may have been in the page cache only: it is part of the answer now, so it must stay."""
    for file in log_files:
        if not file.is_finished:
            fd = files.open(file.path)
            try:
                files.sync(fd)
            finally:
                files.close(fd)
    files.sync_folder(folder)


def _store_indexes(files: Files, log_files: list[LogFile], nonce: int, found: Recovered) -> None:
    for file in log_files:
        if file.is_finished or file.number not in found.indexes:
            continue
        end = found.end[1] if found.end[0] == file.number else 0
        rows = list(found.indexes[file.number].footer_rows())
        data = fmt.encode_footer(nonce, file.number, rows, end, 0, 0)
        fences.create_only(files, file.path.with_suffix(".idx"), data)


def _report(folder: Path, found: Recovered) -> None:
    for one in found.damage:
        whose = f"of ledger {one.ledger} " if one.ledger is not None else ""
        log.error("damaged record %sin %s at byte %d", whose, wal_path(folder, one.file), one.offset)
