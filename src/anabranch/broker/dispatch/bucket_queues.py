"""Data plane. The entry buckets of one subscription: who has entries of each, and which entries wait in it. Pure.

A bucket's entries are handed out in the order of the log, and to one consumer at a time: as long as its *holder* has
unacknowledged entries of it, no other consumer gets any. An entry lies in a span of buckets, mostly in one. It waits in
each bucket of its span and may go once it is the first in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.model.position import Position

# The numbers of the first and the last bucket that an entry may have keys of.
Span = tuple[int, int]


class WaitingEntry(NamedTuple):
    """An entry that waits. `is_part`: it may be a later chunk of a message."""

    at: Position
    span: Span
    messages: int
    is_part: bool


class Bucket:
    """`owner` is to get its entries, `holder` has `held` of them. The other fields belong to `bucket_scan`."""

    __slots__ = ("aside", "awaited", "held", "holder", "is_following", "owner", "search", "served", "since")

    def __init__(self, at: Position) -> None:
        self.owner: AttachedConsumer | None = None
        self.holder: AttachedConsumer | None = None
        self.held = 0
        # A heap.
        self.aside: list[WaitingEntry] = []
        self.since = at
        self.is_following = True
        self.served = 0
        self.awaited: Position | None = None
        self.search: Position | None = None

    def is_free_for(self, consumer: AttachedConsumer) -> bool:
        return self.holder is None or self.holder is consumer

    @property
    def is_open(self) -> bool:
        """Whether its next unread entry could be sent now."""
        owner = self.owner
        return owner is not None and not self.aside and self.is_free_for(owner) and owner.has_room

    @property
    def is_moving(self) -> bool:
        """Whether its owner waits for another consumer's acknowledgements."""
        return self.holder is not None and self.holder is not self.owner


class BucketQueues:
    def __init__(self, count: int, at: Position) -> None:
        self.all = [Bucket(at) for _ in range(count)]
        # Buckets to check again, and buckets that wait for room at a consumer.
        self._ready: dict[int, None] = {}
        self._short: dict[AttachedConsumer, set[int]] = {}

    @property
    def waiting(self) -> int:
        """How many entries wait; each counts once."""
        return sum(one.span[0] == n for n, bucket in enumerate(self.all) for one in bucket.aside)

    def touched(self, span: Span) -> list[Bucket]:
        return self.all[span[0] : span[1] + 1]

    # -- who has what

    def receiver(self, at: Position, span: Span) -> AttachedConsumer | None:
        """The consumer that may get the entry now, whatever its room. None: it must wait."""
        first, last = span
        owner = self.all[first].owner
        if owner is None:
            return None
        for number in range(first, last + 1):
            bucket = self.all[number]
            if not bucket.is_free_for(owner) or (bucket.aside and bucket.aside[0].at < at):
                return None
        return owner

    def take(self, span: Span, consumer: AttachedConsumer) -> None:
        """Notes an entry as sent."""
        for number in range(span[0], span[1] + 1):
            bucket = self.all[number]
            bucket.holder = consumer
            bucket.held += 1

    def give_back(self, span: Span, consumer: AttachedConsumer) -> None:
        """The entry is acknowledged, or will be sent again."""
        for number in range(span[0], span[1] + 1):
            bucket = self.all[number]
            if bucket.holder is consumer:
                bucket.held -= 1
                if not bucket.held:
                    bucket.holder = None
                    self._ready[number] = None

    # -- what waits

    def wait(self, number: int, one: WaitingEntry) -> None:
        """Adds the entry to those that wait in that bucket."""
        heappush(self.all[number].aside, one)
        self._ready[number] = None

    def check_all(self) -> None:
        """Checks every bucket again: the owners have changed."""
        self._short.clear()
        self._ready.update((n, None) for n, bucket in enumerate(self.all) if bucket.aside)

    def release(self, entries_max: int, is_acked: Callable[[Position], bool]) -> list[Position]:
        """Removes and returns entries that can be sent now, as many as the consumers have room for."""
        for had_none in [one for one in self._short if one.has_room]:
            self._ready.update(dict.fromkeys(self._short.pop(had_none)))
        out: list[Position] = []
        room: dict[AttachedConsumer, int] = {}
        while self._ready and len(out) < entries_max:
            number = next(iter(self._ready))
            del self._ready[number]
            bucket = self.all[number]
            if not bucket.aside:
                continue
            one = bucket.aside[0]
            consumer = self.receiver(one.at, one.span)
            touched = self.touched(one.span)
            # Another bucket may not have got as far as this entry.
            if consumer is None or any(not other.aside or other.aside[0].at != one.at for other in touched):
                if is_acked(one.at):
                    # While it waited. Buckets that have yet to get to it will not collect it.
                    self.take_out(one.at, one.span)
                continue
            has = room.get(consumer, consumer.permits if consumer.has_room else 0)
            if has <= 0:
                self._short.setdefault(consumer, set()).update(range(one.span[0], one.span[1] + 1))
                continue
            for other in touched:
                heappop(other.aside)
            self._ready.update(dict.fromkeys(range(one.span[0], one.span[1] + 1)))
            room[consumer] = has - one.messages
            out.append(one.at)
        return out

    def take_parts(self, number: int) -> list[Position]:
        """Removes and returns what waits in that bucket and may be a later chunk of a message."""
        parts = [one for one in self.all[number].aside if one.is_part]
        places = {one.at for one in parts}
        for other in dict.fromkeys(
            n for span in {one.span for one in parts} for n in range(span[0], span[1] + 1)
        ):
            bucket = self.all[other]
            bucket.aside = [one for one in bucket.aside if one.at not in places]
            heapify(bucket.aside)
            self._ready[other] = None
        return [one.at for one in parts]

    def take_out(self, at: Position, span: Span) -> None:
        """Removes an entry from those that wait, wherever it does."""
        for number in range(span[0], span[1] + 1):
            bucket = self.all[number]
            if any(one.at == at for one in bucket.aside):
                bucket.aside = [one for one in bucket.aside if one.at != at]
                heapify(bucket.aside)
                self._ready[number] = None

    def drop_below(self, at: Position) -> None:
        """Forgets entries that are acknowledged by other means."""
        for bucket in self.all:
            if bucket.aside and bucket.aside[0].at < at:
                bucket.aside = [one for one in bucket.aside if one.at >= at]
                heapify(bucket.aside)
        self.check_all()

    # -- figures

    def withheld(self, unread: Iterable[Bucket]) -> int:
        """How many buckets have entries that wait for another consumer's acknowledgements or for an owner. `unread`
        are the buckets that have not been read to the end."""
        behind = set(map(id, unread))
        return sum(self._is_withheld(bucket, id(bucket) in behind) for bucket in self.all)

    def _is_withheld(self, bucket: Bucket, is_unread: bool) -> bool:
        if not bucket.aside:
            return is_unread and (bucket.owner is None or not bucket.is_free_for(bucket.owner))
        span = bucket.aside[0].span
        owner = self.all[span[0]].owner
        return owner is None or not all(one.is_free_for(owner) for one in self.touched(span))
