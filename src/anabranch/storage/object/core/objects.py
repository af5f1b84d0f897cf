"""The bytes and names of the objects of a log. Pure.

    {prefix}/wal/{2 hex}/{incarnation}/log/{n:012d}     a commit or a fence; created once, fences never deleted
                                      /state/{k:08d}    checkpoint k: ledgers, and which numbers hold their entries
                                      /taken/{k:06d}    answers of take-overs, created once
                                      /rewritten/{16 hex}   what lived in objects that were mostly dead
                                      /map/{k:08d}      where everything lies as of map k; the newest counts (`maps.py`)
                                      /gone             nothing of the log is wanted: only its fences are left
    {prefix}/logs/{incarnation}                         there is such a log, and not all of it was given back
    {prefix}/ended/{incarnation}                        the answer about the whole log is stored

A commit is what it is in a file (`storage/core/format.py`), one in each object: there is no torn tail. Its header's
number is the commit's ordinal, and `confirmed_end` the last ordinal confirmed when it was put. The two digits spread
the logs of many brokers over the partitions of a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from anabranch.model.position import Incarnation
from anabranch.storage.core import format as fmt
from anabranch.storage.object.core.fold import LedgerFold
from anabranch.storage.object.core.numbers import FencedLedgers
from anabranch.storage.port import Buffer, LogError

_FENCE_MAGIC: Final = b"anbrfnc1"
_STATE_MAGIC: Final = b"anbrsta1"
# What is read of an object to find out whose it is. A fence that is longer is read whole.
PEEK_BYTES: Final = 4096
# Numbers from here on are those of rewritten objects, which have names that are never chosen twice.
REWRITTEN: Final = 1 << 63
# The folders of marks: which logs there are can be listed without their objects.
LOGS: Final = "logs"
ENDED: Final = "ended"


class LogKeys:
    """The names of the objects of one log."""

    def __init__(self, incarnation: Incarnation) -> None:
        self.folder = f"wal/{crc32c(incarnation.encode()) & 0xFF:02x}/{incarnation}"
        self.log = f"{self.folder}/log"
        self.states = f"{self.folder}/state"
        self.answers = f"{self.folder}/taken"
        self.rewritten = f"{self.folder}/rewritten"
        self.maps = f"{self.folder}/map"
        self.gone = f"{self.folder}/gone"
        self.exists_mark = f"{LOGS}/{incarnation}"
        self.ended_mark = f"{ENDED}/{incarnation}"

    def number(self, number: int) -> str:
        if number >= REWRITTEN:
            return f"{self.rewritten}/{number - REWRITTEN:016x}"
        return f"{self.log}/{number:012d}"

    def map(self, number: int) -> str:
        return f"{self.maps}/{number:08d}"

    def state(self, number: int) -> str:
        return f"{self.states}/{number:08d}"

    def answer(self, number: int) -> str:
        return f"{self.answers}/{number:06d}"


def number_of(key: str) -> int:
    """The number at the end of a key; 0 if there is none."""
    name = key.rpartition("/")[2]
    return int(name) if name.isascii() and name.isdigit() else 0


def rewritten_of(key: str) -> int:
    """The number of a rewritten object; 0 if the key is none of one."""
    name = key.rpartition("/")[2]
    try:
        return REWRITTEN + int(name, 16) if len(name) == 16 else 0
    except ValueError:
        return 0


# -- fences


class FencingNote(msgspec.Struct):
    # Of the fencer that made it.
    fencer: str
    # None for every ledger of the log.
    ledgers: list[int] | None


class FenceObject(NamedTuple):
    fencer: str
    fenced: FencedLedgers


class CommitObject(NamedTuple):
    """The first fields of a commit: enough to know whose it is."""

    nonce: int
    ordinal: int


def encode_fence(fencer: str, ledgers: Iterable[int] | None) -> bytes:
    note = FencingNote(fencer, None if ledgers is None else sorted(ledgers))
    body = _FENCE_MAGIC + msgspec.json.encode(note)
    return body + crc32c(body).to_bytes(4, "little")


def is_fence(data: Buffer) -> bool:
    return bytes(data[:8]) == _FENCE_MAGIC


def decode_object(data: Buffer) -> CommitObject | FenceObject | None:
    """What an object of the log is, from its first PEEK_BYTES, or all of it; None if it is neither."""
    if is_fence(data):
        body = bytes(data)
        if crc32c(body[:-4]).to_bytes(4, "little") != body[-4:]:
            return None
        try:
            note = _decode_fence(body[8:-4])
        except msgspec.DecodeError:
            return None
        return FenceObject(
            note.fencer, FencedLedgers(None if note.ledgers is None else frozenset(note.ledgers))
        )
    if len(data) < fmt.COMMIT_BYTES or bytes(data[:8]) != fmt.COMMIT_MAGIC:
        return None
    _, nonce, _, _, ordinal, *_ = fmt.COMMIT.unpack_from(data)
    return CommitObject(nonce, ordinal)


# -- commits


def encode_commit(
    nonce: int,
    number: int,
    ordinal: int,
    confirmed: int,
    rows: Sequence[tuple[int, int, int, int]],
    buffers: Sequence[Buffer],
) -> bytes:
    """`rows` are (ledger, first entry, entries, bytes) of each run; what follows the runs are checkpoint parts."""
    length = sum(map(len, buffers))
    header = fmt.CommitHeader(ordinal, 0, length, len(rows), 0, confirmed)
    # The place in a file of 32 bits is the number's end here: it shows an object that was copied to another name.
    return b"".join([fmt.encode_commit_header(nonce, number & 0xFFFFFFFF, header, rows), *buffers])


class CommitTable(NamedTuple):
    """The header of a commit, and where its runs lie."""

    header: fmt.CommitHeader
    nonce: int
    # (ledger, first entry, entries, offset, length)
    runs: list[tuple[int, int, int, int, int]]


def table_bytes(data: memoryview) -> int:
    """How many bytes at the beginning of a commit object hold its header and table."""
    if len(data) < fmt.COMMIT_BYTES:
        return fmt.COMMIT_BYTES
    runs: int = fmt.COMMIT.unpack_from(data)[7]
    return fmt.COMMIT_BYTES + fmt.RUN_BYTES * runs


def decode_table(data: memoryview, number: int) -> CommitTable | None:
    """None if these are not the first bytes of the commit of that number."""
    if len(data) < fmt.COMMIT_BYTES:
        return None
    nonce: int = fmt.COMMIT.unpack_from(data)[1]
    header = fmt.decode_commit_header(data, 0, nonce, number & 0xFFFFFFFF)
    if header is None:
        return None
    at = fmt.COMMIT_BYTES + fmt.RUN_BYTES * header.runs
    runs = []
    for row in fmt.decode_run_table(data, 0, header.runs):
        runs.append((row.ledger, row.first, row.entries, at, row.length))
        at += row.length
    return CommitTable(header, nonce, runs)


# -- checkpoints


class LedgerNote(msgspec.Struct, array_like=True):
    ledger: int
    namespace: str
    record: str
    entries_end: int
    state_end: int
    size: int
    snapshot: bytes | None
    deltas: list[bytes]
    is_cut: bool
    is_stale: bool
    is_damaged: bool
    # The first number that holds a fence for it; 0 for none.
    fence: int
    messages: int = -1

    @staticmethod
    def of(ledger: int, fold: LedgerFold, fence: int) -> LedgerNote:
        return LedgerNote(
            ledger,
            fold.namespace,
            fold.record,
            fold.entries_end,
            fold.state_end,
            fold.size,
            fold.snapshot,
            list(fold.deltas),
            fold.is_cut,
            fold.is_stale,
            fold.is_damaged,
            fence,
            fold.messages,
        )

    def fold(self) -> LedgerFold:
        return LedgerFold(
            self.namespace,
            self.record,
            self.entries_end,
            self.state_end,
            self.size,
            self.snapshot,
            list(self.deltas),
            self.is_cut,
            self.is_stale,
            self.is_damaged,
            self.messages,
        )


class PlacesNote(msgspec.Struct, array_like=True):
    """Where entries of a ledger lie: from `firsts[i]` on in the object `numbers[i]`, in `sizes[i]` bytes."""

    ledger: int
    firsts: list[int]
    numbers: list[int]
    # Empty if stored by a release that did not tell them.
    sizes: list[int] = []


class StateNote(msgspec.Struct, array_like=True):
    """A checkpoint: the log as of one commit."""

    number: int
    # The checkpoint with which reading begins: this one, if it is full.
    base: int
    nonce: int
    # Every commit up to this ordinal is in it.
    ordinal: int
    # Commits after that lie at this number or above.
    scan_from: int
    ledgers: list[LedgerNote]
    # Ledgers that are dead since the checkpoint before.
    gone: list[int]
    # Of commits since the checkpoint before.
    places: list[PlacesNote]
    sizes: dict[int, int]


def encode_state(note: StateNote) -> bytes:
    body = _STATE_MAGIC + msgspec.msgpack.encode(note)
    return body + crc32c(body).to_bytes(4, "little")


def decode_state(data: Buffer, key: str) -> StateNote:
    body = bytes(data)
    if body[:8] != _STATE_MAGIC or crc32c(body[:-4]).to_bytes(4, "little") != body[-4:]:
        raise LogError(f"{key} is damaged, or no checkpoint")
    return _decode_state(body[8:-4])


def joined_ledgers(notes: Iterable[StateNote]) -> Mapping[int, LedgerNote]:
    """The ledgers as of the last of these checkpoints, which follow each other from a full one on."""
    found: dict[int, LedgerNote] = {}
    for note in notes:
        for gone in note.gone:
            found.pop(gone, None)
        found.update({one.ledger: one for one in note.ledgers})
    return found


_decode_fence = msgspec.json.Decoder(FencingNote).decode
_decode_state = msgspec.msgpack.Decoder(StateNote).decode
