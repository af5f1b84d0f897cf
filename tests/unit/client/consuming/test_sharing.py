"""A stream consumer whose segments come to be shared by entry buckets, against a scripted broker: flips and acks."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client import Client, Message, StreamConsumer
from anabranch.client.consuming import stream
from anabranch.errors import AnabranchError
from anabranch.model.buckets import even, ranges
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message
from anabranch.wire.extensions import OTHER_TYPE
from unit.client.scripted import ScriptedBroker, segment_topic

TOPIC = "topic://public/default/t"
ONE = segment_topic(1)
EXCLUSIVE, KEY_SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Key_Shared


async def take(consumer: StreamConsumer, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await consumer.receive() for _ in range(count)]


async def open_stream(script: ScriptedBroker, client: Client, shared: dict[int, int]) -> StreamConsumer:
    """A consumer of those segments; the number says how many buckets a shared segment has."""
    assign(script, shared, is_first=True)
    consumer = await client.stream_consumer(TOPIC, "s", consumer_name="one")
    await script.until(lambda: len(script.consumers) == len(shared))
    return consumer


def assign(script: ScriptedBroker, shared: dict[int, int], *, is_first: bool = False) -> None:
    script.buckets = shared
    script.assigned = (0, list(shared))
    if not is_first:
        script.assign(0, list(shared))


async def reads_as(script: ScriptedBroker, kind: int, times: int) -> None:
    """Waits until segment 1 has been subscribed to so often, the last time in this way, and is ready for messages."""

    def is_ready() -> bool:
        mine = [one for one in script.subscriptions if one.topic == ONE]
        return len(mine) == times and script.consumers[ONE][1] == mine[-1].consumer_id

    await script.until(is_ready)
    assert [one.subType for one in script.subscriptions if one.topic == ONE][-1] == kind


async def test_a_stream_and_a_group_member_say_that_they_know_buckets(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 0}):
        assert script.sessions[-1][1].anabranch_knows_buckets
        async with client.checkpoint_consumer(TOPIC, group="g", start="earliest"):
            assert script.sessions[-1][1].consumer_type == pb.CHECKPOINT
            assert script.sessions[-1][1].anabranch_knows_buckets


@pytest.mark.parametrize("count", [2, 7])
async def test_a_shared_segment_is_subscribed_to_with_all_of_its_buckets(
    script: ScriptedBroker, client: Client, count: int
) -> None:
    async with await open_stream(script, client, {1: count, 2: 0}) as consumer:
        asked = {one.topic: one for one in script.subscriptions}
        shared = asked[ONE]
        assert shared.subType == KEY_SHARED
        assert shared.keySharedMeta.keySharedMode == pb.STICKY
        assert shared.keySharedMeta.entryBucketDispatch
        found = [(one.start, one.end) for one in shared.keySharedMeta.hashRanges]
        assert found == [(one.start, one.end) for one in ranges(even(count))]
        whole = asked[segment_topic(2)]
        assert whole.subType == EXCLUSIVE
        assert not whole.HasField("keySharedMeta")
        # By these names, the brokers know who has which bucket.
        assert [one.consumer_name for one in (shared, whole)] == ["one-seg-1", "one-seg-2"]
        assert repr(consumer).endswith("sharing 1>")


async def test_one_acknowledgement_is_single_in_a_shared_segment_and_a_position_in_another(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4, 2: 0}) as consumer:
        # What lies between them went to other sharers.
        for segment, entry in ((1, 3), (2, 0), (1, 7), (2, 1), (1, 8)):
            script.deliver(segment_topic(segment), entry)
            (last,) = await take(consumer, 1)
            before = last if entry == 7 else None
            if before is not None:
                await consumer.ack_cumulative(before)
                assert await consumer.flush()
                assert sorted(script.acks) == [
                    (ONE, 1, 3, False),
                    (ONE, 1, 7, False),
                    (segment_topic(2), 1, 0, True),
                ]
        await consumer.ack_cumulative(last)
        assert await consumer.flush()
        assert sorted(script.acks[3:]) == [(ONE, 1, 8, False), (segment_topic(2), 1, 1, True)]


async def test_part_of_a_batch_is_acknowledged_by_its_bits(script: ScriptedBroker, client: Client) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.deliver(ONE, 1)
        script.deliver_batch(ONE, 5, 3)
        found = await take(consumer, 4)
        await consumer.ack_cumulative(found[2])
        assert await consumer.flush()
        assert script.acks == [(ONE, 1, 1, False)]
        assert script.parts == [(5, 0b100)]
        await consumer.ack_cumulative(found[3])
        assert await consumer.flush()
        assert script.acks[1:] == [(ONE, 1, 5, False)]


async def test_part_of_a_batch_of_a_segment_taken_away_is_not_acknowledged(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4, 2: 0}) as consumer:
        script.deliver_batch(ONE, 5, 3)
        await take(consumer, 1)
        assign(script, {2: 0})
        await script.until(lambda: script.closed)
        script.deliver(segment_topic(2), 0)
        (other,) = await take(consumer, 1)
        await consumer.ack_cumulative(other)
        # What the application had of the lost segment went with it.
        assert not await consumer.flush()
        assert script.acks == [(segment_topic(2), 1, 0, True)]
        assert script.parts == []


async def test_many_messages_may_be_out(script: ScriptedBroker, client: Client) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        count = 3000
        for entry in range(count):
            script.deliver(ONE, entry)
        found = await take(consumer, count)
        await consumer.ack_cumulative(found[-1])
        assert await consumer.flush()
        assert script.acks == [(ONE, 1, entry, False) for entry in range(count)]


async def test_single_acknowledgements_are_sent_again_after_a_lost_connection(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.deliver(ONE, 2)
        script.deliver_batch(ONE, 6, 2)
        found = await take(consumer, 3)
        script.answers_acks = False
        await consumer.ack_cumulative(found[1])
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.parts)
        script.answers_acks = True
        for link in script.links:
            link.cut()
        assert await flushing
        assert [ack[1:] for ack in script.acks] == [(1, 2, False)] * 2
        assert script.parts == [(6, 0b10)] * 2
        await reads_as(script, KEY_SHARED, 2)


@pytest.mark.parametrize("is_moved_back", [False, True])
async def test_single_acknowledgements_are_not_sent_again_if_the_subscription_was_moved_back(
    script: ScriptedBroker, client: Client, is_moved_back: bool
) -> None:
    script.ends[ONE] = (1, 4)
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.deliver(ONE, 7)
        (message,) = await take(consumer, 1)
        script.answers_acks = False
        await consumer.ack_cumulative(message)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.acks)
        script.answers_acks = True
        script.ends[ONE] = (1, 3 if is_moved_back else 6)
        for link in script.links:
            link.cut()
        assert await flushing is not is_moved_back
        assert len(script.acks) == (1 if is_moved_back else 2)


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_broker_that_does_not_say_where_the_cursor_is_matters_only_with_acknowledgements(
    script: ScriptedBroker, client: Client, is_waiting: bool
) -> None:
    script.places_refused = 1
    async with await open_stream(script, client, {1: 4}) as consumer:
        assert len(script.subscriptions) == 1
        script.deliver(ONE, 7)
        (message,) = await take(consumer, 1)
        if is_waiting:
            script.answers_acks = False
            await consumer.ack_cumulative(message)
            flushing = asyncio.create_task(consumer.flush())
            await script.until(lambda: script.acks)
            script.answers_acks = True
        script.places_refused = 1
        for link in script.links:
            link.cut()
        await reads_as(script, KEY_SHARED, 3 if is_waiting else 2)
        assert not is_waiting or await flushing


async def test_a_chunked_message_is_acknowledged_in_all_its_chunks(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.deliver_chunk(ONE, 2, chunk=0, chunks=3)
        script.deliver(ONE, 3, b"between")
        script.deliver_chunk(ONE, 4, chunk=1, chunks=3)
        # Its producer has sent a chunk twice: the message holds the second one.
        script.deliver_chunk(ONE, 7, chunk=1, chunks=3)
        script.deliver_chunk(ONE, 8, chunk=2, chunks=3)
        between, large = await take(consumer, 2)
        assert large.payload == b"0.1.2."
        assert await consumer.flush()
        assert script.acks == [(ONE, 1, 4, False)]
        await consumer.ack_cumulative(between)
        assert await consumer.flush()
        assert script.acks[1:] == [(ONE, 1, 3, False)]
        await consumer.ack_cumulative(large)
        assert await consumer.flush()
        assert script.acks[2:] == [(ONE, 1, 2, False), (ONE, 1, 7, False), (ONE, 1, 8, False)]


async def test_an_entry_that_cannot_be_read_is_acknowledged_with_later_messages(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        link, number = script.consumers[ONE]
        batch_of_two = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2
        )
        link.send_entry(
            pb.CommandMessage(consumer_id=number, message_id=pb.MessageIdData(ledgerId=1, entryId=4)),
            build_message(batch_of_two, b"no batch"),
        )
        script.deliver(ONE, 5)
        with pytest.raises(AnabranchError):
            await take(consumer, 1)
        assert await consumer.flush()
        assert script.acks == []
        (after,) = await take(consumer, 1)
        await consumer.ack_cumulative(after)
        assert await consumer.flush()
        assert script.acks == [(ONE, 1, 4, False), (ONE, 1, 5, False)]


async def test_a_sealed_segment_that_is_shared_reaches_its_end(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        link, number = script.consumers[ONE]
        link.send(pb.BaseCommand.REACHED_END_OF_TOPIC, "reachedEndOfTopic", consumer_id=number)
        script.deliver(ONE, 0)
        await take(consumer, 1)
        assert consumer.drained == {1}
        assign(script, {})
        await script.until(lambda: script.closed)
        assert consumer.assigned == frozenset()


async def test_a_seek_gives_up_the_acknowledgements_of_before(script: ScriptedBroker, client: Client) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.deliver(ONE, 7)
        (message,) = await take(consumer, 1)
        link, number = script.consumers[ONE]
        await consumer.ack_cumulative(message)
        # As brokers do for a seek.
        link.send(pb.BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=number, request_id=0)
        await reads_as(script, KEY_SHARED, 2)
        assert not await consumer.flush()
        assert script.acks == []


# -- from alone to shared, and back

BOTH_WAYS = pytest.mark.parametrize(
    ("before", "after", "kind"), [({1: 0}, {1: 4}, KEY_SHARED), ({1: 4}, {1: 0}, EXCLUSIVE)]
)


@BOTH_WAYS
async def test_a_segment_with_nothing_out_is_read_in_the_other_way_at_once(
    script: ScriptedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[int, int],
    after: dict[int, int],
    kind: int,
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    async with await open_stream(script, client, before) as consumer:
        script.deliver(ONE, 0)
        (first,) = await take(consumer, 1)
        await consumer.ack_cumulative(first)
        assign(script, after)
        await reads_as(script, kind, 2)
        assert script.acks == [(ONE, 1, 0, not before[1])]
        # The consumer is closed before the other begins.
        assert script.closed == [(ONE, script.subscriptions[0].consumer_id)]
        script.deliver(ONE, 1)
        (second,) = await take(consumer, 1)
        await consumer.ack_cumulative(second)
        assert await consumer.flush()
        assert script.acks[1:] == [(ONE, 1, 1, not after[1])]


@BOTH_WAYS
async def test_what_is_out_is_waited_for_and_what_waits_comes_again(
    script: ScriptedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[int, int],
    after: dict[int, int],
    kind: int,
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    async with await open_stream(script, client, before) as consumer:
        script.deliver_batch(ONE, 0, 3)
        script.deliver(ONE, 1)
        first, second = await take(consumer, 2)
        assign(script, after)
        await consumer.ack_cumulative(first)
        assert await consumer.flush()
        assert script.parts[-1] == (0, 0b110)
        # While it waits, nothing more is given out.
        script.deliver(ONE, 2)
        await nothing_comes(script, client, consumer)
        assert ONE not in dict(script.closed)
        await consumer.ack_cumulative(second)
        await reads_as(script, kind, 2)
        assert script.parts[-1] == (0, 0b100)
        assert await consumer.flush()
        script.deliver_batch(ONE, 0, 3, unacked=0b100)
        script.deliver(ONE, 1, b"1")
        script.deliver(ONE, 2, b"2")
        found = await take(consumer, 3)
        assert [one.payload for one in found] == [b"0.2", b"1", b"2"]
        await consumer.ack_cumulative(found[-1])
        assert await consumer.flush()


async def nothing_comes(script: ScriptedBroker, client: Client, consumer: StreamConsumer) -> None:
    """Nothing of what the script has sent by now is given out: it was heard before another consumer was attached."""
    await client.queue_consumer(TOPIC, f"other-{len(script.subscriptions)}")
    receiving = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    assert not receiving.done()
    receiving.cancel()


async def test_an_application_that_does_not_acknowledge_holds_a_segment_no_longer_than_that(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 0.01)
    async with await open_stream(script, client, {1: 0}) as consumer:
        script.deliver(ONE, 0)
        (held,) = await take(consumer, 1)
        assign(script, {1: 4})
        await reads_as(script, KEY_SHARED, 2)
        # It comes again, to whoever has its bucket.
        await consumer.ack_cumulative(held)
        assert not await consumer.flush()
        assert script.acks == []
        script.deliver(ONE, 0)
        (again,) = await take(consumer, 1)
        await consumer.ack_cumulative(again)
        assert await consumer.flush()
        assert script.acks == [(ONE, 1, 0, False)]


async def test_an_application_that_waits_for_its_next_message_does_not_hold_a_segment(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledges with later messages, and none would come."""
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    monkeypatch.setattr(stream, "FLIP_STARVED_S", 0.01)
    async with await open_stream(script, client, {1: 0, 2: 0}) as consumer:
        for segment in (ONE, segment_topic(2)):
            script.deliver(segment, 0)
        held = await take(consumer, 2)
        # Both at once.
        assign(script, {1: 4, 2: 4})
        # It works on a message.
        await asyncio.sleep(0)
        assert len(script.subscriptions) == 2
        waiting = asyncio.create_task(consumer.receive())
        await script.until(lambda: len(script.subscriptions) == 4)
        await reads_as(script, KEY_SHARED, 2)
        script.deliver(ONE, 0)
        again = await waiting
        await consumer.ack_cumulative(held[0])
        await consumer.ack_cumulative(again)
        await consumer.flush()
        assert script.acks == [(ONE, 1, 0, False)]


