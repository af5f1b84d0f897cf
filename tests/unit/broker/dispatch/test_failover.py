"""Failover: who is active, what standbys are told, and when the next one starts."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import pick_failover
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


def test_partitions_spread_over_the_consumers_in_name_order() -> None:
    consumers = [named("c"), named("a"), named("b")]
    chosen = [pick_failover(consumers, "topic", partition).name for partition in range(6)]
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_only_the_highest_priority_is_chosen() -> None:
    consumers = [named("a", 2), named("b", 1), named("c", 1)]
    chosen = {pick_failover(consumers, f"topic-{n}", -1).name for n in range(50)}
    assert chosen == {"b", "c"}


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=4), min_size=2, max_size=6), st.data())
def test_a_standby_that_leaves_never_changes_who_is_active(names: set[str], data: st.DataObject) -> None:
    consumers = [named(name) for name in sorted(names)]
    active = pick_failover(consumers, "topic", -1)
    leaving = data.draw(st.sampled_from([c for c in consumers if c is not active]))
    assert pick_failover([c for c in consumers if c is not leaving], "topic", -1) is active


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
