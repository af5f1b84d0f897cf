"""Copies a rewritten file to an object store, reads it back, and makes its index file. Blocking but for the requests.

The order is what makes it safe to be killed at any step: every record is checked, the object is created, its bytes are
compared with the file's, and only then does the index file appear, after which the object counts. The file itself is
left to who asked for the job. Steps that are done twice find what they did the first time.

Runs in a process of its own (`move_worker.py`): checking and sending a file would delay a broker's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from crc32c import crc32c

from anabranch.storage.core import format as fmt
from anabranch.storage.core.tiered import (
    TierDone,
    TierJob,
    TierPlace,
    encode_index_file,
    index_path,
    other_key,
)
from anabranch.storage.object.medium import MediumError, MediumMissingError, ObjectMedium
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.index_files import write_index_file
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import LogError

log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 << 20
_TRIES: Final = 4


class _Damaged(Exception):
    """The file has a record that does not match its checksum, or no footer."""


async def copy_files(
    files: Files,
    medium: ObjectMedium,
    job: TierJob,
    *,
    settle: Callable[[str], None] = lambda _: None,
    is_wanted: Callable[[], bool] = lambda: True,
    pause_s: float = 0.5,
) -> TierDone:
    """`settle` makes an object durable where the store does not do so itself. Nothing is made any more once the job is
    not wanted: another process may be at the same files."""
    moved: list[str] = []
    damaged: list[str] = []
    for path, key in job.files:
        try:
            index = await _copied(files, medium, Path(path), key, pause_s)
            settle(key)
            if not is_wanted():
                return TierDone(moved, damaged, "the broker that wanted it has ended")
            write_index_file(files, index_path(Path(path)), index)
        except _Damaged:
            damaged.append(path)
        except (OSError, LogError) as error:
            return TierDone(moved, damaged, str(error) or type(error).__name__)
        else:
            moved.append(str(index_path(Path(path))))
    return TierDone(moved, damaged)


async def _copied(files: Files, medium: ObjectMedium, path: Path, key: str, pause_s: float) -> bytes:
    """The bytes of the index file, once the object has what the file has."""
    view = files.map(path, 0, files.size(path))
    data_end = _checked(view)
    why = "could not be created: the object store does not answer"
    for _ in range(_TRIES):
        # Whatever it answers: what is there is found out by reading.
        await medium.create(key, [view])
        try:
            is_same = await _is_same(medium, key, view)
        except MediumMissingError:
            await asyncio.sleep(pause_s)
            continue
        if is_same:
            try:
                return encode_index_file(TierPlace(key, len(view)), view[data_end:], data_end)
            except ValueError as error:
                raise _Damaged from error
        why = "was read back with other bytes than were sent"
        log.error("%s %s: trying another name", medium.url(key), why)
        # A name is not used again: a deletion may take effect at any later time.
        key = other_key(key, secrets.token_hex(4))
    raise MediumError(f"{medium.url(key)} {why}")


def _checked(view: memoryview) -> int:
    """Where the records end, if each of them is as it should be."""
    trailer = fmt.decode_trailer(view[-fmt.TRAILER_BYTES :])
    if trailer is None or crc32c(view[trailer.directory_at : trailer.tables_at]) != trailer.crc:
        raise _Damaged
    footer = fmt.Footer(view[trailer.directory_at : -fmt.TRAILER_BYTES], trailer.rows)
    for index, (ledger, first, count, _) in enumerate(footer):
        offsets, lengths = footer.places(index, 0, count)
        for i in range(count):
            if check_entry(view, offsets[i], lengths[i], ledger, first + i) is None:
                raise _Damaged
    return trailer.data_end


async def _is_same(medium: ObjectMedium, key: str, view: memoryview) -> bool:
    for at in range(0, len(view), _READ_BYTES):
        wanted = view[at : at + _READ_BYTES]
        found = await medium.get(key, at, len(wanted))
        if memoryview(found) != wanted:
            return False
    return True


def settle_in_folder(root: Path) -> Callable[[str], None]:
    """Syncs an object that is a file below `root`, and the folders on the way to it."""

    def settle(key: str) -> None:
        path = root / key
        for one in (path, *(parent for parent in path.parents if parent.is_relative_to(root))):
            fd = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    return settle
