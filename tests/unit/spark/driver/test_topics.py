"""Which topics a query reads, against a scripted broker: what makes one leave, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from anabranch.client.errors import DataLost
from anabranch.model.cut import Cut, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.spark.driver.driver import Driver
from anabranch.spark.driver.topics import Feeds
from anabranch.spark.options.source import Options, parse
from anabranch.spark.plan.limit import UNLIMITED
from anabranch.spark.plan.offsets import Offset
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import OTHER_TOPIC
from unit.client.scripted import ScriptedBroker, segment_topic

TOPIC = "topic://public/default/t"
ONE = SegmentLayout.initial(1, 0, "former")


@pytest.fixture
async def script() -> AsyncIterator[ScriptedBroker]:
    script = ScriptedBroker(ONE)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield script
    server.close()


def options(script: ScriptedBroker, **more: str) -> Options:
    given = {
        "serviceUrl": script.url,
        "namespace": "public/default",
        "start": "earliest",
        "readMode": "broker",
    }
    return parse({**given, **more}, "stream")


async def heard(script: ScriptedBroker, feeds: Feeds) -> None:
    """Returns once all that the script has said before was read: it says one thing more on the same connection."""
    feed = feeds.current[TOPIC]
    layout = script.layout.split(script.layout.active[0].id, 0)
    script.publish(layout)
    async with asyncio.timeout(10):
        await feed.layout_of(layout.epoch)


async def test_a_topic_that_an_answer_does_not_name_stays_until_it_is_deleted(script: ScriptedBroker) -> None:
    script.topics = [TOPIC]
    feeds = Feeds(options(script))
    await feeds.open()
    script.tell_topics()
    await heard(script, feeds)
    await feeds.settle()
    assert feeds.current.keys() == {TOPIC}
    assert not feeds.left
    script.is_deleted = True
    script.topics = []
    for link in script.links:
        link.cut()
    async with asyncio.timeout(10):
        while not feeds.left:
            await feeds.settle()
            await asyncio.sleep(0)
    assert not feeds.current
    await feeds.close()


async def test_by_its_properties_a_topic_leaves_as_soon_as_it_is_not_named(script: ScriptedBroker) -> None:
    script.topics = [TOPIC]
    feeds = Feeds(options(script, propertyFilters="tier=gold"))
    await feeds.open()
    script.tell_topics()
    await heard(script, feeds)
    await feeds.settle()
    assert feeds.left == {TOPIC}
    await feeds.close()


def read_to(entry: int, topic_id: str = "former") -> Offset:
    place = Place.of(ONE.segments[SegmentId(0)]).moved((1, entry, 0))
    return Offset({TOPIC: Cut((place,), topic_id)})


async def test_a_topic_that_is_there_goes_on_from_its_offset_though_the_first_answer_lacks_it(
    script: ScriptedBroker,
) -> None:
    script.ends[segment_topic(0)] = (1, 4)
    driver = Driver(options(script))
    await driver.open()
    assert not driver.feeds.current
    assert await driver.next_end(read_to(5), UNLIMITED) == read_to(5)
    script.ends[segment_topic(0)] = (1, 6)
    assert await driver.next_end(read_to(5), UNLIMITED) == read_to(7)
    await driver.close()


async def test_another_topic_of_its_name_does_not_count_as_there(script: ScriptedBroker) -> None:
    script.layout = replace(ONE, topic_id="present")
    driver = Driver(options(script))
    await driver.open()
    with pytest.raises(DataLost, match=f"{TOPIC} was deleted"):
        await driver.next_end(read_to(5), UNLIMITED)
    await driver.close()


async def test_brokers_that_disagree_whether_there_is_a_topic_are_asked_again_after_pauses(
    script: ScriptedBroker,
) -> None:
    script.topics = [TOPIC]
    script.ends[segment_topic(0)] = (1, 6)
    # The layout is that of the former topic still, and the segment's owner has another one already.
    script.refusals[segment_topic(0)] = [pb.NotAllowedError] * 5
    script.refusal_text = f"{OTHER_TOPIC} present: was deleted and made again"
    driver = Driver(options(script))
    await driver.open()
    before = asyncio.get_running_loop().time()
    async with asyncio.timeout(30):
        assert await driver.next_end(read_to(5), UNLIMITED) == read_to(7)
    # Five pauses, each twice as long as the one before, and shortened by half at most.
    assert asyncio.get_running_loop().time() - before >= 0.02 * (1 + 2 + 4 + 8 + 16) / 2
    await driver.close()
