"""Key_Shared: every key in order, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import ConsumerAssignError, SubscriptionBusyError
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED
from unit.broker.rig import RecordingLink, Rig

KEYS = [f"key-{n}" for n in range(20)]


def sticky(*ranges: tuple[int, int], is_unordered: bool = False) -> pb.KeySharedMeta:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, allowOutOfOrderDelivery=is_unordered)
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return meta


def publish_all(rig: Rig, rounds: int = 1) -> None:
    for _ in range(rounds):
        for key in KEYS:
            rig.publish(1, key=key)
    rig.loop.settle()


def keys_of(link: RecordingLink) -> set[str]:
    return {message.key for message in link.messages}


def test_each_key_goes_to_one_consumer(rig: Rig) -> None:
    links = [rig.consumer(KEY_SHARED, permits=1000)[1] for _ in range(3)]
    publish_all(rig, 5)
    assert sum(len(link.messages) for link in links) == 100
    assert all(keys_of(link) for link in links)
    for link in links:
        for other in links:
            assert link is other or not keys_of(link) & keys_of(other)


def test_a_key_moves_only_once_its_old_consumer_has_acknowledged_it(rig: Rig) -> None:
    old, old_link = rig.consumer(KEY_SHARED)
    publish_all(rig)
    _, new_link = rig.consumer(KEY_SHARED)
    publish_all(rig)
    # Every key is held by the old consumer: those that now belong to the new one wait.
    assert not new_link.messages
    moved = set(KEYS) - {message.key for message in old_link.messages[20:]}
    assert moved
    assert subscription_stats(rig.subscription)["drainingHashesCount"] == len(moved)
    one = min(moved)
    rig.ack(old, [message.at for message in old_link.messages if message.key == one])
    assert keys_of(new_link) == {one}
    rig.ack(old, old_link.places)
    assert keys_of(new_link) == moved
    assert subscription_stats(rig.subscription)["msgInReplay"] == 0


def test_a_consumer_that_leaves_hands_its_keys_on_in_order(rig: Rig) -> None:
    first, first_link = rig.consumer(KEY_SHARED)
    _, second_link = rig.consumer(KEY_SHARED)
    publish_all(rig, 3)
    lost = first_link.places
    second_link.take()
    rig.subscription.remove_consumer(first)
    rig.loop.settle()
    assert second_link.places == lost


def test_a_refused_entry_comes_before_the_later_ones_of_its_key(rig: Rig) -> None:
    consumer, link = rig.consumer(KEY_SHARED, permits=2)
    places = rig.publish(4, key="k")
    rig.loop.settle()
    link.take()
    rig.subscription.redeliver(consumer, [places[1], places[0]])
    rig.subscription.flow(consumer, 10)
    rig.loop.settle()
    assert link.places == places
    assert [message.redeliveries for message in link.messages] == [1, 1, 0, 0]


def test_keys_of_a_consumer_without_room_do_not_hold_up_the_others(rig: Rig) -> None:
    slow, slow_link = rig.consumer(KEY_SHARED, permits=1)
    _, quick_link = rig.consumer(KEY_SHARED, permits=1000)
    publish_all(rig, 5)
    mine = keys_of(quick_link)
    assert len(slow_link.messages) == 1
    assert len(quick_link.messages) == 5 * len(mine)
    rig.subscription.flow(slow, 1000)
    rig.loop.settle()
    assert len(slow_link.messages) == 100 - len(quick_link.messages)
    assert slow_link.places == sorted(slow_link.places)


def test_reading_ahead_of_a_stuck_key_has_an_end(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(limits=DispatchLimits(held_per_consumer_max=10, held_max=15, burst_entries=1))
    slow, slow_link = rig.consumer(KEY_SHARED, permits=1)
    _, quick_link = rig.consumer(KEY_SHARED, permits=10_000)
    publish_all(rig, 10)
    assert subscription_stats(rig.subscription)["msgInReplay"] == 15
    rig.subscription.flow(slow, 1000)
    rig.loop.settle(2000)
    assert len(slow_link.messages) + len(quick_link.messages) == 200


def test_sticky_ranges_are_obeyed_and_gaps_wait_for_an_owner(rig: Rig) -> None:
    _, low = rig.consumer(KEY_SHARED, key_shared=sticky((0, 20_000)))
    _, high = rig.consumer(KEY_SHARED, key_shared=sticky((40_000, 65_535)))
    figures = subscription_stats(rig.subscription)["consumers"]
    assert [one["keyHashRanges"] for one in figures] == [["[0, 20000]"], ["[40000, 65535]"]]
    publish_all(rig)
    assert 0 < len(low.messages) + len(high.messages) < 20
    _, middle = rig.consumer(KEY_SHARED, key_shared=sticky((20_001, 39_999)))
    assert len(low.messages) + len(middle.messages) + len(high.messages) == 20


def test_entries_nobody_may_have_do_not_stop_reading_once_they_are_skipped(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(limits=DispatchLimits(held_max=5))
    _, link = rig.consumer(KEY_SHARED, key_shared=sticky((0, 30_000)))
    publish_all(rig, 5)
    rig.loop.run(rig.subscription.skip_all())
    link.take()
    publish_all(rig)
    assert link.messages


def test_overlapping_ranges_are_refused_and_nothing_is_left_behind(rig: Rig) -> None:
    rig.consumer(KEY_SHARED, key_shared=sticky((0, 100)))
    with pytest.raises(ConsumerAssignError):
        rig.consumer(KEY_SHARED, key_shared=sticky((100, 200)))
    rig.consumer(KEY_SHARED, key_shared=sticky((101, 65_535)))
    assert len(rig.subscription.consumers) == 2


@pytest.mark.parametrize(
    "other", [None, sticky((0, 10), is_unordered=True), pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)]
)
def test_consumers_of_one_subscription_share_one_policy(rig: Rig, other: pb.KeySharedMeta | None) -> None:
    first, _ = rig.consumer(KEY_SHARED, key_shared=sticky((20, 30)))
    with pytest.raises(SubscriptionBusyError):
        rig.consumer(KEY_SHARED, key_shared=other)
    rig.subscription.remove_consumer(first)
    rig.consumer(KEY_SHARED, key_shared=other)


def test_out_of_order_delivery_does_not_wait_for_the_old_consumer(rig: Rig) -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True)
    rig.consumer(KEY_SHARED, key_shared=meta)
    publish_all(rig)
    _, new_link = rig.consumer(KEY_SHARED, key_shared=meta)
    publish_all(rig)
    assert new_link.messages


def test_an_entry_acknowledged_while_set_aside_is_not_sent(rig: Rig) -> None:
    consumer, link = rig.consumer(KEY_SHARED, permits=1)
    places = rig.publish(3, key="k")
    rig.loop.settle()
    other, _ = rig.consumer(KEY_SHARED, permits=0)
    rig.ack(other, places[1:2])
    rig.subscription.flow(consumer, 10)
    rig.subscription.flow(other, 10)
    rig.loop.settle()
    rig.ack(consumer, places[:1])
    everything = [c for c in rig.subscription.consumers if isinstance(c, AttachedConsumer)]
    sent = [at for c in everything for at in c.pending]
    assert sent == places[2:]
    assert places[1] not in link.places
