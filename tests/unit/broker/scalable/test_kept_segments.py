"""Sealed segments are kept as long as a policy says, also one of the classic topic that a segment was."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.broker.policy.namespace import Retention
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from unit.broker.scalable.brokers import NOW_MS, BrokerLab, topics_of

CLASSIC = TopicName.parse("persistent://public/default/old")
TOPIC = TopicName.parse("topic://public/default/old")
DAY_MS = 86_400_000


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_classic_topics_own_retention_outlives_its_migration(lab: BrokerLab, is_kept: bool) -> None:
    store_ms = NOW_MS
    lab.store = type(lab.store)(lambda: store_ms)
    broker = await lab.broker()
    topics = topics_of(broker)
    classic = await broker.topic(CLASSIC, create=True)
    if is_kept:
        for_ever = Retention(minutes=-1, megabytes=-1)
        await broker.topic_policies.change(
            CLASSIC, lambda found: msgspec.structs.replace(found, retention_policies=for_ever)
        )
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=NOW_MS)
    classic.publishing.publish_own(build_entry(metadata, b"kept"), 1)
    await classic.confirmations.stored_in_full()
    await topics.migrate(CLASSIC)
    store_ms += 8 * DAY_MS
    lab.now_ms += 8 * DAY_MS
    for _ in range(2):
        await topics.controllers[TOPIC].collect()
        store_ms += 61_000
        lab.now_ms += 61_000
    await topics.create_subscription(TOPIC, "behind-the-removal")
    assert (SegmentId(0) in (await topics.view(TOPIC)).layout.segments) is is_kept
    if is_kept:
        kept = await broker.topic(CLASSIC)
        await kept.maintain()
        assert kept.log.entries == 1
