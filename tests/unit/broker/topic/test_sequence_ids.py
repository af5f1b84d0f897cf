"""What is known of a producer on the day that deduplication is turned on: what is stored of it, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.topic.topic import Topic
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry, encode_send
from anabranch.wire.frames import Frame, FrameDecoder
from unit.broker.admin.conftest import NOW_MS, Rest, serving

T = "/admin/v2/persistent/public/default/t"


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


async def opened(rest: Rest) -> Topic:
    return await rest.broker.topic(TopicName.parse("persistent://public/default/t"), create=True)


def sends(*ids: int) -> list[Frame]:
    """As the connection of a producer named `p` would bring them in one read."""
    frames: list[Frame] = []
    for id in ids:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=id, publish_time=NOW_MS)
        frames += FrameDecoder().feed(
            encode_send(build_entry(metadata, b"%d" % id), producer_id=0, sequence_id=id)
        )
    return frames


@pytest.mark.parametrize("ids", [(2,), (2, 3)])
async def test_what_a_full_disk_refused_is_not_known_when_deduplication_is_turned_on(
    rest: Rest, ids: tuple[int, ...]
) -> None:
    topic = await opened(rest)
    producer = await rest.client.producer("t", name="p")
    for _ in range(2):
        await (await producer.send(b"stored"))
    store = rest.broker.log
    assert isinstance(store, MemoryLogStore)
    attached = topic.producers["p"]
    store.set_accepting(False)
    # It came in while the disk was running full: the producer is closed, and its client sends it again.
    topic.attached.add(attached, request_id=0)
    topic.publish(attached, sends(*ids))
    assert "p" not in topic.producers
    store.set_accepting(True)
    await rest.call("POST", f"{T}/deduplicationEnabled", 204, json=True)
    assert topic.stored_ids("p").last == 1
    again = await rest.client.producer("t", name="p")
    again.next_sequence = 2
    for _ in ids:
        assert (await (await again.send(b"again")))[1] >= 0, "a receipt for what is not stored"
    assert topic.log.entries == 2 + len(ids)


async def test_nobody_is_told_of_what_is_not_confirmed_yet(rest: Rest) -> None:
    topic = await opened(rest)
    await rest.client.producer("t", name="p")
    attached = topic.producers["p"]
    topic.publish(attached, sends(0, 1))
    topic.attached.remove(attached)
    topic.sequence_ids.want(True)
    assert topic.publishing.is_deduplicating
    assert topic.log.confirmed_end == 0
    assert topic.stored_ids("p").last == -1, "a crash now would take both"
    assert topic.publishing.dedup.is_duplicate("p", 1)
    await topic.confirmations.stored_in_full()
    assert topic.stored_ids("p").last == 1
