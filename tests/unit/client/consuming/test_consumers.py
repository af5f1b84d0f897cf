"""Stream, queue and checkpoint consumers against a scripted broker: assignments, acks, hand-over, reconnects."""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.client import Client, ConnectionLost, Message, RequestRefused, StreamConsumer, TopicDeleted
from anabranch.client.security import Security
from anabranch.client.transport import controller_session
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import Cut
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import OTHER_TYPE
from unit.client.scripted import ScriptedBroker, segment_topic

TOPIC = "topic://public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"
TWO = SegmentLayout.initial(1, 0).split(0, 0)


async def take(consumer: StreamConsumer, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await consumer.receive() for _ in range(count)]


async def open_stream(script: ScriptedBroker, client: Client, segments: list[int]) -> StreamConsumer:
    script.assigned = (0, segments)
    consumer = await client.stream_consumer(TOPIC, "s", consumer_name="one")
    await script.until(lambda: len(script.consumers) == len(segments))
    return consumer


async def test_one_acknowledgement_covers_a_position_in_each_segment(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        for segment, entry in ((1, 0), (2, 0), (1, 1), (2, 1), (1, 2)):
            script.deliver(segment_topic(segment), entry)
            (last,) = await take(consumer, 1)
        assert last.segment == 1
        assert last.topic == TOPIC
        await consumer.ack_cumulative(last)
        assert await consumer.flush()
        assert sorted(script.acks) == [(segment_topic(1), 1, 2, True), (segment_topic(2), 1, 1, True)]


async def test_what_was_delivered_later_is_not_acknowledged(script: ScriptedBroker, client: Client) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver(segment_topic(1), 0)
        (first,) = await take(consumer, 1)
        script.deliver(segment_topic(2), 0)
        await take(consumer, 1)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        assert script.acks == [(segment_topic(1), 1, 0, True)]


async def test_a_segment_taken_away_is_freed_and_its_messages_are_not_delivered(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver(segment_topic(1), 0)
        (held,) = await take(consumer, 1)
        script.deliver(segment_topic(1), 1, b"moves away")
        script.deliver(segment_topic(2), 0)
        await take(consumer, 2)
        script.deliver(segment_topic(1), 2, b"too late")
        script.assign(1, [2])
        await script.until(lambda: script.closed)
        assert script.closed[0][0] == segment_topic(1)
        script.deliver(segment_topic(2), 1, b"stays")
        assert [m.payload for m in await take(consumer, 1)] == [b"stays"]
        # It will be delivered to whoever has the segment now.
        await consumer.ack_cumulative(held)
        assert not await consumer.flush()


async def test_an_acknowledgement_says_so_if_it_includes_messages_of_a_segment_taken_away(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver(segment_topic(1), 0)
        (first,) = await take(consumer, 1)
        script.deliver(segment_topic(2), 0)
        await take(consumer, 1)
        script.deliver(segment_topic(1), 1)
        (last,) = await take(consumer, 1)
        script.assign(1, [1])
        await script.until(lambda: script.closed)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        # That of segment 2, which comes again elsewhere, cannot be acknowledged here any more.
        await consumer.ack_cumulative(last)
        assert not await consumer.flush()
        assert await consumer.flush()
        assert sorted(script.acks) == [(segment_topic(1), 1, 0, True), (segment_topic(1), 1, 1, True)]


async def test_a_batch_that_was_acknowledged_in_part_and_taken_away_is_no_loss(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver_batch(segment_topic(1), 0, 3)
        (first,) = await take(consumer, 1)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        script.assign(1, [2])
        await script.until(lambda: script.closed)
        # The rest of the batch goes elsewhere, and was never here.
        script.deliver(segment_topic(2), 0)
        (other,) = await take(consumer, 1)
        await consumer.ack_cumulative(other)
        assert await consumer.flush()


async def test_acknowledging_again_what_is_stored_is_no_loss_when_its_segment_was_taken_away(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver(segment_topic(1), 0)
        (message,) = await take(consumer, 1)
        await consumer.ack_cumulative(message)
        assert await consumer.flush()
        script.assign(1, [2])
        await script.until(lambda: script.closed)
        await consumer.ack_cumulative(message)
        assert await consumer.flush()


async def test_an_assignment_of_an_older_layout_is_ignored(script: ScriptedBroker, client: Client) -> None:
    script.assigned = (3, [1])
    async with await client.stream_consumer(TOPIC, "s") as consumer:
        script.assign(2, [1, 2])
        script.assign(3, [1, 5])
        await script.until(lambda: segment_topic(5) in script.consumers)
        assert consumer.assigned == {1, 5}


async def test_an_update_right_behind_the_answer_to_a_registration_is_the_newer_word(
    script: ScriptedBroker, client: Client
) -> None:
    script.assigned = (3, [])
    script.assigned_next = (3, [7])
    async with await client.stream_consumer(TOPIC, "s") as consumer:
        await script.until(lambda: segment_topic(7) in script.consumers)
        assert consumer.assigned == {7}
        script.deliver(segment_topic(7), 0)
        await take(consumer, 1)


async def test_a_segment_that_its_last_consumer_still_holds_is_tried_again(
    script: ScriptedBroker, client: Client
) -> None:
    script.refusals[segment_topic(1)] = [pb.ConsumerBusy] * 3
    async with await open_stream(script, client, [1]) as consumer:
        script.deliver(segment_topic(1), 0)
        await take(consumer, 1)


async def test_a_subscription_whose_consumers_are_of_another_type_is_told_when_it_is_opened(
    script: ScriptedBroker, client: Client
) -> None:
    script.refusals[segment_topic(0)] = [pb.ConsumerBusy]
    script.refusal_text = f"{OTHER_TYPE}. Active subscription type of 'Shared' is different"
    script.assigned = (0, [0])
    with pytest.raises(
        RequestRefused, match=r"subscription s of topic://.* has consumers of another type"
    ) as told:
        await client.stream_consumer(TOPIC, "s")
    assert told.value.retryable


@pytest.mark.parametrize("error", [pb.NotAllowedError, pb.SubscriptionNotFound])
async def test_a_subscription_that_is_not_to_be_is_told_when_it_is_opened(
    script: ScriptedBroker, client: Client, error: int
) -> None:
    script.refusals[segment_topic(0)] = [error]
    script.refusal_text = "Exceed the maximum number of subscriptions"
    script.assigned = (0, [0])
    with pytest.raises(RequestRefused, match="maximum number") as told:
        await client.stream_consumer(TOPIC, "s")
    assert told.value.error == error


async def test_a_consumer_that_was_subscribed_waits_for_those_of_another_type_to_leave(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [0]) as consumer:
        script.refusals[segment_topic(0)] = [pb.ConsumerBusy]
        script.refusal_text = OTHER_TYPE
        former, _ = script.consumers[segment_topic(0)]
        former.cut()
        await script.until(lambda: script.consumers[segment_topic(0)][0] is not former)
        assert script.refusals[segment_topic(0)] == []
        script.deliver(segment_topic(0), 0)
        assert len(await take(consumer, 1)) == 1


async def test_leaving_is_said_to_the_controller_and_frees_the_segments(
    script: ScriptedBroker, client: Client
) -> None:
    consumer = await open_stream(script, client, [1, 2])
    session = script.sessions[-1][1].consumer_id
    await consumer.leave()
    assert ("session", session) in script.closed
    assert {what for what, _ in script.closed} == {"session", segment_topic(1), segment_topic(2)}
    await consumer.close()


async def test_a_lost_connection_registers_again_under_the_same_name(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        script.deliver(segment_topic(1), 0)
        (before,) = await take(consumer, 1)
        script.consumers.clear()
        for link in script.links:
            link.cut()
        await script.until(lambda: len(script.sessions) == 2 and script.consumers)
        assert [request.consumer_name for _, request in script.sessions] == ["one", "one"]
        script.deliver(segment_topic(1), 0, b"again")
        (after,) = await take(consumer, 1)
        await consumer.ack_cumulative(before)
        assert not await consumer.flush()
        await consumer.ack_cumulative(after)
        assert await consumer.flush()


async def test_a_crash_says_nothing(script: ScriptedBroker, client: Client) -> None:
    consumer = await open_stream(script, client, [1])
    consumer.crash()
    await asyncio.sleep(0)
    assert script.closed == []


async def test_a_deleted_topic_ends_the_stream(script: ScriptedBroker, client: Client) -> None:
    consumer = await open_stream(script, client, [1])
    script.is_deleted = True
    for link in script.links:
        link.cut()
    with pytest.raises(TopicDeleted):
        await take(consumer, 1)
    await consumer.close()


async def test_a_queue_consumer_attaches_to_active_and_sealed_segments_and_to_new_ones(
    script: ScriptedBroker, client: Client
) -> None:
    async with await client.queue_consumer(TOPIC, "q") as consumer:
        assert consumer.attached == {0}
        await script.until(lambda: script.consumers)
        script.publish(TWO)
        await script.until(lambda: len(script.consumers) == 3)
        script.deliver(ROOT, 0)
        async with asyncio.timeout(10):
            message = await consumer.receive()
        await consumer.ack(message)
        assert await consumer.flush()
        assert script.acks == [(ROOT, 1, 0, False)]
        link, number = script.consumers[ROOT]
        link.send(pb.BaseCommand.REACHED_END_OF_TOPIC, "reachedEndOfTopic", consumer_id=number)
        await script.until(lambda: script.closed)
        assert consumer.drained == {0}


async def test_a_group_member_reports_a_segment_once_its_application_comes_back_for_more(
    script: ScriptedBroker, client: Client
) -> None:
    script.assigned = (0, [0])
    consumer = await client.checkpoint_consumer(TOPIC, group="g", start="earliest", consumer_name="m")
    async with consumer:
        topic = segment_topic(0)
        await script.until(lambda: script.consumers)
        script.deliver(topic, 0)
        async with asyncio.timeout(10):
            await consumer.receive()
        assert script.acks == []
        coming_back = asyncio.create_task(consumer.receive())
        await script.until(lambda: (topic, 1, 0, True) in script.acks)
        link, number = script.consumers[topic]
        link.send(pb.BaseCommand.REACHED_END_OF_TOPIC, "reachedEndOfTopic", consumer_id=number)
        await script.until(lambda: ("session", 0, 0, False) in script.acks)
        (place,) = Cut.decode(consumer.checkpoint()).places
        assert place.segment == 0
        assert place.is_over
        coming_back.cancel()


async def test_a_controller_that_does_not_answer_reports_is_told_again_over_the_same_connection(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_session, "REPORT_MAX_S", 0.01)
    script.answers_acks = False
    script.assigned = (0, [0])
    async with client.checkpoint_consumer(TOPIC, group="g", start="earliest") as consumer:
        await script.until(lambda: script.consumers)
        link, number = script.consumers[segment_topic(0)]
        coming_back = asyncio.create_task(consumer.receive())
        link.send(pb.BaseCommand.REACHED_END_OF_TOPIC, "reachedEndOfTopic", consumer_id=number)
        await script.until(lambda: script.acks.count(("session", 0, 0, False)) >= 2)
        assert len(script.sessions) == 1
        coming_back.cancel()


async def test_a_message_between_the_chunks_of_another_does_not_acknowledge_them(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        topic = segment_topic(1)
        script.deliver_chunk(topic, 0, chunk=0, chunks=2)
        script.deliver(topic, 1, b"between")
        (between,) = await take(consumer, 1)
        await consumer.ack_cumulative(between)
        assert await consumer.flush()
        assert script.acks == [(topic, 1, 1, False)]
        script.deliver_chunk(topic, 2, chunk=1, chunks=2)
        (large,) = await take(consumer, 1)
        assert large.payload == b"0.1."
        await consumer.ack_cumulative(large)
        assert await consumer.flush()
        assert script.acks[1:] == [(topic, 1, 2, True)]


@pytest.mark.parametrize("is_moved_back", [False, True])
async def test_acknowledgements_are_sent_again_unless_the_subscription_was_moved_back(
    script: ScriptedBroker, client: Client, is_moved_back: bool
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        topic = segment_topic(1)
        for entry in (7, 8):
            script.deliver(topic, entry)
        first, second = await take(consumer, 2)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        script.answers_acks = False
        await consumer.ack_cumulative(second)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: len(script.acks) == 2)
        script.answers_acks = True
        script.ends[topic] = (1, 3 if is_moved_back else 7)
        for link in script.links:
            link.cut()
        assert await flushing is not is_moved_back
        assert len(script.acks) == (2 if is_moved_back else 3)


async def lose(script: ScriptedBroker, segment: int) -> None:
    """Cuts every connection and returns once all segments are subscribed to again, but for one, which is refused."""
    script.refusals[segment_topic(segment)] = [pb.ServiceNotReady] * 1000
    script.consumers.clear()
    for link in script.links:
        link.cut()
    await script.until(lambda: script.consumers)


async def test_what_a_lost_segment_had_ready_is_not_acknowledged_with_others(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver(segment_topic(1), 6)
        script.deliver_batch(segment_topic(1), 7, 3)
        before, first = await take(consumer, 2)
        assert (before.entry, first.payload) == (6, b"7.0")
        await lose(script, 1)
        # The rest of the batch has left the inbox. An acknowledgement includes only what was taken of it.
        script.deliver(segment_topic(2), 0)
        (other,) = await take(consumer, 1)
        await consumer.ack_cumulative(other)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.acks)
        script.refusals.clear()
        assert await flushing
        assert script.acks == [(segment_topic(2), 1, 0, True)]
        assert script.parts == [(7, 0b110)]
        script.deliver_batch(segment_topic(1), 7, 3, unacked=0b110)
        rest = await take(consumer, 2)
        assert [message.payload for message in rest] == [b"7.1", b"7.2"]
        await consumer.ack_cumulative(rest[-1])
        assert await consumer.flush()
        assert script.acks[1:] == [(segment_topic(1), 1, 7, True)]


async def test_what_was_opened_ahead_of_a_lost_segment_is_not_acknowledged_with_others(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        for entry in range(5):
            script.deliver(segment_topic(1), entry)
        await consumer.receive()
        # As for other threads.
        async with asyncio.timeout(10):
            second = await consumer.receive_ahead()
        assert second.entry == 1
        await lose(script, 1)
        script.deliver(segment_topic(2), 0)
        (other,) = await take(consumer, 1)
        await consumer.ack_cumulative(other)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.acks)
        script.refusals.clear()
        assert await flushing
        assert script.acks[0] == (segment_topic(2), 1, 0, True)
        # In segment 1: sent when it was subscribed to again, up to what was taken.
        assert [ack[1:] for ack in script.acks[1:]] == [(1, 1, True)]


async def test_what_a_lost_segment_had_ready_between_chunks_is_not_acknowledged_with_others(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        script.deliver_chunk(segment_topic(1), 0, chunk=0, chunks=2)
        script.deliver_batch(segment_topic(1), 1, 2)
        (first,) = await take(consumer, 1)
        assert first.payload == b"1.0"
        await lose(script, 1)
        script.deliver(segment_topic(2), 0)
        (other,) = await take(consumer, 1)
        await consumer.ack_cumulative(other)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.acks)
        script.refusals.clear()
        assert await flushing
        assert script.acks == [(segment_topic(2), 1, 0, True)]
        assert script.parts == [(1, 0b10)]


async def test_a_broker_that_closes_a_consumer_has_a_reason_and_gets_no_acknowledgements_of_before(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        topic = segment_topic(1)
        script.deliver(topic, 7)
        (message,) = await take(consumer, 1)
        link, number = script.consumers.pop(topic)
        await consumer.ack_cumulative(message)
        link.send(pb.BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=number, request_id=0)
        await script.until(lambda: script.consumers)
        assert not await consumer.flush()
        assert script.acks == []


async def test_an_assignment_that_comes_while_a_stream_leaves_is_not_read(
    script: ScriptedBroker, client: Client
) -> None:
    consumer = await open_stream(script, client, [1])
    # It is in the socket before the consumer starts to leave, and is read from it before the consumer has left.
    script.assign(1, [1, 2])
    await consumer.close()
    # The answer to another request over the same connection tells that all before it was heard.
    await client.stream_consumer(TOPIC, "other", consumer_name="other")
    assert script.attached == [segment_topic(1)]


async def test_a_stream_whose_close_is_cancelled_leaves_all_the_same(
    script: ScriptedBroker, client: Client
) -> None:
    consumer = await open_stream(script, client, [1, 2])
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)  # It has begun.
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await script.until(lambda: len(script.closed) == 3)
    assert {name for name, _ in script.closed} == {"session", segment_topic(1), segment_topic(2)}
    assert script.attached == []


async def test_a_subscription_that_cannot_be_looked_at_is_closed_before_the_next_one(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        topic = segment_topic(1)
        for entry in (7, 8):
            script.deliver(topic, entry)
        first, second = await take(consumer, 2)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        # With an acknowledgement that waits, a consumer that comes back looks where the subscription is.
        script.answers_acks = False
        await consumer.ack_cumulative(second)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: len(script.acks) == 2)
        script.answers_acks = True
        script.places_refused = 2
        script.ends[topic] = (1, 7)
        for link in script.links:
            link.cut()
        assert await flushing
        assert script.places_refused == 0
        assert script.attached == [topic]


@pytest.mark.parametrize("failure", [OSError("the vault is sealed"), KeyError("token"), None])
async def test_a_token_that_cannot_be_told_for_a_while_ends_nothing(
    script: ScriptedBroker, failure: Exception | None
) -> None:
    """Whoever connects again asks for it, and goes on asking: a producer, a consumer and the watch of the layout."""
    failed = 0
    is_failing, is_enough = False, asyncio.Event()

    def token() -> str:
        nonlocal failed
        if not is_failing:
            return "secret"
        failed += 1
        if failed == 5:
            is_enough.set()
        if failure is not None:
            raise failure
        return None  # type: ignore[return-value]  # As a function may that is not checked.

    async with Client(script.url, chance=random.Random(1), security=Security(token=token)) as client:
        producer = await client.producer(TOPIC)
        await producer.send(b"x")
        consumer = await client.queue_consumer(TOPIC, "q")
        await script.until(lambda: script.consumers)
        is_failing = True
        link, _ = next(iter(script.consumers.values()))
        script.consumers.clear()
        link.cut()
        async with asyncio.timeout(10):
            await is_enough.wait()
        is_failing = False
        await script.until(lambda: script.consumers)
        await producer.send(b"y")
        script.deliver(ROOT, 0)
        assert (await consumer.receive(timeout_s=10)).payload == b"x"


@pytest.mark.parametrize("url", ["pulsar://host:99999", "pulsar://[::1", f"pulsar://{'x' * 70}.example:1"])
async def test_an_address_that_is_none_is_a_connection_that_cannot_be_had(url: str) -> None:
    with pytest.raises(ConnectionLost):
        await Connections(url).to(url)