async def test_an_assignment_that_is_taken_back_meanwhile_is_read_as_it_is_by_then(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    async with await open_stream(script, client, {1: 0}) as consumer:
        script.deliver(ONE, 0)
        script.deliver(ONE, 1, b"waits")
        (first,) = await take(consumer, 1)
        assign(script, {1: 4})
        assign(script, {})
        assign(script, {1: 4})
        assign(script, {1: 0})
        await reads_as(script, EXCLUSIVE, 2)
        assert consumer.assigned == {1}
        await consumer.ack_cumulative(first)
        assert not await consumer.flush()
        script.deliver(ONE, 0)
        script.deliver(ONE, 1, b"waits")
        assert [one.payload for one in await take(consumer, 2)] == [b"x", b"waits"]


async def test_a_segment_that_is_taken_away_meanwhile_is_freed_at_once(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    async with await open_stream(script, client, {1: 0, 2: 0}) as consumer:
        script.deliver(ONE, 0)
        await take(consumer, 1)
        assign(script, {1: 4, 2: 0})
        await nothing_comes(script, client, consumer)
        assign(script, {2: 0})
        await script.until(lambda: ONE in dict(script.closed))
        assert consumer.assigned == {2}
        script.deliver(segment_topic(2), 0)
        await take(consumer, 1)
        assert [one.topic for one in script.subscriptions].count(ONE) == 1


async def test_a_consumer_may_be_closed_meanwhile(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    consumer = await open_stream(script, client, {1: 0})
    script.deliver(ONE, 0)
    (held,) = await take(consumer, 1)
    assign(script, {1: 4})
    await nothing_comes(script, client, consumer)
    await consumer.ack_cumulative(held)
    async with asyncio.timeout(10):
        await consumer.close()
    assert script.acks == [(ONE, 1, 0, True)]
    assert {ONE, "session"} <= {name for name, _ in script.closed}
    async with await client.queue_consumer(TOPIC, "q"):
        # Anything that the stream asked for before has been answered, too.
        assert [one.topic for one in script.subscriptions].count(ONE) == 1
        assert ONE not in script.attached


async def test_a_segment_is_subscribed_to_again_once_it_is_closed(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 0}) as consumer:
        script.answers_closes = False
        assign(script, {1: 4})
        await script.until(lambda: script.closed)
        await nothing_comes(script, client, consumer)
        assert [one.topic for one in script.subscriptions].count(ONE) == 1
        script.answer_closes()
        await reads_as(script, KEY_SHARED, 2)


async def test_a_crash_meanwhile_says_nothing(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 1000.0)
    consumer = await open_stream(script, client, {1: 0})
    script.deliver(ONE, 0)
    await take(consumer, 1)
    assign(script, {1: 4})
    await nothing_comes(script, client, consumer)
    consumer.crash()
    await asyncio.sleep(0)
    assert ONE not in dict(script.closed)


async def test_a_connection_that_is_lost_meanwhile_ends_the_wait(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FLIP_MAX_S", 0.05)
    async with await open_stream(script, client, {1: 0}) as consumer:
        script.deliver(ONE, 0)
        (held,) = await take(consumer, 1)
        assign(script, {1: 4})
        await nothing_comes(script, client, consumer)
        for link in script.links:
            link.cut()
        await consumer.ack_cumulative(held)
        await reads_as(script, KEY_SHARED, 2)
        # A position of when it read alone would acknowledge what others have.
        assert not await consumer.flush()
        assert script.acks == []


# -- those who have not left yet


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pb.ConsumerBusy, "Exclusive consumer is already connected"),
        (
            pb.ConsumerBusy,
            f"{OTHER_TYPE}. s is Exclusive and has consumers; a Key_Shared consumer cannot join",
        ),
        (pb.ConsumerBusy, f"{OTHER_TYPE}. Active subscription type of 'Key_Shared' is different"),
        (pb.ConsumerAssignError, "Range conflict with consumer"),
    ],
)
async def test_others_who_have_not_left_yet_are_waited_for(
    script: ScriptedBroker, client: Client, error: int, text: str
) -> None:
    script.refusals[ONE] = [error] * 3
    script.refusal_text = text
    async with await open_stream(script, client, {1: 4}) as consumer:
        assert script.attempts == 4
        script.refusals[ONE] = [error] * 3
        assign(script, {1: 0})
        await reads_as(script, EXCLUSIVE, 2)
        script.deliver(ONE, 0)
        await take(consumer, 1)


async def test_a_subscription_that_the_broker_has_not_granted_does_not_hold_up_a_close(
    script: ScriptedBroker, client: Client
) -> None:
    script.silent.add(ONE)
    assign(script, {1: 0}, is_first=True)
    consumer = await client.stream_consumer(TOPIC, "s", consumer_name="one")
    async with asyncio.timeout(5):
        await consumer.close()
    assert {name for name, _ in script.closed} == {"session"}
    assert len(script.closed) == 2


async def test_a_broker_that_answers_when_others_have_left_is_not_waited_for(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, {1: 4}) as consumer:
        script.silent.add(ONE)
        assign(script, {1: 0})
        await script.until(lambda: script.attempts == 2)
        assign(script, {1: 4})
        # It withdraws what was not granted.
        await script.until(lambda: len(script.closed) == 2)
        script.silent.clear()
        await reads_as(script, KEY_SHARED, 2)
        script.deliver(ONE, 0)
        await take(consumer, 1)
