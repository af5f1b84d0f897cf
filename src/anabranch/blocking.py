"""The client for programs without an event loop: the same names, parameters and behaviour, with calls that wait.

A client has a loop in its own thread, which runs all calls; nothing is decided in this module, and parameters and
docstrings are copied from the methods that do the work. Waking that thread for each message would take longer than all
the rest, so posts and acknowledgements go there many at a time, through an outbox, and messages are taken from those
that the loop has prepared. Any other call waits for the earlier items in its producer's or consumer's outbox. Any
number of threads may use one client with its producers and consumers. A waiting thread can be interrupted (Ctrl-C),
which cancels the call. A program that ends without closing its client ends at once, and unsent messages are lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from anabranch import client as aio
from anabranch.client.consuming.base import Receiver
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.client.consuming.inbox import MESSAGES_MAX
from anabranch.client.consuming.options import ConsumerOptions, QueueOptions
from anabranch.client.crypto.encryption import Encryption
from anabranch.client.errors import Closed
from anabranch.client.message import Message
from anabranch.client.message_id import MessageId
from anabranch.client.opening import Opening
from anabranch.client.producing.core.runs import ITEM_OVERHEAD_BYTES
from anabranch.client.producing.options import ProducerOptions
from anabranch.client.producing.prepared import Prepared
from anabranch.client.schema.schemas import Schema
from anabranch.client.threads.handover import Call, Outbox, Receipt, make_calls, shared
from anabranch.client.threads.portal import Portal
from anabranch.client.values import V

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

# How much may be on its way to the loop, for one producer and for one consumer, before a thread waits.
POSTED_BYTES_MAX: Final = 1 << 20
ACKS_MAX: Final = 1000

# -- the same method, waiting


def _own(face: Any, method: Callable[..., Any]) -> Any:
    """The object's own method, which its class may override."""
    return getattr(face._inner, method.__name__)


def _waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call(self._behind(_own(self, method), *args, **options))  # type: ignore[no-any-return]

    return call


def _closes(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, P], None]:
    """For `close`, which does nothing once the client is closed."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
        if not self._portal.is_stopped:
            self._portal.call(self._behind(_own(self, method), *args, **options))

    return call


def _runs(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Any, P], T]:
    """For a method that does not wait, but must run in the loop."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        async def in_loop() -> T:
            return _own(self, method)(*args, **options)  # type: ignore[no-any-return]

        return self._portal.call(in_loop())  # type: ignore[no-any-return]

    return call


def _posts(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, asyncio.Future[T]]],
) -> Callable[Concatenate[Any, P], concurrent.futures.Future[T]]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> concurrent.futures.Future[T]:
        return self._portal.call(shared(self._behind, _own(self, method), *args, **options))  # type: ignore[no-any-return]

    return call


def _receives(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, Message]],
) -> Callable[Concatenate[Any, P], Message]:
    @functools.wraps(method)
    def receive(self: Any, timeout_s: float | None = None) -> Message:
        message: Message | None = self._take()
        return message if message is not None else self._wait_for_message(timeout_s)

    return receive  # type: ignore[return-value]  # Explicit parameters are faster.


def _hands_over(
    method: Callable[[A, Message | pa.RecordBatch], Coroutine[Any, Any, None]],
) -> Callable[[Any, Message | pa.RecordBatch], None]:
    """For a method that returns at once: the loop returns no result."""
    waits = _waits(method)

    @functools.wraps(method)
    def call(self: Any, message: Message | pa.RecordBatch) -> None:
        if type(message) is Message:
            self._outbox.put((_own(self, method), message), 1)
        else:
            waits(self, message)

    return call


F = TypeVar("F", bound="_Face")


def _makes(
    method: Callable[Concatenate[A, P], Opening[Any]], kind: type[F]
) -> Callable[Concatenate[Any, P], F]:
    @functools.wraps(method)
    def make(self: Any, /, *args: P.args, **options: P.kwargs) -> F:
        async def opened() -> Any:
            return await _own(self, method)(*args, **options)

        return kind(self._portal, self._portal.call(opened()))

    return make


# -- the faces


