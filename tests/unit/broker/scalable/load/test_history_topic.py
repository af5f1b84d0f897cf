"""Load history as a broker publishes it: who can read it, what it keeps, and that nothing suffers by it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.metrics import render
from anabranch.broker.scalable.load.history_records import (
    HISTORY_TOPIC,
    SCHEMA,
    HistoryRecord,
    OrderedConsumers,
)
from anabranch.broker.scalable.load.history_topic import BATCH_RECORDS, HistoryTopic
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata
from unit.broker.scalable.brokers import C, Peer, broker_lab, topics_of
from unit.broker.scalable.cluster import TOPIC, Assigned, Cluster, name_of, running

NEVER = 86_400.0
QUIET: dict[str, Any] = {
    # The test says when.
    "scalable_topic_load_report_interval": NEVER,
    "scalable_topic_auto_scale_interval": NEVER,
    "load_history_heartbeat_interval": NEVER,
}
REST = "persistent/pulsar/system"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(config=BrokerConfig(**QUIET)) as made:
        yield made


def history_of(broker: Broker) -> HistoryTopic:
    assert broker.scaling is not None
    assert broker.scaling.history is not None
    return broker.scaling.history


async def beat(broker: Broker) -> None:
    assert broker.scaling is not None
    await broker.scaling.beat()


async def told(cluster: Cluster, beats: int = 1) -> None:
    history = history_of(cluster.first.broker)
    for _ in range(beats):
        await beat(cluster.first.broker)
    await history.flush()


async def figure(broker: Broker, name: str) -> int:
    page = b"".join([part async for part in render(broker)]).decode()
    (line,) = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    return int(line.split()[-1])


# -- what comes out


async def test_a_segment_is_told_of_with_its_range_and_what_flowed(cluster: Cluster) -> None:
    segments = await cluster.topic(2)
    reporter = cluster.first.broker.scaling
    assert reporter is not None
    for segment in segments:
        await cluster.first.broker.topic(name_of(segment))
    await reporter.reporter.sample()
    await cluster.first.publish(name_of(segments[1]), b"a", b"b", b"c")
    await reporter.reporter.sample()
    await history_of(cluster.first.broker).flush()
    found = [json.loads(value) for value in await cluster.first.read(HISTORY_TOPIC, "look", 3)]
    assert [one["load"]["segment"] for one in found] == [0, 1, 1]
    assert all(one["load"]["topic"] == str(TOPIC) for one in found)
    assert (found[2]["load"]["range_start"], found[2]["load"]["range_end"]) == (0x8000, 0xFFFF)
    assert found[1]["load"]["msg_rate_in"] == 0.0
    assert found[2]["load"]["msg_rate_in"] > 0.0
    assert found[2]["load"]["samples"] == 1


async def test_messages_have_the_schema_that_the_topic_has(cluster: Cluster) -> None:
    await told(cluster)
    answer = await cluster.first.rest("GET", "schemas/pulsar/system/__load_history/schema")
    assert answer.json()["type"] == "JSON"
    assert json.loads(answer.json()["data"]) == SCHEMA
    (value,) = await cluster.first.read(HISTORY_TOPIC, "look", 1)
    assert json.loads(value)["heartbeat"]["window_ms"] == 60_000
    topic = await cluster.first.broker.topic(HISTORY_TOPIC)
    _, entries = await topic.log.read(topic.log.first, 1, 1)
    assert parse_metadata(entries[0][2]).schema_version == bytes(8)


async def test_the_history_is_not_about_itself(cluster: Cluster) -> None:
    scaling = cluster.first.broker.scaling
    assert scaling is not None
    for _ in range(3):
        await told(cluster)
        await scaling.reporter.sample()
    assert scaling.reporter.followed == frozenset()
    assert len(history_of(cluster.first.broker)) == 0


async def test_decisions_and_consumers_of_a_topic_are_told() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(**QUIET, scalable_topic_auto_scale_enabled=True)
        topics = topics_of(broker)
        await topics.create(TOPIC)
        peer = await lab.peer(broker)
        await peer.register(str(TOPIC), "a", 1)
        await peer.register(str(TOPIC), "b", 2)
        history = history_of(broker)
        store = await lab.store.connect()
        while not any(one.auto_splits for one in broker.autoscaler.figures()):
            await store.now_ms()
        await topics.split(TOPIC, 1)
        while len(history) < 5:
            await store.now_ms()
        await store.close()
        await history.flush()
        assert history.published == 5
        topic = await broker.topic(HISTORY_TOPIC)
        assert topic.counters[0] == 5


# -- who sees it


async def test_lists_leave_the_topic_out_unless_it_is_asked_for(cluster: Cluster) -> None:
    await told(cluster)
    for path in (REST, "namespaces/pulsar/system/topics"):
        assert (await cluster.first.rest("GET", path)).json() == []
        shown = await cluster.first.rest("GET", path, params={"includeSystemTopic": "true"})
        assert shown.json() == [str(HISTORY_TOPIC)]
    peer = await Peer.connect(cluster.first.broker.service_url)
    modes = pb.CommandGetTopicsOfNamespace
    answer = await peer.ask(
        C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="pulsar/system", mode=modes.ALL
    )
    await peer.close()
    assert answer.type == C.GET_TOPICS_OF_NAMESPACE_RESPONSE
    assert list(answer.getTopicsOfNamespaceResponse.topics) == []


# -- what is kept


@pytest.mark.parametrize(
    "bound", [{"load_history_retention_bytes": 5_000}, {"load_history_retention": 60.0}], ids=["size", "time"]
)
async def test_the_topic_stays_within_its_bounds_whoever_subscribes(bound: dict[str, Any]) -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(**QUIET, **bound)
        history = history_of(broker)
        await beat(broker)
        await history.flush()
        topic = await broker.topic(HISTORY_TOPIC)
        subscription = await topic.create_subscription("never-reads", "earliest", {})
        for _ in range(100):
            await beat(broker)
            await history.flush()
        await topic.close()
        topic = await broker.topic(HISTORY_TOPIC)
        if "load_history_retention" in bound:
            lab.now_ms += 61_000
        entries = topic.log.entries
        await topic.maintain()
        assert topic.log.entries < entries / 2
        assert topic.subscriptions[subscription.name].backlog() <= topic.log.entries


# -- when something is wrong


class Passed:
    """The broker that owns the topic, until it passes the topic to the sender."""

    def __init__(self, owners: Assigned) -> None:
        self._owners = owners
        self.sent = 0

    async def send(
        self, owner: BrokerAddress, run: int, first: int, records: Sequence[HistoryRecord]
    ) -> None:
        assert not self._owners.is_mine(HISTORY_TOPIC), "a broker sends to itself, and takes it, for ever"
        self.sent += len(records)
        self._owners.moved[HISTORY_TOPIC] = 1


async def test_a_broker_that_becomes_the_owner_while_it_sends_does_not_send_to_itself(
    cluster: Cluster,
) -> None:
    broker = cluster.first.broker
    addresses = [BrokerAddress(f"pulsar://b{n}:6650", f"http://b{n}:8080") for n in range(2)]
    owners = Assigned(addresses, mine=1)
    former = Passed(owners)
    history = HistoryTopic(
        broker.config,
        broker,
        broker.new_topics,
        broker.schemas,
        owners,
        broker.now_ms,
        broker="b1:6650",
        elsewhere=former,
    )
    count = 2 * BATCH_RECORDS
    for number in range(count):
        history.consumers_changed(TOPIC, {"s": number})
    await history.flush()
    assert (former.sent, len(history)) == (BATCH_RECORDS, BATCH_RECORDS)
    await history.flush()
    assert len(history) == 0, "its own from now on"


async def test_too_many_records_push_out_the_oldest_and_are_counted(cluster: Cluster) -> None:
    broker = cluster.first.broker
    history = HistoryTopic(
        broker.config,
        broker,
        broker.new_topics,
        broker.schemas,
        broker.owners,
        broker.now_ms,
        broker="here:6650",
        records_max=3,
    )
    for number in range(5):
        history.consumers_changed(TOPIC, {"s": number})
    assert (len(history), history.dropped) == (3, 2)
    await history.flush()
    found = [json.loads(value) for value in await cluster.first.read(HISTORY_TOPIC, "look", 3)]
    assert [one["consumers"]["subscriptions"]["s"] for one in found] == [2, 3, 4]


async def test_records_wait_while_the_topic_cannot_be_opened(cluster: Cluster) -> None:
    broker = cluster.first.broker
    assert (await cluster.first.rest("DELETE", "namespaces/pulsar/system")).status_code == 204
    await told(cluster)
    assert (len(history_of(broker)), history_of(broker).dropped) == (1, 0)
    assert (await cluster.first.rest("PUT", "namespaces/pulsar/system")).status_code == 204
    await told(cluster)
    assert (len(history_of(broker)), history_of(broker).published) == (0, 2)


async def test_what_the_log_does_not_take_is_dropped_and_counted(cluster: Cluster) -> None:
    broker = cluster.first.broker
    await told(cluster)
    await broker.operations.terminate(HISTORY_TOPIC)
    await told(cluster, 2)
    assert len(history_of(broker)) == 0
    assert await figure(broker, "anabranch_load_history_records_total") == 1
    assert await figure(broker, "anabranch_load_history_dropped_total") == 2


async def test_a_topic_that_was_deleted_or_closed_is_made_again(cluster: Cluster) -> None:
    broker = cluster.first.broker
    await told(cluster)
    await broker.unload_topic(HISTORY_TOPIC)
    await told(cluster)
    await broker.delete_topic(HISTORY_TOPIC, force=True)
    await told(cluster)
    assert len(await cluster.first.read(HISTORY_TOPIC, "look", 1)) == 1
    assert (history_of(broker).published, history_of(broker).dropped) == (3, 0)


async def test_a_broker_that_does_not_own_the_topic_sends_its_records_to_the_owner() -> None:
    async with running(2, BrokerConfig(**QUIET)) as cluster:
        first, second = (node.broker for node in cluster.nodes)
        other = history_of(second)
        await beat(second)
        await other.flush()
        assert (other.published, other.dropped, len(other)) == (0, 0, 0)
        await told(cluster)
        found = [json.loads(value) for value in await cluster.first.read(HISTORY_TOPIC, "look", 2)]
        assert [one["broker"] for one in found] == [
            broker.service_url.partition("://")[2] for broker in (second, first)
        ]


async def test_records_wait_while_the_owner_of_the_topic_cannot_be_asked() -> None:
    async with running(2, BrokerConfig(**QUIET)) as cluster:
        first, second = (node.broker for node in cluster.nodes)
        other = history_of(second)
        await first.registry.close()
        await beat(second)
        await other.flush()
        assert (len(other), other.dropped) == (1, 0)
        await first.registry.start()
        await other.flush()
        assert len(other) == 0
        await history_of(first).flush()
        assert history_of(first).published == 1


async def test_records_that_were_sent_twice_are_published_once(cluster: Cluster) -> None:
    """The answer to the first sending was lost."""
    history = history_of(cluster.first.broker)
    records = [
        HistoryRecord(1, "other:6650", at, consumers=OrderedConsumers(str(TOPIC), {})) for at in range(5)
    ]
    history.take("other:6650", 7, 0, records[:2])
    history.take("other:6650", 7, 0, records[:3])
    history.take("other:6650", 7, 1, records[1:2])
    history.take("other:6650", 7, 3, records[3:4])
    history.take("other:6650", 8, 0, records[4:])  # It has been started again.
    await history.flush()
    found = [json.loads(value)["at"] for value in await cluster.first.read(HISTORY_TOPIC, "look", 5)]
    assert found == [0, 1, 2, 3, 4]
    assert history.published == 5


async def test_a_broker_that_ends_says_what_is_left_to_say() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(**QUIET)
        history = history_of(broker)
        await beat(broker)
        await history.flush()
        await beat(broker)
    assert (history.published, len(history)) == (2, 0)


async def test_switched_off_there_is_no_topic_and_no_figure() -> None:
    async with running(config=BrokerConfig(**QUIET, load_history_enabled=False)) as cluster:
        broker = cluster.first.broker
        segments = await cluster.topic(1)
        await cluster.first.publish(name_of(segments[0]), b"x")
        assert broker.scaling is not None
        assert broker.scaling.history is None
        await broker.scaling.reporter.sample()
        assert not await broker.resources.topic_exists(HISTORY_TOPIC)
        assert b"load_history" not in b"".join([part async for part in render(broker)])
