"""Data plane. Runs: consecutive messages of one segment that become one entry, and how they are cut again.

A run is never changed once it is cut: when it is sent again after a lost connection, it must cover the same sequence
ids, or a broker that holds a part of it would drop the rest as a repetition. Only runs that a sealed segment refused,
which no segment holds, are split into messages again: `recut` sorts all of them by number and groups them by the new
layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from anabranch.model.keyhash import bucket_hash

# What a message costs the memory budget besides its encoded bytes: a tuple, a future, its place in lists.
ITEM_OVERHEAD_BYTES: Final = 256

# A message of a batch: its sequence id, 32-bit hash, the message encoded for a batch, and its receipt.
Item: TypeAlias = tuple[int, int, bytes, Any]
# What is kept of a batch's messages, in two flat lists: items += (number, hash32, receipt), and parts += the pieces of
# the encoded message, as many of each message. A tuple for each message that lives until its receipt would take
# Python's garbage collector as long as the message's future does, a tenth of all that `post` costs. All pieces but the
# payload are shared among messages: thousands are gathered at once, and the processor's caches have lost each of them
# when it is met again, so the less is kept of a message, the better.
Items: TypeAlias = list[Any]
ITEM_FIELDS: Final = 3
Parts: TypeAlias = list[bytes]


class MessageRun:
    """The common fields of runs: first and last sequence id, the number of messages, the cost for the memory budget.

    `since` is when its first message was handed in.
    """

    __slots__ = ("cost", "count", "first", "last", "since")

    first: int
    last: int
    count: int
    cost: int
    since: float

    def parted(self, upto: int) -> tuple[MessageRun, MessageRun]:
        """The messages up to that number, which is at least `first` and below `last`, and those after it."""
        raise NotImplementedError

    def bucket_span(self) -> tuple[int, int]:
        """The least and the greatest entry-bucket hash of its messages."""
        raise NotImplementedError


class BatchRun(MessageRun):
    """Messages of a batch."""

    __slots__ = ("items", "parts")

    def __init__(self, items: Items, parts: Parts, size: int, since: float) -> None:
        self.items = items
        self.parts = parts
        self.first = items[0]
        self.last = items[-ITEM_FIELDS]
        self.count = len(items) // ITEM_FIELDS
        self.cost = size + ITEM_OVERHEAD_BYTES * self.count
        self.since = since

    @property
    def hashes(self) -> list[int]:
        return self.items[1::ITEM_FIELDS]

    @property
    def receipts(self) -> list[Any]:
        return self.items[2::ITEM_FIELDS]

    @property
    def _pieces(self) -> int:
        """The number of pieces of a message."""
        return len(self.parts) // self.count

    def encoded(self, index: int) -> bytes:
        """One of its messages, encoded."""
        pieces = self._pieces
        return b"".join(self.parts[index * pieces : (index + 1) * pieces])

    def messages(self) -> Iterator[Item]:
        numbers = self.items[::ITEM_FIELDS]
        encoded = map(self.encoded, range(self.count))
        return zip(numbers, self.hashes, encoded, self.receipts, strict=True)

    def parted(self, upto: int) -> tuple[BatchRun, BatchRun]:
        at = bisect_right(self.items[::ITEM_FIELDS], upto)
        return self._part(0, at), self._part(at, self.count)

    def _part(self, start: int, end: int) -> BatchRun:
        items, pieces = self.items[start * ITEM_FIELDS : end * ITEM_FIELDS], self._pieces
        parts = self.parts[start * pieces : end * pieces]
        return BatchRun(items, parts, sum(map(len, parts)), self.since)

    def bucket_span(self) -> tuple[int, int]:
        low = [hash32 & 0xFFFF for hash32 in self.hashes]
        return min(low), max(low)


class SingleMessage(NamedTuple):
    """A message that has its own entry, or several chunks."""

    payload: bytes
    key: str | bytes | None
    properties: tuple[tuple[str, str], ...]
    event_time_ms: int | None
    deliver_at_ms: int | None
    ordering_key: bytes | None
    is_null: bool


class WholeRun(MessageRun):
    """One message outside a batch. Its ordering key, if it has one, chooses the entry bucket, as it chooses the
    consumer where consumers share a topic by keys; the segment is its key's."""

    __slots__ = ("bucket_hash", "hash32", "receipt", "whole")

    def __init__(self, number: int, hash32: int, whole: SingleMessage, receipt: Any, since: float) -> None:
        self.first = self.last = number
        self.count = 1
        self.cost = len(whole.payload) + ITEM_OVERHEAD_BYTES
        self.hash32 = hash32
        ordering_key = whole.ordering_key
        self.bucket_hash = hash32 & 0xFFFF if ordering_key is None else bucket_hash(ordering_key)
        self.whole = whole
        self.receipt = receipt
        self.since = since

    def bucket_span(self) -> tuple[int, int]:
        return self.bucket_hash, self.bucket_hash


