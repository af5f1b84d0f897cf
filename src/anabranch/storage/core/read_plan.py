"""Where a topic's entries lie in files or objects, for readers that bypass the broker. Pure values and their JSON.

A plan covers the positions [start, end) of one topic, all of them confirmed. Each run is a stretch of one file that
holds whole records of consecutive entries of one ledger and nothing else; the reader checks ledger, entry and CRC32C of
each record. Many entries in a file that is full are named without their places (offset -1; the length is that of all
their records): the reader finds these in the file's index.

Names of log files are never used again, so a path identifies its bytes. If a path does not exist, the file was
rewritten or is dead: plan again. Until the plan expires, that does not happen while the same broker runs.

    {"version": 1, "topic": "persistent://…", "start": "5:0", "end": "8:120", "logEnd": "8:200", "hasLost": false,
     "root": "/data/log", "files": ["wal/…/00000001.wal"], "expiresInMs": 55000, "messageBytesMax": 5242880,
     "runs": [[ledger, first entry, last entry, file, byte offset, length], …]}

Of a log in an object store, `inObjects` is true, `root` the URL of the store and `files` are keys of objects. A run's
bytes are whole records of its ledger then: its entries in their order, among state records and perhaps other entries
of the ledger. `urls` has a URL for each object that needs no credentials, if the reader asked for them and the store
has such. Objects are removed at some time after the plan has expired; one that is gone means that it is to be planned
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count
from operator import add, ne
from typing import Final

import msgspec

from anabranch.errors import AnabranchError
from anabranch.model.position import Position

VERSION: Final = 1
INDEXED: Final = -1
_POSITION: Final = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19})")


class BadPlan(AnabranchError):
    """The JSON is no read plan, or one of a later version."""


class PlannedRun(msgspec.Struct, frozen=True, array_like=True):
    """Records of the entries [first, last] of a ledger, one behind the other, in `length` bytes from `offset` on.

    Or, if `offset` is INDEXED, scattered over the file: its index says where.
    """

    ledger: int
    first: int
    last: int
    # Its index in the plan's list of files.
    file: int
    offset: int
    length: int

    @property
    def is_indexed(self) -> bool:
        return self.offset == INDEXED


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    start: Position
    # One past the covered positions: as requested, or less if the log ends before or the plan would be too long.
    end: Position
    # One past the last confirmed entry when the plan was made.
    log_end: Position
    # Entries at or after `start` were trimmed: they are gone for good.
    has_lost: bool
    # The folder that the files' paths are relative to, or the URL of the object store.
    root: str
    files: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    # Counted from the request for the plan, so that two clocks need not agree.
    expires_in_ms: int
    # The broker's limit for a message as it is stored: an entry that unpacks to that many bytes is always read.
    message_bytes_max: int
    # Whether the files are objects.
    in_objects: bool = False
    # For each object, or for none: where anybody can read it until the plan has expired.
    urls: tuple[str, ...] = ()

    @property
    def entries(self) -> int:
        return sum(run.last - run.first + 1 for run in self.runs)

    @property
    def size_bytes(self) -> int:
        return sum(run.length for run in self.runs)


def stretches(offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges [i, j) of records that lie directly behind each other."""
    ends = map(add, offsets, lengths)
    following = iter(offsets)
    next(following, None)
    start = 0
    # All in C: there may be as many records as messages.
    for stop in compress(count(1), map(ne, ends, following)):
        yield start, stop
        start = stop
    if start < len(offsets):
        yield start, len(offsets)


def runs_of(
    ledger: int, first: int, file: int, offsets: Sequence[int], lengths: Sequence[int]
) -> Iterator[PlannedRun]:
    """The runs of consecutive entries from `first` on, whose records lie at those places of a file."""
    for i, j in stretches(offsets, lengths):
        yield PlannedRun(
            ledger, first + i, first + j - 1, file, offsets[i], offsets[j - 1] + lengths[j - 1] - offsets[i]
        )


# -- text


def position_text(at: Position) -> str:
    return f"{at[0]}:{at[1]}"


def parse_position(text: str) -> Position:
    """`ledger:entry`; ValueError if it is not that."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a position: write ledger:entry, as in 5:0")
    return int(found[1]), int(found[2])


class _Text(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The plan as JSON has it."""

    version: int
    topic: str
    start: str
    end: str
    log_end: str
    has_lost: bool
    root: str
    files: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    expires_in_ms: int
    message_bytes_max: int
    in_objects: bool = False
    urls: tuple[str, ...] = ()


class _Version(msgspec.Struct):
    version: int


# Made once, before threads decode plans side by side: msgspec's first look at a class is not safe for that.
_decode_version = msgspec.json.Decoder(_Version).decode
_decode_text = msgspec.json.Decoder(_Text).decode


def encode(plan: TopicPlan) -> bytes:
    fields = {name: getattr(plan, name) for name in plan.__struct_fields__}
    fields |= {name: position_text(fields[name]) for name in ("start", "end", "log_end")}
    return msgspec.json.encode(_Text(version=VERSION, **fields))


def decode(data: bytes) -> TopicPlan:
    try:
        version = _decode_version(data).version
        if version != VERSION:
            raise BadPlan(f"a read plan of version {version}, this reads {VERSION}: use the broker's release")
        text = _decode_text(data)
        fields = {name: getattr(text, name) for name in TopicPlan.__struct_fields__}
        fields |= {name: parse_position(fields[name]) for name in ("start", "end", "log_end")}
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise BadPlan(f"not a read plan: {error}") from None
    plan = TopicPlan(**fields)
    for name in plan.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise BadPlan(f"not a read plan: {name!r} does not lie below the log's folder")
    if plan.urls and len(plan.urls) != len(plan.files):
        raise BadPlan(f"not a read plan: {len(plan.urls)} URLs for {len(plan.files)} objects")
    if not all(url.startswith(("https://", "http://")) for url in plan.urls):
        raise BadPlan("not a read plan: the URL of an object is not one of HTTP")
    if plan.in_objects and any(run.is_indexed for run in plan.runs):
        raise BadPlan("not a read plan: an object has no index")
    _check(plan.runs, len(plan.files))
    return plan


def _check(runs: Iterable[PlannedRun], files: int) -> None:
    """Refuses an impossible plan before any byte is read by it."""
    before = (-1, -1)
    for run in runs:
        first = (run.ledger, run.first)
        if not (
            before < first
            and run.first <= run.last
            and 0 <= run.file < files
            and run.offset >= INDEXED
            and run.length >= 0
        ):
            raise BadPlan(f"not a read plan: run {msgspec.structs.astuple(run)} is impossible")
        before = (run.ledger, run.last)
