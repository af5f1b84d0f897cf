"""Classic commands on names of scalable topics: who is answered, who is advised, and where a segment is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.broker.broker import Broker
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from anabranch.model.scalable import topic_path
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import V5, BrokerLab, C, Peer, topics_of
from unit.broker.scalable.stored import OTHER, MovingOwners

ORDERS = "topic://public/default/orders"
TOPIC = TopicName.parse(ORDERS)
FIRST = "segment://public/default/orders/0000-ffff-0"
Kinds = pb.CommandLookupTopicResponse


@pytest.fixture
async def broker(lab: BrokerLab) -> Broker:
    broker = await lab.broker()
    await topics_of(broker).create(TOPIC)
    return broker


@pytest.fixture
async def classic(lab: BrokerLab, broker: Broker) -> Peer:
    return await lab.peer(broker, "Pulsar-CPP-v3.7.0")


async def look_up(peer: Peer, topic: str) -> pb.CommandLookupTopicResponse:
    answer = await peer.ask(C.LOOKUP, "lookupTopic", topic=topic)
    return answer.lookupTopicResponse


# -- topic://


@pytest.mark.parametrize("version", [V5, "Pulsar-Java-v4.1.2", "Pulsar-CPP-v3.7.0", "unknown", ""])
async def test_a_lookup_of_a_scalable_topic_leads_to_the_broker_that_was_asked_whatever_the_client_calls_itself(
    lab: BrokerLab, broker: Broker, version: str
) -> None:
    found = await look_up(await lab.peer(broker, version), "topic://public/default/not-made-by-a-lookup")
    assert (found.response, found.brokerServiceUrl) == (Kinds.Connect, broker.service_url)
    assert await topics_of(broker).topics(PUBLIC_DEFAULT) == [TOPIC]


async def test_a_v5_client_learns_at_once_of_a_namespace_that_is_missing(
    lab: BrokerLab, broker: Broker
) -> None:
    found = await look_up(await lab.peer(broker, V5), "topic://public/nowhere/orders")
    assert (found.response, found.error) == (Kinds.Failed, pb.TopicNotFound)


@pytest.mark.parametrize("version", ["Pulsar-CPP-v3.7.0", "unknown", V5])
async def test_classic_producers_and_consumers_of_a_scalable_topic_are_advised(
    lab: BrokerLab, broker: Broker, version: str
) -> None:
    peer = await lab.peer(broker, version)
    for refused in (
        await peer.ask(C.PRODUCER, "producer", topic=ORDERS, producer_id=1),
        await peer.ask(C.SUBSCRIBE, "subscribe", topic=ORDERS, subscription="s", consumer_id=1, subType=0),
    ):
        assert refused.error.error == pb.NotAllowedError
        assert "V5 client" in refused.error.message


async def test_classic_use_of_the_classic_name_is_advised_too(broker: Broker, classic: Peer) -> None:
    refused = await classic.ask(
        C.PRODUCER, "producer", topic="persistent://public/default/orders", producer_id=1
    )
    assert refused.error.error == pb.NotAllowedError
    assert "V5 client" in refused.error.message
    assert await broker.known.stored(PUBLIC_DEFAULT) == []


async def test_scalable_topics_and_segments_have_no_partitions(classic: Peer) -> None:
    for topic in (ORDERS, FIRST):
        answer = await classic.ask(C.PARTITIONED_METADATA, "partitionMetadata", topic=topic)
        response = answer.partitionMetadataResponse
        assert response.response == pb.CommandPartitionedTopicMetadataResponse.Success
        assert response.partitions == 0


# -- segment://


async def test_a_segment_is_found_where_its_owner_is(lab: BrokerLab) -> None:
    owners = MovingOwners()
    broker = await lab.broker(owners=owners)
    await topics_of(broker).create(TOPIC)
    peer = await lab.peer(broker, V5)
    found = await look_up(peer, FIRST)
    assert (found.response, found.brokerServiceUrl) == (Kinds.Connect, broker.service_url)
    owners.moved[TopicName.parse(FIRST)] = OTHER
    found = await look_up(peer, FIRST)
    assert (found.response, found.brokerServiceUrl) == (Kinds.Connect, OTHER.service_url)
    assert found.brokerServiceUrlTls == OTHER.service_url_tls


async def test_a_classic_topic_is_found_where_its_owner_is(lab: BrokerLab) -> None:
    name = TopicName.parse("persistent://public/default/plain")
    broker = await lab.broker(owners=MovingOwners(moved={name: OTHER}))
    found = await look_up(await lab.peer(broker), str(name))
    assert (found.response, found.brokerServiceUrl) == (Kinds.Connect, OTHER.service_url)


@pytest.mark.parametrize(
    "segment",
    [
        "segment://public/default/orders/0000-7fff-1",
        "segment://public/default/orders/0000-7fff-0",
        "segment://public/default/unheard-of/0000-ffff-0",
    ],
)
async def test_a_stray_lookup_or_publish_makes_no_segment(
    broker: Broker, classic: Peer, segment: str
) -> None:
    assert (await look_up(classic, segment)).error == pb.TopicNotFound
    refused = await classic.ask(C.PRODUCER, "producer", topic=segment, producer_id=1)
    assert refused.error.error == pb.TopicNotFound
    subscribe = {"subscription": "s", "consumer_id": 1, "subType": 0, "force_topic_creation": True}
    refused = await classic.ask(C.SUBSCRIBE, "subscribe", topic=segment, **subscribe)
    assert refused.error.error == pb.TopicNotFound
    assert not await broker.resources.topic_exists(TopicName.parse(segment))


async def test_a_producer_behind_the_times_is_told_that_its_segment_was_terminated(
    broker: Broker, classic: Peer
) -> None:
    await topics_of(broker).split(TOPIC, 0)
    sealed = await look_up(classic, FIRST)
    assert sealed.response == Kinds.Connect
    record = await topics_of(broker).get(TOPIC)
    assert record is not None
    marked = record.layout.mark_deleting([record.layout.sealed[0].id])
    for layout in (marked, marked.prune([0])):
        changed = replace(record, layout=layout)
        await broker.metadata.put(topic_path(TOPIC), changed.encode())
        gone = await look_up(classic, FIRST)
        # Consumers give up at this code; V5 producers look for these words and wait for the next layout.
        assert gone.error == pb.TopicNotFound
        assert "already terminated" in gone.message


async def test_segments_are_not_listed_among_persistent_topics(broker: Broker, classic: Peer) -> None:
    await broker.new_topics.create(TopicName.parse("persistent://public/default/plain"))
    mode = pb.CommandGetTopicsOfNamespace.ALL
    answer = await classic.ask(
        C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default", mode=mode
    )
    assert list(answer.getTopicsOfNamespaceResponse.topics) == ["persistent://public/default/plain"]
    assert await broker.known.stored(PUBLIC_DEFAULT) == ["persistent://public/default/plain"]


async def test_a_segment_can_be_produced_to_and_consumed(broker: Broker, classic: Peer) -> None:
    made = await classic.ask(C.PRODUCER, "producer", topic=FIRST, producer_id=1)
    assert made.type == C.PRODUCER_SUCCESS
    subscribe = {"subscription": "s", "consumer_id": 1, "subType": 1}
    assert (await classic.ask(C.SUBSCRIBE, "subscribe", topic=FIRST, **subscribe)).type == C.SUCCESS
