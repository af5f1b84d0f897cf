"""The client for programs without an event loop: the same names, parameters and behaviour, calls that wait.

A client has a loop in a thread of its own, and every call here is handed to it; nothing is decided in this module, and
parameters and docstrings are taken over from the methods that do the work. Any number of threads may use one client
and what it makes. A thread that waits can be interrupted (Ctrl-C), which cancels the call. A program that ends without
closing its client ends at once, and what was not sent is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from anabranch import client as aio
from anabranch.client.consumer import From, Receiver
from anabranch.client.crypto import Encryption
from anabranch.client.errors import Closed
from anabranch.client.inbox import MESSAGES_MAX
from anabranch.client.message import Message
from anabranch.client.opening import Opening
from anabranch.client.redelivery import DeadLetter, NackDelay
from anabranch.client.schemas import Schema

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

STOP_MAX_S = 5.0
EXIT_MAX_S = 1.0


class _Portal:
    """A loop in a thread. `call` runs a coroutine there and waits for what comes of it."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self.is_stopped = False
        # A daemon: a program that forgets to close its client must be able to end.
        self._thread = threading.Thread(target=self._run, name="anabranch", daemon=True)
        self._thread.start()
        _portals.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_stopped:
            work.close()
            raise Closed("the client is closed: make another with connect()")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call in the client's own thread would wait for itself: use another thread"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed meanwhile") from None
        finally:
            future.cancel()  # Does something only if the wait was interrupted.

    def stop(self, within_s: float = STOP_MAX_S) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within_s)


_portals: weakref.WeakSet[_Portal] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for portal in list(_portals):
        with contextlib.suppress(RuntimeError):
            portal.stop(EXIT_MAX_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # There is none for Windows.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


# -- the same method, waiting


def _own(face: Any, method: Callable[..., Any]) -> Any:
    """The method as the object has it, which may be of a class of its own."""
    return getattr(face._inner, method.__name__)


def _waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call(_own(self, method)(*args, **options))  # type: ignore[no-any-return]

    return call


def _closes(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, P], None]:
    """Of `close`, which has nothing to do once the client is closed."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> None:
        if not self._portal.is_stopped:
            self._portal.call(_own(self, method)(*args, **options))

    return call


def _runs(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Of a method that does not wait, but must run where the loop does."""

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
        return self._portal.call(_shared(_own(self, method)(*args, **options)))  # type: ignore[no-any-return]

    return call


async def _shared(posting: Coroutine[Any, Any, asyncio.Future[T]]) -> concurrent.futures.Future[T]:
    """A future for other threads, which ends as the one that was posted does."""
    receipt = await posting
    shared: concurrent.futures.Future[T] = concurrent.futures.Future()
    shared.set_running_or_notify_cancel()  # What was posted cannot be called back.
    receipt.add_done_callback(lambda done: _settle(shared, done))
    return shared


