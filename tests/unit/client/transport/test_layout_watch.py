"""Following a layout: what a watch shows, when it is made again, when it gives up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from anabranch.client.errors import TopicDeleted, Unsupported
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch, read_layout
from anabranch.client.transport.pool import Connections
from anabranch.errors import PeerError
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.client.scripted import ScriptedBroker

ONE = SegmentLayout.initial(1, 0)


@pytest.fixture
async def watch(script: ScriptedBroker) -> AsyncIterator[LayoutWatch]:
    connections = Connections(script.url)
    watch = LayoutWatch(connections, "topic://public/default/t", Backoff(random.Random(1)))
    yield watch
    await watch.close()
    await connections.close()


async def changed(watch: LayoutWatch) -> None:
    """Returns after the next change."""
    told = asyncio.Event()
    stop = watch.listen(told.set)
    async with asyncio.timeout(10):
        await told.wait()
    stop()


async def test_the_first_layout_opens_the_watch(script: ScriptedBroker, watch: LayoutWatch) -> None:
    await watch.open()
    assert (watch.layout.epoch, watch.controller_url) == (0, script.url)
    assert watch.url_of(SegmentId(0)) == script.url
    assert watch.topic_of(SegmentId(0)) == "segment://public/default/t/0000-ffff-0"
    assert script.lookups[0].create_if_missing


async def test_an_older_epoch_is_never_shown(script: ScriptedBroker, watch: LayoutWatch) -> None:
    script.layout = ONE.split(0, 0)
    await watch.open()
    script.publish(ONE)
    script.publish(ONE.split(0, 0).split(1, 0))
    await changed(watch)
    assert watch.layout.epoch == 2
    assert [segment.id for segment in watch.layout.active] == [3, 4, 2]
    assert watch.layout.ancestors(SegmentId(3)) == {0, 1}


async def test_a_lost_watch_is_made_again_and_creates_nothing(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    await watch.open()
    script.layout = ONE.split(0, 0)
    script.links[-1].cut()
    await changed(watch)
    assert watch.layout.epoch == 1
    assert [lookup.create_if_missing for lookup in script.lookups] == [True, False]


async def test_a_topic_that_is_gone_when_the_watch_comes_back_is_deleted(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    await watch.open()
    script.is_deleted = True
    script.links[-1].cut()
    await changed(watch)
    assert watch.is_deleted


@pytest.mark.parametrize("other", [ONE, ONE.split(0, 0), ONE.split(0, 0).split(1, 0)])
async def test_a_topic_that_was_made_again_while_the_watch_was_away_is_deleted(
    script: ScriptedBroker, watch: LayoutWatch, other: SegmentLayout
) -> None:
    script.layout = replace(ONE.split(0, 0), topic_id="former")
    await watch.open()
    script.layout = replace(other, topic_id="present")
    script.links[-1].cut()
    await changed(watch)
    assert watch.is_deleted
    assert (watch.layout.topic_id, watch.layout.epoch) == ("former", 1), "what was known of it stays"


async def test_a_classic_topic_that_was_made_again_is_followed(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    names = ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]
    script.layout = SegmentLayout.synthetic(names, 0, "former")
    await watch.open()
    script.publish(SegmentLayout.synthetic(names[:1], 0, "present"))
    await changed(watch)
    assert not watch.is_deleted
    assert (watch.layout.topic_id, len(watch.layout.active)) == ("present", 1)


async def test_the_id_stays_known_while_a_broker_does_not_tell_it(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    script.layout = replace(ONE, topic_id="topic")
    await watch.open()
    script.publish(ONE.split(0, 0))
    await changed(watch)
    assert (watch.layout.topic_id, watch.layout.epoch) == ("topic", 1)
    script.publish(replace(ONE.split(0, 0).split(1, 0), topic_id="topic"))
    await changed(watch)
    assert not watch.is_deleted
    assert watch.layout.epoch == 2


async def test_a_topic_that_is_not_there_fails_the_opening(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    script.is_deleted = True
    with pytest.raises(TopicDeleted, match="gone"):
        await watch.open(create=False)


async def test_a_broker_without_layouts_is_told_apart_with_advice(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    script.features = pb.FeatureFlags()
    with pytest.raises(Unsupported, match="Pulsar 5 with scalable topics enabled"):
        await watch.open()


async def test_a_broker_without_layouts_that_comes_in_between_is_waited_out(
    script: ScriptedBroker, watch: LayoutWatch
) -> None:
    await watch.open()
    able, script.features = script.features, pb.FeatureFlags()
    links = len(script.links)
    script.links[-1].cut()
    await script.until(lambda: len(script.links) > links)
    script.features = able
    script.layout = ONE.split(0, 0)
    for link in script.links:
        link.cut()
    await changed(watch)
    assert watch.layout.epoch == 1


async def test_several_brokers_are_tried_in_turn(script: ScriptedBroker) -> None:
    connections = Connections(f"pulsar://127.0.0.1:1,{script.url.removeprefix('pulsar://')}")
    watch = LayoutWatch(connections, "topic://public/default/t", Backoff(random.Random(1)))
    await watch.open()
    assert watch.layout.epoch == 0
    await watch.close()
    await connections.close()


def dag(*ranges: tuple[int, int]) -> pb.ScalableTopicDAG:
    result = pb.ScalableTopicDAG(epoch=3)
    for number, (start, end) in enumerate(ranges):
        result.segments.add(
            segment_id=number,
            hash_start=start,
            hash_end=end,
            state=pb.ACTIVE,
            created_at_epoch=0,
            created_at_ms=0,
        )
    return result


@pytest.mark.parametrize(
    "ranges",
    [[], [(0, 9)], [(0, 9), (11, 0xFFFF)], [(0, 9), (9, 0xFFFF)]],
    ids=["none", "end", "gap", "overlap"],
)
def test_a_layout_that_does_not_cover_every_hash_once_is_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(PeerError):
        read_layout(dag(*ranges))


def test_a_layout_has_the_entry_buckets_that_the_broker_tells_and_one_where_it_tells_none() -> None:
    sent = dag((0, 0x7FFF), (0x8000, 0xFFFF))
    sent.segments[0].entry_bucket_splits.extend([5, 0x1000])
    assert [one.bucket_splits for one in read_layout(sent).active] == [(5, 0x1000), ()]


@pytest.mark.parametrize("splits", [[0], [7, 3], [5, 5], [0x10000]])
def test_a_layout_with_entry_buckets_that_make_no_sense_is_refused(splits: list[int]) -> None:
    sent = dag((0, 0xFFFF))
    sent.segments[0].entry_bucket_splits.extend(splits)
    with pytest.raises(PeerError, match="entry bucket"):
        read_layout(sent)


def test_links_to_segments_that_the_broker_no_longer_lists_are_cut() -> None:
    sent = dag((0, 0xFFFF))
    sent.segments[0].parent_ids.append(7)
    assert read_layout(sent).segments[SegmentId(0)].parents == ()


async def test_a_refusal_that_may_pass_is_tried_again(script: ScriptedBroker, watch: LayoutWatch) -> None:
    await watch.open()
    link, session = script.watches[0]
    link.send(
        pb.BaseCommand.SCALABLE_TOPIC_UPDATE,
        "scalableTopicUpdate",
        session_id=session,
        error=pb.ServiceNotReady,
        message="not now",
    )
    script.layout = ONE.split(0, 0)
    await changed(watch)
    assert watch.layout.epoch == 1
    assert not watch.is_deleted
