"""Data plane. Key_Shared: all messages of a key go to one consumer at a time, in order.

The rule that keeps a key's order: an entry may be sent to the consumer its key belongs to only if no other consumer
still holds an unacknowledged entry of that key (it is *draining*), and no earlier entry of the key is waiting. An entry
that cannot be sent is set aside under its key, by position only, and checked again when the one thing it lacked has
come: the other consumer's acknowledgement, or room at its own. Other keys continue meanwhile, until too much is set
aside; then reading stops. `allowOutOfOrderDelivery` drops the first half of the rule.

The chunks of a message that was begun go to its holder, regardless of which consumer the key belongs to by now and of
the entries that wait under the key: the holder acknowledges nothing of the message before it has all of it, so the key
would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

from anabranch.broker.dispatch.base import DispatchContext
from anabranch.broker.dispatch.chunks import WAITING_MAX, BegunChunks
from anabranch.broker.dispatch.concurrent import ConcurrentDispatcher
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import HashRing, KeyHalves, KeyRanges, Selector
from anabranch.broker.errors import SubscriptionBusyError
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED


class KeySharedDispatcher(ConcurrentDispatcher):
    kind = KEY_SHARED
    _read_ahead = 32

    def __init__(self, context: DispatchContext, first: AttachedConsumer) -> None:
        super().__init__(context)
        self.mode, self.is_unordered = _policy(first)
        split = HashRing if context.limits.has_key_ring else KeyHalves
        self._selector: Selector = KeyRanges() if self.mode == pb.STICKY else split()
        # The consumer that holds unacknowledged entries of a key, and how many.
        self._holders: dict[int, tuple[AttachedConsumer, int]] = {}
        # Entries set aside, by key; each value is a heap.
        self._aside: dict[int, list[Position]] = {}
        self._aside_count = 0
        self._dropped_at: Position = context.cursor.next
        # Keys to check again, and keys that wait for room at their consumer.
        self._ready: dict[int, None] = {}
        self._short: dict[AttachedConsumer, set[int]] = {}
        self._chunks = BegunChunks()

    # -- consumers

    def check_policy(self, consumer: AttachedConsumer) -> None:
        if _policy(consumer) != (self.mode, self.is_unordered):
            raise SubscriptionBusyError(
                f"subscription {self._ctx.subscription} has consumers with another Key_Shared policy"
            )

    def add(self, consumer: AttachedConsumer) -> None:
        self._selector.add(consumer)
        super().add(consumer)
        self._owners_changed()

    def remove(self, consumer: AttachedConsumer) -> None:
        self._selector.remove(consumer)
        self._begin_again(self._chunks.left(consumer))
        super().remove(consumer)
        self._owners_changed()

    def _owners_changed(self) -> None:
        self._short.clear()
        self._ready.update(dict.fromkeys(self._aside))

    def room_changed(self, consumer: AttachedConsumer) -> None:
        if consumer.has_room:
            self._ready.update(dict.fromkeys(self._short.pop(consumer, ())))
        super().room_changed(consumer)

    def rewind(self) -> None:
        super().rewind()
        self._holders.clear()
        self._aside.clear()
        self._aside_count = 0
        self._ready.clear()
        self._short.clear()
        self._chunks.clear()

    # -- who has what

    def _given_back(self, owner: AttachedConsumer, key_hash: int) -> None:
        holder = self._holders.get(key_hash)
        if holder is not None and holder[0] is owner:
            if holder[1] > 1:
                self._holders[key_hash] = (owner, holder[1] - 1)
            else:
                del self._holders[key_hash]
                if key_hash in self._aside:
                    self._ready[key_hash] = None
        if owner in self._short and owner.has_room:
            self._ready.update(dict.fromkeys(self._short.pop(owner)))

    def _hand_back(
        self, consumer: AttachedConsumer, entries: Iterable[tuple[Position, tuple[int, int]]]
    ) -> None:
        places: list[Position] = []
        for at, (_, key_hash) in entries:
            places.append(at)
            self._put_aside(at, key_hash)
            self._ready[key_hash] = None
            self._given_back(consumer, key_hash)
        self._begin_again(self._chunks.handed_back(consumer, places))

    def _begin_again(self, chunks: Iterable[tuple[Position, int]]) -> None:
        """Sets chunks aside that waited for a consumer which has handed back the chunks before them."""
        for at, key_hash in chunks:
            self._put_aside(at, key_hash)
            self._ready[key_hash] = None

    # -- dispatch

    def _route(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        key_hash = self._key_hash = self._selector.hash_of(metadata)
        if metadata.num_chunks_from_msg > 1:
            return self._route_chunk(at, metadata, key_hash)
        return self._route_key(at, key_hash)

    def _route_chunk(
        self, at: Position, metadata: pb.MessageMetadata, key_hash: int
    ) -> AttachedConsumer | None:
        owner = self._chunks.owner(metadata)
        if owner is None:
            owner = self._route_key(at, key_hash)
            if owner is None:
                return None
        elif not self._chunks.has_room(owner):
            self._chunks.wait(at, metadata, owner, key_hash)
            return None
        else:
            holder = self._holders.get(key_hash)
            if holder is None or holder[0] is owner:
                self._holders[key_hash] = (owner, 1 if holder is None else holder[1] + 1)
        self._chunks.sent(at, metadata, owner)
        return owner

    def _route_key(self, at: Position, key_hash: int) -> AttachedConsumer | None:
        consumer = self._selector.select(key_hash)
        aside = self._aside.get(key_hash)
        if consumer is None or (aside is not None and aside[0] < at):
            self._put_aside(at, key_hash)
            return None
        holder = self._holders.get(key_hash)
        if holder is None:
            if consumer.has_room:
                self._holders[key_hash] = (consumer, 1)
                return consumer
        elif holder[0] is consumer:
            if consumer.has_room:
                self._holders[key_hash] = (consumer, holder[1] + 1)
                return consumer
        elif self.is_unordered:
            if consumer.has_room:
                return consumer
        else:
            self._put_aside(at, key_hash)
            return None
        self._put_aside(at, key_hash)
        self._short.setdefault(consumer, set()).add(key_hash)
        return None

    def _put_aside(self, at: Position, key_hash: int) -> None:
        heappush(self._aside.setdefault(key_hash, []), at)
        self._aside_count += 1

    def _release(self) -> None:
        """Moves entries that can be sent now to the replay queue, as many as the consumers have room for."""
        self._replay.add_all(self._chunks.let_go())
        if not self._ready:
            return
        left = self._ctx.limits.burst_entries
        room: dict[AttachedConsumer, int] = {}
        while self._ready and left > 0:
            key_hash = next(iter(self._ready))
            del self._ready[key_hash]
            aside = self._aside.get(key_hash)
            consumer = self._selector.select(key_hash)
            if aside is None or consumer is None or self._is_draining(key_hash, consumer):
                continue
            has = room.get(consumer, consumer.permits if consumer.has_room else 0)
            count = min(len(aside), has, left)
            for _ in range(count):
                self._replay.add(heappop(aside))
            self._aside_count -= count
            left -= count
            room[consumer] = has - count
            if not aside:
                del self._aside[key_hash]
            elif count == has:
                self._short.setdefault(consumer, set()).add(key_hash)
            else:
                self._ready[key_hash] = None

    def _is_draining(self, key_hash: int, consumer: AttachedConsumer) -> bool:
        holder = self._holders.get(key_hash)
        return holder is not None and holder[0] is not consumer and not self.is_unordered

    def _may_read_on(self) -> bool:
        limits = self._ctx.limits
        aside_max = min(limits.held_max, limits.held_per_consumer_max * len(self.consumers))
        if self._aside_count >= aside_max:
            self._drop_acked()
        if self._aside_count >= aside_max or self._chunks.waiting >= WAITING_MAX:
            return False
        return super()._may_read_on()

    def _drop_acked(self) -> None:
        """Forgets entries set aside that were skipped, expired or trimmed since: they must not stop reading."""
        if self._dropped_at == self._cursor.next:
            return
        self._dropped_at = self._cursor.next
        acked = self._cursor.is_acked
        for key_hash, positions in list(self._aside.items()):
            positions[:] = sorted(at for at in positions if not acked(at))
            if not positions:
                del self._aside[key_hash]
        self._aside_count = sum(map(len, self._aside.values()))

    @property
    def is_all_sent(self) -> bool:
        return super().is_all_sent and not self._aside_count and not self._chunks.waiting

    # -- figures

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        draining = [
            count
            for key_hash, (owner, count) in self._holders.items()
            if self._selector.select(key_hash) is not owner
        ]
        stats["msgInReplay"] += self._aside_count + self._chunks.waiting
        stats["allowOutOfOrderDelivery"] = self.is_unordered
        stats["keySharedMode"] = pb.KeySharedMode.Name(self.mode)
        stats["drainingHashesCount"] = len(draining)
        stats["drainingHashesUnackedMessages"] = sum(draining)
        return stats

    def key_ranges(self) -> dict[AttachedConsumer, list[tuple[int, int]]]:
        return self._selector.ranges()


def _policy(consumer: AttachedConsumer) -> tuple[pb.KeySharedMode, bool]:
    meta = consumer.key_shared
    if meta is None:
        return pb.AUTO_SPLIT, False
    return meta.keySharedMode, meta.allowOutOfOrderDelivery
