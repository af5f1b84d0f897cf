"""A plain client for tests of the broker: no batching, no reconnecting, a connection for each broker a lookup names."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.client.message import EntryOrigin, Message, read_entry
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.errors import AnabranchError
from anabranch.model.hidden_writes import attempt_bits
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message, encode_send
from anabranch.wire.extensions import WRITE, WRITE_ATTEMPT, WRITE_BATCH

C = pb.BaseCommand

PENDING_MAX = 1000
RECEIVE_QUEUE = 1000
LOOKUPS_MAX = 20


class EndOfTopic(AnabranchError):
    """The topic was terminated and everything in it has been consumed."""


class Client:
    """Connections are opened as lookups name brokers, and closed together."""

    def __init__(self, service_url: str) -> None:
        self._url = service_url
        self._connections: dict[str, ClientConnection] = {}

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def _to(self, url: str) -> ClientConnection:
        if url not in self._connections:
            self._connections[url] = await ClientConnection.open(url)
        return self._connections[url]

    async def partitions(self, topic: str) -> list[str]:
        """The topics that hold the messages: the partitions, or the topic itself."""
        name = TopicName.parse(topic)
        connection = await self._to(self._url)
        answer = await connection.request(
            C.PARTITIONED_METADATA, "partitionMetadata", topic=str(name), metadata_auto_creation_enabled=True
        )
        return [str(name.partition(index)) for index in range(answer.partitions)] or [str(name)]

    async def _owner(self, topic: str) -> ClientConnection:
        url, authoritative = self._url, False
        for _ in range(LOOKUPS_MAX):
            connection = await self._to(url)
            answer = await connection.request(
                C.LOOKUP, "lookupTopic", topic=topic, authoritative=authoritative
            )
            url = answer.brokerServiceUrl or url
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return await self._to(url)
            authoritative = answer.authoritative
        raise ConnectionLost(f"{LOOKUPS_MAX} lookups did not find the owner of {topic}")

    async def producer(self, topic: str, name: str | None = None, hidden: Hidden | None = None) -> Producer:
        """A producer to one topic that is not partitioned, or to one partition."""
        topic = str(TopicName.parse(topic))
        connection = await self._owner(topic)
        producer = connection.attach(
            PartKind.PRODUCER, lambda number: Producer(connection, number, topic, hidden)
        )
        await producer.open(name)
        return producer

    async def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        kind: int = pb.CommandSubscribe.Exclusive,
        earliest: bool = False,
        queue: asyncio.Queue[Message | Exception] | None = None,
        **options: Any,
    ) -> Consumer:
        """A consumer of one topic that is not partitioned, or of one partition. Several may share a queue.

        `options` are further fields of its SUBSCRIBE."""
        topic = str(TopicName.parse(topic))
        connection = await self._owner(topic)
        consumer = connection.attach(
            PartKind.CONSUMER, lambda number: Consumer(connection, number, topic, queue)
        )
        await consumer.open(subscription, kind, earliest, **options)
        return consumer


@dataclass(frozen=True, slots=True)
class Hidden:
    """The attempt that a producer's entries belong to; they are hidden until the write is decided."""

    write: str
    batch: int
    attempt: str

    @property
    def metadata(self) -> list[pb.KeyValue]:
        named = {WRITE: self.write, WRITE_BATCH: str(self.batch), WRITE_ATTEMPT: self.attempt}
        return [pb.KeyValue(key=key, value=value) for key, value in named.items()]


