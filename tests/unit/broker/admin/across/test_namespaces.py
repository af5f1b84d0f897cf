"""Requests about all topics of a namespace, wherever they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from anabranch.broker.catalog.resources import NamespaceNotFound, Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import ClusterRecord, NamespacePolicies
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.records import Records
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName
from unit.broker.admin.across.several import NOW_MS, LateStore, Member, several

NAMESPACE = "/admin/v2/namespaces/public/taxis"
WHOLE = "0x00000000_0xffffffff"


@pytest.fixture
async def brokers() -> AsyncIterator[list[Member]]:
    """Three brokers with a topic of one namespace each."""
    config = BrokerConfig(force_delete_namespace_allowed=True, default_number_of_namespace_bundles=1)
    async with several(3, config) as made:
        await made[0].call("PUT", NAMESPACE)
        for number, member in enumerate(made):
            made[0].owners.places.moved[topic(number)] = number
            await member.call("PUT", f"/admin/v2/persistent/public/taxis/t{number}")
            await member.call("PUT", f"/admin/v2/persistent/public/taxis/t{number}/subscription/s")
            await member.publish(str(topic(number)), b"a", b"b")
        yield made


def topic(number: int) -> TopicName:
    return TopicName.parse(f"persistent://public/taxis/t{number}")


def backlogs(brokers: list[Member]) -> list[int]:
    opened = [member.broker.opened(topic(number)) for number, member in enumerate(brokers)]
    return [one.subscriptions["s"].backlog() for one in opened if one is not None]


async def test_unloading_a_namespace_closes_its_topics_at_every_broker(brokers: list[Member]) -> None:
    await brokers[1].call("PUT", f"{NAMESPACE}/unload")
    assert [name for member in brokers for name in member.broker.loaded()] == []


async def test_a_namespace_is_not_said_to_be_unloaded_while_a_broker_is_silent(brokers: list[Member]) -> None:
    brokers[1].elsewhere.silent = {2}
    assert "did not answer" in await brokers[1].refused("PUT", f"{NAMESPACE}/unload", 503)


async def test_backlogs_are_cleared_at_every_broker(brokers: list[Member]) -> None:
    assert backlogs(brokers) == [2, 2, 2]
    await brokers[2].call("POST", f"{NAMESPACE}/clearBacklog/other")
    assert backlogs(brokers) == [2, 2, 2]
    await brokers[2].call("POST", f"{NAMESPACE}/clearBacklog/s")
    assert backlogs(brokers) == [0, 0, 0]


async def test_backlogs_of_a_bundle_are_cleared_at_every_broker(brokers: list[Member]) -> None:
    await brokers[0].call("POST", f"{NAMESPACE}/{WHOLE}/clearBacklog")
    assert backlogs(brokers) == [0, 0, 0]


@pytest.mark.parametrize("path", [f"{NAMESPACE}/unsubscribe/s", f"{NAMESPACE}/{WHOLE}/unsubscribe/s"])
async def test_a_subscription_is_ended_at_every_broker(brokers: list[Member], path: str) -> None:
    await brokers[1].call("POST", path)
    for number, member in enumerate(brokers):
        opened = member.broker.opened(topic(number))
        assert opened is not None
        assert not opened.subscriptions


async def test_a_namespace_is_deleted_by_force_with_topics_of_every_broker(brokers: list[Member]) -> None:
    await brokers[2].client.consumer(str(topic(2)), "s")
    assert "non empty" in await brokers[0].refused("DELETE", NAMESPACE, 409)
    await brokers[0].call("DELETE", NAMESPACE, params={"force": "true"})
    for member in brokers:
        assert "public/taxis" not in await member.get("/admin/v2/namespaces/public")
        assert not member.broker.loaded()
    assert await brokers[1].broker.resources.topic_names(NamespaceName("public", "taxis")) == []


async def test_topics_of_a_bundle_are_deleted_by_force_at_every_broker(brokers: list[Member]) -> None:
    await brokers[1].call("DELETE", f"{NAMESPACE}/{WHOLE}", params={"force": "true"})
    assert await brokers[0].get("/admin/v2/persistent/public/taxis") == []


async def test_scalable_topics_that_other_brokers_lead_are_deleted_with_their_namespace(
    brokers: list[Member],
) -> None:
    for number, member in enumerate(brokers):
        member.owners.places.moved[TopicName.parse(f"topic://public/taxis/river{number}")] = number
        await member.call("PUT", f"/admin/v2/scalable/public/taxis/river{number}")
        await member.get(f"/admin/v2/scalable/public/taxis/river{number}/stats")
    await brokers[2].call("DELETE", NAMESPACE, params={"force": "true"})
    assert "public/taxis" not in await brokers[0].get("/admin/v2/namespaces/public")
    assert {number for number, one in brokers[2].elsewhere.asked if "scalable" in one.path} == {0, 1}


async def test_no_topic_is_made_in_a_namespace_that_another_broker_deletes() -> None:
    """Its own cached policies are a watch behind, so the broker must find the mark in the store."""
    store, namespace = MemoryMetadata(lambda: NOW_MS), NamespaceName("public", "empty")
    metadata, late = await store.connect(), LateStore(await store.connect())
    one, other = Resources(metadata), Resources(cast("MetadataStore", late))
    for resources in (one, other):
        await resources.start()
        await resources.bootstrap(ClusterRecord())
    await one.create_namespace(namespace, NamespacePolicies())
    await other.policies(namespace)
    await one.begin_delete_namespace(namespace)
    assert await other.policies(namespace), "the cache still says that the namespace is fine"
    name = TopicName.parse("persistent://public/empty/late")

    async def is_open(name: TopicName) -> bool:
        return False

    new_topics = NewTopics(
        other, Records(metadata), metadata, lambda: BrokerConfig(), lambda: NOW_MS, is_open
    )
    with pytest.raises(NamespaceNotFound):
        await new_topics.create(name)
    with pytest.raises(NamespaceNotFound):
        await new_topics.create_by_use(name)
    with pytest.raises(NamespaceNotFound):
        await other.create_partitioned(name, 3)
    assert await one.topic_names(namespace) == []
    assert await one.partitioned_names(namespace) == []
    for resources in (one, other):
        await resources.close()


async def test_what_was_set_through_one_broker_is_read_through_the_others_at_once() -> None:
    """Also if their watches are late."""
    async with several(2, late={1}) as (one, other):
        retention, ttl = "retentionTimeInMinutes", "/admin/v2/namespaces/public/default/messageTTL"
        path, topic_path = (
            "/admin/v2/namespaces/public/default/retention",
            "/admin/v2/persistent/public/default/t",
        )
        await one.call("PUT", topic_path)
        for minutes in (5, 6):
            await one.call("POST", path, json={retention: minutes, "retentionSizeInMB": -1})
            assert (await other.get(path))[retention] == minutes
            await one.call("POST", ttl, json=minutes)
            assert await other.get(ttl) == minutes
            await one.call("POST", f"{topic_path}/messageTTL?messageTTL={minutes}")
            assert await other.get(f"{topic_path}/messageTTL") == minutes
