"""The client: one pool of connections, and the producers and consumers that share it, on any event loop.

Randomness and the clock are passed in; time-outs and pauses follow the event loop's clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar, Unpack, overload

from anabranch.client.consuming.base import Consumer, Setup, Shared
from anabranch.client.consuming.checkpoint import CheckpointConsumer
from anabranch.client.consuming.core.checkpoint import Start, begin_of
from anabranch.client.consuming.core.redelivery import DeadLetter, NackDelay
from anabranch.client.consuming.inbox import MESSAGES_MAX
from anabranch.client.consuming.namespace import (
    NamespaceConsumer,
    NamespaceQueueConsumer,
    NamespaceSetup,
    NamespaceStreamConsumer,
)
from anabranch.client.consuming.options import CheckedOptions, ConsumerOptions, From, QueueOptions, checked
from anabranch.client.consuming.queue import QueueConsumer
from anabranch.client.consuming.segment import ValueReading
from anabranch.client.consuming.stream import StreamConsumer
from anabranch.client.crypto.encryption import Encryption
from anabranch.client.errors import BadArgument, Closed, TimedOut
from anabranch.client.hidden_writes.write import Write
from anabranch.client.opening import Opening
from anabranch.client.options import check_seconds, check_service_url
from anabranch.client.producing.batching import (
    Access,
    Batching,
    Compression,
    access_of,
    batching_of,
    compression_of,
)
from anabranch.client.producing.budget import MEMORY_BYTES_MAX, MemoryBudget, WhenFull
from anabranch.client.producing.core.lanes import Routing
from anabranch.client.producing.engine import SEND_TIMEOUT_S, ProducerSettings
from anabranch.client.producing.options import ProducerOptions
from anabranch.client.producing.producer import Producer
from anabranch.client.schema.schemas import Schema, schema_of
from anabranch.client.security import NOBODY, Security, Token
from anabranch.client.tables.asked import AsOf, TablePart, asked
from anabranch.client.tables.finding import table_of
from anabranch.client.tables.opening import open_table
from anabranch.client.tables.tail import TailReader
from anabranch.client.tables.topic_rows import TopicRows
from anabranch.client.tracing.spans import OpenTelemetry
from anabranch.client.tracing.wrapped import traced
from anabranch.client.transport.attachment import Backoff, troubles
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import Cut

OPERATION_TIMEOUT_S: Final = 30.0


class ClientPart(Protocol):
    """A producer or consumer of a client."""

    async def close(self) -> None: ...


class OpenPart(ClientPart, Protocol):
    async def open(self) -> None: ...


P = TypeVar("P", bound=OpenPart)
C = TypeVar("C", bound=Consumer)
N = TypeVar("N", bound=NamespaceConsumer[Any, Any])
T = TypeVar("T")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


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
    """A client of the brokers at `pulsar://host:port`, or of several brokers as `pulsar://one:6650,two:6650`.

    `pulsar+ssl://host:6651` speaks TLS.

    Nothing is opened yet: an unreachable broker is noticed when the first producer or consumer is made.

    - `memory_bytes_max`: the most memory for messages without a receipt, of all producers together.
    - `when_full`: "wait" for room, or "refuse" a send that exceeds the limit with MemoryFull.
    - `operation_timeout_s`: how long opening a producer or consumer may take.
    - `tracing`: `OpenTelemetry()` makes a span for each message sent and received.
    - `token`: authenticates the client: the token itself, `file://…`, read for each connection, or a function.
    - `username`, `password`: authenticate it instead, on brokers that keep users.
    - `tls_trust_certs_file`: the trusted authorities, in PEM; by default the system's.
    - `tls_certificate_file`, `tls_key_file`: the client's own certificate, for brokers that require one.
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
    """Made by `connect`. Closing it closes all producers and consumers made with it."""

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
        self._parts: dict[ClientPart, None] = {}  # In the order of their creation.
        self._is_closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Closes every consumer and every producer, then the connections.

        With `flush`, producers wait for their receipts. Raises the first error of a flush once all are closed.
        """
        self._is_closed = True
        producers = [part for part in self._parts if isinstance(part, Producer)]
        consumers = [part for part in self._parts if not isinstance(part, Producer)]
        try:
            # Consumers first: the last thing they do may be to send messages to other topics.
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
        """Drops every connection without closing it properly, like a dying process. For tests of the broker's side."""
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
        watch.warn_of_other_kind()
        return watch

    async def _opened(self, part: P, *, in_time: bool = True) -> P:
        self._parts[part] = None
        try:
            await (self._in_time(type(part).__name__, part.open()) if in_time else part.open())
        except BaseException:
            await part.close()
            raise
        return part

    def _forget(self, part: ClientPart) -> None:
        self._parts.pop(part, None)

    def _kind(self, cls: type[T]) -> type[T]:
        return cls if self._tracing is None else traced(cls, self._tracing)

    def _name(self, what: str) -> str:
        return f"{what}-{self._chance.getrandbits(40):010x}"

    # -- what users make

    @overload
    def producer(
        self,
        topic: str,
        *,
        schema: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer[bytes]]: ...

    @overload
    def producer(
        self,
        topic: str,
        *,
        schema: Schema[T] | type[T],
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer[T]]: ...

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
    ) -> Opening[Producer[Any]]:
        """With a name, sequence ids continue after those that the topic holds of it, and those are not stored again.

        - `compression`: the codec for whole batches.
        - `access`: "shared" with others; "exclusive" fails if there are other producers; "wait" waits until they have
          left; "fencing" disconnects them.
        - `chunking`: messages larger than the broker accepts are sent in chunks.
        - `send_timeout_s`: a message without a receipt for so long fails with TimedOut, and so do all later ones, to
          keep the order. None waits for ever.
        - `routing`: `Routing.LOW` for topics shared with producers of Pulsar 5.0.0-M1.
        - `properties`: properties of the producer, shown in the topic's stats.
        - `write`: readers do not see its messages until that write is decided (`anabranch.client.hidden_writes`).
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
            # Other producers may hold the topic for as long as they like.
            return await self._opened(producer, in_time=access != "wait")

        return Opening(open_)

    def _setup(
        self,
        watch: LayoutWatch,
        consumer_name: str,
        how: CheckedOptions,
        shared: Shared | None = None,
    ) -> Setup:
        return Setup(
            connections=self._connections,
            watch=watch,
            consumer_name=consumer_name,
            chance=self._chance,
            reading=ValueReading(None if how.schema is None else how.schema.for_topic(), how.encryption),
            receive_queue=how.receive_queue,
            closed=self._forget,
            shared=shared,
        )

    def _namespace_setup(
        self,
        namespace: str | None,
        property_filters: Mapping[str, str] | None,
        subscription: str,
        consumer_name: str,
        how: CheckedOptions,
        make: Callable[[Setup], C],
    ) -> NamespaceSetup[C]:
        assert namespace is not None  # `checked` ensures it.
        if self._is_closed:
            raise Closed("the client is closed: make another with connect()")

        async def open_one(topic: str, shared: Shared) -> C:
            watch = LayoutWatch(self._connections, topic, Backoff(self._chance))
            # A topic that was deleted meanwhile is not created again.
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

    def _opening(
        self,
        topic: str | None,
        create: bool,
        consumer_name: str,
        how: CheckedOptions,
        make: Callable[[Setup], C],
        make_all: Callable[[], N],
    ) -> Opening[C] | Opening[N]:
        """Opens the consumer of a topic, or that of a namespace."""

        async def open_all() -> N:
            return await self._opened(make_all())

        if topic is None:
            return Opening(open_all)

        async def open_() -> C:
            watch = await self._watch(topic, create=create)
            return await self._opened(make(self._setup(watch, consumer_name, how)))

        return Opening(open_)

    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[StreamConsumer[bytes]]: ...

    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: Schema[T] | type[T],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[StreamConsumer[T]]: ...

    @overload
    def stream_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[NamespaceStreamConsumer[bytes]]: ...

    @overload
    def stream_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: Schema[T] | type[T],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[NamespaceStreamConsumer[T]]: ...

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
    ) -> Opening[StreamConsumer[Any]] | Opening[NamespaceStreamConsumer[Any]]:
        """Reads in order and acknowledges cumulatively; several consumers of one subscription share its segments.

        - `topic`, or a `namespace` such as "public/default": then every scalable topic there that has all of
          `property_filters` is read, and topics join and leave as they are created, changed and deleted.
        - `start` is where a new subscription begins.
        - `receive_queue` messages are fetched ahead.
        - `create` creates a missing topic. Topics of a namespace are never created.
        """
        how = checked(
            topic, namespace, property_filters, subscription, start, schema, encryption, receive_queue
        )
        name = consumer_name or self._name("stream")
        kind = self._kind(StreamConsumer)

        def make(setup: Setup) -> StreamConsumer:
            return kind(setup, subscription, earliest=how.is_earliest)

        def make_all() -> NamespaceStreamConsumer:
            setup = self._namespace_setup(namespace, property_filters, subscription, name, how, make)
            return self._kind(NamespaceStreamConsumer)(setup)

        return self._opening(topic, create, name, how, make, make_all)

    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: None = None,
        **options: Unpack[QueueOptions],
    ) -> Opening[QueueConsumer[bytes]]: ...

    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: Schema[T] | type[T],
        **options: Unpack[QueueOptions],
    ) -> Opening[QueueConsumer[T]]: ...

    @overload
    def queue_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: None = None,
        **options: Unpack[QueueOptions],
    ) -> Opening[NamespaceQueueConsumer[bytes]]: ...

    @overload
    def queue_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: Schema[T] | type[T],
        **options: Unpack[QueueOptions],
    ) -> Opening[NamespaceQueueConsumer[T]]: ...

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
    ) -> Opening[QueueConsumer[Any]] | Opening[NamespaceQueueConsumer[Any]]:
        """Reads without order and acknowledges one by one; several consumers of one subscription share every segment.

        - `topic`, or a `namespace` such as "public/default": then every scalable topic there that has all of
          `property_filters` is read, and topics join and leave as they are created, changed and deleted.
        - `start` is where a new subscription begins.
        - `receive_queue` messages are fetched ahead.
        - `processing_timeout_s`: a message that is not settled within this time is delivered again.
        - `negative_ack`: how long a message that was handed back waits for redelivery, 1 to 60 s by default.
        - `dead_letter`: after how many deliveries a message is sent to another topic instead.
        - `create` creates a missing topic. Topics of a namespace are never created.
        """
        how = checked(
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
                # A message that came in chunks is too large to be sent whole.
                make_sender=partial(self.producer, chunking=True),
            )

        def make_all() -> NamespaceQueueConsumer:
            setup = self._namespace_setup(namespace, property_filters, subscription, name, how, make)
            return self._kind(NamespaceQueueConsumer)(setup)

        return self._opening(topic, create, name, how, make, make_all)

    @overload
    def checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Start = "latest",
        group: str | None = None,
        consumer_name: str | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        create: bool = True,
        schema: None = None,
    ) -> Opening[CheckpointConsumer[bytes]]: ...

    @overload
    def checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Start = "latest",
        group: str | None = None,
        consumer_name: str | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        create: bool = True,
        schema: Schema[T] | type[T],
    ) -> Opening[CheckpointConsumer[T]]: ...

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
    ) -> Opening[CheckpointConsumer[Any]]:
        """Reads in order, without a cursor at the broker: `checkpoint()` returns bytes to resume from.

        - `start`: "earliest", "latest", the bytes of a checkpoint, or a `datetime` with a time zone: messages published
          then or later. Raises DataLost if messages behind a checkpoint are gone.
        - `group`: shares the segments among all consumers of that name. Give every member the same `start`, and start a
          group again, from `merge_checkpoints`, only once it has no members left, or under another name.
        """
        begin = begin_of(start)
        subscription = "reader" if group is None else group
        how = checked(topic, None, None, subscription, "latest", schema, encryption, receive_queue)
        name = consumer_name or self._name("checkpoint")

        async def open_() -> CheckpointConsumer:
            watch = await self._watch(topic, create=create)
            setup = self._setup(watch, name, how)
            return await self._opened(self._kind(CheckpointConsumer)(setup, group=group, begin=begin))

        return Opening(open_)

    async def table(
        self,
        topic: str,
        *,
        part: TablePart = "all",
        as_of: AsOf | None = None,
        table_url: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        encryption: Encryption | None = None,
    ) -> TopicRows:
        """The topic as a table of this moment: the files of its history, and from where they end what the log has. Each
        row once. Needs the extra `tables`.

        - `part`: "history" leaves out the tail, "tail" the history.
        - `as_of`: a version of the table, the version that was newest at a time, or a checkpoint of the topic: the rows
          before it.
        - `table_url`: where the table is; brokers know it of the tables that they write.
        - `storage_options`: how to reach an object store, as `deltalake` has them.
        - `encryption` opens encrypted messages of the tail.

        A topic that was made again under its name is refused with TopicMadeAgain, as its table is of the former one.
        """
        wanted = asked(part, as_of, table_url, storage_options)
        how = checked(topic, None, None, "reader", "latest", None, encryption, MESSAGES_MAX)

        async def read_from(watch: LayoutWatch, seam: Cut) -> TailReader:
            setup = self._setup(watch, self._name("table"), how)
            return await self._opened(TailReader(setup, group=None, begin=seam))

        return await open_table(
            wanted,
            topic,
            lambda: self._watch(topic, create=False),
            lambda watch: table_of(self._connections, watch),
            read_from,
            self._operation_timeout_s,
        )
