"""Consumers of a whole namespace: every scalable topic with the given properties, as one stream or one queue.

Topics join and leave while the consumer runs. Each topic has its own consumer, whose controller alone decides what it
reads; all of them fill one inbox, and messages are numbered across it, so acknowledging one message sets a position in
every segment of every topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from anabranch.client.acking.cumulative import Cumulative
from anabranch.client.acking.sender import LostAckTally
from anabranch.client.consuming.base import FLUSH_MAX_S, Consumer, Receiver, Shared
from anabranch.client.consuming.core.redelivery import bits_of_entry
from anabranch.client.consuming.inbox import Inbox
from anabranch.client.consuming.queue import QueueConsumer
from anabranch.client.consuming.segment import SegmentConsumer
from anabranch.client.consuming.stream import StreamConsumer
from anabranch.client.consuming.topic_pool import Topics, topic_backoff
from anabranch.client.errors import Closed
from anabranch.client.message import Message, ReceivedEntry
from anabranch.client.transport.attachment import keep_trying, unless_lost
from anabranch.client.transport.core.topic_diff import TopicChange
from anabranch.client.transport.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.client.transport.pool import Connections
from anabranch.client.values import V

if TYPE_CHECKING:
    import pyarrow as pa

# A topic that takes longer to open joins later.
OPEN_MAX_S: Final = 10.0

C = TypeVar("C", bound=Consumer)
# Opens the consumer of one topic, which fills the shared inbox.
OpenOne = Callable[[str, Shared], Awaitable[C]]


@dataclass(frozen=True, slots=True)
class NamespaceSetup(Generic[C]):
    """What a client gives to each consumer of a namespace that it makes."""

    connections: Connections
    namespace: str
    property_filters: Mapping[str, str]
    subscription: str
    consumer_name: str
    receive_queue: int
    chance: Random
    open_one: OpenOne[C]
    closed: Callable[[Receiver], None] = lambda _: None


class NamespaceConsumer(Receiver[V], Generic[C, V]):
    """Its subclasses decide how messages are acknowledged."""

    def __init__(self, setup: NamespaceSetup[C]) -> None:
        super().__init__(Inbox(messages_max=setup.receive_queue), LostAckTally())
        self.namespace = setup.namespace
        self.subscription = setup.subscription
        self.consumer_name = setup.consumer_name
        self._setup = setup
        self._cumulative = Cumulative(self._tally)
        self._topics: Topics[C] = Topics(self._open_one, lambda: topic_backoff(setup.chance))
        # For each topic, the consumer whose messages may be settled.
        self._giving: dict[str, C] = {}
        self._watch = NamespaceWatch(
            setup.connections,
            setup.namespace,
            setup.property_filters,
            changed=self._changed,
            ended=self._inbox.fail,
            backoff=watch_backoff(setup.chance),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.consumer_name} of {self.namespace}>"

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it reads by now."""
        return frozenset(self._topics.open)

    async def open(self) -> None:
        """Returns once the present topics are subscribed, except those that cannot be subscribed at the moment."""
        names = await keep_trying(
            self._watch.start,
            watch_backoff(self._setup.chance),
            f"the topics of {self.namespace}",
            unless_lost,
        )
        self._topics.apply(TopicChange(opened=names))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_MAX_S):
                await self._topics.tried(names)

    def _changed(self, change: TopicChange) -> None:
        for topic in change.closed:
            self._giving.pop(topic, None)
        self._topics.apply(change)

    async def _open_one(self, topic: str, failed: Callable[[Exception], None]) -> C:
        def made(consumer: C) -> None:
            self._giving[topic] = consumer

        return await self._setup.open_one(
            topic, Shared(self._inbox, self._tally, self._cumulative, failed, made)
        )

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        # Consumers of topics that left confirm their acknowledgements before they are gone.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._topics.gone()
        return await super().flush(timeout_s)

    flush.__doc__ = Receiver.flush.__doc__

    def _acking(self) -> Iterable[SegmentConsumer]:
        return [one for consumer in self._giving.values() for one in consumer._acking()]

    async def close(self) -> None:
        await self._watch.close()
        await self._topics.close()
        self._cumulative.stop()
        self._inbox.fail(Closed("the consumer is closed: make another"))
        self._setup.closed(self)

    close.__doc__ = Receiver.close.__doc__

    def crash(self) -> None:
        """Drops every connection of its client without closing it properly, like a dying process."""
        self._cumulative.stop()
        for one in self._giving.values():
            one.crash()
        self._setup.connections.abort()


class NamespaceStreamConsumer(NamespaceConsumer[StreamConsumer[Any], V]):
    """Made by `Client.stream_consumer` with a namespace: in order within each topic, acknowledged cumulatively."""

    def __init__(self, setup: NamespaceSetup[StreamConsumer]) -> None:
        super().__init__(setup)
        self._inbox.report_to(self._cumulative)

    async def ack_cumulative(self, message: Message | pa.RecordBatch) -> None:
        """Acknowledges everything that was received up to that message, or record batch, in all segments of all topics.

        Returns at once; `flush` says whether the acknowledgement was stored.
        """
        if isinstance(message, Message):
            self._cumulative.ack(message)
        else:
            self._ack_columns(message, self._cumulative)

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        self._cumulative.send()
        return await super().flush(timeout_s)

    flush.__doc__ = Receiver.flush.__doc__


class NamespaceQueueConsumer(NamespaceConsumer[QueueConsumer[Any], V]):
    """Made by `Client.queue_consumer` with a namespace: without order, acknowledged one by one."""

    _holds_columns = True  # For dead letters.

    async def receive(self, timeout_s: float | None = None) -> Message[V]:
        message = await super().receive(timeout_s)
        if (consumer := self._giving.get(message.topic)) is not None:
            consumer.given(message)
        return message

    receive.__doc__ = Receiver.receive.__doc__

    @property
    def gives_ready(self) -> bool:
        return False  # Only the topic's own consumer can say.

    def _given_whole(self, entries: list[ReceivedEntry]) -> None:
        for entry in entries:
            if (consumer := self._giving.get(entry.origin.topic)) is not None:
                consumer.given_whole([entry])

    async def ack(self, message: Message | pa.RecordBatch) -> None:
        """Acknowledges one message, or a whole record batch, in its topics.

        Returns at once; `flush` says whether the acknowledgement was stored.
        """
        if isinstance(message, Message):
            if (consumer := self._giving.get(message.topic)) is None:
                self._tally.lost += 1
            else:
                await consumer.ack(message)
            return
        reader = self._arrow_reader()
        for entry in reader.entries_of(message):
            if (consumer := self._giving.get(entry.origin.topic)) is None:
                self._tally.lost += 1
            else:
                consumer.ack_whole(entry)
        reader.settled(message)

    async def nack(self, message: Message | pa.RecordBatch) -> None:
        """Hands a message, or a whole record batch, back: it is delivered again after a while, here or at another
        consumer.

        Returns at once.
        """
        if isinstance(message, Message):
            if (consumer := self._giving.get(message.topic)) is not None:
                await consumer.nack(message)
            return
        reader = self._arrow_reader()
        for entry in reader.entries_of(message):
            if (consumer := self._giving.get(entry.origin.topic)) is not None:
                consumer.hand_back(entry, bits_of_entry(entry))
        reader.settled(message)

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        for consumer in list(self._giving.values()):
            await consumer.flush_dead_letters()
        return await super().flush(timeout_s)

    flush.__doc__ = Receiver.flush.__doc__
