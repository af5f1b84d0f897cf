"""Data plane. A subscription of a non-persistent topic: which consumer gets a message published now, if any has room.

There is no cursor and no backlog, so nothing is sent again and acknowledgements are accepted without effect. A message
that finds no consumer with permits and room in its socket is dropped, and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.base import BATCH_MESSAGES_MAX, messages_of, metadata_of
from anabranch.broker.dispatch.consumer import AttachedConsumer, ConsumerLink
from anabranch.broker.dispatch.selector import FailoverOrder, HashRing, KeyHalves, KeyRanges, Selector
from anabranch.broker.errors import ConsumerBusyError, NotAllowedError, NotReadyError, SubscriptionBusyError
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.ports import Done, LogReader
from anabranch.broker.subscription.subscription import NotConnectedError
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_message_header
from anabranch.wire.extensions import OTHER_TYPE
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, TYPE_NAMES

# The id of every message of a non-persistent topic: none can be referred to later.
NOWHERE: Final = (0, 0)

# The number of messages in an entry, and its bytes.
Published = tuple[int, bytes]


class NonPersistentSubscription:
    """`ended` is called when the subscription is gone: deleted, or a reader's whose reader has left."""

    def __init__(
        self,
        name: str,
        topic: str,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        ended: Callable[[NonPersistentSubscription], None],
        is_durable: bool = True,
        partition: int = -1,
        has_key_ring: bool = True,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.topic = topic
        # Whether the subscription outlives its consumers; it keeps no messages for them.
        self.is_durable = is_durable
        self.kind = -1
        self.consumers: list[AttachedConsumer] = []
        self.active: AttachedConsumer | None = None
        self.properties = properties or {}
        self.is_closed = False
        self.messages_dropped = 0
        self.drop_rate = 0.0
        self.messages_out_before = 0
        self.bytes_out_before = 0
        self._dropped_before = 0
        self._loop = loop
        self._now_ms = now_ms
        self._ended = ended
        self._consumers_max = 0
        self._paces: Sequence[Pace] = ()
        self._partition = partition
        self._has_key_ring = has_key_ring
        # For Key_Shared, and for an Exclusive consumer that wants some keys only.
        self._selector: Selector | None = None
        self._order = FailoverOrder(topic, partition)
        self._turn = 0

    def limit(self, consumers_max: int, paces: Sequence[Pace]) -> None:
        """Applies the limits from now on; messages beyond a rate are dropped."""
        self._consumers_max = consumers_max
        self._paces = paces

    # -- consumers

    def add_consumer(self, consumer: AttachedConsumer) -> None:
        if self.is_closed:
            raise NotReadyError(f"subscription {self.name} is closing")
        if self.consumers and self.kind != consumer.kind:
            raise SubscriptionBusyError(
                f"{OTHER_TYPE}. {self.name} is {TYPE_NAMES[self.kind]} and has consumers; "
                f"a {TYPE_NAMES[consumer.kind]} consumer cannot join"
            )
        if self.consumers and consumer.kind == EXCLUSIVE:
            raise ConsumerBusyError(
                f"ConsumerBusy: Exclusive consumer is already connected to {self.name}: {self.consumers[0].name}"
            )
        if consumer.kind not in TYPE_NAMES:
            raise NotAllowedError(f"unknown subscription type {consumer.kind}")
        if self._consumers_max and len(self.consumers) >= self._consumers_max:
            raise SubscriptionBusyError("Subscription reached max consumers limit")
        if not self.consumers:
            self._selector = _selector_for(consumer, has_ring=self._has_key_ring)
        if self._selector is not None:
            self._selector.add(consumer)
        self.kind = consumer.kind
        self.consumers.append(consumer)
        if consumer.kind == FAILOVER:
            self._order.add(consumer)
        consumer.subscription = self
        consumer.is_open = True
        if consumer.kind in (EXCLUSIVE, FAILOVER):
            self._choose()

    def _choose(self) -> None:
        last, self.active = self.active, None
        if self.consumers:
            is_failover = self.kind == FAILOVER
            self.active = self._order.pick() if is_failover else self.consumers[0]
            if is_failover and self.active is not last:
                for consumer in self.consumers:
                    if consumer.is_ready:
                        consumer.send_active_change(consumer is self.active)

    def consumer_ready(self, consumer: AttachedConsumer) -> None:
        consumer.is_ready = True
        if self.kind == FAILOVER:
            consumer.send_active_change(consumer is self.active)

    def remove_consumer(self, consumer: AttachedConsumer) -> None:
        if not consumer.is_open:
            return
        self._take_out(consumer)
        if not self.consumers and not self.is_durable:
            self._end()

    def _take_out(self, consumer: AttachedConsumer) -> None:
        consumer.is_open = False
        self.consumers.remove(consumer)
        if self._selector is not None:
            self._selector.remove(consumer)
        if consumer.kind == FAILOVER:
            self._order.remove(consumer)
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        if self.kind in (EXCLUSIVE, FAILOVER):
            self._choose()

    def close(self, moved_to: Addresses | None = None) -> None:
        """Closes the consumers; their clients may reconnect, at `moved_to` if that is known."""
        for consumer in list(self.consumers):
            self._take_out(consumer)
            consumer.link.consumer_closed(consumer, moved_to)
        self._end()

    def _end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._ended(self)

    async def unsubscribe(self, consumer: AttachedConsumer, *, force: bool = False) -> None:
        if not consumer.is_open:
            raise NotConnectedError("the consumer is not connected")
        if not force and self.consumers != [consumer]:
            raise NotConnectedError(
                f"subscription {self.name} has other consumers: they must leave first, or force it"
            )
        self._take_out(consumer)
        self.close()

    def flow(self, consumer: AttachedConsumer, permits: int) -> None:
        if consumer.is_open:
            consumer.flow(permits, self._now_ms())

    def link_writable(self, link: ConsumerLink) -> None:
        """Does nothing: no message waits for that."""

    # -- dispatch

    def dispatch(self, entries: Sequence[Published]) -> None:
        if any(not 0 < count <= BATCH_MESSAGES_MAX for count, _ in entries):
            # An impossible number of messages would take all permits, or none.
            entries = [(messages_of(data), data) for _, data in entries]
        if self._paces:
            entries = self._in_time(entries)
        if not self.consumers:
            self.messages_dropped += sum(messages for messages, _ in entries)
        elif self.kind in (EXCLUSIVE, FAILOVER) and self._selector is None:
            self._send_all(self.active, entries)
        elif self.kind == SHARED:
            self._share(entries)
        else:
            self._send_by_key(entries)

    def _in_time(self, entries: Sequence[Published]) -> list[Published]:
        """The entries that the rates allow; a batch is never split, and its excess is charged to the next ones."""
        now = self._loop.time()
        passed: list[Published] = []
        for published in entries:
            count, data = published
            if max(pace.wait_s(now) for pace in self._paces) > 0:
                self.messages_dropped += count
                continue
            for pace in self._paces:
                pace.spend(count, len(data), now)
            passed.append(published)
        return passed

    def _send_all(self, consumer: AttachedConsumer | None, entries: Sequence[Published]) -> None:
        """Sends to that consumer, as far as its permits go."""
        if consumer is None or not consumer.is_ready or not consumer.link.is_writable:
            self.messages_dropped += sum(messages for messages, _ in entries)
            return
        pieces: list[Buffer] = []
        sent = messages = size = 0
        ledger, entry = NOWHERE
        for count, data in entries:
            if messages >= consumer.permits:
                self.messages_dropped += count
                continue
            pieces += (
                encode_message_header(
                    consumer.id, ledger, entry, 0, consumer.partition, None, consumer.epoch, len(data)
                ),
                data,
            )
            sent += 1
            messages += count
            size += len(data)
        if sent:
            consumer.permits -= messages
            consumer.write(pieces, sent, messages, size, self._now_ms())

    def _share(self, entries: Sequence[Published]) -> None:
        """Sends in turn to the consumers of the highest priority that have room."""
        parts: dict[AttachedConsumer, list[Published]] = {}
        left = {one: one.permits for one in self.consumers if one.is_ready and one.has_room}
        candidates = _highest(left)
        for published in entries:
            if not candidates:
                self.messages_dropped += published[0]
                continue
            self._turn += 1
            chosen = candidates[self._turn % len(candidates)]
            left[chosen] -= published[0]
            parts.setdefault(chosen, []).append(published)
            if left[chosen] <= 0:
                # Once for each consumer that runs out of room, not for each message.
                del left[chosen]
                candidates = _highest(left)
        for consumer, part in parts.items():
            self._send_all(consumer, part)

    def _send_by_key(self, entries: Sequence[Published]) -> None:
        assert self._selector is not None
        parts: dict[AttachedConsumer, list[Published]] = {}
        for published in entries:
            chosen = self._selector.select(self._selector.hash_of(metadata_of(published[1])))
            if chosen is not None:
                parts.setdefault(chosen, []).append(published)
            elif self.kind == KEY_SHARED:
                self.messages_dropped += published[0]
        for consumer, part in parts.items():
            self._send_all(consumer, part)

    # -- without effect here

    def ack(self, consumer: AttachedConsumer, command: pb.CommandAck, done: Done | None = None) -> None:
        consumer.last_acked_ms = self._now_ms()
        consumer.messages_acked += len(command.message_id)
        if done is not None:
            done(None)

    def when_stored(self, done: Done) -> None:
        done(None)

    def redeliver(
        self, consumer: AttachedConsumer, positions: Iterable[Position] | None, epoch: int | None = None
    ) -> None:
        """Sends nothing again; messages sent from now on carry the new epoch."""
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch

    async def seek(self, at: Position, ack_set: Sequence[int] = ()) -> None:
        raise NotAllowedError(f"{self.topic} keeps no messages: seek is only possible on persistent topics")

    async def seek_to_time(self, publish_time_ms: int) -> None:
        await self.seek(NOWHERE)

    @property
    def topic_log(self) -> LogReader:
        raise NotAllowedError(f"{self.topic} keeps no messages: it has no last one")

    @property
    def mark_delete(self) -> Position:
        return NOWHERE

    def backlog(self) -> int:
        return 0

    def backlog_messages(self) -> int:
        return 0

    # -- figures

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.kind, "None")

    @property
    def messages_out(self) -> int:
        return self.messages_out_before + sum(consumer.messages_out for consumer in self.consumers)

    @property
    def bytes_out(self) -> int:
        return self.bytes_out_before + sum(consumer.bytes_out for consumer in self.consumers)

    def update_rates(self, seconds: float) -> None:
        self.drop_rate = (self.messages_dropped - self._dropped_before) / seconds
        self._dropped_before = self.messages_dropped
        for consumer in self.consumers:
            consumer.update_rates(seconds)


def _highest(consumers: Collection[AttachedConsumer]) -> list[AttachedConsumer]:
    """The consumers of the highest priority."""
    highest = min((one.priority for one in consumers), default=0)
    return [one for one in consumers if one.priority == highest]


def _selector_for(consumer: AttachedConsumer, *, has_ring: bool) -> Selector | None:
    wanted = consumer.key_shared
    if consumer.kind == KEY_SHARED:
        is_sticky = wanted is not None and wanted.keySharedMode == pb.STICKY
        if is_sticky:
            return KeyRanges()
        return HashRing() if has_ring else KeyHalves()
    if consumer.kind == EXCLUSIVE and wanted is not None and wanted.hashRanges:
        return KeyRanges()
    return None