class Producer:
    """Sends messages one by one; receipts come back in order."""

    def __init__(
        self, connection: ClientConnection, number: int, topic: str, hidden: Hidden | None = None
    ) -> None:
        self.topic = topic
        self._hidden = hidden
        # The attempt named in its entries; a test may name a wrong one.
        self.attempt = None if hidden is None else hidden.attempt
        self.name = ""
        self._connection = connection
        self._number = number
        self._pending: deque[tuple[int, asyncio.Future[tuple[int, int]]]] = deque()
        self._room = asyncio.Semaphore(PENDING_MAX)
        self.next_sequence = 0
        self._error: Exception | None = None

    async def open(self, name: str | None) -> None:
        try:
            answer = await self._connection.request(
                C.PRODUCER,
                "producer",
                topic=self.topic,
                producer_id=self._number,
                producer_name=name,
                metadata=[] if self._hidden is None else self._hidden.metadata,
            )
        except BaseException:
            self._connection.detach(PartKind.PRODUCER, self._number)
            raise
        self.name = answer.producer_name
        self.next_sequence = answer.last_sequence_id + 1

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_ms: int | None = None,
        published_ms: int | None = None,
        hashes: tuple[int | None, int | None] = (None, None),
    ) -> asyncio.Future[tuple[int, int]]:
        """Sends one message, waiting while too many have no receipt. The future is its (ledger, entry).

        `hashes` are the least and the greatest bucket hash that it is stamped with."""
        await self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        sequence = self.next_sequence
        self.next_sequence += 1
        metadata = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=sequence,
            publish_time=time.time_ns() // 1_000_000 if published_ms is None else published_ms,
            partition_key=key,
        )
        if hashes[0] is not None:
            metadata.entry_hash_min = hashes[0]
        if hashes[1] is not None:
            metadata.entry_hash_max = hashes[1]
        if delay_ms is not None:
            metadata.deliver_at_time = metadata.publish_time + delay_ms
        for item in (properties or {}).items():
            metadata.properties.add(key=item[0], value=item[1])
        if self.attempt is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = attempt_bits(self.attempt)
        receipt: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._pending.append((sequence, receipt))
        frame = encode_send(
            build_message(metadata, payload), producer_id=self._number, sequence_id=sequence, num_messages=1
        )
        await self._connection.write(frame)
        return receipt

    async def flush(self) -> None:
        """Waits for every receipt; raises the first error."""
        while self._pending:
            await self._pending[-1][1]
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        await self.flush()
        await self._connection.request(C.CLOSE_PRODUCER, "close_producer", producer_id=self._number)
        self._connection.detach(PartKind.PRODUCER, self._number)

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.SEND_RECEIPT:
            while self._pending and self._pending[0][0] <= body.sequence_id:
                self._answer((body.message_id.ledgerId, body.message_id.entryId))
        elif kind == C.SEND_ERROR:
            self.lost(RequestRefused(body.error, body.message))
        elif kind == C.CLOSE_PRODUCER:
            self.lost(ConnectionLost("the broker closed the producer"))

    def _answer(self, result: tuple[int, int] | Exception) -> None:
        _, receipt = self._pending.popleft()
        self._room.release()
        if receipt.done():
            return
        if isinstance(result, Exception):
            receipt.set_exception(result)
            receipt.exception()  # The error is also raised by `flush` and the next `send`.
        else:
            receipt.set_result(result)

    def lost(self, error: Exception) -> None:
        self._error = self._error or error
        while self._pending:
            self._answer(error)


@dataclass(slots=True)
class _Batch:
    """Which messages of an entry the user has acknowledged: an entry is acknowledged whole."""

    left: set[int] = field(default_factory=set)


