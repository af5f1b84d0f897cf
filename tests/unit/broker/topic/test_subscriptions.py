"""What a SUBSCRIBE leaves behind: nothing if it is refused or given up, and no promise before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.dispatch.selector import RANGES_MAX
from anabranch.broker.subscription.cursor_keeper import CursorKeeper
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import EXCLUSIVE, SHARED
from harness.simple_client import Client
from unit.broker.rig import Rig
from unit.broker.scalable.brokers import BrokerLab, Peer

C = pb.BaseCommand
T = "persistent://public/default/t"


def subscribe(peer: Peer, id: int = 1, **values: Any) -> int:
    """Its request number."""
    request: dict[str, Any] = {
        "topic": T,
        "subscription": "s",
        "subType": pb.CommandSubscribe.Shared,
        "consumer_id": id,
        "request_id": 1000 + id,
        **values,
    }
    peer.send(C(type=C.SUBSCRIBE, subscribe=pb.CommandSubscribe(**request)))
    return 1000 + id


async def answer(peer: Peer, number: int) -> pb.BaseCommand:
    def is_it(command: pb.BaseCommand) -> bool:
        return number in (command.error.request_id, command.success.request_id)

    return await peer.wait_for(is_it)


async def test_who_subscribes_looks_at_no_other_subscription(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    consumers = vars(CursorKeeper)["consumers"]

    def counted(one: CursorKeeper) -> Any:
        nonlocal looks
        looks += 1
        return consumers.fget(one)

    for n in range(60):
        await answer(peer, subscribe(peer, n, subscription=f"s{n}", durable=n % 2 == 0))
    monkeypatch.setattr(CursorKeeper, "consumers", property(counted))
    await answer(peer, subscribe(peer, 99, subscription="one more"))
    assert looks < 20


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110 - nothing tells of it.
            await asyncio.sleep(0.01)


def opened(broker: Broker) -> Topic:
    topic = broker.opened(TopicName.parse(T))
    assert topic is not None
    return topic


def sticky(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges]
    )


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    "ranges", [[], [(5, 4)], [(-1, 3)], [(0, 65_536)], [(0, 9), (9, 12)], [(n, n) for n in range(9000)]]
)
async def test_a_refused_consumer_leaves_no_subscription(
    broker: Broker, peer: Peer, durable: bool, ranges: list[tuple[int, int]]
) -> None:
    assert len(ranges) < 10 or len(ranges) > RANGES_MAX
    kind = pb.CommandSubscribe.Key_Shared
    number = subscribe(peer, durable=durable, subType=kind, keySharedMeta=sticky(*ranges))
    assert (await answer(peer, number)).error.error == pb.ConsumerAssignError
    assert not opened(broker).subscriptions


async def test_a_readers_subscription_that_nobody_could_join_ends(lab: BrokerLab) -> None:
    broker = await lab.broker(max_consumers_per_topic=1)
    peer = await lab.peer(broker)
    assert (await answer(peer, subscribe(peer, 1, subscription="first"))).HasField("success")
    for id in range(2, 12):
        refused = await answer(peer, subscribe(peer, id, durable=False, subscription=f"reader-{id}"))
        assert refused.HasField("error")
    assert list(opened(broker).subscriptions) == ["first"]


async def test_a_consumer_refused_by_a_subscription_does_not_end_it(broker: Broker, peer: Peer) -> None:
    assert (await answer(peer, subscribe(peer, 1, durable=False))).HasField("success")
    exclusive = pb.CommandSubscribe.Exclusive
    refused = await answer(peer, subscribe(peer, 2, durable=False, subType=exclusive))
    assert refused.error.error == pb.ConsumerBusy
    assert [consumer.id for consumer in opened(broker).subscriptions["s"].consumers] == [1]


async def test_a_connection_that_is_lost_while_it_subscribes_leaves_nobody_attached(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    """At every moment of it, as far as turns of the loop can tell them apart."""
    await answer(peer, subscribe(peer, 1, subscription="keeps the topic"))
    async with Client(broker.service_url) as client:
        ledger, entry = await (await (await client.producer(T)).send(b"the last one"))
    topic = opened(broker)
    await topic.terminate()
    # One that comes back with the last message of a sealed topic: that message is read first.
    last = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    for turns in range(12):
        comer = await lab.peer(broker)
        subscribe(comer, 7, subscription=f"reader-{turns}", durable=False, start_message_id=last)
        for _ in range(turns):
            await asyncio.sleep(0)
        await comer.close()
        await until(lambda: len(broker.sessions) == 1 and list(topic.subscriptions) == ["keeps the topic"])


@pytest.mark.parametrize("turns", [0, 1, 3, 8])
async def test_a_consumer_closed_while_it_is_made_and_asked_for_again_is_one_consumer(
    broker: Broker, peer: Peer, turns: int
) -> None:
    """As clients do that have waited for too long."""
    for attempt in range(3):
        subscribe(peer, 7, consumer_name=f"c{attempt}", request_id=100 + attempt)
        for _ in range(turns):
            await asyncio.sleep(0)
        if attempt < 2:
            close = pb.CommandCloseConsumer(consumer_id=7, request_id=200 + attempt)
            peer.send(C(type=C.CLOSE_CONSUMER, close_consumer=close))
    assert (await answer(peer, 102)).HasField("success")
    await until(lambda: [one.name for one in opened(broker).subscriptions["s"].consumers] == ["c2"])
    await peer.close()
    await until(lambda: not opened(broker).subscriptions["s"].consumers)


async def test_an_id_that_is_used_again_while_its_subscription_is_deleted_is_the_new_consumers(
    broker: Broker, peer: Peer
) -> None:
    assert (await answer(peer, subscribe(peer, 1, subscription="other"))).HasField("success")
    for turns in range(10):
        assert (await answer(peer, subscribe(peer, 7))).HasField("success")
        unsubscribe = pb.CommandUnsubscribe(consumer_id=7, request_id=300)
        peer.send(C(type=C.UNSUBSCRIBE, unsubscribe=unsubscribe))
        for _ in range(turns):
            await asyncio.sleep(0)
        close = pb.CommandCloseConsumer(consumer_id=7, request_id=301)
        peer.send(C(type=C.CLOSE_CONSUMER, close_consumer=close))
        subscribe(peer, 7, subscription="other", request_id=302)
        for number in (300, 301, 302):
            await answer(peer, number)
        peer.send(
            C(type=C.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=7, request_id=303))
        )
        await answer(peer, 303)
    assert [consumer.id for consumer in opened(broker).subscriptions["other"].consumers] == [1]


@pytest.mark.parametrize("turns", [0, 1, 3, 8])
@pytest.mark.parametrize("topic", [T, T.replace("persistent", "non-persistent", 1)])
async def test_a_producer_closed_while_it_is_made_and_asked_for_again_is_one_producer(
    broker: Broker, peer: Peer, topic: str, turns: int
) -> None:
    for attempt in range(3):
        producer = pb.CommandProducer(topic=topic, producer_id=7, request_id=100 + attempt, epoch=attempt)
        peer.send(C(type=C.PRODUCER, producer=producer))
        for _ in range(turns):
            await asyncio.sleep(0)
        if attempt < 2:
            close = pb.CommandCloseProducer(producer_id=7, request_id=200 + attempt)
            peer.send(C(type=C.CLOSE_PRODUCER, close_producer=close))
    made = await peer.wait_for(lambda command: command.producer_success.request_id == 102)
    found = await broker.attachable(TopicName.parse(topic), create=False)
    await until(lambda: list(found.attached.producers) == [made.producer_success.producer_name])
    await peer.close()
    await until(lambda: not found.attached.producers)


def run_until_held(rig: Rig, work: Any) -> asyncio.Task[None]:
    """Begins it, with a journal that confirms nothing."""
    rig.journal.is_holding = True
    task = rig.loop.create_task(work)
    rig.loop.settle()
    assert not task.done()
    return task


def test_nobody_is_told_of_a_subscription_before_it_is_stored_whoever_made_it(rig: Rig) -> None:
    first = run_until_held(rig, rig.subscription.announce())
    second = rig.loop.create_task(rig.subscription.wait_announced())
    rig.loop.settle()
    first.cancel()
    rig.loop.settle()
    assert first.cancelled()
    assert not second.done()
    rig.journal.confirm()
    rig.loop.settle()
    assert second.done()
    assert second.exception() is None
    rig.loop.run(rig.subscription.wait_announced())


def test_whoever_waits_for_a_subscription_hears_that_it_cannot_be_stored(rig: Rig) -> None:
    first = run_until_held(rig, rig.subscription.announce())
    second = rig.loop.create_task(rig.subscription.wait_announced())
    rig.loop.settle()
    rig.journal.confirm(OSError("gone"))
    rig.loop.settle()
    for task in (first, second):
        with pytest.raises(OSError, match="gone"):
            task.result()


def test_consumers_wait_for_a_seek_to_be_stored_whoever_asked_for_it(rig: Rig) -> None:
    places = rig.publish(3)
    seek = run_until_held(rig, rig.subscription.seek(places[1]))
    comer = rig.loop.create_task(rig.subscription.wait_for_seek())
    rig.loop.settle()
    seek.cancel()
    rig.loop.settle()
    assert not comer.done()
    rig.journal.confirm()
    rig.loop.settle()
    assert comer.done()


def test_a_reader_closed_by_its_seek_is_waited_for_though_somebody_else_is_refused(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(is_durable=False)
    places = rig.publish(3)
    rig.consumer(EXCLUSIVE)
    rig.loop.run(rig.subscription.seek(places[0]))
    rig.subscription.end_if_unused()
    assert not rig.ended
    consumer, link = rig.consumer(SHARED)
    assert link.places == places
    rig.loop.advance(100)
    assert not rig.ended
    rig.subscription.remove_consumer(consumer)
    assert rig.ended == [rig.subscription]


LARGE = [pb.KeyValue(key="k", value="x" * 20_000)]
MANY = [pb.KeyValue(key="kkkk", value="") for _ in range(9_000)]


@pytest.mark.parametrize("properties", [LARGE, MANY])
async def test_properties_of_a_subscription_and_a_producer_have_a_size(
    broker: Broker, peer: Peer, properties: list[pb.KeyValue]
) -> None:
    refused = await answer(peer, subscribe(peer, subscription_properties=properties))
    assert refused.error.error == pb.NotAllowedError
    refused = await answer(peer, subscribe(peer, metadata=properties))
    assert refused.error.error == pb.NotAllowedError
    producer = pb.CommandProducer(topic=T, producer_id=1, request_id=77, metadata=properties)
    peer.send(C(type=C.PRODUCER, producer=producer))
    assert (await answer(peer, 77)).error.error == pb.NotAllowedError
    assert broker.opened(TopicName.parse(T)) is None
    assert (await answer(peer, subscribe(peer))).HasField("success")


async def test_acknowledgements_kept_for_a_consumer_that_is_being_made_have_a_size(
    broker: Broker, peer: Peer
) -> None:
    large = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    large.message_id.extend(pb.MessageIdData(ledgerId=1, entryId=n) for n in range(60_000))
    subscribe(peer, 1)
    for number in range(10):
        large.request_id = number + 1
        peer.send(C(type=C.ACK, ack=large))
    # Those that were not kept are answered at once, the others once there is a consumer: not one is forgotten.
    answers = [await peer.receive(C.ACK_RESPONSE) for _ in range(10)]
    refused = [one for one in answers if one.ackResponse.HasField("error")]
    assert len(refused) > 5
    assert {one.ackResponse.error for one in refused} == {pb.ConsumerNotFound}
