"""Indexes files that another incarnation wrote. Blocking; runs on a thread.

A finished file has its index in its footer; a file whose writer died has the index that its successor stored beside it
(`NNNNNNNN.idx`). Only a file with neither, or with a damaged one, is scanned. The log of a writer that is alive grows
and is indexed again and again: finished files are read once, and a scan goes on where the last one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from anabranch.model.position import Incarnation
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.catalog import FooterIndex, LogFile, OpenIndex
from anabranch.storage.on_disk.fences import FinalStates, load_taken
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.recovery import FileStretch, Recovered, fold
from anabranch.storage.on_disk.wal import wal_path

log = logging.getLogger(__name__)


def wal_numbers(files: Files, folder: Path) -> list[int]:
    return sorted(int(name[:-4]) for name in files.list(folder) if name.endswith(".wal"))


def read_trailer(files: Files, path: Path) -> tuple[fmt.Trailer, int] | None:
    """A file's trailer and size; None if the file does not exist or was never finished."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return None
    try:
        size = files.size(path)
        trailer = fmt.decode_trailer(files.read(fd, fmt.TRAILER_BYTES, max(0, size - fmt.TRAILER_BYTES)))
    except FileNotFoundError:
        return None
    finally:
        files.close(fd)
    return (trailer, size) if trailer is not None else None


def load_file(
    files: Files,
    path: Path,
    number: int,
    incarnation: Incarnation | None = None,
    *,
    is_rewritten: bool = False,
) -> LogFile | None:
    """A file with the index stored in it or beside it, or None if it has no usable one."""
    for source in (path, path.with_suffix(".idx")):
        found = read_trailer(files, source)
        if found is None:
            continue
        trailer, size = found
        # Read, not mapped: the first touch of a mapping of a cold file reads far around it, 3 ms against 0.2.
        if crc32c(read_part(files, source, trailer.directory_at, trailer.tables_at)) != trailer.crc:
            log.error("the footer of %s is damaged, scanning the file instead", source)
            continue
        body = files.map(source, trailer.directory_at, size - fmt.TRAILER_BYTES - trailer.directory_at)
        file = LogFile(path, number, incarnation, is_rewritten=is_rewritten)
        file.index = FooterIndex(fmt.Footer(body, trailer.rows))
        file.is_finished = True
        file.disk_bytes = files.disk_bytes(path)
        return file
    return None


def read_part(files: Files, path: Path, start: int, stop: int) -> bytes:
    fd = files.open(path)
    try:
        return files.read(fd, stop - start, start)
    finally:
        files.close(fd)


def open_stretch(
    files: Files, folder: Path, number: int, start: int = fmt.FILE_BYTES
) -> tuple[FileStretch, int] | None:
    """A log file to be scanned from `start` on, with its nonce. None if it has no header: then nothing was written to
    it."""
    path = wal_path(folder, number)
    view = files.map(path, 0, files.data_end(path))
    head = fmt.decode_file_header(view)
    return (FileStretch(number, view, start, is_whole=True), head[1]) if head is not None else None


@dataclass(frozen=True, slots=True)
class Indexed:
    """An incarnation's log files, as of the stored results of take-overs. Once a result is final nothing is added.

    A file that its writer has not finished is indexed as far as it was written: the next indexing goes on there, and
    what it finds is another `LogFile` of the same path.
    """

    files: list[LogFile]
    taken: FinalStates
    # Where the scan of unfinished files ended: (file, offset), and the number of the commit that comes next.
    end: tuple[int, int] = (0, 0)
    next_number: int | None = None
    # Whether commits were searched for behind the end, too: damage may hide them. None is missing before it.
    is_thorough: bool = True

    @property
    def is_final(self) -> bool:
        return self.taken.is_final


def index_incarnation(
    files: Files,
    folder: Path,
    incarnation: Incarnation,
    before: Indexed | None = None,
    *,
    is_thorough: bool = True,
) -> Indexed:
    """Every log file of an incarnation, each with an index. Only what is not in `before` is read. Unless thorough, the
    space that a writer has prepared and not used yet is not searched for commits behind damage."""
    before = before or Indexed([], FinalStates())
    found, is_whole = _indexed(files, folder, incarnation, before, is_thorough)
    if not is_whole:
        # There may be more behind the gap. Or there is none: its writer went on in the next file after the one before
        # was mapped.
        found, _ = _indexed(files, folder, incarnation, before, True)
    return found


