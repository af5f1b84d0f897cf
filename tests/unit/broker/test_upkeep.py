"""What topics at rest are spared, and that nothing is missed once they move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config import BrokerConfig
from anabranch.broker.policies import Policies
from anabranch.broker.topic import Topic
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import NamespaceName, TopicName
from unit.broker.admin.conftest import NOW_MS, Rest, serving

NAME = TopicName.parse("persistent://public/default/t")
CONFIG = BrokerConfig(default_retention_time_in_minutes=0, log_linger_seconds=0, log_linger_bytes=0)


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS), CONFIG) as made:
        yield made


async def opened(rest: Rest) -> Topic:
    return await rest.broker.topic(NAME, create=True)


async def test_a_topic_is_bare_once_upkeep_has_found_its_log_empty(rest: Rest) -> None:
    topic = await opened(rest)
    assert not topic.is_bare
    await topic.maintain()
    assert topic.is_bare


async def test_a_topic_with_something_kept_is_not_bare_until_that_is_given_up(rest: Rest) -> None:
    topic = await opened(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await topic.maintain()
    await rest.publish("t", b"one")
    assert not topic.is_bare
    await topic.maintain()
    assert not topic.is_bare, "the subscription has not had it"
    await topic.subscriptions["s"].skip_all()
    await topic.maintain()
    assert topic.log.entries == 0
    await topic.maintain()
    assert topic.is_bare
    await rest.publish("t", b"two")
    assert not topic.is_bare


async def test_rates_come_back_to_nothing_and_rise_again(rest: Rest) -> None:
    topic = await opened(rest)
    producer = await rest.client.producer("t")
    attached = next(iter(topic.producers.values()))
    for _ in range(2):
        await (await producer.send(b"x"))
        topic.update_rates(2.0)
        assert topic.rates_in[0] == attached.rates_in[0] == 0.5
        for _ in range(3):
            topic.update_rates(2.0)
            assert topic.rates_in == attached.rates_in == (0.0, 0.0)


async def test_open_topics_are_known_until_they_close(rest: Rest) -> None:
    broker = rest.broker
    topic = await opened(rest)
    assert broker.loaded() == {NAME: topic}
    assert broker.opened(NAME) is topic
    await topic.close()
    assert broker.loaded() == {}
    assert broker.opened(NAME) is None
    again = await opened(rest)
    assert broker.loaded() == {NAME: again}
    broker.open_topics.closed(topic)
    assert broker.opened(NAME) is again, "the one before has nothing to say any more"


async def test_a_topic_that_could_not_be_opened_in_full_is_closed_and_opened_anew(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.publish("t", b"one")
    broker, resources = rest.broker, rest.broker.resources
    await broker.unload_topic(NAME)
    read, asked = resources.policies, 0

    async def once(namespace: NamespaceName) -> Policies:
        """The store answers once, and not when the topic is open."""
        nonlocal asked
        asked += 1
        if asked > 1:
            raise StoreUnavailable("no answer")
        return await read(namespace)

    with monkeypatch.context() as patch:
        patch.setattr(resources, "policies", once)
        with pytest.raises(StoreUnavailable):
            await broker.topic(NAME)
    assert asked == 2
    assert broker.loaded() == {}, "it is not left open behind those who ask again"
    topic = await broker.topic(NAME)
    assert broker.loaded() == {NAME: topic}
    await rest.publish("t", b"two")
    assert topic.log.entries == 2
