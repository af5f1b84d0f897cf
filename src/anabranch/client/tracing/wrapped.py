"""Producers and consumers that report their work to OpenTelemetry, and are otherwise the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anabranch.client.errors import Closed
from anabranch.client.message_id import BatchReceipt, MessageId
from anabranch.client.producing.producer import Producer
from anabranch.client.tracing.spans import OpenTelemetry

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.trace import Span

    from anabranch.client.message import Message

T = TypeVar("T")
R = TypeVar("R", MessageId, BatchReceipt)


def traced(cls: type[T], tracing: OpenTelemetry) -> type[T]:
    """The same kind of producer or consumer, with spans."""
    telling = _Producer if issubclass(cls, Producer) else _Consumer
    return cast("type[T]", type(cls.__name__, (telling, cls), {"_tracing": tracing, "__doc__": cls.__doc__}))


class _Producer(Producer):
    _tracing: OpenTelemetry

    # `send` calls this too.
    async def post(
        self, value: Any, *, properties: Mapping[str, str] | None = None, **options: Any
    ) -> asyncio.Future[MessageId]:
        span, properties = self._tracing.sending(self.topic, properties)
        return await self._told(span, super().post(value, properties=properties, **options))

    def prepared(self, *args: Any, **options: Any) -> None:
        """Returns None, so that `post` is used, where spans begin."""
        return

    # `send_batch` calls this: one span for all rows, which carry no context.
    async def post_batch(self, table: Any, **options: Any) -> asyncio.Future[BatchReceipt]:
        span, _ = self._tracing.sending(self.topic, None)
        return await self._told(span, super().post_batch(table, **options))

    async def _told(self, span: Span, posting: Coroutine[Any, Any, asyncio.Future[R]]) -> asyncio.Future[R]:
        """Returns the receipt; the span ends once the message is stored, or has failed."""
        try:
            receipt = await posting
        except BaseException as error:
            self._tracing.sent(span, error=error)
            raise
        receipt.add_done_callback(partial(self._stored, span))
        return receipt

    def _stored(self, span: Span, receipt: asyncio.Future[R]) -> None:
        if receipt.cancelled():
            self._tracing.sent(span)
        elif (error := receipt.exception()) is not None:
            self._tracing.sent(span, error=error)
        else:
            self._tracing.sent(span, receipt.result())


class _Consumer:
    _tracing: OpenTelemetry

    async def receive(self, *args: Any, **options: Any) -> Message:
        message: Message = await super().receive(*args, **options)  # type: ignore[misc]  # A mixin.
        self._tracing.received(message, getattr(self, "subscription", None))
        return message

    async def receive_arrow(self, *args: Any, **options: Any) -> pa.RecordBatch:
        batch: pa.RecordBatch = await super().receive_arrow(*args, **options)  # type: ignore[misc]  # As above.
        source: str = getattr(self, "topic", "") or getattr(self, "namespace", "")
        self._tracing.received_rows(source, batch.num_rows, getattr(self, "subscription", None))
        return batch

    @property
    def gives_ready(self) -> bool:
        return False

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None
