"""Data plane. The entry buckets of one subscription: who has entries of each, and which entries wait in it. Pure.

A bucket's entries are handed out in the order of the log, and to one consumer at a time: as long as its *holder* has
unacknowledged entries of it, no other consumer gets any. An entry lies in a span of buckets, mostly in one. It waits in
each bucket of its span and may go once it is the first in all of them. An entry of all buckets is kept apart, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.every_bucket import EveryBucket, Span, WaitingEntry
from anabranch.model.position import Position

# An entry that spans more buckets than this counts as one of every bucket, so that no entry waits in very many queues.
_SPAN_MAX: Final = 8
_NO_SPAN: Final = (-1, -1)


class Bucket:
    """`owner` is to get its entries, `holder` has `held` of them; those of `every` bucket are kept apart. The other
    fields belong to `bucket_scan`."""

    __slots__ = (
        "aside",
        "awaited",
        "every",
        "held",
        "holder",
        "is_following",
        "owner",
        "served",
        "since",
    )

    def __init__(self, at: Position, every: EveryBucket) -> None:
        self.every = every
        self.owner: AttachedConsumer | None = None
        self.holder: AttachedConsumer | None = None
        self.held = 0
        # A heap.
        self.aside: list[WaitingEntry] = []
        self.since = at
        self.is_following = True
        self.served = 0
        self.awaited: Position | None = None

    def is_free_for(self, consumer: AttachedConsumer) -> bool:
        return (self.holder is None or self.holder is consumer) and self.every.is_free_for(consumer)

    def await_entry(self, at: Position) -> None:
        """An entry waits until this bucket has got to it."""
        self.awaited = at if self.awaited is None else max(self.awaited, at)

    @property
    def is_open(self) -> bool:
        """Whether its next unread entry could be sent now."""
        owner = self.owner
        return (
            owner is not None
            and not self.aside
            and not self.every.waiting
            and self.is_free_for(owner)
            and owner.has_room
        )


class BucketQueues:
    def __init__(self, count: int, at: Position) -> None:
        self.every = EveryBucket()
        self.all = [Bucket(at, self.every) for _ in range(count)]
        # That of an entry of every bucket. One bucket alone keeps all entries itself.
        self._every_span: Final = (0, count - 1) if count > 1 else _NO_SPAN
        # Buckets to check again, and buckets that wait for room at a consumer.
        self._ready: dict[int, None] = {}
        self._short: dict[AttachedConsumer, set[int]] = {}
        # Chunks that wait, of messages that were begun: only the consumer with the others can use them.
        self._destined: dict[Position, AttachedConsumer] = {}
        # The first entry that waits in any of the buckets, while that is known.
        self._first: Position | None = None
        self._is_first_known = True

    @property
    def waiting(self) -> int:
        """How many entries wait; each counts once."""
        return len(self.every.waiting) + sum(
            one.span[0] == n for n, bucket in enumerate(self.all) for one in bucket.aside
        )

    def span(self, first: int, last: int) -> Span:
        """The span of an entry with keys from that bucket to that one."""
        return (first, last) if last - first < _SPAN_MAX else (0, len(self.all) - 1)

    def is_of_every(self, span: Span) -> bool:
        """Whether an entry with that span is kept apart."""
        return span == self._every_span

    def touched(self, span: Span) -> list[Bucket]:
        return self.all[span[0] : span[1] + 1]

    # -- who has what

    def receiver(self, at: Position, span: Span) -> AttachedConsumer | None:
        """The consumer that may get the entry now, whatever its room. None: it must wait."""
        first, last = span
        owner = self._heir(at, first)
        if owner is None or not self.every.is_free_for(owner) or self.every.waits_before(at):
            return None
        if span == self._every_span:
            waits = self._first_waiting()
            return owner if self._are_all_free_for(owner) and (waits is None or waits >= at) else None
        for number in range(first, last + 1):
            bucket = self.all[number]
            if not (bucket.holder is None or bucket.holder is owner):
                return None
            if bucket.aside and bucket.aside[0].at < at:
                return None
        return owner

    def _heir(self, at: Position, first: int) -> AttachedConsumer | None:
        """The consumer that the entry is for, whose first bucket is that one."""
        return self._destined.get(at, self.all[first].owner) if self._destined else self.all[first].owner

    def _are_all_free_for(self, owner: AttachedConsumer) -> bool:
        # As long as a consumer has entries of every bucket, no other one gets any.
        return self.every.holder is owner or all(
            bucket.holder is None or bucket.holder is owner for bucket in self.all
        )

    def _first_waiting(self) -> Position | None:
        """The first entry that waits in a bucket; those of every bucket do not count."""
        if not self._is_first_known:
            self._first = min((bucket.aside[0].at for bucket in self.all if bucket.aside), default=None)
            self._is_first_known = True
        return self._first

    def take(self, span: Span, consumer: AttachedConsumer) -> None:
        """Notes an entry as sent."""
        if span == self._every_span:
            self.every.holder = consumer
            self.every.held += 1
            return
        for number in range(span[0], span[1] + 1):
            bucket = self.all[number]
            bucket.holder = consumer
            bucket.held += 1

    def give_back(self, span: Span, consumer: AttachedConsumer) -> None:
        """The entry is acknowledged, or will be sent again."""
        if span == self._every_span:
            if self.every.holder is consumer:
                self.every.held -= 1
                if not self.every.held:
                    self.every.holder = None
                    self._check_waiting()
            return
        for number in range(span[0], span[1] + 1):
            bucket = self.all[number]
            if bucket.holder is consumer:
                bucket.held -= 1
                if not bucket.held:
                    bucket.holder = None
                    self._ready[number] = None

    # -- what waits

    def destine(self, at: Position, consumer: AttachedConsumer | None) -> None:
        """The entry is for that consumer, and not for the owner of its buckets; None: for that owner."""
        if consumer is None:
            self._destined.pop(at, None)
        else:
            self._destined[at] = consumer

    def forget_destined(self, consumer: AttachedConsumer) -> None:
        """What waits for the consumer alone waits for the owners of its buckets."""
        if self._destined:
            self._destined = {at: one for at, one in self._destined.items() if one is not consumer}
            self.check_all()

    def wait(self, number: int, one: WaitingEntry) -> None:
        """Adds the entry to those that wait in that bucket."""
        heappush(self.all[number].aside, one)
        self._ready[number] = None
        if self._is_first_known and (self._first is None or one.at < self._first):
            self._first = one.at

    def check_all(self) -> None:
        """Checks every bucket again: the owners have changed."""
        self._short.clear()
        self._check_waiting()

    def _check_waiting(self) -> None:
        self._ready.update((n, None) for n, bucket in enumerate(self.all) if bucket.aside)

    def release(
        self, entries_max: int, is_acked: Callable[[Position], bool], collected: Position
    ) -> list[Position]:
        """Removes and returns entries that can be sent now, as many as the consumers have room for. `collected`: every
        bucket has got as far as this."""
        for had_none in [one for one in self._short if one.has_room]:
            self._ready.update(dict.fromkeys(self._short.pop(had_none)))
        out: list[Position] = []
        room: dict[AttachedConsumer, int] = {}
        self._release_spans(entries_max, is_acked, out, room)
        while self.every.waiting and len(out) < entries_max:
            before = len(self.every.waiting)
            self._release_every(entries_max, is_acked, collected, out, room)
            if len(self.every.waiting) == before:
                break
            # Those that waited for these.
            self._check_waiting()
            self._release_spans(entries_max, is_acked, out, room)
        return out

    def _release_spans(
        self,
        entries_max: int,
        is_acked: Callable[[Position], bool],
        out: list[Position],
        room: dict[AttachedConsumer, int],
    ) -> None:
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
            self._is_first_known = False
            self._ready.update(dict.fromkeys(range(one.span[0], one.span[1] + 1)))
            room[consumer] = has - one.messages
            out.append(one.at)

    def _release_every(
        self,
        entries_max: int,
        is_acked: Callable[[Position], bool],
        collected: Position,
        out: list[Position],
        room: dict[AttachedConsumer, int],
    ) -> None:
        every = self.every
        is_free: dict[AttachedConsumer, bool] = {}
        while every.waiting and len(out) < entries_max:
            one = every.waiting[0]
            if is_acked(one.at):
                every.pop()
                continue
            consumer, before = self._heir(one.at, 0), self._first_waiting()
            if consumer is None or one.at >= collected or (before is not None and before < one.at):
                return
            if consumer not in is_free:
                is_free[consumer] = every.is_free_for(consumer) and self._are_all_free_for(consumer)
            if not is_free[consumer]:
                return
            has = room.get(consumer, consumer.permits if consumer.has_room else 0)
            if has <= 0:
                return
            every.pop()
            room[consumer] = has - one.messages
            out.append(one.at)

    def take_out(self, at: Position, span: Span) -> None:
        """Removes an entry from those that wait, wherever it does."""
        self._destined.pop(at, None)
        if span == self._every_span:
            if self.every.take_out(at):
                self._check_waiting()
            return
        for number in range(span[0], span[1] + 1):
            aside = self.all[number].aside
            if any(one.at == at for one in aside):
                self._keep(number, [one for one in aside if one.at != at])

    def _keep(self, number: int, kept: list[WaitingEntry]) -> None:
        heapify(kept)
        self.all[number].aside = kept
        self._ready[number] = None
        self._is_first_known = False

    def drop_below(self, at: Position) -> None:
        """Forgets entries that are acknowledged by other means."""
        self.every.drop_below(at)
        self._destined = {place: one for place, one in self._destined.items() if place >= at}
        for number, bucket in enumerate(self.all):
            if bucket.aside and bucket.aside[0].at < at:
                self._keep(number, [one for one in bucket.aside if one.at >= at])
        self.check_all()

    # -- figures

    def withheld(self, unread: Iterable[Bucket]) -> int:
        """How many buckets have entries that wait for another consumer's acknowledgements or for an owner. `unread`
        are the buckets that have not been read to the end."""
        behind = set(map(id, unread))
        return sum(self._is_withheld(bucket, id(bucket) in behind) for bucket in self.all)

    def _is_withheld(self, bucket: Bucket, is_unread: bool) -> bool:
        waits = min((*bucket.aside[:1], *self.every.waiting[:1]), default=None)
        if waits is None:
            return is_unread and (bucket.owner is None or not bucket.is_free_for(bucket.owner))
        span = waits.span
        owner = self.all[span[0]].owner
        return owner is None or not all(one.is_free_for(owner) for one in self.touched(span))