def _settle(shared: concurrent.futures.Future[T], receipt: asyncio.Future[T]) -> None:
    error = Closed("the client was closed meanwhile") if receipt.cancelled() else receipt.exception()
    if error is not None:
        shared.set_exception(error)
    else:
        shared.set_result(receipt.result())


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
    """Something of the asynchronous client, and the way to its loop."""

    def __init__(self, portal: _Portal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.is_stopped:
            self._portal.call(self._inner.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


class Producer(_Face):
    __doc__ = aio.Producer.__doc__

    send = _waits(aio.Producer.send)
    post = _posts(aio.Producer.post)
    send_batch = _waits(aio.Producer.send_batch)
    post_batch = _posts(aio.Producer.post_batch)
    flush = _waits(aio.Producer.flush)
    close = _closes(aio.Producer.close)

    @property
    def name(self) -> str:
        return self._inner.name  # type: ignore[no-any-return]

    @property
    def topic(self) -> str:
        return self._inner.topic  # type: ignore[no-any-return]

    @property
    def last_sequence_id(self) -> int:
        """The highest one given out, or found in the topic when the producer was opened; -1 for none."""
        return self._inner.last_sequence_id  # type: ignore[no-any-return]


class _Consumer(_Face):
    receive = _waits(Receiver.receive)
    receive_arrow = _waits(Receiver.receive_arrow)

    @property
    def consumer_name(self) -> str:
        return self._inner.consumer_name  # type: ignore[no-any-return]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            return self._portal.call(self._inner.__anext__())  # type: ignore[no-any-return]
        except StopAsyncIteration:
            raise StopIteration from None


class _Subscribed(_Consumer):
    @property
    def subscription(self) -> str:
        return self._inner.subscription  # type: ignore[no-any-return]


class _OfTopic(_Consumer):
    @property
    def topic(self) -> str:
        return self._inner.topic  # type: ignore[no-any-return]


class StreamConsumer(_OfTopic, _Subscribed):
    __doc__ = aio.StreamConsumer.__doc__

    ack_cumulative = _waits(aio.StreamConsumer.ack_cumulative)
    flush = _waits(aio.StreamConsumer.flush)
    close = _closes(aio.StreamConsumer.close)


class QueueConsumer(_OfTopic, _Subscribed):
    __doc__ = aio.QueueConsumer.__doc__

    ack = _waits(aio.QueueConsumer.ack)
    nack = _waits(aio.QueueConsumer.nack)
    flush = _waits(aio.QueueConsumer.flush)
    close = _closes(aio.QueueConsumer.close)

    @property
    def dead_letter_topic(self) -> str | None:
        """Where messages go that come again too often."""
        return self._inner.dead_letter_topic  # type: ignore[no-any-return]


class CheckpointConsumer(_OfTopic):
    __doc__ = aio.CheckpointConsumer.__doc__

    receive = _waits(aio.CheckpointConsumer.receive)
    receive_arrow = _waits(aio.CheckpointConsumer.receive_arrow)
    checkpoint = _runs(aio.CheckpointConsumer.checkpoint)
    close = _closes(aio.CheckpointConsumer.close)


class _OfNamespace(_Subscribed):
    close = _closes(aio.NamespaceStreamConsumer.close)

    @property
    def namespace(self) -> str:
        return self._inner.namespace  # type: ignore[no-any-return]

    @property
    def topics(self) -> frozenset[str]:
        """The topics it reads by now."""
        return self._portal.call(_read(self._inner, "topics"))


class NamespaceStreamConsumer(_OfNamespace):
    __doc__ = aio.NamespaceStreamConsumer.__doc__

    ack_cumulative = _waits(aio.NamespaceStreamConsumer.ack_cumulative)
    flush = _waits(aio.NamespaceStreamConsumer.flush)


class NamespaceQueueConsumer(_OfNamespace):
    __doc__ = aio.NamespaceQueueConsumer.__doc__

    receive = _waits(aio.NamespaceQueueConsumer.receive)
    ack = _waits(aio.NamespaceQueueConsumer.ack)
    nack = _waits(aio.NamespaceQueueConsumer.nack)
    flush = _waits(aio.NamespaceQueueConsumer.flush)


async def _read(inner: Any, name: str) -> Any:
    """An attribute that changes where the loop runs."""
    return getattr(inner, name)


class Client(_Face):
    __doc__ = aio.Client.__doc__

    producer = _makes(aio.Client.producer, Producer)
    checkpoint_consumer = _makes(aio.Client.checkpoint_consumer, CheckpointConsumer)

    # These make one of two kinds, which type checkers are told here.

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
    ) -> StreamConsumer: ...

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
    ) -> NamespaceStreamConsumer: ...

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
        consumer_name: str | None = None,
        start: From = "latest",
        schema: Schema[Any] | type | None = None,
        encryption: Encryption | None = None,
        receive_queue: int = MESSAGES_MAX,
        processing_timeout_s: float | None = None,
        negative_ack: NackDelay | None = None,
        dead_letter: DeadLetter | None = None,
        create: bool = True,
    ) -> QueueConsumer: ...

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
    ) -> NamespaceQueueConsumer: ...

    @functools.wraps(aio.Client.queue_consumer)
    def queue_consumer(self, *args: Any, **options: Any) -> Any:
        kind = QueueConsumer if options.get("namespace") is None else NamespaceQueueConsumer
        return _makes(aio.Client.queue_consumer, kind)(self, *args, **options)

    def close(self, *, flush: bool = True) -> None:
        try:
            _closes(aio.Client.close)(self, flush=flush)
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
        inner = connect(*args, **options)  # Raises for wrong options before there is a thread.
        return Client(_Portal(), inner)

    return make


connect = _connects(aio.connect)
