"""Sessions at one broker, their segments at another: progress, departures and lost acknowledgements are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.assembly import scalable_parts
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.scalable.classic import controller_settings
from anabranch.controller.ports import SegmentStatus
from anabranch.model.names import TopicName
from anabranch.model.segments import Segment
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import V5, C, Peer, ids, topics_of
from unit.broker.scalable.cluster import TOPIC, Cluster, Node, running

ORDERS = str(TOPIC)
ONLY = TopicName.parse("segment://public/default/orders/0000-ffff-0")
LOWER = TopicName.parse("segment://public/default/orders/0000-7fff-0")
NEVER_S = 3600.0


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """The first broker leads; it never asks by itself how far segments are, and splits none by itself."""

    def without_polling(*given: Any) -> Any:
        return replace(controller_settings(*given), drain_poll_first_s=NEVER_S, drain_poll_max_s=NEVER_S)

    monkeypatch.setattr(scalable_parts, "controller_settings", without_polling)
    async with running(2, BrokerConfig(scalable_topic_auto_scale_enabled=False)) as made:
        yield made


class Clients:
    """Connections that are closed behind the test; of Pulsar's V5 client, or of one that says when it leaves."""

    def __init__(self) -> None:
        self._made: list[Peer] = []

    async def to(self, node: Node, *, is_ours: bool = False) -> Peer:
        features = pb.FeatureFlags(supports_scalable_topics=is_ours)
        made = await Peer.connect(node.broker.service_url, "ours" if is_ours else V5, features)
        self._made.append(made)
        return made

    async def close(self) -> None:
        for made in self._made:
            await made.close()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.close()


async def attach(peer: Peer, segment: TopicName, consumer: str, consumer_id: int) -> None:
    answer = await peer.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=str(segment),
        subscription="sub",
        subType=0,
        consumer_id=consumer_id,
        consumer_name=f"{consumer}-seg-{str(segment).rpartition('-')[2]}",
        initialPosition=1,
    )
    assert answer.type == C.SUCCESS, answer


