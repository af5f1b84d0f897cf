"""Consumers of Pulsar's V5 client, which leave without a word: when they are taken to have left, and when not."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.broker import Broker
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import V5, BrokerLab, C, Peer, ids, topics_of

ORDERS = "topic://public/default/orders"
TOPIC = TopicName.parse(ORDERS)
NEVER_S = 3600.0


async def attach(peer: Peer, consumer: str, segment: str, consumer_id: int) -> None:
    number = segment.rpartition("-")[2]
    answer = await peer.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=f"segment://public/default/orders/{segment}",
        subscription="sub",
        subType=0,
        consumer_id=consumer_id,
        consumer_name=f"{consumer}-seg-{number}",
    )
    assert answer.type == C.SUCCESS, answer


async def test_a_consumer_that_closes_its_segments_has_left(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC, 2)
    broker.requests.scalable.sessions.departures.left_after_s = 0.01
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await java.register(ORDERS, "a", consumer_id=1)
    await attach(java, "a", "0000-7fff-0", 2)
    await attach(java, "a", "8000-ffff-1", 3)
    assert ids((await other.register(ORDERS, "b")).assignment) == [1]
    assert ids(await java.assignment(1)) == [0]
    # One that it no longer has is closed because of that. It keeps the other.
    await java.leave(3)
    assert ids((await other.register(ORDERS, "c", consumer_id=2)).assignment) == []
    await java.leave(2)
    moved = await other.wait_for(lambda c: c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
    assert 0 in ids(moved.scalableTopicAssignmentUpdate.assignment)
    assert ids((await java.register(ORDERS, "d", consumer_id=1)).assignment) == []


async def test_a_consumer_that_attaches_again_has_not_left(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC, 2)
    broker.requests.scalable.sessions.departures.left_after_s = 0.1
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await java.register(ORDERS, "a", consumer_id=1)
    assert ids((await java.register(ORDERS, "z", consumer_id=2)).assignment) == [1]
    assert ids(await java.assignment(1)) == [0]
    await other.register(ORDERS, "b")
    await attach(java, "a", "0000-7fff-0", 3)
    await attach(java, "z", "8000-ffff-1", 4)
    await java.leave(3)
    await attach(java, "a", "0000-7fff-0", 5)
    await java.leave(4)
    # The second is seen to have left later than the first is looked at.
    assert ids(await other.assignment()) == [1]
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [(c.name, c.is_connected) for c in consumers] == [("a", True), ("b", True)]


async def test_a_client_that_closes_its_segments_and_its_connection_has_left(
    lab: BrokerLab, broker: Broker
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    gone, lost, other = (
        await lab.peer(broker, V5),
        await lab.peer(broker, V5),
        await lab.peer(broker, supports_scalable_topics=True),
    )
    await other.register(ORDERS, "c")
    await gone.register(ORDERS, "a", consumer_id=1)
    assert ids(await other.assignment()) == [0]
    await attach(gone, "a", "8000-ffff-1", 2)
    await gone.leave(2)
    await gone.close()
    assert ids(await other.assignment()) == [0, 1]
    # One that merely loses its connection may come back.
    await lost.register(ORDERS, "b", consumer_id=1)
    await other.assignment()
    await attach(lost, "b", "8000-ffff-1", 2)
    await lost.close()
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [c.name for c in consumers] == ["b", "c"]


def looks_after(broker: Broker, *, left_s: float = NEVER_S, unread_s: float = NEVER_S) -> None:
    departures = broker.requests.scalable.sessions.departures
    departures.left_after_s, departures.unread_after_s = left_s, unread_s


async def in_use(broker: Broker, *segments: str) -> None:
    """As by somebody who produces to them."""
    for segment in segments:
        await broker.topic(TopicName.parse(f"segment://public/default/orders/{segment}"))


async def is_given(peer: Peer, segments: set[int]) -> None:
    """Waits until that is what it was told last."""
    async with asyncio.timeout(10):
        while set(ids(await peer.assignment())) != segments:
            pass


async def test_a_consumer_that_closes_its_segments_has_left_though_it_is_assigned_others_meanwhile(
    lab: BrokerLab, broker: Broker
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    looks_after(broker, left_s=0.5)
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await java.register(ORDERS, "a", consumer_id=1)
    await attach(java, "a", "0000-7fff-0", 2)
    await other.register(ORDERS, "b")
    assert ids(await java.assignment(1)) == [0]
    await java.leave(2)
    # Its segment is sealed, has nothing in it and gets children, one of which is its own.
    await topics_of(broker).split(TOPIC, 0)
    await is_given(other, {1, 2, 3})


async def test_a_consumer_that_never_attaches_has_left(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC, 1)
    looks_after(broker, unread_s=0.1)
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await other.register(ORDERS, "b")
    await attach(other, "b", "0000-ffff-0", 2)
    # It has nothing, so that nothing tells of its end.
    assert ids((await java.register(ORDERS, "a", consumer_id=1)).assignment) == []
    await topics_of(broker).split(TOPIC, 0)
    await in_use(broker, "0000-7fff-1", "8000-ffff-2")
    await is_given(other, {1, 2})


async def test_a_consumer_that_was_only_slow_comes_back(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC, 2)
    await in_use(broker, "0000-7fff-0", "8000-ffff-1")
    looks_after(broker, unread_s=0.1)
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await other.register(ORDERS, "b")
    assert ids((await java.register(ORDERS, "a", consumer_id=1)).assignment) == [1]
    await is_given(other, {0, 1})
    # Pulsar's client asks for its assignment again only when its connection is lost.
    with pytest.raises(ConnectionError):
        await attach(java, "a", "8000-ffff-1", 2)
    again = await lab.peer(broker, V5)
    assert ids((await again.register(ORDERS, "a", consumer_id=1)).assignment) == [1]
    await attach(again, "a", "8000-ffff-1", 2)


async def test_a_consumer_whose_segments_the_broker_closes_has_not_left(
    lab: BrokerLab, broker: Broker
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    looks_after(broker, left_s=0.05, unread_s=0.05)
    java, other = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await java.register(ORDERS, "a", consumer_id=1)
    await attach(java, "a", "0000-7fff-0", 3)
    await java.register(ORDERS, "z", consumer_id=2)
    await attach(java, "z", "8000-ffff-1", 4)
    await other.register(ORDERS, "b")
    await broker.unload_topic(TopicName.parse("segment://public/default/orders/0000-7fff-0"))
    assert (await java.receive(C.CLOSE_CONSUMER)).close_consumer.consumer_id == 3
    # Somebody else opens the segment again before its client comes back.
    await in_use(broker, "0000-7fff-0")
    await java.leave(4)
    # The second is seen to have left later than the first is looked at.
    await is_given(other, {1})
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [(c.name, c.is_connected) for c in consumers] == [("a", True), ("b", True)]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_consumers_and_their_session_may_be_on_different_connections(
    lab: BrokerLab, broker: Broker, is_closed: bool
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    looks_after(broker, left_s=0.05, unread_s=0.2)
    session, consumers, other = (
        await lab.peer(broker, V5),
        await lab.peer(broker, V5),
        await lab.peer(broker, supports_scalable_topics=True),
    )
    await attach(consumers, "a", "0000-7fff-0", 2)  # It may come back before its session does.
    await session.register(ORDERS, "a", consumer_id=1)
    await session.register(ORDERS, "z", consumer_id=2)
    await attach(consumers, "z", "8000-ffff-1", 3)
    await other.register(ORDERS, "b")
    await consumers.leave(2 if is_closed else 3)
    await is_given(other, {0} if is_closed else {1})


async def test_a_sealed_segment_that_is_read_to_its_end_is_closed_by_who_stays(
    lab: BrokerLab, broker: Broker
) -> None:
    await topics_of(broker).create(TOPIC, 1)
    looks_after(broker, left_s=0.02, unread_s=0.3)
    java = await lab.peer(broker, V5)
    await java.register(ORDERS, "a", consumer_id=1)
    await attach(java, "a", "0000-ffff-0", 2)
    await topics_of(broker).split(TOPIC, 0)
    await java.receive(C.REACHED_END_OF_TOPIC)
    await java.leave(2)
    await is_given(java, {1, 2})
    await attach(java, "a", "0000-7fff-1", 3)
    other = await lab.peer(broker, V5)
    assert ids((await other.register(ORDERS, "z", consumer_id=1)).assignment) == [2]
    await in_use(broker, "8000-ffff-2")
    # This one never attaches, and is seen to have left later than the first is looked at.
    await is_given(java, {1})
    await is_given(java, {1, 2})
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [(c.name, c.is_connected) for c in consumers] == [("a", True)]


async def test_names_that_only_look_like_those_of_segments_are_anybodys(peer: Peer) -> None:
    for number, name in enumerate(("x-seg-²", "x-seg-٣", "x-seg-", "-seg-1", "x-seg-" + "9" * 900)):
        answer = await peer.ask(
            C.SUBSCRIBE,
            "subscribe",
            topic="persistent://public/default/t",
            subscription=f"s{number}",
            subType=0,
            consumer_id=number,
            consumer_name=name,
        )
        assert answer.type == C.SUCCESS, answer


async def test_a_registration_for_which_there_is_no_room_leaves_nothing_to_wait_for(
    lab: BrokerLab, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    java = await lab.peer(broker, V5)
    with monkeypatch.context() as tight:
        tight.setattr("anabranch.broker.connection.request_tasks.REQUESTS_MAX", 0)
        java.start(
            C.SCALABLE_TOPIC_SUBSCRIBE,
            "scalableTopicSubscribe",
            topic=ORDERS,
            subscription="sub",
            consumer_name="a",
            consumer_id=1,
            consumer_type=pb.STREAM,
        )
        assert (await java.receive(C.ERROR)).error.error == pb.TooManyRequests
    await java.leave(1)
    assert ids((await java.register(ORDERS, "b", consumer_id=1)).assignment) == [0, 1]