def _indexed(
    files: Files, folder: Path, incarnation: Incarnation, before: Indexed, is_thorough: bool
) -> tuple[Indexed, bool]:
    """The second is whether all commits that were found follow one another."""
    # Loaded first: later writes may be missed here, but then they belong to no result that is counted here.
    taken = load_taken(files, folder, before.taken)
    known: dict[int, list[LogFile]] = {}
    for part in before.files:
        known.setdefault(part.number, []).append(part)
    found: list[LogFile] = []
    unknown: list[tuple[FileStretch, int]] = []
    for number in wal_numbers(files, folder):
        parts = known.get(number, [])
        if any(isinstance(one.index, FooterIndex) for one in parts):
            found += parts
            continue
        start = before.end[1] if number == before.end[0] else fmt.FILE_BYTES
        stretch = None
        try:
            file = load_file(files, wal_path(folder, number), number, incarnation)
            if file is None and number >= before.end[0]:
                stretch = open_stretch(files, folder, number, start)
        except FileNotFoundError:
            continue  # Its writer is alive and has given it back.
        if file is not None:
            found.append(file)
        elif number < before.end[0]:
            # Scanned to its end, and its writer has not finished it yet.
            found += parts
        elif stretch is not None:
            # Behind the end nothing was found the last time.
            found += parts if number == before.end[0] else []
            unknown.append(stretch)
        else:
            found.append(_empty_file(files, folder, incarnation, number))
    end, next_number = before.end, before.next_number
    is_whole = True
    if unknown:
        stretches = [stretch for stretch, _ in unknown]
        first = stretches[0].file
        scanned = fold(
            stretches,
            unknown[0][1],
            is_from_beginning=first == 1 and first != before.end[0],
            next_number=before.next_number if first == before.end[0] else None,
            is_thorough=is_thorough,
        )
        found += scanned_files(files, folder, incarnation, scanned, {one.number for one in found})
        end, next_number = scanned.end, scanned.next_number
        is_whole = not scanned.damage
    found = _joined(found)
    for part in found:
        part.damage = sorted(
            {one.offset for one in taken.damage if one.file == part.number} | set(part.damage)
        )
    return Indexed(found, taken, end, next_number, is_thorough), is_whole


def scanned_files(
    files: Files, folder: Path, incarnation: Incarnation, scanned: Recovered, known: Container[int]
) -> list[LogFile]:
    """The scanned files. Those whose numbers are known are further parts of a file."""
    found = []
    for number, index in scanned.indexes.items():
        file = LogFile(wal_path(folder, number), number, incarnation)
        file.index = index
        file.disk_bytes = _bytes_left(files, file.path) if number not in known else 0
        file.damage = [one.offset for one in scanned.damage if one.file == number]
        if number not in known or next(iter(index.rows()), None) is not None or file.damage:
            found.append(file)
    return found


def _joined(files: Sequence[LogFile]) -> list[LogFile]:
    """Joins parts of a file that come one after the other. A log that is read as it grows would have thousands of
    them; so that few are indexed again each time, a part is joined only to one that is not much larger."""
    found: list[LogFile] = []
    for part in sorted(files, key=lambda one: one.number):
        while found and (joined := _join(found[-1], part)) is not None:
            found.pop()
            part = joined
        found.append(part)
    return found


def _join(before: LogFile, after: LogFile) -> LogFile | None:
    first, second = before.index, after.index
    if before.path != after.path or not (isinstance(first, OpenIndex) and isinstance(second, OpenIndex)):
        return None
    if before.is_finished or after.is_finished or first.entry_count > 2 * second.entry_count:
        return None
    joined = LogFile(before.path, before.number, before.incarnation)
    joined.index = OpenIndex.joined(first, second)
    joined.disk_bytes = before.disk_bytes + after.disk_bytes
    joined.damage = sorted({*before.damage, *after.damage})
    return joined


def _empty_file(files: Files, folder: Path, incarnation: Incarnation, number: int) -> LogFile:
    """A file that its writer prepared ahead and never wrote to."""
    file = LogFile(wal_path(folder, number), number, incarnation)
    file.disk_bytes = _bytes_left(files, file.path)
    file.is_finished = True
    return file


def _bytes_left(files: Files, path: Path) -> int:
    """A writer that ends removes the file that it has prepared and never needed."""
    try:
        return files.disk_bytes(path)
    except FileNotFoundError:
        return 0
