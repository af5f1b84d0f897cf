"""The client: one pool of connections, and the producers and consumers that share it, on any event loop.

Chance and the clock are passed in; time-outs and pauses follow the event loop's clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar, overload

from anabranch.client.batching import Access, Batching, Compression, access_of, batching_of, compression_of
from anabranch.client.budget import MEMORY_BYTES_MAX, MemoryBudget, WhenFull
from anabranch.client.checkpoint import Start, begin_of
from anabranch.client.checkpoint_consumer import CheckpointConsumer
from anabranch.client.connections import Backoff, Connections, troubles
from anabranch.client.consumer import Consumer, From, Setup, Shared, is_earliest
from anabranch.client.crypto import Encryption
from anabranch.client.errors import BadArgument, Closed, TimedOut
from anabranch.client.flow import SEND_TIMEOUT_S, ProducerSettings
from anabranch.client.inbox import MESSAGES_MAX
from anabranch.client.lanes import Routing
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.namespace_consumer import (
    NamespaceQueueConsumer,
    NamespaceSetup,
    NamespaceStreamConsumer,
)
from anabranch.client.opening import Opening
from anabranch.client.options import check_seconds, check_service_url
from anabranch.client.producer import Producer
from anabranch.client.queue_consumer import QueueConsumer
from anabranch.client.redelivery import DeadLetter, NackDelay
from anabranch.client.schemas import Schema, schema_of
from anabranch.client.security import NOBODY, Security, Token
from anabranch.client.segment_consumer import Reading
from anabranch.client.stream_consumer import StreamConsumer
from anabranch.client.traced import traced
from anabranch.client.tracing import OpenTelemetry
from anabranch.client.writes import Write
from anabranch.model.names import NamespaceName, TopicName

OPERATION_TIMEOUT_S: Final = 30.0


class Part(Protocol):
    """A producer or consumer of a client."""

    async def close(self) -> None: ...


class OpenPart(Part, Protocol):
    async def open(self) -> None: ...


P = TypeVar("P", bound=OpenPart)
C = TypeVar("C", bound=Consumer)
T = TypeVar("T")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Consuming:
    """What was asked for, checked."""

    is_earliest: bool
    schema: Schema[Any] | None
    encryption: Encryption | None
    receive_queue: int


def _consuming(
    topic: str | None,
    namespace: str | None,
    property_filters: Mapping[str, str] | None,
    subscription: str,
    start: From,
    schema: Schema[Any] | type | None,
    encryption: Encryption | None,
    receive_queue: int,
) -> _Consuming:
    """Refuses what cannot be meant before anything is opened."""
    if (topic is None) == (namespace is None):
        raise BadArgument("give a topic or a namespace, one of them" + (", not both" if topic else ""))
    if topic is not None and property_filters:
        raise BadArgument("property_filters choose topics of a namespace: give namespace= instead of a topic")
    if topic is not None:
        TopicName.parse(topic)
    if namespace is not None:
        NamespaceName.parse(namespace)
    if not subscription:
        raise BadArgument("subscription is missing: give its name")
    if receive_queue < 1:
        raise BadArgument(f"receive_queue={receive_queue}: give a number of messages from 1 on")
    return _Consuming(
        is_earliest(start), None if schema is None else schema_of(schema), encryption, receive_queue
    )


def connect(
    service_url: str,
    *,
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    when_full: WhenFull = "wait",
    operation_timeout_s: float = OPERATION_TIMEOUT_S,
    tracing: OpenTelemetry | None = None,
    token: Token | None = None,
    username: str | None = None,
    password: str | None = None,
    tls_trust_certs_file: str | None = None,
    tls_certificate_file: str | None = None,
    tls_key_file: str | None = None,
    tls_allow_insecure: bool = False,
    tls_check_host_name: bool = True,
) -> Client:
    """A client of the brokers at `pulsar://host:port`, or several as `pulsar://one:6650,two:6650`.

    `pulsar+ssl://host:6651` speaks TLS.

    Nothing is opened yet: a broker that cannot be reached shows when the first producer or consumer is made.

    - `memory_bytes_max`: what messages without a receipt may take, of all producers together.
    - `when_full`: "wait" for room, or "refuse" a send that goes beyond it with MemoryFull.
    - `operation_timeout_s`: for opening a producer or consumer.
    - `tracing`: `OpenTelemetry()` makes a span for each message sent and received.
    - `token`: proves who the client is: the token itself, `file://…`, read for each connection, or a function.
    - `username`, `password`: prove it instead, on brokers that know users.
    - `tls_trust_certs_file`: the authorities that are trusted, in PEM; else the system's.
    - `tls_certificate_file`, `tls_key_file`: the client's own certificate, for brokers that want one.
    - `tls_allow_insecure`: trust any broker; `tls_check_host_name`: its certificate must be for the name in the URL.
    """
    security = Security(
        token=token,
        username=username,
        password=password,
        tls_trust_certs_file=tls_trust_certs_file,
        tls_certificate_file=tls_certificate_file,
        tls_key_file=tls_key_file,
        tls_allow_insecure=tls_allow_insecure,
        tls_check_host_name=tls_check_host_name,
    )
    return Client(
        service_url,
        memory_bytes_max=memory_bytes_max,
        when_full=when_full,
        operation_timeout_s=operation_timeout_s,
        tracing=tracing,
        security=security,
    )


class Client:
    """Made by `connect`. Closing it closes all that was made with it."""

    def __init__(
        self,
        service_url: str,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        when_full: WhenFull = "wait",
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        tracing: OpenTelemetry | None = None,
        security: Security = NOBODY,
        chance: random.Random | None = None,
        now_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        check_service_url(service_url)
        check_seconds("operation_timeout_s", operation_timeout_s)
        if tracing is not None and not isinstance(tracing, OpenTelemetry):
            raise BadArgument(f"tracing={tracing!r}: give anabranch.OpenTelemetry()")
        self._connections = Connections(service_url, security)
        self._operation_timeout_s = operation_timeout_s
        self._tracing = tracing
        self._budget = MemoryBudget(memory_bytes_max, when_full)
        self._chance = chance or random.Random()
        self._now_ms = now_ms
        self._parts: dict[Part, None] = {}  # In the order they were made.
        self._is_closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Closes every consumer and every producer, then the connections.

        Producers wait for their receipts, if asked to. Raises the first error of a flush once all are closed.
        """
        self._is_closed = True
        producers = [part for part in self._parts if isinstance(part, Producer)]
        consumers = [part for part in self._parts if not isinstance(part, Producer)]
        try:
            # Consumers first: the last thing they do may be to send messages elsewhere.
            ends = await asyncio.gather(*(part.close() for part in consumers), return_exceptions=True)
            ends += await asyncio.gather(
                *(part.close(flush=flush) for part in producers), return_exceptions=True
            )
        finally:
            await self._connections.close()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def crash(self) -> None:
        """Drops every connection without a word, as a process that dies would. For tests of the other side."""
        self._is_closed = True
        self._connections.abort()

    # -- parts

    async def _in_time(self, what: str, opening: Awaitable[None]) -> None:
        with troubles() as trouble:
            try:
                async with asyncio.timeout(self._operation_timeout_s):
                    await opening
            except TimedOut:
                raise
            except TimeoutError:
                error = trouble.timed_out(
                    f"{what} was not opened within {self._operation_timeout_s:g} s",
                    "operation_timeout_s allows more time",
                )
                raise error from error.__cause__

    async def _watch(self, topic: str, *, create: bool) -> LayoutWatch:
        if self._is_closed:
            raise Closed("the client is closed: make another with connect()")
        watch = LayoutWatch(self._connections, topic, Backoff(self._chance))
        await self._in_time(topic, watch.open(create=create))
        return watch

    async def _opened(self, part: P, *, in_time: bool = True) -> P:
        self._parts[part] = None
        try:
            await (self._in_time(type(part).__name__, part.open()) if in_time else part.open())
        except BaseException:
            await part.close()
            raise
        return part

    def _forget(self, part: Part) -> None:
        self._parts.pop(part, None)

    def _kind(self, cls: type[T]) -> type[T]:
        return cls if self._tracing is None else traced(cls, self._tracing)

    def _name(self, what: str) -> str:
        return f"{what}-{self._chance.getrandbits(40):010x}"

    # -- what users make

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        schema: Schema[Any] | type | None = None,
        compression: Compression = "none",
        batching: bool | Batching = True,
        routing: Routing = Routing.HIGH,
        access: Access = "shared",
        chunking: bool = False,
        encryption: Encryption | None = None,
        send_timeout_s: float | None = SEND_TIMEOUT_S,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
        write: Write | None = None,
    ) -> Opening[Producer]:
        """With a name, sequence ids go on behind what the topic holds of it, and nothing of that is stored again.

        - `compression`: of whole batches.
        - `access`: "shared" with others; "exclusive" fails if there are others; "wait" waits until they have left;
          "fencing" sends them away.
        - `chunking`: messages larger than the broker takes are sent in parts.
        - `send_timeout_s`: a message without a receipt for so long fails with TimedOut, and so do all behind it, to
          keep the order. None waits for ever.
        - `routing`: `Routing.LOW` for topics shared with producers of Pulsar 5.0.0-M1.
        - `properties`: of the producer, shown in the topic's stats.
        - `write`: what it sends is hidden from readers until that write is decided; see `anabranch.client.writes`.
        """
        check_seconds("send_timeout_s", send_timeout_s)
        if write is not None and name is not None:
            raise BadArgument(
                f"name={name!r}: a producer of a hidden write has no name; another attempt is another producer"
            )
        if encryption is not None:
            encryption.check_can_encrypt()
        settings = ProducerSettings(
            routing=routing,
            batching=batching_of(batching),
            compression=compression_of(compression),
            is_chunking=chunking,
            access_mode=access_of(access),
            schema=None if schema is None else schema_of(schema),
            encryption=encryption,
            send_timeout_s=send_timeout_s,
            properties=properties or {},
            is_named=name is not None,
            write=write,
        )

        async def open_() -> Producer:
            watch = await self._watch(topic, create=create)
            producer = self._kind(Producer)(
                self._connections,
                watch,
                name or self._name("producer"),
                settings,
                chance=self._chance,
                now_ms=self._now_ms,
                budget=self._budget,
                closed=self._forget,
            )
            # Others may hold the topic for as long as they like.
            return await self._opened(producer, in_time=access != "wait")

        return Opening(open_)

    def _setup(
        self,
        watch: LayoutWatch,
        consumer_name: str,
        how: _Consuming,
        shared: Shared | None = None,
    ) -> Setup:
        return Setup(
            connections=self._connections,
            watch=watch,
            consumer_name=consumer_name,
            chance=self._chance,
            reading=Reading(None if how.schema is None else how.schema.for_topic(), how.encryption),
            receive_queue=how.receive_queue,
            closed=self._forget,
            shared=shared,
        )

    def _namespace_setup(
        self,
        namespace: str,
        property_filters: Mapping[str, str] | None,
        subscription: str,
        consumer_name: str,
        how: _Consuming,
        make: Callable[[Setup], C],
    ) -> NamespaceSetup[C]:
        if self._is_closed:
            raise Closed("the client is closed: make another with connect()")

        async def open_one(topic: str, shared: Shared) -> C:
            watch = LayoutWatch(self._connections, topic, Backoff(self._chance))
            # A topic that was deleted meanwhile is not made again.
            await watch.open(create=False)
            consumer = make(self._setup(watch, consumer_name, how, shared))
            shared.made(consumer)
            try:
                await consumer.open()
            except BaseException:
                await consumer.close()
                raise
            return consumer

        return NamespaceSetup(
            connections=self._connections,
            namespace=namespace,
            property_filters=property_filters or {},
            subscription=subscription,
            consumer_name=consumer_name,
            receive_queue=how.receive_queue,
            chance=self._chance,
            open_one=open_one,
            closed=self._forget,
        )

    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        create: bool = True,
    ) -> Opening[StreamConsumer]: ...

    @overload
    def stream_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
    ) -> Opening[NamespaceStreamConsumer]: ...

    def stream_consumer(
        self,
        topic: str | None = None,
        subscription: str = "",
        *,
        namespace: str | None = None,
        property_filters: Mapping[str, str] | None = None,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        create: bool = True,
    ) -> Opening[StreamConsumer] | Opening[NamespaceStreamConsumer]:
        """In order, acknowledged cumulatively; several of one subscription share its segments.

        - `topic`, or a `namespace` such as "public/default": then every scalable topic there that has all of
          `property_filters` is read, and topics join and leave as they are made, changed and deleted.
        - `start` is where a new subscription begins.
        - `receive_queue` messages are fetched ahead.
        - `create` makes a missing topic. Topics of a namespace are never made.
        """
        how = _consuming(
            topic, namespace, property_filters, subscription, start, schema, encryption, receive_queue
        )
        name = consumer_name or self._name("stream")
        kind = self._kind(StreamConsumer)

        def make(setup: Setup) -> StreamConsumer:
            return kind(setup, subscription, earliest=how.is_earliest)

        if topic is None:
            assert namespace is not None

            async def open_all() -> NamespaceStreamConsumer:
                setup = self._namespace_setup(namespace, property_filters, subscription, name, how, make)
                return await self._opened(self._kind(NamespaceStreamConsumer)(setup))

            return Opening(open_all)

        async def open_() -> StreamConsumer:
            watch = await self._watch(topic, create=create)
            return await self._opened(make(self._setup(watch, name, how)))

        return Opening(open_)

    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        processing_timeout_s: float | None = None,
        negative_ack: NackDelay | None = None,
        dead_letter: DeadLetter | None = None,
        create: bool = True,
    ) -> Opening[QueueConsumer]: ...

    @overload
    def queue_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        processing_timeout_s: float | None = None,
        negative_ack: NackDelay | None = None,
        dead_letter: DeadLetter | None = None,
    ) -> Opening[NamespaceQueueConsumer]: ...

    def queue_consumer(
        self,
        topic: str | None = None,
        subscription: str = "",
        *,
        namespace: str | None = None,
        property_filters: Mapping[str, str] | None = None,
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        processing_timeout_s: float | None = None,
        negative_ack: NackDelay | None = None,
        dead_letter: DeadLetter | None = None,
        create: bool = True,
    ) -> Opening[QueueConsumer] | Opening[NamespaceQueueConsumer]:
        """Without order, acknowledged one by one; several of one subscription share every segment.

        - `topic`, or a `namespace` such as "public/default": then every scalable topic there that has all of
          `property_filters` is read, and topics join and leave as they are made, changed and deleted.
        - `start` is where a new subscription begins.
        - `receive_queue` messages are fetched ahead.
        - `processing_timeout_s`: a message that is not settled within it comes again.
        - `negative_ack`: how long a message that was handed back waits before it comes again, 1 to 60 s by default.
        - `dead_letter`: after how often it is sent elsewhere instead.
        - `create` makes a missing topic. Topics of a namespace are never made.
        """
        how = _consuming(
            topic, namespace, property_filters, subscription, start, schema, encryption, receive_queue
        )
        name = consumer_name or self._name("queue")
        kind = self._kind(QueueConsumer)

        def make(setup: Setup) -> QueueConsumer:
            return kind(
                setup,
                subscription,
                earliest=how.is_earliest,
                processing_timeout_s=processing_timeout_s,
                negative_ack=negative_ack,
                dead_letter=dead_letter,
                # What came in parts cannot leave as a whole.
                make_sender=partial(self.producer, chunking=True),
            )

        if topic is None:
            assert namespace is not None

            async def open_all() -> NamespaceQueueConsumer:
                setup = self._namespace_setup(namespace, property_filters, subscription, name, how, make)
                return await self._opened(self._kind(NamespaceQueueConsumer)(setup))

            return Opening(open_all)

        async def open_() -> QueueConsumer:
            watch = await self._watch(topic, create=create)
            return await self._opened(make(self._setup(watch, name, how)))

        return Opening(open_)

    def checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Start = "latest",
        group: str | None = None,
        consumer_name: str | None = None,
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        create: bool = True,
    ) -> Opening[CheckpointConsumer]:
        """In order, without a cursor at the broker: `checkpoint()` gives bytes to go on from.

        - `start`: "earliest", "latest", the bytes of a checkpoint, or a `datetime` with a time zone: messages published
          then or later. DataLost if messages behind a checkpoint are gone.
        - `group`: shares the segments among all consumers of that name. Give every member the same `start`, and start a
          group anew, from `merge_checkpoints`, only once no member of it is left, or under another name.
        """
        begin = begin_of(start)
        subscription = "reader" if group is None else group
        how = _consuming(topic, None, None, subscription, "latest", schema, encryption, receive_queue)
        name = consumer_name or self._name("checkpoint")

        async def open_() -> CheckpointConsumer:
            watch = await self._watch(topic, create=create)
            setup = self._setup(watch, name, how)
            return await self._opened(self._kind(CheckpointConsumer)(setup, group=group, begin=begin))

        return Opening(open_)