class _Face:
    """An object of the asynchronous client, and the way to its loop."""

    def __init__(self, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    async def _behind(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        """Calls a method of the asynchronous client, after everything that was handed over before."""
        return await method(*args, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.is_stopped:
            self._portal.call(self._behind(self._inner.close))

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


Posted = tuple[Prepared, Receipt[MessageId]]


class Producer(_Face, Generic[V]):
    __doc__ = aio.Producer.__doc__

    def __init__(self, portal: Portal, inner: Any) -> None:
        super().__init__(portal, inner)
        self._outbox: Outbox[Posted] = Outbox(
            portal.loop, inner.post_prepared, POSTED_BYTES_MAX, _fail, is_slow=True
        )
        portal.add(self._outbox)
        self._prepared = inner.prepared

    async def _behind(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        if options.get("flush", True):
            await self._outbox.passed()
        return await method(*args, **options)

    def post(
        self,
        value: V | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        sequence_id: int | None = None,
        ordering_key: bytes | None = None,
    ) -> concurrent.futures.Future[MessageId]:
        prepared: Prepared | None = self._prepared(
            value, key, properties, event_time, deliver_at, deliver_after, ordering_key
        )
        if prepared is not None and sequence_id is None:
            size = len(prepared[0]) + ITEM_OVERHEAD_BYTES
            if not self._inner.would_refuse(size + self._outbox.size):
                receipt: Receipt[MessageId] = Receipt()
                self._outbox.put((prepared, receipt), size)
                return receipt
        return self._post(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            sequence_id=sequence_id,
            ordering_key=ordering_key,
        )

    post.__doc__ = aio.Producer.post.__doc__

    # For errors that only the loop can raise at once: memory is short, or a sequence id does not rise.
    _post = _posts(aio.Producer.post)
    if TYPE_CHECKING:

        def send(
            self,
            value: V | None,
            *,
            key: str | bytes | None = None,
            properties: Mapping[str, str] | None = None,
            event_time: datetime | int | None = None,
            deliver_at: datetime | int | None = None,
            deliver_after: timedelta | float | None = None,
            sequence_id: int | None = None,
            ordering_key: bytes | None = None,
        ) -> MessageId: ...

    else:
        send = _waits(aio.Producer.send)

    send_batch = _waits(aio.Producer.send_batch)
    post_batch = _posts(aio.Producer.post_batch)
    flush = _waits(aio.Producer.flush)
    close = _closes(aio.Producer.close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)

    @property
    def name(self) -> str:
        return self._inner.name  # type: ignore[no-any-return]

    @property
    def topic(self) -> str:
        return self._inner.topic  # type: ignore[no-any-return]

    @property
    def topic_id(self) -> str:
        """The id of the topic it was opened on, which no other topic of that name has; "" if brokers give none."""
        return self._inner.topic_id  # type: ignore[no-any-return]

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id given out, or found in the topic when the producer was opened; -1 for none."""
        if not self._outbox.is_idle and not self._portal.is_stopped:
            self._portal.call(self._outbox.passed())
        return self._inner.last_sequence_id  # type: ignore[no-any-return]

    @property
    def topics_written(self) -> frozenset[str]:
        """The segments or partitions that may hold messages of this producer; a hidden write is decided there."""
        return self._inner.topics_written  # type: ignore[no-any-return]


def _fail(posted: Posted, error: Exception) -> None:
    if not posted[1].done():
        posted[1].set_exception(error)


class _Consumer(_Face, Generic[V]):
    def __init__(self, portal: Portal, inner: Any) -> None:
        super().__init__(portal, inner)
        self._outbox: Outbox[Call] = Outbox(portal.loop, make_calls, ACKS_MAX)
        portal.add(self._outbox)
        self._take: Callable[[], Message | None] = inner.take_ready if inner.gives_ready else _none

    async def _behind(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        await self._outbox.passed()
        return await method(*args, **options)

    def _wait_for_message(self, timeout_s: float | None) -> Message:
        inner: Receiver = self._inner
        return self._portal.take(functools.partial(inner.receive_ahead, timeout_s), inner.put_back)

    if TYPE_CHECKING:

        def receive(self, timeout_s: float | None = None) -> Message[V]: ...

    else:
        receive = _receives(Receiver.receive)

    receive_arrow = _waits(Receiver.receive_arrow)

    @property
    def consumer_name(self) -> str:
        return self._inner.consumer_name  # type: ignore[no-any-return]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V]:
        message = self._take()
        if message is not None:
            return message
        try:
            return self._wait_for_message(None)
        except Closed:
            raise StopIteration from None


def _none() -> None:
    return None


class _Subscribed(_Consumer[V]):
    @property
    def subscription(self) -> str:
        return self._inner.subscription  # type: ignore[no-any-return]


class _OfTopic(_Consumer[V]):
    @property
    def topic(self) -> str:
        return self._inner.topic  # type: ignore[no-any-return]


class StreamConsumer(_OfTopic[V], _Subscribed[V]):
    __doc__ = aio.StreamConsumer.__doc__

    ack_cumulative = _hands_over(aio.StreamConsumer.ack_cumulative)
    flush = _waits(aio.StreamConsumer.flush)
    close = _closes(aio.StreamConsumer.close)


class QueueConsumer(_OfTopic[V], _Subscribed[V]):
    __doc__ = aio.QueueConsumer.__doc__

    ack = _hands_over(aio.QueueConsumer.ack)
    nack = _hands_over(aio.QueueConsumer.nack)
    flush = _waits(aio.QueueConsumer.flush)
    close = _closes(aio.QueueConsumer.close)

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for messages that are redelivered too often."""
        return self._inner.dead_letter_topic  # type: ignore[no-any-return]


class CheckpointConsumer(_OfTopic[V]):
    __doc__ = aio.CheckpointConsumer.__doc__

    if not TYPE_CHECKING:
        receive = _receives(aio.CheckpointConsumer.receive)

    receive_arrow = _waits(aio.CheckpointConsumer.receive_arrow)
    checkpoint = _runs(aio.CheckpointConsumer.checkpoint)
    close = _closes(aio.CheckpointConsumer.close)


class _OfNamespace(_Subscribed[V]):
    close = _closes(aio.NamespaceStreamConsumer.close)

    @property
    def namespace(self) -> str:
        return self._inner.namespace  # type: ignore[no-any-return]

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it reads by now."""
        return self._portal.call(_read(self._inner, "topics"))


class NamespaceStreamConsumer(_OfNamespace[V]):
    __doc__ = aio.NamespaceStreamConsumer.__doc__

    ack_cumulative = _hands_over(aio.NamespaceStreamConsumer.ack_cumulative)
    flush = _waits(aio.NamespaceStreamConsumer.flush)


class NamespaceQueueConsumer(_OfNamespace[V]):
    __doc__ = aio.NamespaceQueueConsumer.__doc__

    if not TYPE_CHECKING:
        receive = _receives(aio.NamespaceQueueConsumer.receive)

    ack = _hands_over(aio.NamespaceQueueConsumer.ack)
    nack = _hands_over(aio.NamespaceQueueConsumer.nack)
    flush = _waits(aio.NamespaceQueueConsumer.flush)


async def _read(inner: Any, name: str) -> Any:
    """An attribute that changes in the loop."""
    return getattr(inner, name)


class Client(_Face):
    __doc__ = aio.Client.__doc__

    # The overloads tell type checkers what the schema says, and which of two kinds of consumers is made.

    @overload
    def producer(
        self,
        topic: str,
        *,
        schema: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[bytes]: ...

    @overload
    def producer(
        self,
        topic: str,
        *,
        schema: Schema[T] | type[T],
        **options: Unpack[ProducerOptions],
    ) -> Producer[T]: ...

    @functools.wraps(aio.Client.producer)
    def producer(self, *args: Any, **options: Any) -> Any:
        return _makes(aio.Client.producer, Producer)(self, *args, **options)

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
    ) -> CheckpointConsumer[bytes]: ...

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
    ) -> CheckpointConsumer[T]: ...

    @functools.wraps(aio.Client.checkpoint_consumer)
    def checkpoint_consumer(self, *args: Any, **options: Any) -> Any:
        return _makes(aio.Client.checkpoint_consumer, CheckpointConsumer)(self, *args, **options)

    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> StreamConsumer[bytes]: ...

    @overload
    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: Schema[T] | type[T],
        **options: Unpack[ConsumerOptions],
    ) -> StreamConsumer[T]: ...

    @overload
    def stream_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> NamespaceStreamConsumer[bytes]: ...

    @overload
    def stream_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: Schema[T] | type[T],
        **options: Unpack[ConsumerOptions],
    ) -> NamespaceStreamConsumer[T]: ...

    @functools.wraps(aio.Client.stream_consumer)
    def stream_consumer(self, *args: Any, **options: Any) -> Any:
        kind = StreamConsumer if options.get("namespace") is None else NamespaceStreamConsumer
        return _makes(aio.Client.stream_consumer, kind)(self, *args, **options)

    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: None = None,
        **options: Unpack[QueueOptions],
    ) -> QueueConsumer[bytes]: ...

    @overload
    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        create: bool = True,
        schema: Schema[T] | type[T],
        **options: Unpack[QueueOptions],
    ) -> QueueConsumer[T]: ...

    @overload
    def queue_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: None = None,
        **options: Unpack[QueueOptions],
    ) -> NamespaceQueueConsumer[bytes]: ...

    @overload
    def queue_consumer(
        self,
        *,
        subscription: str,
        namespace: str,
        property_filters: Mapping[str, str] | None = None,
        schema: Schema[T] | type[T],
        **options: Unpack[QueueOptions],
    ) -> NamespaceQueueConsumer[T]: ...

    @functools.wraps(aio.Client.queue_consumer)
    def queue_consumer(self, *args: Any, **options: Any) -> Any:
        kind = QueueConsumer if options.get("namespace") is None else NamespaceQueueConsumer
        return _makes(aio.Client.queue_consumer, kind)(self, *args, **options)

    table = _waits(aio.Client.table)

    def close(self, *, flush: bool = True) -> None:
        outboxes = self._portal.outboxes()

        async def close() -> None:
            for outbox in outboxes:
                if flush or not outbox.is_slow:
                    await outbox.passed()
            await self._inner.close(flush=flush)

        try:
            if not self._portal.is_stopped:
                self._portal.call(close())
        finally:
            self._portal.stop()

    close.__doc__ = aio.Client.close.__doc__

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)


def _connects(connect: Callable[P, aio.Client]) -> Callable[P, Client]:
    @functools.wraps(connect)
    def make(*args: P.args, **options: P.kwargs) -> Client:
        inner = connect(*args, **options)  # Raises for wrong options before a thread is started.
        return Client(Portal(), inner)

    return make


connect = _connects(aio.connect)
# It needs no connection and does not wait: the same function.
merge_checkpoints = aio.merge_checkpoints
