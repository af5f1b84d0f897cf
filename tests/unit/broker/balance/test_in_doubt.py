"""Clients that connect again while a broker's metadata store is in doubt, with the load balancer and without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from anabranch.errors import AnabranchError
from anabranch.metadata.port import SessionState
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Client
from unit.broker.balance.balanced import balanced
from unit.broker.scalable.cluster import Cluster, Node, running, until

C = pb.BaseCommand
AVRO = pb.Schema(
    name="r",
    type=pb.Schema.Avro,
    schema_data=b'{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}',
)


@pytest.fixture(params=["balanced", "simple"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    if request.param == "balanced":
        async with balanced(2) as made:
            yield made
        return
    async with running(2, is_shared=True) as made:
        await until(lambda: all(len(node.broker.registry.living()) == 2 for node in made.nodes))
        yield made


def of(node: Node, but: TopicName | None = None) -> TopicName:
    """A topic that the broker owns."""
    names = (TopicName.parse(f"persistent://{PUBLIC_DEFAULT}/t-{number}") for number in range(1000))
    return next(name for name in names if node.broker.owners.is_mine(name) and name != but)


async def owned(cluster: Cluster) -> tuple[Node, Node]:
    """Two brokers that have topics."""
    first, second = cluster.nodes
    await until(lambda: all(_owns(node) for node in cluster.nodes))
    return first, second


def _owns(node: Node) -> bool:
    try:
        return bool(of(node))
    except StopIteration:
        return False


class Wire:
    """Requests of one connection, without a client that tries again."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def lookup(self, name: TopicName) -> str:
        answer = await self.connection.request(C.LOOKUP, "lookupTopic", topic=str(name), authoritative=False)
        return str(answer.brokerServiceUrl)

    async def produce(self, name: TopicName, producer: str, schema: pb.Schema) -> bytes:
        """The version of its schema."""
        part = self.connection.attach(PartKind.PRODUCER, lambda number: _Part(number))
        answer = await self.connection.request(
            C.PRODUCER,
            "producer",
            topic=str(name),
            producer_id=part.number,
            producer_name=producer,
            schema=schema,
        )
        return bytes(answer.schema_version)


class _Part:
    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: object, payload: memoryview | None) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass


async def wire_to(node: Node, cluster: Cluster) -> Wire:
    connection = await ClientConnection.open(node.broker.service_url)
    cluster.connections.append(connection)
    return Wire(connection)


def in_doubt(node: Node) -> None:
    node.metadata.disconnect()
    assert node.metadata.session.state is SessionState.IN_DOUBT


async def test_clients_that_connect_again_are_served_while_the_store_is_in_doubt(cluster: Cluster) -> None:
    owner, _ = await owned(cluster)
    name = of(owner)
    async with Client(owner.broker.service_url) as before:
        assert await before.partitions(str(name)) == [str(name)]
    await owner.publish(name, b"one", name="p")
    assert await owner.read(name, "s", 1) == [b"one"]
    wire = await wire_to(owner, cluster)
    version = await wire.produce(name, "with a schema", AVRO)
    in_doubt(owner)
    async with Client(owner.broker.service_url) as again:
        assert await again.partitions(str(name)) == [str(name)]
        producer = await again.producer(str(name), "p")
        receipt = await producer.send(b"two")
        await receipt
        await producer.close()
        consumer = await again.consumer(str(name), "s")
        message = await consumer.receive()
        assert message.payload == b"two"
        await consumer.ack(message)
        await consumer.close()
    assert await (await wire_to(owner, cluster)).produce(name, "again", AVRO) == version
    answer = await owner.http.get(f"/lookup/v2/topic/{name.rest_path}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["brokerUrl"] == owner.broker.service_url
    await owner.metadata.reconnect()


async def test_a_schema_that_is_new_waits_for_the_store(cluster: Cluster) -> None:
    owner, _ = await owned(cluster)
    name = of(owner)
    await owner.publish(name, b"one")
    wire = await wire_to(owner, cluster)
    await wire.produce(name, "p", AVRO)
    in_doubt(owner)
    other = pb.Schema(
        name="r",
        type=pb.Schema.Avro,
        schema_data=b'{"type":"record","name":"r","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":0}]}',
    )
    with pytest.raises(AnabranchError, match="in doubt"):
        await wire.produce(name, "q", other)
    await owner.metadata.reconnect()
    assert await wire.produce(name, "q", other)


async def test_clients_are_sent_to_the_broker_that_was_the_owner_when_it_was_last_read(
    cluster: Cluster,
) -> None:
    asked, owner = await owned(cluster)
    name = of(owner)
    await asked.publish(name, b"one")
    in_doubt(asked)
    assert await (await wire_to(asked, cluster)).lookup(name) == owner.broker.service_url
    await asked.metadata.reconnect()


async def test_nothing_is_opened_while_the_store_is_in_doubt(cluster: Cluster) -> None:
    owner, _ = await owned(cluster)
    name = of(owner)
    await owner.publish(name, b"one")
    closed = of(owner, but=name)
    in_doubt(owner)
    wire = await wire_to(owner, cluster)
    waiting = asyncio.create_task(wire.lookup(closed))
    assert await wire.lookup(name) == owner.broker.service_url
    assert not waiting.done()
    assert closed not in owner.broker.loaded()
    await owner.metadata.reconnect()
    assert await waiting == owner.broker.service_url


async def test_a_broker_whose_topic_was_taken_meanwhile_confirms_nothing(cluster: Cluster) -> None:
    """The store has forgotten the broker, which does not know: its clients connect again, and another has the log."""
    former, heir = await owned(cluster)
    name = of(former)
    await former.publish(name, b"one")
    in_doubt(former)
    await former.metadata.expire_session()
    assert former.metadata.session.state is SessionState.IN_DOUBT
    async with Client(former.broker.service_url) as again:
        producer = await again.producer(str(name), "p")
        await until(taken_by(heir, name))
        await heir.publish(name, b"two")
        receipt = await producer.send(b"never confirmed")
        with pytest.raises(AnabranchError):
            await receipt
    assert await heir.read(name, "s", 2) == [b"one", b"two"]
    await former.metadata.reconnect()


def taken_by(heir: Node, name: TopicName) -> Callable[[], bool]:
    return lambda: heir.broker.owners.is_mine(name)