async def receive(peer: Peer, consumer_id: int) -> pb.MessageIdData:
    flow = C(type=C.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = consumer_id, 10
    peer.send(flow)
    return (await peer.receive(C.MESSAGE)).message.message_id


def ack(peer: Peer, consumer_id: int, at: pb.MessageIdData) -> None:
    command = C(type=C.ACK)
    command.ack.consumer_id, command.ack.ack_type = consumer_id, pb.CommandAck.Cumulative
    command.ack.message_id.add().CopyFrom(at)
    peer.send(command)


async def far_segment(cluster: Cluster) -> None:
    """The topic's only segment is at the second broker and holds a message."""
    cluster.move(ONLY, 1)
    await topics_of(cluster.first.broker).create(TOPIC)
    await topics_of(cluster.first.broker).leading(TOPIC)
    await cluster.nodes[1].publish(ONLY, b"one")


async def test_children_are_handed_out_as_soon_as_their_parent_is_drained_at_another_broker(
    cluster: Cluster, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    await far_segment(cluster)
    owner, is_told = cluster.nodes[1].broker.segment_owner, asyncio.Event()
    status = owner.status

    async def noted(topic: TopicName, segment: Segment) -> SegmentStatus:
        found = await status(topic, segment)
        if found.is_sealed:
            is_told.set()
        return found

    monkeypatch.setattr(owner, "status", noted)
    session, reader = await clients.to(cluster.first), await clients.to(cluster.nodes[1])
    assert ids((await session.register(ORDERS, "a")).assignment) == [0]
    await attach(reader, ONLY, "a", 5)
    at = await receive(reader, 5)
    await topics_of(cluster.first.broker).split(TOPIC, 0)
    # The leader asks once after a split, and is told that there is more to read.
    await asyncio.wait_for(is_told.wait(), 10)
    ack(reader, 5, at)
    assert ids(await session.assignment()) == [1, 2]


async def test_a_consumer_that_closes_its_segments_at_another_broker_has_left(
    cluster: Cluster, clients: Clients
) -> None:
    cluster.move(LOWER, 1)
    await topics_of(cluster.first.broker).create(TOPIC, 2)
    departures = cluster.first.broker.requests.scalable.sessions.departures
    departures.left_after_s, departures.unread_after_s = 0.01, NEVER_S
    java, far = await clients.to(cluster.first), await clients.to(cluster.nodes[1])
    other = await clients.to(cluster.first, is_ours=True)
    await other.register(ORDERS, "b")
    assert ids((await java.register(ORDERS, "a")).assignment) == [1]
    assert ids(await other.assignment()) == [0]
    await other.leave()
    assert ids(await java.assignment()) == [0, 1]
    await other.register(ORDERS, "c")
    assert ids(await java.assignment()) == [0]
    await attach(far, LOWER, "a", 7)
    await far.leave(7)
    assert ids(await other.assignment()) == [0, 1]


async def test_a_consumer_that_reads_at_another_broker_has_not_left_though_no_notice_of_it_came(
    cluster: Cluster, clients: Clients
) -> None:
    """The owner is asked before a consumer is treated as gone."""
    await far_segment(cluster)
    session, far = await clients.to(cluster.first), await clients.to(cluster.nodes[1])
    await attach(far, ONLY, "a", 7)  # Before it registers, so that its notice finds no session.
    departures = cluster.first.broker.requests.scalable.sessions.departures
    departures.left_after_s, departures.unread_after_s = 0.01, 0.01
    assert ids((await session.register(ORDERS, "a")).assignment) == [0]
    idle = await clients.to(cluster.first)
    # The other one has nothing to read, so it stays too; each look at the first one comes to nothing.
    assert ids((await idle.register(ORDERS, "z")).assignment) == []
    for _ in range(20):  # Long enough for looks; a consumer that is evicted wrongly is not back by then.
        await asyncio.sleep(0.005)
    consumers = (await topics_of(cluster.first.broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [(c.name, c.is_connected) for c in consumers] == [("a", True), ("z", True)]


async def test_a_consumer_that_never_reads_its_segment_at_another_broker_is_treated_as_gone(
    cluster: Cluster, clients: Clients
) -> None:
    await far_segment(cluster)
    departures = cluster.first.broker.requests.scalable.sessions.departures
    departures.unread_after_s = 0.01
    session = await clients.to(cluster.first)
    other = await clients.to(cluster.first, is_ours=True)
    assert ids((await session.register(ORDERS, "a")).assignment) == [0]
    given = ids((await other.register(ORDERS, "b")).assignment)
    # The first one may be gone already.
    assert (given or ids(await other.assignment())) == [0]


async def test_a_consumer_is_not_treated_as_gone_while_the_owner_of_its_segment_cannot_be_asked(
    cluster: Cluster, clients: Clients
) -> None:
    await far_segment(cluster)
    departures = cluster.first.broker.requests.scalable.sessions.departures
    departures.unread_after_s = departures.left_after_s = 0.01
    second = cluster.nodes[1].broker
    await second.registry.close()
    for link in list(second.sessions):
        link.abort()
    session = await clients.to(cluster.first)
    other = await clients.to(cluster.first, is_ours=True)
    assert ids((await session.register(ORDERS, "a")).assignment) == [0]
    assert ids((await other.register(ORDERS, "b")).assignment) == []
    await asyncio.sleep(0.1)
    assert [c.type for c in await other.settle()] == []
    await second.registry.start()
    assert ids(await other.assignment()) == [0]


async def test_acknowledgements_that_were_lost_at_another_broker_are_noticed(
    cluster: Cluster, clients: Clients
) -> None:
    await far_segment(cluster)
    cluster.first.broker.requests.scalable.sessions.lost_acks.look_every_s = 0.02
    session, reader = await clients.to(cluster.first), await clients.to(cluster.nodes[1])
    await session.register(ORDERS, "a")
    await attach(reader, ONLY, "a", 5)
    await receive(reader, 5)
    await session.close()
    await reader.close()
    await topics_of(cluster.first.broker).split(TOPIC, 0)
    session, reader = await clients.to(cluster.first), await clients.to(cluster.nodes[1])
    assert ids((await session.register(ORDERS, "a")).assignment) == [0]
    await attach(reader, ONLY, "a", 5)
    await receive(reader, 5)
    assert ids(await session.assignment()) == []
    assert ids(await session.assignment()) == [0]


async def test_a_consumer_that_reads_all_of_what_it_was_to_share_at_another_broker_is_noted() -> None:
    config = BrokerConfig(scalable_topic_auto_scale_enabled=False, scalable_topic_entry_bucket_budget=4)
    clients = Clients()
    async with running(2, config) as cluster:
        await far_segment(cluster)
        ours, java = [
            await Peer.connect(cluster.first.broker.service_url, "Pulsar-Java-v5.0.0-M2", features)
            for features in (pb.FeatureFlags(supports_scalable_topics=True), pb.FeatureFlags())
        ]
        far = await clients.to(cluster.nodes[1])
        await ours.register(ORDERS, "a")
        (told,) = (await java.register(ORDERS, "b")).assignment.segments
        assert len(told.bucket_ranges) == 4
        await attach(far, ONLY, "b", 5)
        assert ids(await java.assignment()) == []
        for peer in (ours, java):
            await peer.close()
        await clients.close()
