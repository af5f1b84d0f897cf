"""A real broker on the memory adapters, and a client made of a socket and protobuf on the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self, cast

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import Owners
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.security.rights import Authorizer
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from anabranch.wire.frames import FrameDecoder
from unit.controller.rig import HeldStore

C = pb.BaseCommand
NOW_MS = 1_700_000_000_000
V5 = "Pulsar-Java-v5.0.0-M1"


class Peer:
    """One connection. Commands that are not yet wanted are kept for later."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._unread: list[pb.BaseCommand] = []
        self._requests = 0
        self.connected = pb.CommandConnected()

    @classmethod
    async def connect(
        cls, url: str, client_version: str = "peer", features: pb.FeatureFlags | None = None
    ) -> Self:
        host, port = url.removeprefix("pulsar://").split(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        connect = pb.CommandConnect(
            client_version=client_version, protocol_version=21, feature_flags=features
        )
        peer.send(C(type=C.CONNECT, connect=connect))
        peer.connected = (await peer.receive(C.CONNECTED)).connected
        return peer

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def send(self, command: pb.BaseCommand) -> None:
        self._writer.write(encode_command(command))

    async def wait_for(self, wanted: Callable[[pb.BaseCommand], bool]) -> pb.BaseCommand:
        async with asyncio.timeout(10):
            while True:
                for at, command in enumerate(self._unread):
                    if wanted(command):
                        return self._unread.pop(at)
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                for _, command, _ in self._decoder.feed(data):
                    self._unread.append(pb.BaseCommand.FromString(command.SerializeToString()))

    async def receive(self, kind: int) -> pb.BaseCommand:
        return await self.wait_for(lambda command: command.type == kind)

    async def settle(self) -> list[pb.BaseCommand]:
        """What is there once the broker has read everything sent before, less what was taken already."""
        self.send(C(type=C.PING, ping=pb.CommandPing()))
        await self.receive(C.PONG)
        return self._unread

    async def ask(self, kind: int, field: str, **values: Any) -> pb.BaseCommand:
        number = self.start(kind, field, **values)
        return await self.wait_for(lambda command: _request_id(command) == number)

    def start(self, kind: int, field: str, **values: Any) -> int:
        """Sends a request without waiting; its number."""
        self._requests += 1
        command = C(type=kind)  # type: ignore[arg-type]  # An int of Type by construction.
        request = getattr(command, field)
        request.request_id = self._requests
        for name, value in values.items():
            setattr(request, name, value)
        self.send(command)
        return self._requests

    # -- scalable topics

    def look_up(self, topic: str, session_id: int = 1, **values: Any) -> None:
        lookup = pb.CommandScalableTopicLookup(session_id=session_id, topic=topic, **values)
        self.send(C(type=C.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=lookup))

    def close_watch(self, session_id: int = 1) -> None:
        close = pb.CommandScalableTopicClose(session_id=session_id)
        self.send(C(type=C.SCALABLE_TOPIC_CLOSE, scalableTopicClose=close))

    async def update(self, session_id: int = 1) -> pb.CommandScalableTopicUpdate:
        found = await self.wait_for(
            lambda c: c.type == C.SCALABLE_TOPIC_UPDATE and c.scalableTopicUpdate.session_id == session_id
        )
        return found.scalableTopicUpdate

    async def watch(self, topic: str, session_id: int = 1, **values: Any) -> pb.CommandScalableTopicUpdate:
        self.look_up(topic, session_id, **values)
        return await self.update(session_id)

    async def register(
        self, topic: str, name: str, consumer_id: int = 1, kind: int = pb.STREAM, subscription: str = "sub"
    ) -> pb.CommandScalableTopicSubscribeResponse:
        answer = await self.ask(
            C.SCALABLE_TOPIC_SUBSCRIBE,
            "scalableTopicSubscribe",
            topic=topic,
            subscription=subscription,
            consumer_name=name,
            consumer_id=consumer_id,
            consumer_type=kind,
        )
        assert answer.type == C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, answer
        return answer.scalableTopicSubscribeResponse

    async def assignment(self, consumer_id: int = 1) -> pb.ScalableConsumerAssignment:
        found = await self.wait_for(
            lambda c: (
                c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
                and c.scalableTopicAssignmentUpdate.consumer_id == consumer_id
            )
        )
        return found.scalableTopicAssignmentUpdate.assignment

    async def leave(self, consumer_id: int = 1) -> pb.BaseCommand:
        return await self.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=consumer_id)


def _request_id(command: pb.BaseCommand) -> int | None:
    for described, value in command.ListFields():
        if described.message_type is not None and "request_id" in described.message_type.fields_by_name:
            number: int = value.request_id
            return number
    return None


def ids(assignment: pb.ScalableConsumerAssignment) -> list[int]:
    return [segment.segment_id for segment in assignment.segments]


@dataclass
class BrokerLab:
    """One store, brokers on it, and peers of theirs."""

    now_ms: int = NOW_MS  # By the brokers' clocks.
    store: MemoryMetadata = field(default_factory=lambda: MemoryMetadata(lambda: NOW_MS))
    log: MemoryLogStore = field(default_factory=lambda: MemoryLogStore(incarnation=Incarnation("test")))
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    held: list[HeldStore] = field(default_factory=list)  # The store, as each broker has it.

    async def broker(
        self, authorizer: Authorizer | None = None, owners: Owners | None = None, **settings: Any
    ) -> Broker:
        connected = await self.store.connect()
        self.stack.push_async_callback(connected.close)
        self.held.append(HeldStore(connected))
        metadata = cast(MetadataStore, self.held[-1])
        resources = Resources(metadata)
        await resources.start()
        self.stack.push_async_callback(resources.close)
        await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
        made: list[Broker] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: made[0].new_session(), "127.0.0.1", 0)
        self.stack.callback(server.close)
        broker = Broker(
            # Layouts change when a test says so, unless it is about their changing by themselves.
            BrokerConfig(**{"scalable_topic_auto_scale_enabled": False, **settings}),
            metadata,
            self.log,
            resources,
            service_url=f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            http_url="http://localhost:8080",
            now_ms=lambda: self.now_ms,
            authorizer=authorizer,
            owners=owners,
        )
        made.append(broker)
        await broker.start()
        self.stack.push_async_callback(broker.close)
        return broker

    async def peer(self, broker: Broker, version: str = "peer", **features: bool) -> Peer:
        peer = await Peer.connect(broker.service_url, version, pb.FeatureFlags(**features))
        self.stack.push_async_callback(peer.close)
        return peer


def topics_of(broker: Broker) -> ScalableTopics:
    assert broker.scalable is not None
    return broker.scalable


@contextlib.asynccontextmanager
async def broker_lab() -> AsyncIterator[BrokerLab]:
    lab = BrokerLab()
    await lab.log.start()
    async with lab.stack:
        yield lab
