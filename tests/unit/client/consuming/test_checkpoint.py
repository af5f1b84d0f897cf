"""Checkpoint consumers against a scripted broker: what they ask for, and what their checkpoints say."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from anabranch.client import (
    BadCheckpoint,
    CheckpointConsumer,
    Client,
    DataLost,
    Message,
    RequestRefused,
    TimedOut,
    TopicMadeAgain,
)
from anabranch.model.cut import BEGINNING, Cut, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import Gap
from anabranch.model.segments import WHOLE, HashRange, Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import DATA_LOST, OTHER_TOPIC, OWED_FROM, TOPIC_ID, UNKNOWN_POSITION
from unit.client.scripted import ScriptedBroker

C = pb.BaseCommand
TOPIC = "topic://public/default/t"
ONE = SegmentLayout.initial(1, 0)
TWO = ONE.split(0, 0)
MERGED = TWO.merge(1, 2, 0)


def at(segment: Segment, *position: int) -> Place:
    place = Place.of(segment)
    return place.moved((position[0], position[1], position[2])) if position else place


def topic_of(segment: Segment) -> str:
    return f"segment://public/default/t/{segment.descriptor}"


def of(layout: SegmentLayout, number: int) -> Segment:
    return layout.segments[SegmentId(number)]


def places(consumer: CheckpointConsumer) -> dict[int, object]:
    cut = Cut.decode(consumer.checkpoint())
    return {place.segment: "over" if place.is_over else place.at[0] for place in cut.places}


async def take(consumer: CheckpointConsumer, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await consumer.receive() for _ in range(count)]


async def reading(script: ScriptedBroker, segment: Segment) -> str:
    """Once a reader of the segment waits for messages."""
    topic = topic_of(segment)
    await script.until(lambda: topic in script.consumers)
    return topic


def end(script: ScriptedBroker, topic: str) -> None:
    link, number = script.consumers[topic]
    link.send(C.REACHED_END_OF_TOPIC, "reachedEndOfTopic", consumer_id=number)


# -- where it starts


async def test_earliest_claims_nothing_until_a_message_was_taken(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        (asked,) = script.subscriptions
        assert not asked.durable
        assert asked.start_message_id.ledgerId == asked.start_message_id.entryId == (1 << 64) - 1
        assert consumer.checkpoint() == Cut().encode()
        script.deliver(topic, 5)
        await take(consumer, 1)
        assert places(consumer) == {0: (1, 6, 0)}


@pytest.mark.parametrize(
    ("position", "asked", "owed"),
    [
        ((7, 9, 0), (7, 8, 2**31 - 1), "7:9"),
        ((7, 9, 3), (7, 9, 2), "7:9"),
        ((7, 0, 0), (7, -1, -1), "7:0"),
        (BEGINNING, (-1, -1, -1), "0:0"),
    ],
)
async def test_a_checkpoint_is_asked_for_behind_its_last_message(
    script: ScriptedBroker,
    client: Client,
    position: tuple[int, int, int],
    asked: tuple[int, int, int],
    owed: str,
) -> None:
    kept = Cut((at(of(ONE, 0), *position),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        await reading(script, of(ONE, 0))
        (request,) = script.subscriptions
        start = request.start_message_id
        ledger, entry, index = asked
        assert (start.ledgerId, start.entryId) == (ledger & (1 << 64) - 1, entry & (1 << 64) - 1)
        assert start.batch_index == index
        assert [(item.key, item.value) for item in request.metadata] == [(OWED_FROM, owed)]
        assert consumer.checkpoint() == kept


async def test_latest_is_asked_for_when_it_is_opened(script: ScriptedBroker, client: Client) -> None:
    script.publish(TWO)
    script.ends = {topic_of(of(TWO, 1)): (4, 11)}
    async with client.checkpoint_consumer(TOPIC, start="latest") as consumer:
        assert places(consumer) == {1: (4, 12, 0), 2: BEGINNING}
        assert script.seeks == []


async def test_a_time_is_sought_in_each_segment(script: ScriptedBroker, client: Client) -> None:
    topic = topic_of(of(ONE, 0))
    script.ends = {topic: (4, 11)}
    async with client.checkpoint_consumer(TOPIC, start=datetime.fromtimestamp(90_000, UTC)) as consumer:
        assert script.seeks == [(topic, 90_000_000)]
        assert places(consumer) == {0: (4, 12, 0)}


async def test_a_checkpoint_newer_than_the_layout_waits_for_a_newer_layout(
    script: ScriptedBroker, client: Client
) -> None:
    kept = Cut((at(of(TWO, 1), 3, 3, 0), at(of(TWO, 2), 4, 4, 0))).encode()
    opening = asyncio.create_task(_open(client, kept))
    await script.until(lambda: script.watches)
    script.publish(TWO)
    consumer = await opening
    assert consumer.reading == {1, 2}
    await consumer.close()


async def _open(client: Client, start: bytes) -> CheckpointConsumer:
    return await client.checkpoint_consumer(TOPIC, start=start)


async def test_a_checkpoint_of_another_topic_is_refused(script: ScriptedBroker, client: Client) -> None:
    stranger = Cut((Place(SegmentId(0), HashRange(0, 5)),))
    with pytest.raises(BadCheckpoint, match="another"):
        await client.checkpoint_consumer(TOPIC, start=stranger.encode())


async def test_a_place_that_the_broker_never_had_is_told(script: ScriptedBroker, client: Client) -> None:
    script.refusals[topic_of(of(ONE, 0))] = [pb.NotAllowedError]
    script.refusal_text = f"{UNKNOWN_POSITION} 9:3: never had that"
    kept = Cut((at(of(ONE, 0), 9, 3, 0),)).encode()
    with pytest.raises(
        BadCheckpoint, match=r"ledger 9, entry 3 of this checkpoint was never in .* another topic"
    ):
        await client.checkpoint_consumer(TOPIC, start=kept)


async def test_a_checkpoint_names_its_topic_and_every_reader_does(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = replace(ONE, topic_id="topic")
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver(topic, 5)
        await take(consumer, 1)
        kept = consumer.checkpoint()
    assert Cut.decode(kept) == Cut((at(of(ONE, 0), 1, 6, 0),), "topic")
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        await reading(script, of(ONE, 0))
        assert consumer.checkpoint() == kept
    told = [{item.key: item.value for item in asked.metadata} for asked in script.subscriptions]
    assert [one[TOPIC_ID] for one in told] == ["topic", "topic"]


@pytest.mark.parametrize("present", [ONE, TWO, MERGED])
async def test_a_checkpoint_of_a_topic_that_was_made_again_is_refused_at_once(
    script: ScriptedBroker, client: Client, present: SegmentLayout
) -> None:
    script.layout = replace(present, topic_id="present")
    kept = Cut((at(of(TWO, 1)), at(of(TWO, 2))), "former").encode()
    with pytest.raises(TopicMadeAgain, match=f"{TOPIC} was deleted and made again.*former.*present"):
        await client.checkpoint_consumer(TOPIC, start=kept)
    assert script.subscriptions == []


async def test_a_reader_hears_that_its_topic_was_made_again(script: ScriptedBroker, client: Client) -> None:
    script.layout = replace(ONE, topic_id="former")
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.refusals[topic] = [pb.NotAllowedError]
        script.refusal_text = f"{OTHER_TOPIC} present: was deleted and made again"
        script.links[-1].cut()
        with pytest.raises(TopicMadeAgain, match="made again while it was read"):
            await consumer.receive(timeout_s=10)


async def test_a_checkpoint_without_an_id_gets_one_and_goes_on(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = replace(ONE, topic_id="topic")
    old = Cut((at(of(ONE, 0), 9, 3, 0),))
    async with client.checkpoint_consumer(TOPIC, start=old.encode()) as consumer:
        await reading(script, of(ONE, 0))
        assert Cut.decode(consumer.checkpoint()) == Cut(old.places, "topic")


async def test_pulsar_is_asked_whether_it_ever_had_a_place(script: ScriptedBroker, client: Client) -> None:
    script.name = "Pulsar Server"
    topic = topic_of(of(ONE, 0))
    script.ends[topic] = (9, 2)
    async with client.checkpoint_consumer(TOPIC, start=Cut((at(of(ONE, 0), 9, 3, 0),)).encode()) as consumer:
        await reading(script, of(ONE, 0))
        assert consumer.reading == {0}
    for place in ((9, 4, 0), (10, 1, 0)):
        with pytest.raises(BadCheckpoint, match="was never in"):
            await client.checkpoint_consumer(TOPIC, start=Cut((at(of(ONE, 0), *place),)).encode())


# -- how far it is


async def test_a_checkpoint_may_lie_inside_a_batch(script: ScriptedBroker, client: Client) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver_batch(topic, 0, 3)
        await take(consumer, 1)
        assert places(consumer) == {0: (1, 0, 1)}
        await take(consumer, 1)
        assert places(consumer) == {0: (1, 0, 2)}
        await take(consumer, 1)
        assert places(consumer) == {0: (1, 1, 0)}


async def test_what_was_read_of_a_batch_is_not_given_out_again(
    script: ScriptedBroker, client: Client
) -> None:
    kept = Cut((at(of(ONE, 0), 1, 0, 2),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver_batch(topic, 0, 4)
        assert [m.payload for m in await take(consumer, 1)] == [b"0.2"]
        assert places(consumer) == {0: (1, 0, 3)}
        assert [m.payload for m in await take(consumer, 1)] == [b"0.3"]
        assert places(consumer) == {0: (1, 1, 0)}


async def test_what_arrived_and_was_not_taken_is_not_in_the_checkpoint(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        for entry in range(4):
            script.deliver(topic, entry)
        await take(consumer, 2)
        assert places(consumer) == {0: (1, 2, 0)}


async def test_a_receive_that_is_cancelled_loses_nothing(script: ScriptedBroker, client: Client) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        script.deliver_batch(topic, 0, 2)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert [m.payload for m in await take(consumer, 2)] == [b"0.0", b"0.1"]
        with pytest.raises(TimedOut):
            await consumer.receive(timeout_s=0.01)
        assert places(consumer) == {0: (1, 1, 0)}


async def test_after_a_lost_connection_it_goes_on_behind_what_has_arrived(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver(topic, 0)
        script.deliver(topic, 1)
        await take(consumer, 1)
        script.links[0].cut()
        await script.until(lambda: len(script.subscriptions) == 2)
        start = script.subscriptions[1].start_message_id
        assert (start.ledgerId, start.entryId) == (1, 1)
        # The broker sends the message to start behind too.
        await script.until(lambda: script.consumers[topic][0] is script.links[-1])
        script.deliver(topic, 1, b"again")
        script.deliver(topic, 2, b"next")
        assert [m.payload for m in await take(consumer, 2)] == [b"x", b"next"]


# -- the layout


async def test_children_begin_once_the_application_is_through_with_their_parent(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver_batch(topic, 0, 2)
        script.publish(TWO)
        end(script, topic)
        await take(consumer, 1)
        assert consumer.reading == {0}
        assert places(consumer) == {0: (1, 0, 1)}
        await take(consumer, 1)
        # The application has all of it, and says with its checkpoint that it is through.
        assert places(consumer) == {1: BEGINNING, 2: BEGINNING}
        assert consumer.reading == {1, 2}


async def test_a_merged_child_waits_for_both_parents(script: ScriptedBroker, client: Client) -> None:
    script.publish(MERGED)
    kept = Cut((at(of(TWO, 1), 1, 0, 0), at(of(TWO, 2), 1, 0, 0))).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        lower, upper = await reading(script, of(TWO, 1)), await reading(script, of(TWO, 2))
        waiting = asyncio.create_task(consumer.receive())
        end(script, lower)
        await script.until(lambda: any(name == lower for name, _ in script.closed))
        assert places(consumer) == {1: "over", 2: (1, 0, 0)}
        end(script, upper)
        await reading(script, of(MERGED, 3))
        assert places(consumer) == {3: BEGINNING}
        waiting.cancel()


async def test_an_end_that_comes_before_the_layout_says_so_is_remembered(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        waiting = asyncio.create_task(consumer.receive())
        end(script, topic)
        await script.until(lambda: any(name == topic for name, _ in script.closed))
        (place,) = Cut.decode(consumer.checkpoint()).places
        assert (place.is_over, place.sealed_epoch) == (True, 0)
        script.publish(TWO)
        await reading(script, of(TWO, 1))
        assert places(consumer) == {1: BEGINNING, 2: BEGINNING}
        waiting.cancel()


# -- what is lost


async def test_a_segment_that_is_gone_before_its_end_is_told_when_the_consumer_is_opened(
    script: ScriptedBroker, client: Client
) -> None:
    script.publish(MERGED.prune([0, 1]))
    kept = Cut((at(of(TWO, 1), 5, 6, 0), at(of(TWO, 2), 1, 0, 0))).encode()
    with pytest.raises(DataLost, match=r"segment 1 \(range 0000-7fff\) from ledger 5, entry 6 on") as lost:
        await client.checkpoint_consumer(TOPIC, start=kept)
    assert lost.value.gaps == (Gap(SegmentId(1), HashRange(0, 0x7FFF), (5, 6, 0)),)


async def test_a_segment_that_goes_while_it_is_read_is_told_behind_what_has_arrived(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.publish(TWO)
        script.deliver(topic, 0)
        script.deliver(topic, 1)
        await take(consumer, 1)
        script.publish(TWO.prune([0]))
        script.refusals[topic] = [pb.TopicNotFound]
        link, number = script.consumers[topic]
        link.send(C.CLOSE_CONSUMER, "close_consumer", consumer_id=number, request_id=0)
        await take(consumer, 1)
        with pytest.raises(DataLost, match=r"segment 0 .* from ledger 1, entry 2 on"):
            await take(consumer, 1)
        assert places(consumer) == {0: (1, 2, 0)}


@pytest.mark.parametrize("end", [(1, 2), (0, 0)])
async def test_a_segment_that_goes_once_all_of_it_was_read_is_over(
    script: ScriptedBroker, client: Client, end: tuple[int, int]
) -> None:
    script.tells_gone = True
    kept = Cut((at(of(ONE, 0), 1, 1, 0),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        topic = await reading(script, of(ONE, 0))
        script.publish(TWO)
        script.deliver(topic, 1)
        await take(consumer, 1)
        script.publish(TWO.mark_deleting([SegmentId(0)], {SegmentId(0): end}).prune([0]))
        script.refusals[topic] = [pb.TopicNotFound]
        link, number = script.consumers[topic]
        link.send(C.CLOSE_CONSUMER, "close_consumer", consumer_id=number, request_id=0)
        waiting = asyncio.create_task(consumer.receive())
        await reading(script, of(TWO, 1))
        assert places(consumer) == {1: BEGINNING, 2: BEGINNING}
        waiting.cancel()


async def test_a_checkpoint_of_a_segment_that_is_gone_is_good_if_all_of_it_was_read(
    script: ScriptedBroker, client: Client
) -> None:
    script.tells_gone = True
    script.publish(TWO.mark_deleting([SegmentId(0)], {SegmentId(0): (1, 2)}).prune([0]))
    kept = Cut((at(of(ONE, 0), 1, 2, 0),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        assert consumer.reading == {1, 2}
    early = Cut((at(of(ONE, 0), 1, 1, 0),)).encode()
    with pytest.raises(DataLost, match=r"segment 0 \(range 0000-ffff\) from ledger 1, entry 1 on"):
        await client.checkpoint_consumer(TOPIC, start=early)


async def test_what_retention_took_is_told(script: ScriptedBroker, client: Client) -> None:
    script.refusals[topic_of(of(ONE, 0))] = [pb.NotAllowedError]
    script.refusal_text = f"{DATA_LOST} 9:0: entries were deleted"
    kept = Cut((at(of(ONE, 0), 5, 6, 2),)).encode()
    with pytest.raises(DataLost, match=r"segment 0 .* from ledger 5, entry 6, message 2 of its batch on"):
        await client.checkpoint_consumer(TOPIC, start=kept)


async def test_a_generation_that_came_and_went_while_it_read_is_told(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver(topic, 0)
        await take(consumer, 1)
        script.publish(MERGED.prune([1, 2]))
        with pytest.raises(DataLost, match="behind segment 0"):
            await take(consumer, 1)


async def test_a_refusal_for_good_is_raised(script: ScriptedBroker, client: Client) -> None:
    script.refusals[topic_of(of(ONE, 0))] = [pb.AuthorizationError]
    with pytest.raises(RequestRefused, match="AuthorizationError"):
        await client.checkpoint_consumer(TOPIC, start="earliest")


# -- groups


def assigned(number: int) -> str:
    return f"segment://public/default/t/0000-ffff-{number}"


async def test_a_member_goes_on_where_it_was_in_a_segment_it_gets_back(
    script: ScriptedBroker, client: Client
) -> None:
    script.assigned = (0, [0])
    async with client.checkpoint_consumer(TOPIC, start="earliest", group="g") as consumer:
        await script.until(lambda: assigned(0) in script.consumers)
        script.deliver_batch(assigned(0), 0, 3)
        await take(consumer, 2)
        script.assign(0, [])
        await script.until(lambda: any(name == assigned(0) for name, _ in script.closed))
        assert places(consumer) == {0: (1, 0, 2)}
        script.assign(0, [0])
        await script.until(lambda: len(script.subscriptions) == 2)
        start = script.subscriptions[1].start_message_id
        assert (start.ledgerId, start.entryId, start.batch_index) == (1, 0, 1)


async def test_a_member_says_nothing_of_the_parents_of_a_child_it_was_given(
    script: ScriptedBroker, client: Client
) -> None:
    script.publish(TWO)
    script.assigned = (1, [])
    kept = Cut((at(of(TWO, 0), 3, 3, 0),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept, group="g") as consumer:
        assert consumer.checkpoint() == Cut().encode()
        script.assign(1, [2])
        await script.until(lambda: assigned(2) in script.consumers)
        cut = Cut.decode(consumer.checkpoint())
        assert cut == Cut((Place.of(of(TWO, 2), is_apart=True),))
        # Another has finished the parent: together they say it all.
        other = Cut((Place(SegmentId(0), WHOLE).over(1), at(of(TWO, 1), 4, 4, 0)))
        assert Cut.merge(cut, other) == Cut((at(of(TWO, 1), 4, 4, 0), at(of(TWO, 2))))


async def test_a_member_reports_at_once_what_its_checkpoint_calls_over(
    script: ScriptedBroker, client: Client
) -> None:
    script.publish(TWO)
    script.assigned = (1, [0])
    kept = Cut((at(of(TWO, 1), 3, 3, 0), at(of(TWO, 2), 4, 4, 0))).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept, group="g") as consumer:
        await script.until(lambda: ("session", 0, 0, False) in script.acks)
        script.assign(1, [1, 2])
        await script.until(lambda: {assigned(1), assigned(2)} <= script.consumers.keys())
        assert consumer.checkpoint() == kept


async def test_a_segment_that_is_assigned_before_the_layout_has_it_is_read_when_it_does(
    script: ScriptedBroker, client: Client
) -> None:
    script.assigned = (1, [1])
    async with client.checkpoint_consumer(TOPIC, start="earliest", group="g") as consumer:
        assert consumer.reading == frozenset()
        script.publish(TWO)
        await script.until(lambda: assigned(1) in script.consumers)
        assert consumer.reading == {1}


# -- messages in chunks


async def test_chunks_before_the_checkpoint_are_read_again_for_a_message_that_was_not_whole(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver(topic, 0, b"first")
        script.deliver_chunk(topic, 1, chunk=0, chunks=2)
        script.deliver(topic, 2, b"between")
        await take(consumer, 2)
        kept = consumer.checkpoint()
    (place,) = Cut.decode(kept).places
    assert (place.at[0], place.chunks_from) == ((1, 3, 0), (1, 1))
    async with client.checkpoint_consumer(TOPIC, start=kept) as consumer:
        await script.until(lambda: len(script.subscriptions) == 2)
        request = script.subscriptions[1]
        assert (request.start_message_id.ledgerId, request.start_message_id.entryId) == (1, 0)
        assert [item.value for item in request.metadata] == ["1:1"]
        await script.until(lambda: script.consumers[topic][1] == request.consumer_id)
        script.deliver(topic, 0, b"first")
        script.deliver_chunk(topic, 1, chunk=0, chunks=2)
        script.deliver(topic, 2, b"between")
        script.deliver_chunk(topic, 3, chunk=1, chunks=2)
        script.deliver(topic, 4, b"behind")
        assert [m.payload for m in await take(consumer, 2)] == [b"0.1.", b"behind"]
        (place,) = Cut.decode(consumer.checkpoint()).places
        assert (place.at[0], place.chunks_from) == ((1, 5, 0), None)


async def test_a_batch_that_is_read_from_its_middle_does_not_use_up_the_window(
    script: ScriptedBroker, client: Client
) -> None:
    kept = Cut((at(of(ONE, 0), 1, 0, 98),)).encode()
    async with client.checkpoint_consumer(TOPIC, start=kept, receive_queue=100) as consumer:
        topic = await reading(script, of(ONE, 0))
        given = script.permits
        script.deliver_batch(topic, 0, 100)
        assert [m.payload for m in await take(consumer, 2)] == [b"0.98", b"0.99"]
        # The broker counts all hundred.
        await script.until(lambda: script.permits >= given + 100)


async def test_a_checkpoint_covers_the_rows_that_were_taken_as_columns(
    script: ScriptedBroker, client: Client
) -> None:
    pytest.importorskip("pyarrow")
    async with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
        topic = await reading(script, of(ONE, 0))
        script.deliver_batch(topic, 0, 3)
        await take(consumer, 1)
        assert places(consumer) == {0: (1, 0, 1)}
        script.deliver_batch(topic, 1, 2)
        values: list[bytes] = []
        async with asyncio.timeout(60):
            while len(values) < 4:
                values += (await consumer.receive_arrow()).column("value").to_pylist()
        assert values == [b"0.1", b"0.2", b"1.0", b"1.1"]
        assert places(consumer) == {0: (1, 2, 0)}


async def test_a_closed_consumer_reads_nothing_though_a_segment_of_its_has_ended(
    script: ScriptedBroker, client: Client
) -> None:
    consumer = await client.checkpoint_consumer(TOPIC, start="earliest")
    topic = await reading(script, of(ONE, 0))
    script.deliver(topic, 0)
    await take(consumer, 1)
    end(script, topic)
    # The answers to another one of the same connection tell that all before them was heard.
    async with client.checkpoint_consumer(TOPIC, start="earliest"):
        pass
    await consumer.close()
    assert consumer.checkpoint()
    async with client.checkpoint_consumer(TOPIC, start="earliest"):
        assert script.attached == [topic]
