"""Looks at the moved files of a log without changing anything: whether their objects are there, and can be read.

May run while a broker moves and deletes files: what a second look does not confirm is not told.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.storage.core.tiered import TIERED, TierPlace, stem_of
from anabranch.storage.object.medium import MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked
from anabranch.storage.on_disk.catalog import LogFile
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.index_files import ID_FILE, read_place, rewritten_names
from anabranch.storage.on_disk.indexing import read_part
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.on_disk.reclaim import load_rewritten_file

_POLICY = ObjectLogPolicy()


@dataclass(slots=True)
class TierSurvey:
    # The log's folder in the store; "" if nothing was ever moved.
    folder: str = ""
    objects: int = 0
    size: int = 0
    # Keys of index files without an object of that size, and index files that cannot be read.
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    # Objects that no index file and no file names, with their sizes. Brokers delete those in which nothing lives.
    orphans: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TierFault:
    """What is wrong with a moved file: with its record at that byte, or with all of it (-1)."""

    key: str
    offset: int
    ledger: int
    entry: int
    reason: str

    def __str__(self) -> str:
        if self.offset < 0:
            return f"{self.key}: {self.reason}"
        return f"{self.key} at byte {self.offset}: ledger {self.ledger} entry {self.entry}: {self.reason}"


async def survey(files: Files, root: Path, medium: ObjectMedium) -> TierSurvey:
    """`root` is the folder of the log."""
    found = await _survey(files, root, medium)
    if found.missing or found.orphans:
        again = await _survey(files, root, medium)
        again.missing = [one for one in again.missing if one in found.missing]
        again.orphans = [one for one in again.orphans if one in found.orphans]
        return again
    return found


async def _survey(files: Files, root: Path, medium: ObjectMedium) -> TierSurvey:
    found = TierSurvey()
    try:
        found.folder = read_part(files, root / ID_FILE, 0, 64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return found
    listed = dict(await asked(lambda: medium.list(found.folder), _POLICY))
    named: set[str] = set()
    for path in rewritten_names(files, root):
        named.add(stem_of(path.name))
        if not path.name.endswith(TIERED):
            continue
        place = _place(files, path)
        if place is None:
            found.damaged.append(str(path))
        elif listed.get(place.key) != place.bytes:
            found.missing.append(place.key)
        else:
            found.objects += 1
            found.size += place.bytes
    found.orphans = sorted(one for one in listed.items() if stem_of(one[0]) not in named)
    return found


async def verify(
    files: Files, root: Path, medium: ObjectMedium
) -> AsyncIterator[tuple[str, int, list[TierFault]]]:
    """The key of each moved file, the number of its entries, and what is wrong with them: all objects are read."""
    for path in rewritten_names(files, root):
        if not path.name.endswith(TIERED):
            continue
        file = load_rewritten_file(files, path)
        if file is None or file.place is None:
            yield str(path), 0, [TierFault(str(path), -1, 0, 0, "the index file is damaged")]
            continue
        key = file.place.key
        try:
            data = memoryview(await asked(lambda key=key: medium.get(key), _POLICY))  # type: ignore[misc]
        except MediumMissingError:
            if _place(files, path) is not None:
                yield key, 0, [TierFault(key, -1, 0, 0, "there is no such object")]
            continue
        yield key, *_checked(file, key, data)


def _checked(file: LogFile, key: str, data: memoryview) -> tuple[int, list[TierFault]]:
    entries, faults = 0, []
    for ledger, first, count, _ in file.index.rows():
        places = file.index.places(ledger, first, count)
        assert places is not None
        for number, offset, length in zip(range(first, first + count), places[1], places[2], strict=True):
            if check_entry(data, offset, length, ledger, number) is None:
                faults.append(
                    TierFault(key, offset, ledger, number, "the record does not match its checksum")
                )
            else:
                entries += 1
    return entries, faults


def _place(files: Files, path: Path) -> TierPlace | None:
    with contextlib.suppress(FileNotFoundError):
        return read_place(files, path)
    return None
