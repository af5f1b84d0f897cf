"""Files of the log whose bytes were moved to an object store: what stays of each here, and what is asked of the store.

A rewritten file `NAME.led` that was moved has an *index file* `NAME.tier` in its place: the name of the object, the
names of the ledgers' records and the footer, whose places are those in the object. The object has the bytes of the file
as they were. The index file is made once, by a link, after the object was read back: that is the moment from which
the object counts, and the local file may go. Until then the local file counts, whatever there is in the store.

    index file = record (ledger 0): the place as JSON, names, footer          as in a rewritten file from its names on

Pure, and the port to such a store, whose adapter is in `storage/tier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from anabranch.storage.core import format as fmt
from anabranch.storage.port import Buffer, Entry, LogError

TIERED: Final = ".tier"


class TierPlace(msgspec.Struct, frozen=True):
    """The object with the bytes of a file that was moved."""

    key: str
    bytes: int


class FarEntries(NamedTuple):
    """Consecutive entries in an object: where their records are, offsets and lengths with the record header."""

    place: TierPlace
    ledger: int
    first: int
    offsets: Sequence[int]
    lengths: Sequence[int]
    # Where the records of the ledger end in this object, for a reader that reads on.
    ledger_end: int


class TierJob(msgspec.Struct, frozen=True):
    """Rewritten files to be moved: (path, key of the object)."""

    files: list[tuple[str, str]]


class TierDone(msgspec.Struct, frozen=True):
    """What came of a job. Files that are in neither list were not tried, because one before them failed."""

    # The index files that were made.
    moved: list[str]
    # Files with a damaged record: they stay where they are.
    damaged: list[str]
    # Why the job ended early; "" if it did not.
    failed: str = ""


class TierError(LogError):
    """The object store of moved files cannot be used as it is."""


class Tier(Protocol):
    """The object store to which files are moved."""

    @property
    def url(self) -> str:
        """Where readers with credentials of their own find the objects."""

    def named(self, key: str) -> str:
        """The name of an object, for people."""

    async def read(self, wanted: FarEntries) -> list[Entry]:
        """Those entries, or the first of them: at least one. LogDamagedError if the first is damaged, LogMissingError
        if there is no such object, another LogError if the store does not answer: trying again may help then."""

    async def move(self, job: TierJob, lock: int | None) -> TierDone:
        """Copies files and makes their index files; none of the files is removed. `lock` stays locked until the last
        trace of the job has ended, also if this process is killed."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects. LogError if it is not known whether all are gone."""

    async def list(self, folder: str) -> Sequence[tuple[str, int]]:
        """Keys and sizes of all objects below a folder. LogError if the store does not answer."""

    async def tail(self, key: str, size: int) -> bytes | None:
        """The part of an object that is behind its records; None if it is no moved file."""

    async def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """URLs with which anybody can read these objects for so long; none at all if the store has no such."""

    def stats(self) -> dict[str, float]: ...

    async def close(self) -> None: ...


def is_tiered(path: Path) -> bool:
    return path.name.endswith(TIERED)


def index_path(path: Path) -> Path:
    """The index file of a rewritten file."""
    return path.with_name(path.name.removesuffix(path.suffix) + TIERED)


def key_of(log_id: str, root: Path, path: Path) -> str:
    """The object of a rewritten file: no two logs, and no two files of a log, have the same."""
    return f"{log_id}/{path.relative_to(root / 'ledgers').as_posix()}"


def other_key(key: str, token: str) -> str:
    """Another name for the same object."""
    stem, dot, suffix = key.rpartition(".")
    return f"{stem.partition('~')[0]}~{token}{dot}{suffix}"


def stem_of(path: str) -> str:
    """What the path of a rewritten file, that of its index file and the key of its object have in common."""
    return path.rpartition("/")[2].rpartition(".")[0].partition("~")[0]


def encode_index_file(place: TierPlace, tail: Buffer, tail_at: int) -> bytes:
    """`tail` is what a rewritten file has behind its records, from `tail_at` on. ValueError if it is not that."""
    view = memoryview(tail)
    trailer = fmt.decode_trailer(view[-fmt.TRAILER_BYTES :])
    if trailer is None or trailer.data_end != tail_at or tail_at + len(view) != place.bytes:
        raise ValueError("no footer of a rewritten file")
    names = view[: trailer.directory_at - tail_at]
    body = view[trailer.directory_at - tail_at : -fmt.TRAILER_BYTES]
    rows = fmt.Footer(body, trailer.rows)
    head = fmt.encode_record(0, 0, 0, fmt.SNAPSHOT, msgspec.json.encode(place))
    at = -(-(len(head) + len(names)) // 8) * 8
    found = []
    for index, (ledger, first, count, _) in enumerate(rows):
        offsets, lengths = rows.places(index, 0, count)
        found.append(fmt.FooterRow(ledger, first, offsets, lengths))
    footer = fmt.encode_footer(trailer.nonce, trailer.file, found, len(head), 0, at)
    return b"".join((head, names, bytes(at - len(head) - len(names)), footer))
