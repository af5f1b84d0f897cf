"""A V5 stream consumer whose acknowledgements were lost is given its sealed segment anew."""

from __future__ import annotations

import pytest

from anabranch.broker.broker import Broker
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Client
from unit.broker.scalable.brokers import V5, BrokerLab, C, Peer, ids, topics_of

ORDERS = "topic://public/default/orders"
SEGMENT = "segment://public/default/orders/0000-ffff-0"
TOPIC = TopicName.parse(ORDERS)


@pytest.fixture
async def broker(lab: BrokerLab) -> Broker:
    """With a message in the topic's only segment."""
    broker = await lab.broker()
    broker.requests.scalable.sessions.lost_acks.look_every_s = 0.02
    await topics_of(broker).create(TOPIC, 1)
    client = Client(broker.service_url)
    producer = await client.producer(SEGMENT)
    await (await producer.send(b"one"))
    await client.close()
    return broker


async def attach(
    peer: Peer, kind: int = pb.CommandSubscribe.Exclusive, subscription: str = "sub"
) -> pb.MessageIdData:
    """The consumer that the client has at the segment; the id of the message it is sent."""
    await peer.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=SEGMENT,
        subscription=subscription,
        subType=kind,
        consumer_id=5,
        consumer_name="a-seg-0",
        initialPosition=1,
    )
    flow = C(type=C.FLOW)
    flow.flow.consumer_id = 5
    flow.flow.messagePermits = 10
    peer.send(flow)
    return (await peer.receive(C.MESSAGE)).message.message_id


async def come_back(lab: BrokerLab, broker: Broker) -> Peer:
    """A consumer that received everything, lost its connection, and is back."""
    first = await lab.peer(broker, V5)
    await first.register(ORDERS, "a")
    await attach(first)
    await first.close()
    await topics_of(broker).split(TOPIC, SegmentId(0))
    again = await lab.peer(broker, V5)
    assert ids((await again.register(ORDERS, "a")).assignment) == [0]
    return again


async def test_one_that_stands_still_is_given_its_sealed_segment_anew(lab: BrokerLab, broker: Broker) -> None:
    java = await come_back(lab, broker)
    await attach(java)
    assert ids(await java.assignment()) == []
    assert ids(await java.assignment()) == [0]


async def test_one_that_acknowledges_goes_on_to_the_children(lab: BrokerLab, broker: Broker) -> None:
    java = await come_back(lab, broker)
    at = await attach(java)
    ack = C(type=C.ACK)
    ack.ack.consumer_id = 5
    ack.ack.ack_type = pb.CommandAck.Cumulative
    ack.ack.message_id.add().CopyFrom(at)
    java.send(ack)
    assigned = ids(await java.assignment())
    # It may have been looked at before it acknowledged; it is never told to stop for good.
    while assigned in ([], [0]):
        assigned = ids(await java.assignment())
    assert assigned == [1, 2]


async def test_one_that_shares_its_segment_is_not_watched(lab: BrokerLab) -> None:
    broker = await lab.broker(scalable_topic_entry_bucket_budget=2)
    broker.requests.scalable.sessions.lost_acks.look_every_s = 0.02
    await topics_of(broker).create(TOPIC, 1)
    client = Client(broker.service_url)
    await (await (await client.producer(SEGMENT)).send(b"one"))
    await client.close()
    sharers = [await lab.peer(broker, "Pulsar-Java-v5.0.0-M2") for _ in range(2)]
    for peer, name in zip(sharers, "ab", strict=True):
        await peer.register(ORDERS, name)
    await attach(sharers[0], pb.CommandSubscribe.Key_Shared)
    alone = await lab.peer(broker, V5)
    await alone.register(ORDERS, "a", subscription="other")
    await attach(alone, subscription="other")
    for peer in (sharers[0], alone):
        await peer.close()
    await topics_of(broker).split(TOPIC, SegmentId(0))
    back, later = await lab.peer(broker, "Pulsar-Java-v5.0.0-M2"), await lab.peer(broker, V5)
    (told,) = (await back.register(ORDERS, "a")).assignment.segments
    assert len(told.bucket_ranges) == 2
    await attach(back, pb.CommandSubscribe.Key_Shared)
    await later.register(ORDERS, "a", subscription="other")
    await attach(later, subscription="other")
    # The other came later, and is given its segment again.
    assert ids(await later.assignment()) == []
    assert not [c for c in await back.settle() if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE]
