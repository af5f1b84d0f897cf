"""What topics at rest are spared, and that nothing is missed once they move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from anabranch.broker.catalog.resources import topic_record_path
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.topic.topic import Topic
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import NamespaceName, TopicName
from anabranch.storage.memory import MemoryLogStore
from anabranch.storage.port import LogDamagedError
from anabranch.storage.topic.taking_over import finish_delete
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry, encode_send
from anabranch.wire.frames import FrameDecoder
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
    assert not topic.log_is_empty
    await topic.maintain()
    assert topic.log_is_empty


async def test_a_topic_with_something_kept_is_not_bare_until_that_is_given_up(rest: Rest) -> None:
    topic = await opened(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await topic.maintain()
    await rest.publish("t", b"one")
    assert not topic.log_is_empty
    await topic.maintain()
    assert not topic.log_is_empty, "the subscription has not had it"
    await topic.subscriptions["s"].skip_all()
    await topic.maintain()
    assert topic.log.entries == 0
    await topic.maintain()
    assert topic.log_is_empty
    await rest.publish("t", b"two")
    assert not topic.log_is_empty


async def test_a_broker_whose_log_ends_is_over_also_while_no_topic_is_open(rest: Rest) -> None:
    store = rest.broker.log
    assert isinstance(store, MemoryLogStore)
    assert not rest.broker.loaded()
    store.fail()
    assert await asyncio.wait_for(rest.broker.failed, 10) is store.ended
    for path in ("health", "ready"):
        assert "the log has ended" in await rest.refused("GET", f"/admin/v2/brokers/{path}", 503)


async def test_a_closing_that_is_given_up_leaves_no_client_with_a_closed_topic(rest: Rest) -> None:
    topic = await opened(rest)
    await rest.client.producer("t", name="p")
    attached = topic.producers["p"]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=NOW_MS)
    send = encode_send(build_entry(metadata, b"x"), producer_id=0, sequence_id=0)
    closing = asyncio.create_task(topic.close())
    topic.publish(attached, FrameDecoder().feed(send))
    await asyncio.sleep(0)
    assert topic.is_closed
    assert "p" in topic.producers, "it waits for what was published"
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert attached.is_closed
    assert not topic.producers
    await topic.wait_closed()
    assert (await opened(rest)).log.entries == 1


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

    async def once(namespace: NamespaceName) -> NamespacePolicies:
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


async def test_a_topic_that_is_closed_before_it_is_open_in_full_is_opened_again(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.publish("t", b"one")
    broker, resources = rest.broker, rest.broker.resources
    await broker.unload_topic(NAME)
    read, asked, closed = resources.policies, 0, []

    async def closing(namespace: NamespaceName) -> NamespacePolicies:
        """The second time the topic is about to be handed out."""
        nonlocal asked
        asked += 1
        if asked == 2 and (topic := broker.opened(NAME)) is not None:
            closed.append(topic)
            await topic.close()
        return await read(namespace)

    with monkeypatch.context() as patch:
        patch.setattr(resources, "policies", closing)
        topic = await broker.topic(NAME)
    assert closed
    assert topic not in closed
    assert broker.loaded() == {NAME: topic}


async def test_a_deletion_that_lost_the_store_half_way_is_finished_by_who_wants_the_name(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.publish("t", b"one")
    topic, broker, path = await rest.broker.topic(NAME), rest.broker, topic_record_path(NAME)

    async def unavailable(path: str, *, if_version: int | None = None) -> bool:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(broker.metadata, "delete", unavailable)
        with pytest.raises(StoreUnavailable):
            await topic.delete(force=True)
    marked = await broker.metadata.get(path)
    assert marked is not None
    again = await broker.topic(NAME, create=True)
    assert again.log.entries == 0
    await rest.publish("t", b"two")
    # The first deletion, had it been only slow, finds another topic under the name and leaves it alone.
    await finish_delete(path, topic.log.topic_record, marked.version, broker.log, broker.metadata)
    assert await broker.resources.topic_exists(NAME)


async def test_who_waits_for_the_log_is_told_whatever_happens_to_those_before_him(rest: Rest) -> None:
    topic = await opened(rest)
    consumer = await rest.client.consumer("t", "s")
    producer = await rest.client.producer("t")
    told: list[int] = []

    def fails() -> None:
        told.append(1)
        raise RuntimeError("impossible")

    receipt = await producer.send(b"x")
    async with asyncio.timeout(30):
        while topic.log.next_entry == topic.log.confirmed_end:  # noqa: ASYNC110 - nothing tells of it.
            await asyncio.sleep(0)
    topic.confirmations.when_confirmed(fails)
    topic.confirmations.when_confirmed(lambda: told.append(2))
    await receipt
    assert told == [1, 2]
    assert (await consumer.receive()).payload == b"x"


async def test_one_topics_trouble_does_not_stop_the_rates_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.broker.broker.RATES_SECONDS", 0.01)
    async with serving(MemoryMetadata(lambda: NOW_MS), CONFIG) as rest:
        asked = asyncio.Event()

        def fails(seconds: float) -> None:
            asked.set()
            raise AttributeError("impossible")

        setattr(await opened(rest), "update_rates", fails)  # noqa: B010  # A method of its class.
        later = await rest.broker.topic(TopicName.parse("persistent://public/default/later"), create=True)
        await asked.wait()
        producer = await rest.client.producer("later")
        async with asyncio.timeout(30):
            while later.rates_in == (0.0, 0.0):
                await (await producer.send(b"x"))


async def test_damage_is_skipped_while_subscriptions_come_and_go(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await opened(rest)
    await rest.publish("t", b"one")
    await topic.create_subscription("s", "earliest", {})
    damage = LogDamagedError(topic.log.ledger, 0, 1, "a file", 17)
    monkeypatch.setattr(
        topic.subscriptions["s"], "dispatcher", SimpleNamespace(damage=damage, wake=lambda: None)
    )

    async def skipped(_: LogDamagedError) -> int:
        await topic.create_subscription("another", "earliest", {})
        return 1

    monkeypatch.setattr(topic.log, "skip_damage", skipped)
    assert await topic.skip_damage() == 1
    monkeypatch.setattr(topic.subscriptions["s"], "dispatcher", None)
