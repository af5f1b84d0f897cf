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
# The items of a batch, one after the other in a single flat list: items += (number, hash32, encoded, receipt). A tuple
# for each message that lives until its receipt would take Python's garbage collector as long as the message's future
# does, a tenth of all that `post` costs.
Items: TypeAlias = list[Any]
ITEM_FIELDS: Final = 4


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

    __slots__ = ("items",)

    def __init__(self, items: Items, size: int, since: float) -> None:
        self.items = items
        self.first = items[0]
        self.last = items[-ITEM_FIELDS]
        self.count = len(items) // ITEM_FIELDS
        self.cost = size + ITEM_OVERHEAD_BYTES * self.count
        self.since = since

    @property
    def hashes(self) -> list[int]:
        return self.items[1::ITEM_FIELDS]

    @property
    def encoded(self) -> list[bytes]:
        return self.items[2::ITEM_FIELDS]

    @property
    def receipts(self) -> list[Any]:
        return self.items[3::ITEM_FIELDS]

    def messages(self) -> Iterator[Item]:
        fields = [self.items[field::ITEM_FIELDS] for field in range(ITEM_FIELDS)]
        return zip(*fields, strict=True)

    def parted(self, upto: int) -> tuple[BatchRun, BatchRun]:
        at = bisect_right(self.items[::ITEM_FIELDS], upto) * ITEM_FIELDS
        return tuple(BatchRun(part, _size(part), self.since) for part in (self.items[:at], self.items[at:]))  # type: ignore[return-value]

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
    growing: dict[Any, Items] = {}
    sizes: dict[Any, int] = {}

    def close(where: Any) -> None:
        items = growing.pop(where, None)
        if items:
            # Numbers rise with time, so the run that had begun before the first of them bounds its age.
            since = order[bisect_right(marks, items[0]) - 1].since
            cut.append((where, BatchRun(items, sizes[where], since)))

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
            for item in group:
                where = place(item[1], item[1] & 0xFFFF)
                items = growing.get(where)
                size = len(item[2])
                if items is not None and (
                    len(items) >= limits.messages_max * ITEM_FIELDS or sizes[where] + size > limits.bytes_max
                ):
                    close(where)
                    items = None
                if items is None:
                    growing[where], sizes[where] = [*item], size
                else:
                    items += item
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


def _size(items: Items) -> int:
    return sum([len(encoded) for encoded in items[2::ITEM_FIELDS]])
