"""Stream consumers that share segments by entry buckets, as their connections see it."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.scalable.sessions.departures import Departures
from anabranch.controller.ports import Assignment
from anabranch.model import buckets
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import NOW_MS, V5, BrokerLab, C, Peer, ids, topics_of

ORDERS = "topic://public/default/orders"
SEGMENT = "segment://public/default/orders/0000-ffff-0"
TOPIC = TopicName.parse(ORDERS)
MASTER = "Pulsar-Java-v5.0.0-M1-SNAPSHOT"
FOUR = [(0x0000, 0x3FFF), (0x4000, 0x7FFF), (0x8000, 0xBFFF), (0xC000, 0xFFFF)]
EXCLUSIVE, KEY_SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Key_Shared
NEVER_S = 3600.0


@pytest.fixture
async def broker(lab: BrokerLab) -> Broker:
    """With a topic of one segment with four buckets."""
    broker = await lab.broker(scalable_topic_entry_bucket_budget=4)
    await topics_of(broker).create(TOPIC, 1)
    return broker


def departures_of(broker: Broker) -> Departures:
    return broker.requests.scalable.sessions.departures


def told(assignment: pb.ScalableConsumerAssignment) -> dict[int, list[tuple[int, int]]]:
    """The segments, each with its boundaries if it is shared."""
    return {s.segment_id: [(r.start, r.end) for r in s.bucket_ranges] for s in assignment.segments}


async def joined(peer: Peer, name: str, consumer_id: int = 1) -> dict[int, list[tuple[int, int]]]:
    """As our own client joins."""
    return told(await assigned(peer, name, consumer_id))


async def assigned(
    peer: Peer, name: str, consumer_id: int = 1, kind: int = pb.STREAM, *, knows: bool = True
) -> pb.ScalableConsumerAssignment:
    answer = await peer.ask(
        C.SCALABLE_TOPIC_SUBSCRIBE,
        "scalableTopicSubscribe",
        topic=ORDERS,
        subscription="sub",
        consumer_name=name,
        consumer_id=consumer_id,
        consumer_type=kind,
        anabranch_knows_buckets=knows,
    )
    return answer.scalableTopicSubscribeResponse.assignment


async def attach(peer: Peer, consumer: str, consumer_id: int, kind: int) -> pb.BaseCommand:
    return await peer.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=SEGMENT,
        subscription="sub",
        subType=kind,
        consumer_id=consumer_id,
        consumer_name=f"{consumer}-seg-0",
    )


async def shares(broker: Broker) -> dict[str, tuple[int, ...] | None]:
    """The buckets of segment 0 by consumer; None for all of it."""
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    return {c.name: c.shares.get(SegmentId(0)) for c in consumers if c.assigned}


async def until_shared(broker: Broker, expected: dict[str, tuple[int, ...] | None]) -> None:
    async with asyncio.timeout(10):
        found = await shares(broker)
        while found != expected:
            await asyncio.sleep(0.01)
            found = await shares(broker)


async def another_has_left(lab: BrokerLab, broker: Broker) -> None:
    """Returns when a consumer of another subscription has come, and is found to have left."""
    gone, waits = await lab.peer(broker, V5), await lab.peer(broker, supports_scalable_topics=True)
    await gone.register(ORDERS, "x", subscription="other")
    await waits.register(ORDERS, "y", subscription="other")
    answer = await gone.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=SEGMENT,
        subscription="other",
        subType=EXCLUSIVE,
        consumer_id=2,
        consumer_name="x-seg-0",
    )
    assert answer.type == C.SUCCESS
    await gone.leave(2)
    assert ids(await waits.assignment()) == [0]


async def test_every_sharer_is_told_all_boundaries_and_a_sole_reader_none(
    lab: BrokerLab, broker: Broker
) -> None:
    one = await lab.peer(broker, supports_scalable_topics=True)
    two = await lab.peer(broker, supports_scalable_topics=True)
    assert await joined(one, "a") == {0: []}
    assert await joined(two, "b") == {0: FOUR}
    assert told(await one.assignment()) == {0: FOUR}
    assert await shares(broker) == {"a": (0, 1), "b": (2, 3)}
    # Buckets move, and the clients have nothing to do with it.
    third = await lab.peer(broker, supports_scalable_topics=True)
    assert await joined(third, "c") == {0: FOUR}
    assert not [c for c in await one.settle() if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE]


async def test_java_tells_by_its_version_whether_it_can_share(lab: BrokerLab, broker: Broker) -> None:
    master, second, old = (
        await lab.peer(broker, MASTER),
        await lab.peer(broker, MASTER),
        await lab.peer(broker, V5),
    )
    assert told((await master.register(ORDERS, "a")).assignment) == {0: []}
    assert told((await second.register(ORDERS, "b")).assignment) == {0: FOUR}
    assert told((await old.register(ORDERS, "c")).assignment) == {}, "it is given whole segments only"


async def test_members_of_a_checkpoint_group_are_told_which_buckets_are_theirs(
    lab: BrokerLab, broker: Broker
) -> None:
    one, two, three = [await lab.peer(broker, supports_scalable_topics=True) for _ in range(3)]
    (alone,) = (await assigned(one, "a", kind=pb.CHECKPOINT)).segments
    assert (told_own(alone), list(alone.bucket_ranges)) == ([], [])
    (second,) = (await assigned(two, "b", kind=pb.CHECKPOINT)).segments
    assert told_own(second) == [2, 3]
    assert [(r.start, r.end) for r in second.bucket_ranges] == FOUR
    assert [told_own(s) for s in (await one.assignment()).segments] == [[0, 1]]
    # Two buckets for two, one of which gives one away: it is told, as it chooses messages itself.
    (third,) = (await assigned(three, "c", kind=pb.CHECKPOINT)).segments
    (left,) = (await two.assignment()).segments
    assert sorted(told_own(left) + told_own(third)) == [2, 3]


def told_own(segment: pb.ScalableAssignedSegment) -> list[int]:
    return list(segment.anabranch_own_buckets)


@pytest.mark.parametrize("version", [MASTER, V5])
async def test_javas_checkpoint_consumers_have_whole_segments(
    lab: BrokerLab, broker: Broker, version: str
) -> None:
    """Those of its master would read all of what they were to share, each of them."""
    first, second = await lab.peer(broker, version), await lab.peer(broker, version)
    assert told(await assigned(first, "a", kind=pb.CHECKPOINT, knows=False)) == {0: []}
    assert told(await assigned(second, "b", kind=pb.CHECKPOINT, knows=False)) == {}


async def test_a_member_reports_the_buckets_that_it_has_finished(lab: BrokerLab, broker: Broker) -> None:
    one, two = [await lab.peer(broker, supports_scalable_topics=True) for _ in range(2)]
    await assigned(one, "a", kind=pb.CHECKPOINT)
    await assigned(two, "b", kind=pb.CHECKPOINT)
    await topics_of(broker).split(TOPIC, 0)

    async def report(peer: Peer, *buckets: int) -> None:
        ack = pb.CommandAck(consumer_id=1, request_id=99, ack_type=pb.CommandAck.Individual)
        for bucket in buckets:
            ack.message_id.add(ledgerId=0, entryId=bucket + 1)
        peer.send(C(type=C.ACK, ack=ack))
        answer = await peer.receive(C.ACK_RESPONSE)
        assert not answer.ackResponse.HasField("error")

    await report(one, 0, 1)
    await report(two, 2)
    await report(two, 3)
    found: set[int] = set()
    for peer in (one, two):
        while not (numbers := {*ids(await peer.assignment())}) & {1, 2}:
            pass
        found |= numbers
    assert found == {1, 2}


async def test_the_bytes_of_a_shared_assignment() -> None:
    sent: list[pb.BaseCommand] = []
    session = ConsumerSession(3, TOPIC, "sub", "a", SubscriptionKind.STREAM, sent.append)
    layout = SegmentLayout.initial(2, NOW_MS, budget=BucketBudget(4))
    session.answer(7, Assignment(0, layout.active, frozenset({SegmentId(1)})))
    lower = b"segment://public/default/orders/0000-7fff-0".hex()
    upper = b"segment://public/default/orders/8000-ffff-1".hex()
    segment_0 = "0800100018ffff01" + f"22{len(lower) // 2:02x}" + lower
    # Field 5, twice: 0 to 0x7fff, and 0x8000 to 0xffff.
    ranges = "2a06080010ffff01" + "2a080880800210ffff03"
    segment_1 = "08011080800218ffff03" + f"22{len(upper) // 2:02x}" + upper + ranges
    assignment = (
        "0800" + f"12{len(segment_0) // 2:02x}" + segment_0 + f"12{len(segment_1) // 2:02x}" + segment_1
    )
    assert sent[0].scalableTopicSubscribeResponse.assignment.SerializeToString().hex() == assignment


async def test_uneven_boundaries_are_told_as_they_are() -> None:
    sent: list[pb.BaseCommand] = []
    session = ConsumerSession(3, TOPIC, "sub", "a", SubscriptionKind.STREAM, sent.append)
    (segment,) = SegmentLayout.initial(1, NOW_MS, budget=BucketBudget(7)).active
    session.answer(7, Assignment(0, (segment,), frozenset({segment.id})))
    ((_, ranges),) = told(sent[0].scalableTopicSubscribeResponse.assignment).items()
    assert ranges == [(r.start, r.end) for r in buckets.ranges(segment.bucket_splits)]
    assert len({end - start for start, end in ranges}) == 2


async def test_who_closes_a_segment_to_attach_to_it_in_another_way_has_not_left(
    lab: BrokerLab, broker: Broker
) -> None:
    departures = departures_of(broker)
    departures.left_after_s = departures.unread_after_s = 0.05
    departures.sharing_after_s = NEVER_S
    java, other = await lab.peer(broker, MASTER), await lab.peer(broker, MASTER)
    await java.register(ORDERS, "a")
    assert (await attach(java, "a", 2, EXCLUSIVE)).type == C.SUCCESS
    await other.register(ORDERS, "b")
    await java.assignment()
    await java.leave(2)
    # One that reads nothing for another reason is seen to have left, later than these are looked at.
    await another_has_left(lab, broker)
    assert await shares(broker) == {"a": (0, 1), "b": (2, 3)}
    for peer, name in ((java, "a"), (other, "b")):
        assert (await attach(peer, name, 3, KEY_SHARED)).type == C.SUCCESS
    # One that closes what it is still to share has left.
    await java.leave(3)
    await until_shared(broker, {"b": (0, 1, 2, 3)})


async def test_who_never_attaches_to_what_it_is_to_share_has_left_in_the_end(
    lab: BrokerLab, broker: Broker
) -> None:
    departures_of(broker).sharing_after_s = 0.1
    ours, java = await lab.peer(broker, supports_scalable_topics=True), await lab.peer(broker, MASTER)
    await joined(ours, "a")
    await attach(ours, "a", 2, EXCLUSIVE)  # So that the segment is open.
    await java.register(ORDERS, "b")
    await until_shared(broker, {"a": (0, 1, 2, 3)})


async def test_who_is_to_share_from_the_start_and_comes_for_all_of_it_is_noted_as_not_knowing_how(
    lab: BrokerLab, broker: Broker
) -> None:
    ours, java = await lab.peer(broker, supports_scalable_topics=True), await lab.peer(broker, MASTER)
    await joined(ours, "a")
    assert told((await java.register(ORDERS, "b")).assignment) == {0: FOUR}
    assert await shares(broker) == {"a": (0, 1), "b": (2, 3)}
    await attach(java, "b", 2, EXCLUSIVE)
    await until_shared(broker, {"a": (0, 1, 2, 3)})
    assert ids(await java.assignment()) == []


async def test_who_had_all_of_it_before_may_still_come_for_all_of_it(lab: BrokerLab, broker: Broker) -> None:
    ours, java = await lab.peer(broker, supports_scalable_topics=True), await lab.peer(broker, MASTER)
    assert told((await java.register(ORDERS, "b")).assignment) == {0: []}
    await joined(ours, "a")
    await attach(java, "b", 2, EXCLUSIVE)
    await java.settle()
    assert await shares(broker) == {"b": (0, 1), "a": (2, 3)}
