"""A scalable topic that is created at one broker while another one deletes its namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import NamespaceNotFound
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import controller_path, topic_path
from unit.broker.scalable.brokers import BrokerLab, broker_lab, topics_of

SPACE = NamespaceName("public", "brief")
TOPIC = TopicName.parse(f"topic://{SPACE}/orders")


@pytest.fixture
async def lab() -> AsyncIterator[BrokerLab]:
    async with broker_lab() as made:
        yield made


async def two(lab: BrokerLab) -> tuple[Broker, Broker]:
    """Two brokers that know the namespace."""
    creating, deleting = await lab.broker(), await lab.broker()
    await deleting.resources.create_namespace(SPACE)
    await creating.resources.policies(SPACE)
    return creating, deleting


async def stored(broker: Broker) -> list[str]:
    """What is left of the topic and of its namespace."""
    found = await broker.resources.scalable_names(SPACE)
    return [*map(str, found), *map(str, await broker.resources.segment_names(SPACE))]


@pytest.mark.parametrize("segments", [1, 3])
async def test_a_topic_that_is_stored_after_the_deletion_is_taken_back(lab: BrokerLab, segments: int) -> None:
    creating, deleting = await two(lab)

    async def delete_first(verb: str, path: str) -> None:
        if (verb, path) == ("create", topic_path(TOPIC)):
            lab.held[0].before = None
            await deleting.resources.delete_namespace(SPACE)

    lab.held[0].before = delete_first
    with pytest.raises(NamespaceNotFound):
        await topics_of(creating).create(TOPIC, segments)
    assert await stored(deleting) == []
    # A namespace of the same name begins without it.
    await deleting.resources.create_namespace(SPACE)
    assert await topics_of(creating).get(TOPIC) is None


async def test_a_deletion_that_has_only_begun_is_seen_too(lab: BrokerLab) -> None:
    creating, deleting = await two(lab)

    async def begin_first(verb: str, path: str) -> None:
        if (verb, path) == ("create", topic_path(TOPIC)):
            lab.held[0].before = None
            assert await deleting.resources.begin_delete_namespace(SPACE) == []

    lab.held[0].before = begin_first
    with pytest.raises(NamespaceNotFound):
        await topics_of(creating).create(TOPIC)
    assert await stored(deleting) == []
    await deleting.resources.delete_namespace(SPACE)


async def test_a_topic_that_a_broker_leads_already_is_deleted(lab: BrokerLab) -> None:
    creating, deleting = await two(lab)

    async def lead_and_delete(verb: str, path: str) -> None:
        if (verb, path) == ("create", topic_path(TOPIC)):
            lab.held[0].after = None
            await topics_of(creating).leading(TOPIC)
            assert await lab.held[0].exists(controller_path(TOPIC))
            await deleting.resources.begin_delete_namespace(SPACE, force=True)

    lab.held[0].after = lead_and_delete
    with pytest.raises(NamespaceNotFound):
        await topics_of(creating).create(TOPIC)
    assert await stored(deleting) == []


async def test_a_topic_that_the_deletion_has_found_is_left_to_it(lab: BrokerLab) -> None:
    creating, deleting = await two(lab)

    async def find_and_delete(verb: str, path: str) -> None:
        if (verb, path) == ("create", topic_path(TOPIC)):
            lab.held[0].after = None
            assert await deleting.resources.begin_delete_namespace(SPACE, force=True) == [TOPIC]
            await topics_of(deleting).delete(TOPIC, force=True)
            await deleting.resources.delete_namespace(SPACE)

    lab.held[0].after = find_and_delete
    with pytest.raises(NamespaceNotFound):
        await topics_of(creating).create(TOPIC)
    assert await stored(deleting) == []
