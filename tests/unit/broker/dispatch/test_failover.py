"""Failover: who is active, what standbys are told, and when the next one starts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import FailoverOrder
from anabranch.model.keyhash import murmur3
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import sticky_key
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER
from unit.broker.rig import RecordingLink, Rig


def activity(link: RecordingLink) -> list[bool]:
    return [
        command.active_consumer_change.is_active
        for command in link.commands
        if command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE
    ]


def named(name: str, priority: int = 0) -> AttachedConsumer:
    return AttachedConsumer(1, name, RecordingLink(), kind=FAILOVER, priority=priority)


def picked(consumers: Sequence[AttachedConsumer], topic: str, partition: int) -> AttachedConsumer:
    order = FailoverOrder(topic, partition)
    for one in consumers:
        order.add(one)
    active = order.pick()
    assert active is not None
    return active


def by_the_ring(consumers: Sequence[AttachedConsumer], topic: str) -> AttachedConsumer:
    """As the reference chooses: all points of all consumers on one ring."""
    highest = min(one.priority for one in consumers)
    candidates = sorted((one for one in consumers if one.priority == highest), key=lambda one: one.name)
    ring = {murmur3(f"{one.name}{n}".encode()): one for one in candidates for n in range(100)}
    points = sorted(ring)
    at = bisect_left(points, murmur3(topic.encode()))
    return ring[points[at] if at < len(points) else points[0]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(-1, 5),
    st.data(),
)
def test_whoever_comes_and_goes_the_active_one_is_that_of_all(
    given_: list[tuple[str, int]], partition: int, data: st.DataObject
) -> None:
    order, present = FailoverOrder("topic", partition), list[AttachedConsumer]()
    for name, priority in given_:
        present.append(named(name, priority))
        order.add(present[-1])
        if len(present) > 1 and data.draw(st.booleans()):
            order.remove(present.pop(data.draw(st.integers(0, len(present) - 1))))
        first = min(one.priority for one in present)
        in_order = sorted((one for one in present if one.priority == first), key=lambda one: one.name)
        wanted = in_order[partition % len(in_order)] if partition >= 0 else by_the_ring(present, "topic")
        assert order.pick() is wanted


def test_one_of_thousands_joins_and_leaves_without_looking_at_the_others() -> None:
    for partition in (-1, 7):
        order = FailoverOrder("topic", partition)
        crowd = [named(f"c{n}") for n in range(3000)]
        for one in crowd:
            order.add(one)
        began = time.process_time()
        order.add(late := named("late"))
        assert order.pick() is not None
        order.remove(late)
        assert time.process_time() - began < 0.02


def test_partitions_spread_over_the_consumers_in_name_order() -> None:
    consumers = [named("c"), named("a"), named("b")]
    chosen = [picked(consumers, "topic", partition).name for partition in range(6)]
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_only_the_highest_priority_is_chosen() -> None:
    consumers = [named("a", 2), named("b", 1), named("c", 1)]
    chosen = {picked(consumers, f"topic-{n}", -1).name for n in range(50)}
    assert chosen == {"b", "c"}


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=4), min_size=2, max_size=6), st.data())
def test_a_standby_that_leaves_never_changes_who_is_active(names: set[str], data: st.DataObject) -> None:
    consumers = [named(name) for name in sorted(names)]
    active = picked(consumers, "topic", -1)
    leaving = data.draw(st.sampled_from([c for c in consumers if c is not active]))
    assert picked([c for c in consumers if c is not leaving], "topic", -1) is active


def test_each_consumer_is_told_whether_it_is_active(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(partition=0)
    first, first_link = rig.consumer(FAILOVER, name="b")
    _, second_link = rig.consumer(FAILOVER, name="c")
    assert (activity(first_link), activity(second_link)) == ([True], [False])
    rig.subscription.remove_consumer(first)
    assert activity(second_link) == [False, True]


def test_nothing_is_told_before_the_client_knows_it_is_subscribed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(partition=0)
    link = RecordingLink()
    consumer = AttachedConsumer(1, "a", link, kind=FAILOVER)
    rig.subscription.add_consumer(consumer)
    rig.loop.settle()
    assert not link.commands
    rig.subscription.consumer_ready(consumer)
    assert activity(link) == [True]


def test_only_the_active_consumer_is_sent_anything(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(partition=0)
    active, active_link = rig.consumer(FAILOVER, name="a")
    _, standby_link = rig.consumer(FAILOVER, name="b")
    places = rig.publish(4)
    rig.loop.settle()
    assert (active_link.places, standby_link.places) == (places, [])
    rig.ack(active, places[:1])
    rig.subscription.remove_consumer(active)
    rig.loop.settle()
    assert standby_link.places == places[1:]


def test_a_consumer_replaced_while_connected_is_given_time_to_acknowledge(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(partition=0)
    old, old_link = rig.consumer(FAILOVER, name="b")
    places = rig.publish(3)
    rig.loop.settle()
    _, new_link = rig.consumer(FAILOVER, name="a")
    late = rig.publish(1)
    rig.loop.settle()
    assert new_link.places == []
    # Everything acknowledged: the new one starts without any duplicate, and without waiting further.
    rig.ack(old, places)
    assert new_link.places == late
    assert (activity(old_link), activity(new_link)) == ([True, False], [True])


def test_the_wait_for_acknowledgements_ends(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(partition=0)
    rig.consumer(FAILOVER, name="b")
    places = rig.publish(3)
    rig.loop.settle()
    _, new_link = rig.consumer(FAILOVER, name="a")
    rig.loop.advance(1.1)
    assert new_link.places == places


def test_a_higher_priority_takes_over_and_gives_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    _, low_link = rig.consumer(FAILOVER, name="a", priority=1)
    high, high_link = rig.consumer(FAILOVER, name="b", priority=0)
    places = rig.publish(2)
    rig.loop.settle()
    assert (low_link.places, high_link.places) == ([], places)
    rig.ack(high, places[:1])
    rig.subscription.remove_consumer(high)
    rig.loop.settle()
    assert low_link.places == places[1:]


def test_a_standby_seeking_elsewhere_starts_at_the_new_place(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(partition=0)
    active, active_link = rig.consumer(FAILOVER, name="a")
    _, standby_link = rig.consumer(FAILOVER, name="b")
    places = rig.publish(5)
    rig.loop.settle()
    rig.loop.run(rig.subscription.seek(places[3]))
    rig.loop.settle()
    assert active_link.closed == [active]
    assert standby_link.places == places[3:]


def test_an_exclusive_consumer_may_ask_for_some_keys_only(rig: Rig) -> None:
    from anabranch.model.keyhash import sticky_slot

    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        rig.publish(1, key=key)
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY)
    meta.hashRanges.add(start=0, end=30_000)
    _, link = rig.consumer(EXCLUSIVE, key_shared=meta)
    expected = [
        key for key in keys if sticky_slot(sticky_key(pb.MessageMetadata(partition_key=key))) <= 30_000
    ]
    assert [message.key for message in link.messages] == expected
    assert 0 < len(expected) < 20
