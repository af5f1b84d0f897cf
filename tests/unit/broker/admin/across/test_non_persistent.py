"""Non-persistent topics, which exist only at the broker that has them open: every broker knows them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.catalog.owners import ServedElsewhere
from anabranch.client import ClientConnection
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.admin.across.several import Member, several

TOPIC = "/admin/v2/non-persistent/public/default/pulse"
NAME = "non-persistent://public/default/pulse"


@pytest.fixture
async def brokers() -> AsyncIterator[list[Member]]:
    async with several(3) as made:
        made[0].owners.places.moved[TopicName.parse(NAME)] = 1
        yield made


async def test_a_topic_is_made_at_its_owner_and_known_to_all(brokers: list[Member]) -> None:
    one, owner, third = brokers
    await one.call("PUT", TOPIC)
    assert [str(topic.name) for topic in owner.broker.non_persistent.loaded()] == [NAME]
    assert not one.broker.non_persistent.loaded()
    for asked in brokers:
        assert await asked.get("/admin/v2/non-persistent/public/default") == [NAME]
        assert (await asked.get(f"{TOPIC}/stats"))["msgInCounter"] == 0
        assert (await asked.get(f"{TOPIC}/internalStats"))["entriesAddedCounter"] == 0
        assert await asked.get(f"{TOPIC}/partitions") == await owner.get(f"{TOPIC}/partitions")
        assert await asked.refused("PUT", TOPIC, 409) == "This topic already exists"
        assert await asked.refused("PUT", f"{TOPIC}/partitions", 409, json=2) == "This topic already exists"
        topics = await asked.get("/admin/v2/namespaces/public/default/topics", params={"mode": "ALL"})
        assert topics == [NAME]
    await third.call("DELETE", TOPIC)
    assert await one.get("/admin/v2/non-persistent/public/default") == []
    assert await one.refused("GET", f"{TOPIC}/stats", 404) == f"Topic {NAME} not found"


async def test_a_broker_makes_no_topic_that_another_one_owns(brokers: list[Member]) -> None:
    """Whoever asks it: what a broker has open besides would be heard by nobody."""
    one, owner, _ = brokers
    with pytest.raises(ServedElsewhere):
        await one.broker.non_persistent.create(TopicName.parse(NAME))
    with pytest.raises(ServedElsewhere):
        await one.broker.non_persistent.open(TopicName.parse(NAME), create=True)
    assert await owner.broker.non_persistent.create(TopicName.parse(NAME))


async def test_a_topic_in_use_at_its_owner_is_not_deleted(brokers: list[Member]) -> None:
    one, owner, third = brokers
    consumer = await owner.client.consumer(NAME, "s")
    assert await third.get(f"{TOPIC}/subscriptions") == ["s"]
    assert "active" in await one.refused("DELETE", TOPIC, 412)
    assert "active" in await one.refused("DELETE", f"{TOPIC}/subscription/s", 412)
    await one.refused("DELETE", f"{TOPIC}/subscription/none", 404)
    await consumer.close()
    await one.call("DELETE", TOPIC, params={"force": "true"})
    assert not owner.broker.non_persistent.loaded()


async def test_partitions_are_made_counted_and_deleted_at_their_owners(brokers: list[Member]) -> None:
    one, other, third = brokers
    name = "/admin/v2/non-persistent/public/default/parts"
    await other.call("PUT", f"{name}/partitions", json=3)
    assert [len(member.broker.non_persistent.loaded()) for member in brokers] == [1, 1, 1]
    assert len((await third.get(f"{name}/partitioned-stats"))["partitions"]) == 3
    producer = await third.client.producer("non-persistent://public/default/parts-partition-2")
    assert "active" in await one.refused("DELETE", f"{name}/partitions", 412)
    await producer.close()
    await one.call("DELETE", f"{name}/partitions")
    assert [len(member.broker.non_persistent.loaded()) for member in brokers] == [0, 0, 0]


async def test_clients_are_told_of_topics_at_other_brokers(brokers: list[Member]) -> None:
    await brokers[0].call("PUT", TOPIC)
    for asked in brokers:
        connection = await ClientConnection.open(asked.broker.service_url)
        answer = await connection.request(
            pb.BaseCommand.GET_TOPICS_OF_NAMESPACE,
            "getTopicsOfNamespace",
            namespace="public/default",
            mode=pb.CommandGetTopicsOfNamespace.NON_PERSISTENT,
        )
        assert list(answer.topics) == [NAME]
        await connection.close()


async def test_a_topic_at_another_broker_is_not_made_partitioned_by_use(brokers: list[Member]) -> None:
    await brokers[0].call("PUT", TOPIC)
    policy = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    path = "/admin/v2/namespaces/public/default/autoTopicCreation"
    await brokers[0].call("POST", path, json=policy)
    for asked in brokers:
        assert await asked.broker.new_topics.partitions(TopicName.parse(NAME), create=True) == 0
