"""The one watch on all scalable topics: who is told of what."""

from __future__ import annotations

import asyncio

from anabranch.controller.feed import StalePart, TopicFeed
from anabranch.model.names import TopicName
from anabranch.model.scalable import consumer_path, decisions_path, load_path
from anabranch.model.segments import SegmentId
from unit.controller.rig import TOPIC, Rig, simulated


@simulated
async def test_loads_are_told_to_those_who_listen_everywhere_for_them_and_to_nobody_else(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await asyncio.sleep(1)
    loads: list[TopicName | None] = []
    records: list[TopicName | None] = []
    parts: list[StalePart] = []
    stops = [
        broker.feed.listen_everywhere(loads.append, StalePart.LOAD),
        broker.feed.listen_everywhere(records.append),
        broker.feed.listen(TOPIC, parts.append),
    ]
    await broker.metadata.put(load_path(TOPIC, SegmentId(1)), b"{}")
    await asyncio.sleep(1)
    assert loads == [TOPIC]
    assert records == []
    assert not any(part & StalePart.ALL for part in parts)
    await broker.metadata.put(decisions_path(TOPIC), b"{}")
    await broker.split(TOPIC, 0)
    await asyncio.sleep(1)
    assert loads == [TOPIC]
    assert set(records) == {TOPIC}
    for stop in stops:
        stop()
    await broker.metadata.put(load_path(TOPIC, SegmentId(1)), b"{}")
    await asyncio.sleep(1)
    assert loads == [TOPIC]


@simulated
async def test_what_is_stored_elsewhere_about_a_topic_is_told_to_its_listeners(rig: Rig) -> None:
    store = await rig.metadata.connect()
    feed = TopicFeed(store)
    feed.follow("/elsewhere", lambda path: TOPIC if path.endswith("/orders") else None, StalePart.PARTITIONS)
    feed.start()
    await asyncio.sleep(1)
    parts: list[StalePart] = []
    stop = feed.listen(TOPIC, parts.append)
    await store.put("/elsewhere/others", b"1")
    await asyncio.sleep(1)
    assert parts == []
    await store.put("/elsewhere/orders", b"1")
    await asyncio.sleep(1)
    assert parts == [StalePart.PARTITIONS]
    stop()
    await feed.close()


@simulated
async def test_changes_of_consumers_are_told_to_listeners_of_their_subscription_alone(rig: Rig) -> None:
    store = await rig.metadata.connect()
    feed = TopicFeed(store)
    feed.start()
    await asyncio.sleep(1)
    told: list[str] = []
    stops = [
        feed.listen_to_consumers(TOPIC, "sub", lambda: told.append("sub")),
        feed.listen_to_consumers(TOPIC, "other", lambda: told.append("other")),
    ]
    await store.put(consumer_path(TOPIC, "sub", "a"), b"1")
    await asyncio.sleep(1)
    assert told == ["sub"]
    await store.delete(consumer_path(TOPIC, "sub", "a"))
    await asyncio.sleep(1)
    assert told == ["sub", "sub"]
    for stop in stops:
        stop()
    await store.put(consumer_path(TOPIC, "sub", "b"), b"1")
    await asyncio.sleep(1)
    assert told == ["sub", "sub"]
    await feed.close()
