"""Messages that a queue's application cannot process: they are sent to another topic, and acknowledged only then.

They keep their own properties and say where they come from, like those that Pulsar's clients send. They keep their
schema too: each version of it has a sender of its own, so that a consumer of dead letters reads them with the schema
that it reads the topic with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from anabranch.client.consuming.core.redelivery import DeadLetter
from anabranch.client.errors import BadArgument, RequestRefused
from anabranch.client.message import Message
from anabranch.client.schema.schemas import Schema, WrittenSchema
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN: Final = "ORIGIN_MESSAGE_ID"
CLOSE_MAX_S: Final = 5.0
# Letters of more versions than this are sent as bytes: any producer may name versions that the topic never had.
SENDERS_MAX: Final = 20


class LetterSender(Protocol):
    """The part of a producer that is needed here."""

    async def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        ordering_key: bytes | None = None,
    ) -> object: ...

    async def close(self) -> None: ...


class MakeSender(Protocol):
    """Makes a sender to a topic, of payloads that were written with a schema, or with none."""

    def __call__(self, topic: str, *, schema: Schema[bytes] | None) -> Awaitable[LetterSender]: ...


# The schema that a message was written with; None if its topic has it no longer.
FindSchema = Callable[[Message], Awaitable[pb.Schema | None]]


def dead_letter_topic(topic: str, subscription: str) -> str:
    return f"{topic}-{subscription}-DLQ"


def properties_of(message: Message, subscription: str) -> dict[str, str]:
    """The message's own properties, and its origin. A dead letter that becomes one again keeps its first origin."""
    segment, ledger, entry, index = message.id
    place = f"{ledger}:{entry}:{segment}" + (f":{index}" if index >= 0 else "")
    origin = {REAL_TOPIC: message.topic, REAL_SUBSCRIPTION: subscription, ORIGIN: place}
    return {**origin, **message.properties}


class DeadLetters:
    """The dead letters of one consumer. `settled` is called with each message, and whether it is stored in the
    dead-letter topic."""

    def __init__(
        self,
        settings: DeadLetter,
        topic: str,
        subscription: str,
        make: MakeSender,
        find_schema: FindSchema,
        settled: Callable[[Message, bool], None],
    ) -> None:
        self.topic = settings.topic or dead_letter_topic(topic, subscription)
        self._redeliveries_max = settings.redeliveries_max
        self._subscription = subscription
        self._make = make
        self._find_schema = find_schema
        self._settled = settled
        self._senders: dict[bytes, asyncio.Task[LetterSender]] = {}  # By the version of the topic's schema.
        self._sending: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    def takes(self, redeliveries: int) -> bool:
        """Whether a message that was redelivered so often, and is handed back now, is a dead letter."""
        return redeliveries >= self._redeliveries_max

    def send(self, message: Message) -> None:
        sending = asyncio.create_task(self._send(message))
        self._sending.add(sending)  # Awaited or cancelled by `close`.
        sending.add_done_callback(self._sending.discard)

    async def _send(self, message: Message) -> None:
        making = self._sender_for(message)
        try:
            sender = await asyncio.shield(making)
            await sender.send(
                None if message.about.null_value else message.payload,
                key=message.key_bytes if message.about.partition_key_b64_encoded else message.key,
                properties=properties_of(message, self._subscription),
                event_time=message.event_time_ms or None,
                ordering_key=message.ordering_key,
            )
        except Exception as error:  # On any error: the message must not get lost between the two topics.
            log.warning("sending dead letter %s to %s failed, trying again: %s", message, self.topic, error)
            if not isinstance(error, BadArgument):
                self._replace(making)
            self._settled(message, False)
        else:
            self._settled(message, True)

    def _sender_for(self, message: Message) -> asyncio.Task[LetterSender]:
        version = message.schema_version
        if version not in self._senders and len(self._senders) >= SENDERS_MAX:
            version = b""
        found = self._senders.get(version)
        if found is None or (found.done() and _has_failed(found)):
            making = self._made(message if version else None)
            found = self._senders[version] = asyncio.create_task(making)  # Awaited by `close`.
        return found

    async def _made(self, like: Message | None) -> LetterSender:
        """A sender for messages with that one's schema, or with none."""
        schema = None if like is None else await self._find_schema(like)
        if schema is None:
            return await self._make(self.topic, schema=None)
        try:
            return await self._make(self.topic, schema=WrittenSchema(schema))
        except RequestRefused as refused:
            if refused.error != pb.IncompatibleSchema:
                raise
            # As bytes rather than not at all: a message that is never settled comes again for ever.
            log.warning("%s: dead letters are sent without their schema: %s", self.topic, refused)
            return await self._make(self.topic, schema=None)

    def _replace(self, making: asyncio.Task[LetterSender]) -> None:
        """The next message gets another sender: this one may have failed for good, for example because its topic was
        deleted."""
        for version, one in list(self._senders.items()):
            if one is making:
                del self._senders[version]
                leaving = asyncio.create_task(_closed(making))
                self._leaving.add(leaving)  # Awaited by `close`.
                leaving.add_done_callback(self._leaving.discard)

    async def flush(self) -> None:
        """Returns once every message so far is settled."""
        if self._sending:
            await asyncio.wait(self._sending)

    async def close(self) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSE_MAX_S)
        self.abort()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for sender in await asyncio.gather(*self._senders.values(), return_exceptions=True):
            if not isinstance(sender, BaseException):
                await sender.close()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLOSE_MAX_S)

    def abort(self) -> None:
        for sending in self._sending:
            sending.cancel()
        for sender in self._senders.values():
            if not sender.done():
                sender.cancel()


async def _closed(making: asyncio.Task[LetterSender]) -> None:
    """Closes the sender. An error is only logged: its messages have reported their own."""
    try:
        await (await making).close()
    except Exception as error:
        log.debug("closing a sender of dead letters: %s", error)


def _has_failed(task: asyncio.Task[LetterSender]) -> bool:
    return task.cancelled() or task.exception() is not None