class Consumer:
    """Receives messages of one topic. Batches are taken apart; chunked and encrypted messages are refused."""

    def __init__(
        self,
        connection: ClientConnection,
        number: int,
        topic: str,
        queue: asyncio.Queue[Message | Exception] | None = None,
    ) -> None:
        self.topic = topic
        self._connection = connection
        self._number = number
        self._partition = TopicName.parse(topic).partition_index
        self._queue: asyncio.Queue[Message | Exception] = queue or asyncio.Queue()
        self._taken = 0
        self._batches: dict[tuple[int, int], _Batch] = {}

    async def open(self, subscription: str, kind: int, earliest: bool, **options: Any) -> None:
        place = pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest
        try:
            await self._connection.request(
                C.SUBSCRIBE,
                "subscribe",
                topic=self.topic,
                subscription=subscription,
                subType=kind,
                consumer_id=self._number,
                initialPosition=place,
                force_topic_creation=True,
                **{"durable": True, **options},
            )
        except BaseException:
            self._connection.detach(PartKind.CONSUMER, self._number)
            raise
        self._flow(RECEIVE_QUEUE)

    def _flow(self, permits: int) -> None:
        self._connection.send(C.FLOW, "flow", consumer_id=self._number, messagePermits=permits)

    async def receive(self) -> Message:
        """The next message. Readers of a queue that consumers share call `taken` of the right consumer instead."""
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        self.taken()
        return found

    def taken(self) -> None:
        """One message left the queue: the broker may send another."""
        self._taken += 1
        if self._taken >= RECEIVE_QUEUE // 2:
            self._flow(self._taken)
            self._taken = 0

    async def ack(self, message: Message) -> None:
        """Returns once the broker has stored it. A message of a batch waits for the others."""
        if message.index >= 0:
            batch = self._batches[message.ledger, message.entry]
            batch.left.discard(message.index)
            if batch.left:
                return
            del self._batches[message.ledger, message.entry]
        await self._connection.request(
            C.ACK,
            "ack",
            consumer_id=self._number,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=message.ledger, entryId=message.entry)],
        )

    async def ack_up_to(self, message: Message) -> None:
        """Acknowledges everything up to that entry."""
        await self._connection.request(
            C.ACK,
            "ack",
            consumer_id=self._number,
            ack_type=pb.CommandAck.Cumulative,
            message_id=[pb.MessageIdData(ledgerId=message.ledger, entryId=message.entry)],
        )

    async def last_message(self) -> tuple[tuple[int, int], bool]:
        """The position of the last message, and whether hidden entries follow it."""
        answer = await self._connection.request(
            C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=self._number
        )
        last = answer.last_message_id
        return (last.ledgerId, last.entryId), answer.anabranch_is_hiding

    async def unsubscribe(self) -> None:
        await self._connection.request(C.UNSUBSCRIBE, "unsubscribe", consumer_id=self._number)
        self._connection.detach(PartKind.CONSUMER, self._number)

    async def close(self) -> None:
        await self._connection.request(C.CLOSE_CONSUMER, "close_consumer", consumer_id=self._number)
        self._connection.detach(PartKind.CONSUMER, self._number)

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.MESSAGE and payload is not None:
            try:
                self._take(body, payload)
            except (AnabranchError, ValueError) as error:
                self._queue.put_nowait(error)
        elif kind == C.CLOSE_CONSUMER:
            self.lost(ConnectionLost("the broker closed the consumer"))
        elif kind == C.REACHED_END_OF_TOPIC:
            self.lost(EndOfTopic(f"{self.topic} was terminated and has been consumed"))

    def _take(self, body: pb.CommandMessage, payload: memoryview) -> None:
        messages = take_apart(self.topic, body, payload, partition=self._partition)
        if messages and messages[0].index >= 0:
            first = messages[0]
            self._batches[first.ledger, first.entry] = _Batch(set(range(first.size)))
        for message in messages:
            self._queue.put_nowait(message)

    def lost(self, error: Exception) -> None:
        self._queue.put_nowait(error)


def take_apart(
    topic: str, body: pb.CommandMessage, payload: memoryview, *, partition: int = -1
) -> list[Message]:
    """The messages of an entry as a broker sent it. Raises if the entry is a chunk or encrypted, or unreadable."""
    entry = read_entry(EntryOrigin(topic, partition=partition), body, payload)
    if entry.metadata.num_chunks_from_msg > 1 or entry.metadata.encryption_keys:
        raise ValueError(f"{topic}: chunked and encrypted messages are not supported by this client")
    return entry.messages()[::-1]
