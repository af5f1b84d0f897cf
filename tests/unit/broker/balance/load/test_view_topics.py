"""What clients read of the views: the latest report of each broker, and that a broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.balance.load.view_topics import ViewTopics
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.leaders_topics import BROKER_LOAD_TOPIC
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
