"""What a topic's name stands for, asked once before anything is done.

Clients try for ever where a command should give up with a line: without a broker, or with one that knows no layouts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask, troubles
from anabranch.client.errors import AccessFailed, ConnectionLost, RequestRefused, TimedOut, Unsupported
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.options import check_service_url
from anabranch.client.security import NOBODY, Security
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb

ANSWER_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as its broker knows it."""

    name: TopicName  # With the domain it really has.
    segments: int  # Those of the latest generation, or the partitions.
    admin_url: str = ""  # Of the broker that was asked, if it says so.

    @property
    def is_classic(self) -> bool:
        return self.name.domain is Domain.PERSISTENT


async def check_reachable(service_url: str, security: Security | None = None) -> None:
    """ConnectionLost, with the reason, if no broker answers."""
    connections = Connections(_checked(service_url), security or NOBODY)
    try:
        await _service(connections, service_url)
    finally:
        await connections.close()


async def find(
    service_url: str, topic: str, *, for_producing: bool = False, security: Security | None = None
) -> Found:
    """Finds a topic, or makes it. Refuses one that takes no more messages, if some are to be produced."""
    asked = TopicName.parse(topic)
    connections = Connections(_checked(service_url), security or NOBODY)
    watch = LayoutWatch(connections, topic, Backoff(random.Random()))
    with troubles() as trouble:
        try:
            admin_url = (await _service(connections, service_url)).http_url
            async with asyncio.timeout(ANSWER_MAX_S):
                await watch.open()
                active = watch.layout.active
                legacy = active[0].legacy_topic
                if not legacy:
                    return Found(watch.topic, len(active), admin_url)
                if for_producing:
                    await _check_open(connections, legacy)
                name = TopicName.parse(legacy)
                return Found(name if asked.partition_index >= 0 else name.base, len(active), admin_url)
        except TimeoutError:
            why = trouble.last or "is the broker in trouble?"
            raise TimedOut(f"no answer about {topic} within {ANSWER_MAX_S:.0f} s: {why}") from trouble.last
        finally:
            await watch.close()
            await connections.close()


def _checked(service_url: str) -> str:
    check_service_url(service_url)
    return service_url


async def _service(connections: Connections, service_url: str) -> ClientConnection:
    """Each broker of the URL has its chance."""
    for left in reversed(range(service_url.count(",") + 1)):
        try:
            connection = await connections.service()
        except ConnectionLost as lost:
            if left:
                continue
            if isinstance(lost, AccessFailed) or not str(lost).startswith("cannot connect"):
                raise  # Somebody is there, and it is said what to do.
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


async def _check_open(connections: Connections, topic: str) -> None:
    """A classic topic may have been terminated; a producer would wait for it to become a scalable one."""
    connection = await connections.owner(topic)
    probe = connection.attach(PartKind.PRODUCER, _Probe)
    try:
        await ask(connection, pb.BaseCommand.PRODUCER, "producer", topic=topic, producer_id=probe.number)
    except RequestRefused as refused:
        if refused.error == pb.TopicTerminatedError:
            raise RequestRefused(
                refused.error, f"{topic} was terminated and takes no more messages: choose another topic"
            ) from None
        # Anything else the real producer will see, too, or knows how to wait for.


class _Probe:
    """A producer that sends nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: object, payload: memoryview | None) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass
