"""A broker that scales its topics: what it is told by its settings, and what it tells in its metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from anabranch.autoscale.load import Load
from anabranch.broker.broker import Broker
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.observe.metrics import render
from anabranch.model.buckets import BUDGET
from anabranch.model.names import TopicName
from anabranch.model.scalable import load_path
from anabranch.model.segments import LayoutRefused, SegmentId
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Client
from unit.broker.scalable.brokers import BrokerLab, C, broker_lab, topics_of

ORDERS = TopicName.parse("topic://public/default/orders")
FIVE = (
    "pulsar_scalable_topic_active_segments",
    "pulsar_scalable_topic_auto_splits_total",
    "pulsar_scalable_topic_auto_merges_total",
    "pulsar_scalable_topic_split_suppressed_max_segments_total",
    "pulsar_scalable_topic_merge_suppressed_max_depth_total",
)
LABELS = 'cluster="standalone",namespace="public/default",topic="topic://public/default/orders"'


async def scraped(broker: Broker) -> str:
    return b"".join([part async for part in render(broker)]).decode()


def figures(page: str) -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(rf"^(\w+){{{re.escape(LABELS)}}} (\d+)$", page, re.M)
    }


async def met(claim: Callable[[], bool], lab: BrokerLab) -> None:
    store = await lab.store.connect()
    async with asyncio.timeout(10):
        while not claim():
            await store.now_ms()  # Lets the loop go round.
    await store.close()


async def test_the_five_metrics_have_their_names_and_labels_and_kinds() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(scalable_topic_auto_scale_enabled=True)
        await topics_of(broker).create(ORDERS)
        await topics_of(broker).split(ORDERS, 0)
        page = await scraped(broker)
        assert {name: figures(page)[name] for name in FIVE} == dict(zip(FIVE, (2, 0, 0, 0, 0), strict=True))
        for name in FIVE:
            assert f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n" in page


async def test_a_split_for_a_consumer_is_counted_and_one_by_hand_is_not() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(scalable_topic_auto_scale_enabled=True)
        topics = topics_of(broker)
        await topics.create(ORDERS)
        peer = await lab.peer(broker)
        await peer.register(str(ORDERS), "a", 1)
        await peer.register(str(ORDERS), "b", 2)
        await met(lambda: any(f.auto_splits for f in broker.autoscaler.figures()), lab)
        await topics.split(ORDERS, 1)
        await topics.merge(ORDERS, 3, 4)
        await topics.rebucket(ORDERS, 5, 4)
        page = await scraped(broker)
        assert figures(page)["anabranch_scalable_topic_rebuckets_total"] == 1
        assert figures(page)["pulsar_scalable_topic_active_segments"] == 2
        assert figures(page)["pulsar_scalable_topic_auto_splits_total"] == 1
        assert figures(page)["pulsar_scalable_topic_auto_merges_total"] == 0
        by_reason = 'cluster="standalone",namespace="public/default",operation="split",reason="consumers"'
        assert f"anabranch_scalable_topic_decisions_total{{{by_reason}}} 1\n" in page


async def test_one_broker_tells_of_a_topic() -> None:
    async with broker_lab() as lab:
        brokers = [await lab.broker() for _ in range(2)]
        await topics_of(brokers[0]).create(ORDERS)
        await topics_of(brokers[1]).split(ORDERS, 0)
        topics_of(brokers[0]).touch(ORDERS)
        assert figures(await scraped(brokers[1]))[FIVE[0]] == 2
        assert FIVE[0] not in await scraped(brokers[0])


async def test_without_topics_in_the_metrics_their_namespace_has_the_sum() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(expose_topic_level_metrics_in_prometheus=False)
        for topic in (ORDERS, TopicName.parse("topic://public/default/payments")):
            await topics_of(broker).create(topic)
            await topics_of(broker).split(topic, 0)
        page = await scraped(broker)
        assert f'{FIVE[0]}{{cluster="standalone",namespace="public/default"}} 4\n' in page
        assert "topic://" not in page


async def test_a_tick_of_the_broker_obeys_its_settings() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(
            scalable_topic_auto_scale_enabled=True,
            scalable_topic_auto_scale_interval=0.05,
            scalable_topic_split_msg_rate_in_threshold=100.0,
            scalable_topic_merge_msg_rate_in_threshold=1.0,
            scalable_topic_max_segments=2,
        )
        await topics_of(broker).create(ORDERS)
        topics_of(broker).touch(ORDERS)
        for number in range(3):
            value = b'{"msgRateIn":150.0,"bytesRateIn":0.0,"msgRateOut":0.0,"bytesRateOut":0.0}'
            await broker.metadata.put(load_path(ORDERS, SegmentId(number)), value)
        # Once it has split, the store's time stands still within the cooldown, and nothing more comes.
        await met(lambda: any(f.active_segments == 2 for f in broker.autoscaler.figures()), lab)


async def test_a_topic_with_nobody_but_a_producer_has_a_leader_and_splits_for_its_load() -> None:
    async with broker_lab() as lab:
        maker, broker = [await lab.broker(scalable_topic_auto_scale_enabled=True) for _ in range(2)]
        (segment,) = (await topics_of(maker).create(ORDERS)).layout.active
        await topics_of(maker).close()  # Nobody leads it now.
        assert ORDERS not in topics_of(broker).controllers
        peer = await lab.peer(broker)
        answer = await peer.ask(C.PRODUCER, "producer", topic=str(segment.topic(ORDERS)), producer_id=1)
        assert answer.type == C.PRODUCER_SUCCESS
        await met(lambda: any(f.active_segments == 1 for f in broker.autoscaler.figures()), lab)
        hot = Load(msg_rate_in=12_000.0)
        await broker.metadata.put(load_path(ORDERS, segment.id), hot.encode())
        await broker.autoscaler.tick()
        await met(lambda: any(f.auto_splits == 1 for f in broker.autoscaler.figures()), lab)


async def test_settings_that_contradict_each_other_are_told_and_the_broker_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(scalable_topic_split_msg_rate_in_threshold=500.0)
        assert "splitMsgRateInThreshold is 500" in caplog.text
        await topics_of(broker).create(ORDERS)
        await topics_of(broker).split(ORDERS, 0)
        assert (await broker.autoscaler.explain(ORDERS)).problems


async def test_a_broker_without_scalable_topics_has_no_scaler_and_no_metrics_of_it() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(scalable_topic_enabled=False)
        assert "scalable" not in await scraped(broker)
        with pytest.raises(NotAllowedError):
            _ = broker.autoscaler


@pytest.mark.parametrize("is_shared", [True, False])
async def test_the_gauge_of_drain_mode_counts_sealed_segments_that_are_shared(is_shared: bool) -> None:
    """None is where the setting says so."""
    async with broker_lab() as lab:
        broker = await lab.broker(
            scalable_topic_max_segments=1,
            scalable_topic_entry_bucket_budget=4,
            scalable_topic_sealed_drain_sharing_enabled=is_shared,
        )
        topics = topics_of(broker)
        await topics.create(ORDERS)
        peers = [await lab.peer(broker, supports_scalable_topics=True) for _ in range(2)]
        for number, peer in enumerate(peers):
            await peer.ask(
                C.SCALABLE_TOPIC_SUBSCRIBE,
                "scalableTopicSubscribe",
                topic=str(ORDERS),
                subscription="sub",
                consumer_name=f"c{number}",
                consumer_id=1,
                consumer_type=pb.STREAM,
                anabranch_knows_buckets=True,
            )
        assert figures(await scraped(broker))["anabranch_scalable_segment_drain_mode"] == 0
        client = Client(broker.service_url)
        producer = await client.producer("segment://public/default/orders/0000-ffff-0")
        await (await producer.send(b"left to be read"))
        await client.close()
        await topics.split(ORDERS, 0)
        assert figures(await scraped(broker))["anabranch_scalable_segment_drain_mode"] == is_shared


async def test_a_topic_has_four_entry_buckets_by_default() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker()
        topics = topics_of(broker)
        layout = (await topics.create(ORDERS)).layout
        assert [segment.bucket_count for segment in layout.active] == [BUDGET] == [4]
        layout = (await topics.create(TopicName.parse("topic://public/default/two"), 2)).layout
        assert [segment.bucket_count for segment in layout.active] == [2, 2]


async def test_the_settings_of_entry_buckets_are_obeyed() -> None:
    async with broker_lab() as lab:
        broker = await lab.broker(
            scalable_topic_entry_bucket_budget=12, scalable_topic_entry_buckets_per_segment_max=8
        )
        topics = topics_of(broker)
        layout = (await topics.create(ORDERS)).layout
        assert [segment.bucket_count for segment in layout.active] == [8]
        with pytest.raises(LayoutRefused, match="1 to 8"):
            await topics.rebucket(ORDERS, 0, 9)
        layout = await topics.rebucket(ORDERS, 0, 6)
        assert [segment.bucket_count for segment in layout.active] == [6]