class BlockRun(MessageRun):
    """Messages of a table, in memory they share with others of it. `tables` knows its contents."""

    __slots__ = ()

    def payload(self) -> memoryview:
        """The payload of its batch."""
        raise NotImplementedError

    def sample(self) -> bytes | None:
        """Its first message, if all of them have the same key."""
        raise NotImplementedError

    def stored(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


class BatchLimits(NamedTuple):
    """The limits of a batch."""

    messages_max: int
    bytes_max: int


Cut: TypeAlias = list[tuple[Any, MessageRun]]


def recut(
    runs: Sequence[MessageRun],
    place: Callable[[int, int], Any],
    limits: BatchLimits,
    regroup: Callable[[list[BlockRun]], Cut] | None = None,
) -> Cut:
    """All messages of the runs, grouped by `place(hash32, bucket_hash)`, the runs of each place in the order of their
    numbers.

    `regroup` does the same with runs of tables, which are neighbours in that order: the numbers of a table have no gap.
    """
    order = sorted(runs, key=_first)
    marks = [run.first for run in order]
    cut: Cut = []
    growing: dict[Any, tuple[Items, Parts]] = {}
    sizes: dict[Any, int] = {}

    def close(where: Any) -> None:
        grown = growing.pop(where, None)
        if grown is not None:
            items, parts = grown
            # Numbers rise with time, so the run that had begun before the first of them bounds its age.
            since = order[bisect_right(marks, items[0]) - 1].since
            cut.append((where, BatchRun(items, parts, sizes[where], since)))

    for kind, group in groupby(_atoms(order), key=type):
        if issubclass(kind, BlockRun):
            assert regroup is not None
            for where, run in regroup(list(group)):
                close(where)
                cut.append((where, run))
        elif kind is WholeRun:
            for whole in group:
                where = place(whole.hash32, whole.bucket_hash)
                close(where)
                cut.append((where, whole))
        else:
            for number, hash32, encoded, receipt in group:
                where = place(hash32, hash32 & 0xFFFF)
                grown = growing.get(where)
                size = len(encoded)
                if grown is not None and (
                    len(grown[1]) >= limits.messages_max or sizes[where] + size > limits.bytes_max
                ):
                    close(where)
                    grown = None
                if grown is None:
                    grown, sizes[where] = ([], []), 0
                    growing[where] = grown
                grown[0].extend((number, hash32, receipt))
                grown[1].append(encoded)
                sizes[where] += size
    for where in list(growing):
        close(where)
    return cut


def _atoms(runs: Iterable[MessageRun]) -> list[Any]:
    """Messages, and runs that cannot be split here, by number."""
    atoms: list[tuple[int, Any]] = []
    for run in runs:
        if isinstance(run, BatchRun):
            atoms += [(item[0], item) for item in run.messages()]
        else:
            atoms.append((run.first, run))
    atoms.sort(key=_number)
    return [atom for _, atom in atoms]


def _number(item: Any) -> int:
    number: int = item[0]
    return number


def _first(run: MessageRun) -> int:
    return run.first
