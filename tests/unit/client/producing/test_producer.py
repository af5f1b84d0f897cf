"""The producer's connections: what is sent where, and again, and what is asked first."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from anabranch.client import BadArgument, Client, Closed, MessageId, Producer, RequestRefused
from anabranch.client.producing import engine as flow
from anabranch.errors import AnabranchError
from anabranch.model.keyhash import segment_hash
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
CLASSIC = "persistent://public/default/t"
ONE = SegmentLayout.initial(1, 0)
TWO = ONE.split(0, 0)
ROOT = "segment://public/default/t/0000-ffff-0"
LEFT = "segment://public/default/t/0000-7fff-1"
RIGHT = "segment://public/default/t/8000-ffff-2"
# Keys by the half they belong to.
LOW = next(f"{n}" for n in range(99) if segment_hash(b"%d" % n) <= 0x7FFF)
HIGH = next(f"{n}" for n in range(99) if segment_hash(b"%d" % n) > 0x7FFF)


async def send(producer: Producer, *keys: str) -> list[asyncio.Future[MessageId]]:
    return [await producer.post(b"x", key=key) for key in keys]


async def results(receipts: list[asyncio.Future[MessageId]]) -> list[MessageId]:
    async with asyncio.timeout(10):
        return [await receipt for receipt in receipts]


async def test_receipts_say_where_a_message_lies(script: ScriptedBroker, client: Client) -> None:
    script.layout = TWO
    async with await client.producer(TOPIC, batching=False) as producer:
        receipts = await send(producer, LOW, HIGH, LOW)
        assert await results(receipts) == [(1, 1, 0, -1), (2, 1, 1, -1), (1, 1, 2, -1)]


async def test_what_a_sealed_segment_refuses_goes_to_its_children_in_order(
    script: ScriptedBroker, client: Client
) -> None:
    async with await client.producer(TOPIC, batching=False) as producer:
        await results(await send(producer, LOW))
        script.sealed.add(ROOT)
        refused = await send(producer, LOW, HIGH, LOW)
        await script.until(lambda: script.refused)
        later = await send(producer, LOW)
        script.publish(TWO)
        assert [receipt.segment for receipt in await results(refused + later)] == [1, 2, 1, 1]
        assert [sequence for topic, sequence in script.sent if topic == LEFT] == [1, 3, 4]
        assert not script.questions


async def test_a_classic_topic_that_was_terminated_is_told(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "TERMINATED_AFTER_S", 0.01)
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    script.sealed.add(CLASSIC)
    producer = await client.producer(CLASSIC)
    for _ in range(2):
        with pytest.raises(RequestRefused, match="was terminated: it can be read, and takes no more") as told:
            async with asyncio.timeout(10):
                await producer.send(b"x")
        assert not told.value.retryable
    await producer.close()


async def test_what_a_classic_topic_refuses_goes_on_once_it_was_migrated(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    async with await client.producer(CLASSIC) as producer:
        await results(await send(producer, LOW))
        script.sealed.add(CLASSIC)
        receipts = await send(producer, LOW)
        await script.until(lambda: script.refused)
        script.publish(SegmentLayout.migrated([CLASSIC], 0))
        assert [receipt.segment for receipt in await results(receipts)] == [1]


async def test_a_sealed_segment_is_asked_what_it_holds_before_anything_in_doubt_is_sent_again(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with await client.producer(TOPIC, batching=False) as producer:
        receipts = await send(producer, LOW, LOW, LOW)
        await script.until(lambda: len(script.sent) == 3)
        script.sealed.add(ROOT)
        script.last_sequence[ROOT] = 1
        script.layout = TWO
        script.receipts = True
        for link in script.links:
            link.cut()
        assert await results(receipts) == [(0, -1, -1, -1), (0, -1, -1, -1), (1, 1, 2, -1)]
        assert script.questions == [ROOT]
        assert script.sent[3:] == [(LEFT, 2)]


async def test_a_broker_that_does_not_know_the_question_gets_everything_in_doubt_again(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with await client.producer(TOPIC, batching=False) as producer:
        receipts = await send(producer, LOW, LOW)
        await script.until(lambda: len(script.sent) == 2)
        script.refusals[ROOT] = [pb.TopicTerminatedError, pb.TopicTerminatedError]
        script.layout = TWO
        script.receipts = True
        for link in script.links:
            link.cut()
        assert [receipt.segment for receipt in await results(receipts)] == [1, 1]


async def test_a_lost_connection_to_an_active_segment_sends_the_whole_lane_again(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with await client.producer(TOPIC, batching=False) as producer:
        receipts = await send(producer, LOW, HIGH, LOW)
        await script.until(lambda: len(script.sent) == 3)
        script.receipt(ROOT, 0)
        await results(receipts[:1])
        script.receipts = True
        for link in script.links:
            link.cut()
        await results(receipts)
        assert script.sent[3:] == [(ROOT, 1), (ROOT, 2)]


async def test_a_busy_or_unready_segment_is_tried_again(script: ScriptedBroker, client: Client) -> None:
    script.refusals[ROOT] = [pb.ProducerBusy, pb.ServiceNotReady]
    async with await client.producer(TOPIC, batching=False) as producer:
        assert await results(await send(producer, LOW)) == [(0, 1, 0, -1)]


async def test_a_producer_that_may_not_write_says_so(script: ScriptedBroker, client: Client) -> None:
    script.refusals[ROOT] = [pb.AuthorizationError]
    producer = await client.producer(TOPIC, batching=False)
    with pytest.raises(RequestRefused, match="AuthorizationError"):
        await producer.send(b"x", key=LOW)
    with pytest.raises(RequestRefused):
        await producer.post(b"x", key=LOW)
    await producer.close()
    with pytest.raises(RequestRefused):
        await producer.post(b"x", key=LOW)


async def test_a_named_producer_goes_on_behind_what_the_topic_holds_of_it(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = TWO
    script.sealed.add(ROOT)
    script.last_sequence = {ROOT: 6, RIGHT: 4}
    async with await client.producer(TOPIC, name="fixed") as producer:
        assert producer.last_sequence_id == 6
        assert await producer.send(b"x", key=LOW, sequence_id=6) == (0, -1, -1, -1)
        await results(await send(producer, LOW))
        assert script.sent == [(LEFT, 7)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"properties": ["a"]}, "give a mapping of text to text"),
        ({"event_time": datetime(2024, 5, 6)}, "has no time zone"),
        ({"deliver_at": datetime(2024, 5, 6)}, "has no time zone"),
        ({"deliver_after": -1}, "from 0 on"),
        ({"deliver_after": float("nan")}, "from 0 on"),
        ({"deliver_after": "1s"}, "from 0 on"),
        ({"deliver_after": timedelta.max}, "no time|from 0 on"),
    ],
)
async def test_options_of_a_message_that_mean_nothing_are_refused(
    script: ScriptedBroker, client: Client, options: dict[str, Any], said: str
) -> None:
    """Before anything is sent: the next message has the first number."""
    async with client.producer(TOPIC) as producer:
        with pytest.raises(BadArgument, match=said):
            await producer.send(b"x", **options)
        await producer.send(b"x")
        assert producer.last_sequence_id == 0


async def test_a_name_that_is_no_text_is_refused(client: Client) -> None:
    number: Any = 5
    with pytest.raises(AnabranchError, match="5 is no name of a topic: give text"):
        await client.producer(number)
    with pytest.raises(AnabranchError, match="5 is no name of a topic: give text"):
        await client.stream_consumer(number, "s")


async def test_what_a_segment_holds_that_is_sealed_before_the_layout_says_so_is_not_sent_to_its_children(
    script: ScriptedBroker, client: Client
) -> None:
    script.sealed.add(ROOT)
    script.last_sequence[ROOT] = 6
    async with await client.producer(TOPIC, name="fixed") as producer:
        again = [await producer.post(b"x", key=LOW, sequence_id=number) for number in (5, 6, 7)]
        script.publish(TWO)
        assert [receipt.segment for receipt in await results(again)] == [0, 0, 1]
        assert script.sent == [(LEFT, 7)]


async def test_closing_flushes_and_detaches(script: ScriptedBroker, client: Client) -> None:
    producer = await client.producer(TOPIC, batching=False)
    receipts = await send(producer, LOW)
    await producer.close()
    assert receipts[0].done()
    assert [what for what, _ in script.closed] == ["producer"]
    with pytest.raises(Closed):
        await producer.post(b"x")


async def test_sequence_ids_given_by_the_application_must_rise(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.post(b"x", sequence_id=5)
        with pytest.raises(BadArgument, match="must rise"):
            await producer.post(b"x", sequence_id=5)
        await producer.send(b"x")
        assert producer.last_sequence_id == 6


async def test_children_of_a_segment_in_use_are_attached_as_soon_as_they_are_known(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x")
        script.publish(TWO)
        await script.until(lambda: script.producers.keys() >= {LEFT, RIGHT})


async def test_a_receipt_out_of_turn_sends_again_what_was_passed_over(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with client.producer(TOPIC, batching=False) as producer:
        receipts = await send(producer, LOW, LOW)
        await script.until(lambda: len(script.sent) == 2)
        script.receipts = True
        script.receipt(ROOT, 1)
        await results(receipts)
        assert script.sent == [(ROOT, 0), (ROOT, 1), (ROOT, 0), (ROOT, 1)]


@pytest.mark.parametrize("error", [pb.NotAllowedError, pb.TooManyRequests, pb.ServiceNotReady])
async def test_a_broker_that_has_no_room_for_a_connection_is_tried_again(
    script: ScriptedBroker, client: Client, error: int
) -> None:
    async with await client.producer("topic://public/default/t") as producer:
        await producer.send(b"1")
        script.connects_refused = [error] * 2
        script.links[0].cut()
        await producer.send(b"2")
        assert not script.connects_refused


async def test_a_producer_whose_credentials_a_broker_no_longer_accepts_says_so(
    script: ScriptedBroker, client: Client
) -> None:
    async with await client.producer("topic://public/default/t") as producer:
        await producer.send(b"1")
        script.connects_refused = [pb.AuthenticationError] * 100
        script.links[0].cut()
        with pytest.raises(RequestRefused, match="AuthenticationError"):
            await producer.send(b"2")
