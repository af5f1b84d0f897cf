"""OpenTelemetry: spans for sending, receiving and processing, linked through the messages' properties.

Off by default; `connect(…, tracing=OpenTelemetry())` turns it on. A client without it makes plain producers and
consumers, at no cost; a client with it makes those of `wrapped.py`, which do the same and report it. The context is
sent in the form of OpenTelemetry's propagators, by default W3C's `traceparent`, which other clients' tracing reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anabranch.client.errors import Unsupported
from anabranch.client.message_id import BatchReceipt, MessageId

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from anabranch.client.message import Message


class OpenTelemetry:
    """The value of `connect(tracing=…)`: makes a span for each message sent and each message received.

    The tracer provider is the program's global one, unless one is given. Received messages carry the sender's context;
    `processing(message)` makes it the current one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise Unsupported(
                "tracing needs the package `opentelemetry-api`: pip install anabranch[tracing]"
            ) from None
        self._propagate = propagate
        self._trace = trace
        self._tracer = trace.get_tracer("anabranch", tracer_provider=tracer_provider)

    # -- sending

    def sending(self, topic: str, properties: Mapping[str, str] | None) -> tuple[Span, dict[str, str]]:
        """A span that `sent` ends, and the message's properties including its context."""
        span = self._tracer.start_span(
            f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=_about(topic, "send")
        )
        carried = dict(properties or {})
        self._propagate.inject(carried, self._trace.set_span_in_context(span))
        return span, carried

    def sent(
        self,
        span: Span,
        stored: MessageId | BatchReceipt | None = None,
        error: BaseException | None = None,
    ) -> None:
        if isinstance(stored, MessageId):
            span.set_attribute("messaging.message.id", str(stored))
        elif stored is not None:
            span.set_attribute("messaging.batch.message_count", stored.messages)
        if error is not None:
            self._failed(span, error)
        span.end()

    def _failed(self, span: Span, error: BaseException) -> None:
        span.record_exception(error)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.set_attribute("error.type", type(error).__qualname__)

    # -- receiving

    def received(self, message: Message, subscription: str | None) -> None:
        """Reports a message that is given to the application, as a child of the span that sent it."""
        self._tracer.start_span(
            f"receive {message.topic}",
            context=self._propagate.extract(message.properties),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_about(message.topic, "receive", subscription, str(message.id)),
        ).end()

    def received_rows(self, source: str, rows: int, subscription: str | None) -> None:
        """Reports a batch of columns: one span, which has no sender's span as its parent."""
        about = _about(source, "receive", subscription) | {"messaging.batch.message_count": rows}
        self._tracer.start_span(
            f"receive {source}", kind=self._trace.SpanKind.CONSUMER, attributes=about
        ).end()

    @contextmanager
    def processing(self, message: Message) -> Iterator[Span]:
        """A span for what an application does with a message: `with tracing.processing(message): …`.

        It is a child of the span that sent the message, and the parent of spans within. An error is recorded in it.
        """
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=self._propagate.extract(message.properties),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_about(message.topic, "process", None, str(message.id)),
        ) as span:
            yield span


def _about(
    topic: str, operation: str, subscription: str | None = None, message_id: str | None = None
) -> dict[str, Any]:
    """The attributes, named by OpenTelemetry's conventions for messaging."""
    found = {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.subscription.name": subscription,
        "messaging.message.id": message_id,
    }
    return {name: value for name, value in found.items() if value is not None}
