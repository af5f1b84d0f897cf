"""Non-persistent topics whose bundle is unloaded, or given to another broker."""

from __future__ import annotations

import pytest

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.errors import NotReadyError
from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer, Producer
from unit.broker.scalable.brokers import broker_lab
from unit.broker.scalable.cluster import Assigned, Cluster, Node, running, until

NAME = TopicName.parse("non-persistent://public/default/pulse")
BUNDLES = "namespaces/public/default"


class Told:
    """What the broker closed the clients of a topic with."""

    def __init__(self) -> None:
        self.closes: list[pb.CommandCloseProducer | pb.CommandCloseConsumer] = []

    async def attach(self, cluster: Cluster, node: Node) -> None:
        """A producer and a consumer of the topic at that broker."""
        connection = await ClientConnection.open(node.broker.service_url)
        cluster.connections.append(connection)
        closes = self.closes

        class ToldProducer(Producer):
            def received(self, kind: int, body: pb.CommandCloseProducer, payload: memoryview | None) -> None:
                super().received(kind, body, payload)
                if kind == pb.BaseCommand.CLOSE_PRODUCER:
                    closes.append(body)

        class ToldConsumer(Consumer):
            def received(self, kind: int, body: pb.CommandCloseConsumer, payload: memoryview | None) -> None:
                super().received(kind, body, payload)
                if kind == pb.BaseCommand.CLOSE_CONSUMER:
                    closes.append(body)

        producer = connection.attach(
            PartKind.PRODUCER, lambda number: ToldProducer(connection, number, str(NAME))
        )
        await producer.open(None)
        consumer = connection.attach(
            PartKind.CONSUMER, lambda number: ToldConsumer(connection, number, str(NAME))
        )
        await consumer.open("s", pb.CommandSubscribe.Exclusive, earliest=True)


def by_ownership(cluster: Cluster) -> tuple[Node, Node]:
    """The owner of the topic, and the other broker."""
    first, second = cluster.nodes
    return (first, second) if first.broker.owners.is_mine(NAME) else (second, first)


def bundle_of(node: Node) -> str:
    assert node.broker.shared is not None
    bundle = node.broker.shared.bundle(NAME)
    assert bundle is not None
    return bundle.range


async def test_clients_of_a_bundle_that_moves_are_sent_to_its_new_owner_and_the_topic_is_gone() -> None:
    async with running(2, is_shared=True) as cluster:
        owner, other = by_ownership(cluster)
        told = Told()
        await told.attach(cluster, owner)
        path = f"{BUNDLES}/{bundle_of(owner)}/unload"
        target = {"destinationBroker": other.broker.registry.me.address.web_id}
        # Whichever broker is asked.
        assert (await other.rest("PUT", path, params=target)).status_code == 204
        await until(lambda: len(told.closes) == 2)
        for closed in told.closes:
            assert closed.assignedBrokerServiceUrl == other.broker.service_url
        assert owner.broker.non_persistent.opened(NAME) is None
        assert not owner.broker.owners.is_mine(NAME)
        # What is published from now on goes to the consumers there.
        consumer = await owner.client.consumer(str(NAME), "s")
        await owner.publish(NAME, b"here")
        assert (await consumer.receive()).payload == b"here"
        assert other.broker.non_persistent.opened(NAME) is not None
        assert owner.broker.non_persistent.opened(NAME) is None


@pytest.mark.parametrize("is_whole", [False, True])
async def test_an_unload_closes_the_clients_and_the_topic_is_gone_until_they_are_back(is_whole: bool) -> None:
    async with running(2, is_shared=True) as cluster:
        owner, other = by_ownership(cluster)
        told = Told()
        await told.attach(cluster, owner)
        if is_whole:
            answer = await other.rest("PUT", f"{BUNDLES}/unload")
        else:
            answer = await owner.rest("PUT", f"{BUNDLES}/{bundle_of(owner)}/unload")
        assert answer.status_code == 204
        await until(lambda: len(told.closes) == 2)
        assert not any(closed.HasField("assignedBrokerServiceUrl") for closed in told.closes)
        assert owner.broker.non_persistent.opened(NAME) is None


async def test_a_topic_of_another_bundle_stays() -> None:
    async with running(2, is_shared=True) as cluster:
        owner, _ = by_ownership(cluster)
        told = Told()
        await told.attach(cluster, owner)
        assert owner.broker.shared is not None
        mine = [
            one.range
            for one in owner.broker.shared.owned_by(owner.broker.registry.me.id)
            if one.namespace == NAME.namespace and one.range != bundle_of(owner)
        ]
        for bundle in mine:
            assert (await owner.rest("PUT", f"{BUNDLES}/{bundle}/unload")).status_code == 204
        assert mine
        assert owner.broker.non_persistent.opened(NAME) is not None


async def test_a_topic_that_moves_while_it_is_made_is_not_made_at_its_former_owner() -> None:
    async with broker_lab() as lab:
        known: list[BrokerAddress] = []
        owners = Assigned(known, 0)
        broker = await lab.broker(owners=owners)
        known += [broker.registry.me.address] * 2

        async def move(verb: str, path: str) -> None:
            owners.moved[NAME] = 1

        lab.held[0].before = move
        with pytest.raises(NotReadyError, match="look it up again"):
            await broker.non_persistent.open(NAME, create=True)
        assert broker.non_persistent.loaded() == []
