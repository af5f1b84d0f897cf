"""A broker whose clock is not the store's: the times of layouts are the store's, and are compared with nothing else."""

from __future__ import annotations

import pytest

from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from unit.broker.scalable.brokers import NOW_MS, BrokerLab, topics_of

TOPIC = TopicName.parse("topic://public/default/orders")
DAY_MS = 86_400_000


@pytest.mark.parametrize("skew_ms", [-DAY_MS, DAY_MS])
async def test_topics_are_made_and_migrated_at_the_stores_time(lab: BrokerLab, skew_ms: int) -> None:
    lab.now_ms = NOW_MS + skew_ms
    broker = await lab.broker()
    topics = topics_of(broker)
    made = await topics.create(TOPIC, 2)
    assert {segment.created_ms for segment in made.layout.active} == {NOW_MS}
    classic = TopicName.parse("persistent://public/default/old")
    await broker.topic(classic, create=True)
    shown = await topics.view(classic)
    assert {segment.created_ms for segment in shown.layout.active} == {NOW_MS}
    await topics.migrate(classic)
    migrated = (await topics.view(classic)).layout
    assert {segment.created_ms for segment in migrated.segments.values()} == {NOW_MS}
    assert {segment.sealed_ms for segment in migrated.sealed} == {NOW_MS}


@pytest.mark.parametrize("skew_ms", [-DAY_MS, DAY_MS])
async def test_a_sealed_segment_is_kept_for_its_retention_by_the_stores_time(
    lab: BrokerLab, skew_ms: int
) -> None:
    store_ms = NOW_MS
    lab.store = type(lab.store)(lambda: store_ms)
    lab.now_ms = NOW_MS + skew_ms
    broker = await lab.broker(
        default_retention_time_in_minutes=60, default_retention_size_in_mb=-1, log_linger_seconds=0
    )
    topics = topics_of(broker)
    root = (await topics.create(TOPIC, 1)).layout.active[0]
    # One that is empty has nothing to be kept for.
    held = await broker.topic(root.topic(TOPIC))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=lab.now_ms)
    held.publishing.publish_own(build_entry(metadata, b"kept"), 1)
    await held.confirmations.stored_in_full()
    await topics.split(TOPIC, 0)
    controller = topics.controllers[TOPIC]

    async def look() -> bool:
        """Whether it is still there after two looks, as far apart as producers may be in doubt."""
        nonlocal store_ms
        for _ in range(2):
            await controller.collect()
            lab.now_ms += 61_000
            store_ms += 61_000
        # Both have their turn behind the removal; and nobody is left who needs the segment.
        await topics.create_subscription(TOPIC, "brief")
        await topics.delete_subscription(TOPIC, "brief")
        return SegmentId(0) in (await topics.view(TOPIC)).layout.segments

    assert await look()
    store_ms += 3_600_000
    assert not await look()
