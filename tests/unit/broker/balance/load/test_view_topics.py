"""What clients read of the views: the latest report of each broker, and that a broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.balance.load.view_topics import ViewTopics
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.leaders_topics import BROKER_LOAD_TOPIC
from anabranch.model.names import TopicName
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.scalable.cluster import until


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


async def test_clients_read_reports_by_broker_and_that_one_is_gone(rest: Rest) -> None:
    topics = rest.broker.non_persistent
    views = ViewTopics(topics, "leader:1", lambda: NOW_MS)
    views.publish(BROKER_LOAD_TOPIC, "one:1", b"before any client reads")
    assert topics.opened(BROKER_LOAD_TOPIC) is None
    reader = await rest.client.consumer(str(BROKER_LOAD_TOPIC), "tool")
    async with asyncio.timeout(10):
        # Messages go to consumers that have asked for some.
        opened = topics.opened(BROKER_LOAD_TOPIC)
        assert opened is not None
        await until(lambda: [one.permits for one in opened.subscriptions["tool"].consumers] != [0])
        views.publish(BROKER_LOAD_TOPIC, "one:1", b'{"cpu":0.5}')
        views.publish(BROKER_LOAD_TOPIC, "one:1", None)
        told, gone = await reader.receive(), await reader.receive()
    assert (told.key, told.payload) == ("one:1", b'{"cpu":0.5}')
    assert (gone.key, gone.payload, gone.about.null_value) == ("one:1", b"", True)
    found = topics.opened(BROKER_LOAD_TOPIC)
    assert found is not None
    assert found.messages_in == 2
    with pytest.raises(RequestRefused, match="written by brokers only"):
        await rest.client.producer(str(BROKER_LOAD_TOPIC))


async def test_a_view_in_partitions_is_the_same_view(rest: Rest) -> None:
    """Each message has its key and all of its value, and order counts within a key only: whichever partition has a key,
    readers of all of them come to the same view."""
    topics = rest.broker.non_persistent
    views = ViewTopics(topics, "leader:1", lambda: NOW_MS)
    whole, *parts = BROKER_LOAD_TOPIC, BROKER_LOAD_TOPIC.partition(0), BROKER_LOAD_TOPIC.partition(1)
    readers = {name: await rest.client.consumer(str(name), "tool") for name in (whole, *parts)}
    sent: list[tuple[str, bytes | None]] = [
        (f"broker-{number % 5}:1", b"%d" % number) for number in range(20)
    ]
    sent += [("broker-1:1", None), ("broker-2:1", None), ("broker-2:1", b"again")]
    seen: dict[TopicName, dict[str, bytes]] = {}
    async with asyncio.timeout(10):
        for name in readers:
            await until(lambda name=name: all_ask(topics, name))  # type: ignore[misc]
        for key, value in sent:
            views.publish(whole, key, value)
            views.publish(parts[sum(key.encode()) % len(parts)], key, value)
        for name, reader in readers.items():
            opened = topics.opened(name)
            assert opened is not None
            seen[name] = {}
            for _ in range(opened.messages_in):
                message = await reader.receive()
                assert message.key is not None
                seen[name][message.key] = message.payload
                if message.about.null_value:
                    del seen[name][message.key]
    assert seen[whole] == {
        "broker-0:1": b"15",
        "broker-2:1": b"again",
        "broker-3:1": b"18",
        "broker-4:1": b"19",
    }
    assert all(seen[part] for part in parts)
    assert seen[parts[0]] | seen[parts[1]] == seen[whole]


def all_ask(topics: NonPersistentTopics, name: TopicName) -> bool:
    opened = topics.opened(name)
    return opened is not None and all(one.permits for one in opened.subscriptions["tool"].consumers)
