"""Resolves a topic's name, once before anything is done.

Clients retry for ever where a command should fail with a line: without a broker, or with one that knows no layouts.
"""

from __future__ import annotations

import asyncio
import random
import shlex
from dataclasses import dataclass, replace
from typing import Final

from anabranch.client.errors import (
    AccessFailed,
    ConnectionLost,
    RequestRefused,
    TimedOut,
    TopicDeleted,
    Unsupported,
)
from anabranch.client.options import check_service_url
from anabranch.client.schema.schemas import version_of
from anabranch.client.security import NOBODY, TLS_SCHEME, Security
from anabranch.client.transport.attachment import Backoff, SilentPart, troubles
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections, ask
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb

ANSWER_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """The broker's knowledge of a topic."""

    name: TopicName  # With its actual domain.
    segments: int  # The segments of the latest generation, or the partitions.
    # The admin URL of the broker, if it names one that credentials may be sent to.
    admin_url: str = ""
    layout: SegmentLayout | None = None
    schema: pb.Schema | None = None  # The latest of the topic, if it is to be produced to.
    is_new: bool = False  # It was made now.

    @property
    def is_classic(self) -> bool:
        return self.name.domain is Domain.PERSISTENT

    def newness(self, asked: str) -> str | None:
        """What a user is told whose command has made a topic, perhaps by a typo; None if it was there."""
        if not self.is_new:
            return None
        if not self.is_classic:
            return f"{self.name} is a new topic"
        way = "" if "://" in asked else "; topic://… names one that does"
        return f"{self.name} is a new topic, a classic one, which does not split by itself{way}"

    def other_kind(self, asked: str) -> str | None:
        """What a user is told who has named a scalable topic and gets a classic one; None for everybody else."""
        if not self.is_classic or not asked.startswith(f"{Domain.TOPIC}://"):
            return None
        short = shlex.quote(f"{self.name.namespace}/{self.name.local}")
        return (
            f"{asked} is the classic topic {self.name}, which was there before and does not split: `anabranch topics "
            f"migrate {short}` makes it scalable"
        )


async def check_reachable(service_url: str, security: Security | None = None) -> None:
    """Raises ConnectionLost, with the reason, if no broker answers."""
    connections = Connections(_checked(service_url), security or NOBODY)
    try:
        await _service(connections, service_url)
    finally:
        await connections.close()


async def find(
    service_url: str,
    topic: str,
    *,
    for_producing: bool = False,
    create: bool = True,
    security: Security | None = None,
) -> FoundTopic:
    """Finds a topic; makes a missing one, if `create`. Refuses one that accepts no more messages, if
    `for_producing`."""
    try:
        return await _found(service_url, topic, for_producing=for_producing, create=False, security=security)
    except TopicDeleted as error:
        if not create:
            raise _missing(error, topic) from None
    made = await _found(service_url, topic, for_producing=for_producing, create=True, security=security)
    return replace(made, is_new=True)


def _missing(error: TopicDeleted, topic: str) -> TopicDeleted:
    """The same, in the user's words: brokers look a name without a domain up as that of a scalable topic."""
    name = TopicName.parse(topic)
    if not str(error).endswith(f"{Domain.TOPIC}://{name.namespace}/{name.local} does not exist"):
        return error  # The namespace may be missing.
    listing = f"`anabranch topics list {name.namespace}` shows what is there"
    return TopicDeleted(f"{topic} does not exist; {listing}")


async def _found(
    service_url: str, topic: str, *, for_producing: bool, create: bool, security: Security | None
) -> FoundTopic:
    asked = TopicName.parse(topic)
    connections = Connections(_checked(service_url), security or NOBODY)
    watch = LayoutWatch(connections, topic, Backoff(random.Random()))
    with troubles() as trouble:
        try:
            named = (await _service(connections, service_url)).http_url
            admin_url = named if _is_as_safe(named, service_url, security or NOBODY) else ""
            async with asyncio.timeout(ANSWER_MAX_S):
                await watch.open(create=create)
                layout = watch.layout
                active = layout.active
                classic = active[0].classic_topic
                if not classic:
                    schema = await _schema(connections, str(watch.topic)) if for_producing else None
                    return FoundTopic(watch.topic, len(active), admin_url, layout, schema)
                if for_producing:
                    await _check_open(connections, classic)
                name = TopicName.parse(classic)
                whole = name if asked.partition_index >= 0 else name.base
                schema = await _schema(connections, str(whole)) if for_producing else None
                return FoundTopic(whole, len(active), admin_url, layout, schema)
        except TimeoutError:
            why = trouble.last or "is the broker in trouble?"
            raise TimedOut(f"no answer about {topic} within {ANSWER_MAX_S:.0f} s: {why}") from trouble.last
        finally:
            await watch.close()
            await connections.close()


def _is_as_safe(admin_url: str, service_url: str, security: Security) -> bool:
    """Whether requests there keep a token or password as secret as the connection to the broker does."""
    is_secret = service_url.startswith(f"{TLS_SCHEME}://") and security.method in ("token", "basic")
    return not is_secret or admin_url.startswith("https://")


def _checked(service_url: str) -> str:
    check_service_url(service_url)
    return service_url


async def _service(connections: Connections, service_url: str) -> ClientConnection:
    """Tries each broker of the URL."""
    for left in reversed(range(service_url.count(",") + 1)):
        try:
            connection = await connections.service()
        except ConnectionLost as lost:
            if left:
                continue
            if isinstance(lost, AccessFailed) or not str(lost).startswith("cannot connect"):
                raise  # A broker is there, and the error says what to do.
            raise ConnectionLost(
                f"{lost}; is a broker running there? `anabranch standalone` starts one, --service-url names another"
            ) from None
        if not connection.supports_scalable_topics:
            raise Unsupported(
                f"{connection.peer_name} at {service_url} does not know scalable topics: "
                "this needs Anabranch, or Pulsar 5"
            )
        return connection
    raise AssertionError("there is at least one broker")


async def _schema(connections: Connections, topic: str) -> pb.Schema | None:
    """The topic's latest schema; None if it has none, and if the broker does not tell."""
    try:
        return await version_of(connections, topic, None)
    except RequestRefused:
        return None


async def _check_open(connections: Connections, topic: str) -> None:
    """A classic topic may have been terminated; a producer would wait for it to become a scalable one."""
    connection = await connections.owner(topic)
    probe = connection.attach(PartKind.PRODUCER, SilentPart)
    try:
        await ask(connection, pb.BaseCommand.PRODUCER, "producer", topic=topic, producer_id=probe.number)
    except RequestRefused as refused:
        if meaning(refused, RefusedPart.PRODUCER) is Meaning.SEALED:
            raise RequestRefused(
                refused.error, f"{topic} was terminated and accepts no more messages: choose another topic"
            ) from None
        # The real producer gets any other error too, or retries it.
