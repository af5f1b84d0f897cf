"""Shared: turns, priorities, limits, redelivery counts, chunks and delays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.broker.dispatch.shared import SharedDispatcher
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.wire.subscription_types import KEY_SHARED, SHARED
from unit.broker.rig import Rig


def test_entries_go_round_the_consumers(rig: Rig) -> None:
    links = [rig.consumer(SHARED)[1] for _ in range(3)]
    for _ in range(30):
        rig.publish(1)
    rig.loop.settle()
    assert [len(link.messages) for link in links] == [10, 10, 10]


def test_a_consumer_without_permits_is_passed_over(rig: Rig) -> None:
    _, poor = rig.consumer(SHARED, permits=2)
    _, rich = rig.consumer(SHARED, permits=100)
    rig.publish(20)
    rig.loop.settle()
    assert (len(poor.messages), len(rich.messages)) == (2, 18)


def test_no_more_is_read_than_can_be_sent(rig: Rig) -> None:
    rig.publish(500)
    consumer, link = rig.consumer(SHARED, permits=3)
    assert (len(link.messages), rig.log.entries_read) == (3, 3)
    rig.subscription.flow(consumer, 2)
    rig.loop.settle()
    assert (len(link.messages), rig.log.entries_read) == (5, 5)


def test_lower_priorities_get_what_the_highest_has_no_room_for(rig: Rig) -> None:
    _, low = rig.consumer(SHARED, priority=1)
    high, high_link = rig.consumer(SHARED, permits=3, priority=0)
    rig.publish(5)
    rig.loop.settle()
    assert (len(high_link.messages), len(low.messages)) == (3, 2)
    rig.subscription.flow(high, 10)
    rig.publish(5)
    rig.loop.settle()
    assert (len(high_link.messages), len(low.messages)) == (8, 2)


def test_entries_of_a_consumer_that_leaves_go_to_the_others(rig: Rig) -> None:
    first, first_link = rig.consumer(SHARED)
    _, second_link = rig.consumer(SHARED)
    places = rig.publish(6)
    rig.loop.settle()
    rig.ack(first, first_link.places[:1])
    lost = first_link.places[1:]
    kept = second_link.take()
    rig.subscription.remove_consumer(first)
    rig.loop.settle()
    assert second_link.places == lost
    assert sorted(lost + kept + first_link.places[:1]) == places


def test_a_refused_entry_comes_back_with_its_count(rig: Rig) -> None:
    places = rig.publish(3)
    consumer, link = rig.consumer(SHARED)
    for expected in (1, 2, 3):
        link.take()
        rig.subscription.redeliver(consumer, [places[1]])
        rig.loop.settle()
        assert [(m.at, m.redeliveries) for m in link.messages] == [(places[1], expected)]
    assert consumer.unacked == 3


def test_counts_end_with_the_acknowledgement(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, link = rig.consumer(SHARED)
    rig.subscription.redeliver(consumer, None)
    rig.loop.settle()
    rig.ack(consumer, places[:1])
    rig.loop.run(rig.subscription.seek(places[0]))
    consumer, link = rig.consumer(SHARED)
    assert [m.redeliveries for m in link.messages] == [0, 0]


def test_an_entry_the_consumer_does_not_hold_cannot_be_refused(rig: Rig) -> None:
    places = rig.publish(2)
    first, first_link = rig.consumer(SHARED)
    second, second_link = rig.consumer(SHARED)
    rig.ack(first, places[:1])
    first_link.take()
    rig.subscription.redeliver(second, places)
    rig.loop.settle()
    assert not first_link.messages
    assert not second_link.messages


def test_another_consumers_entry_may_be_acknowledged(rig: Rig) -> None:
    first, first_link = rig.consumer(SHARED, permits=5)
    places = rig.publish(2)
    rig.loop.settle()
    second, _ = rig.consumer(SHARED)
    assert rig.ack(second, places) == [None]
    assert first_link.places == places
    assert first.unacked == 0
    assert rig.subscription.backlog() == 0


def test_a_consumer_with_too_much_unacknowledged_waits_until_half_is_done(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(limits=DispatchLimits(consumer_unacked_max=10))
    consumer, link = rig.consumer(SHARED)
    places = rig.publish(30)
    rig.loop.settle()
    assert link.places == places[:10]
    assert subscription_stats(rig.subscription)["consumers"][0]["blockedConsumerOnUnackedMsgs"]
    rig.ack(consumer, places[:4])
    assert len(link.messages) == 10
    rig.ack(consumer, places[4:5])
    assert len(link.messages) == 15


def test_the_subscriptions_limit_holds_for_all_consumers_together(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(limits=DispatchLimits(subscription_unacked_max=10))
    first, first_link = rig.consumer(SHARED)
    second, second_link = rig.consumer(SHARED)
    rig.publish(30)
    rig.loop.settle()
    assert len(first_link.messages) + len(second_link.messages) == 10
    assert subscription_stats(rig.subscription)["blockedSubscriptionOnUnackedMsgs"]
    rig.ack(first, first_link.take())
    assert not first_link.messages
    rig.ack(second, second_link.places[:1])
    assert len(first_link.messages) + len(second_link.messages) == 11


def test_parts_of_a_batch_count_as_they_are_acknowledged(rig: Rig) -> None:
    (batch,) = rig.publish(1, messages=10)
    consumer, link = rig.consumer(SHARED, permits=100)
    rig.ack(consumer, [batch], ack_set=[0b1111111100], batch_size=10)
    assert (consumer.unacked, rig.subscription.backlog()) == (8, 1)
    rig.ack(consumer, [batch], ack_set=[0b1111111100], batch_size=10)
    assert consumer.unacked == 8
    link.take()
    rig.subscription.redeliver(consumer, [batch])
    rig.loop.settle()
    assert [m.ack_set for m in link.messages] == [[0b1111111100]]
    assert consumer.permits == 100 - 10 - 8
    rig.ack(consumer, [batch], ack_set=[0b0000000011], batch_size=10)
    assert (consumer.unacked, rig.subscription.backlog()) == (0, 0)


def test_chunks_of_one_message_go_to_one_consumer(rig: Rig) -> None:
    consumers = [rig.consumer(SHARED) for _ in range(3)]
    for chunk in range(4):
        for message in ("m1", "m2", "m3"):
            rig.publish(1, chunk=(message, chunk, 4), body=message.encode())
    rig.loop.settle()
    for _, link in consumers:
        assert len(link.messages) == 4
        assert len({message.body for message in link.messages}) == 1


def test_a_chunk_waits_for_the_consumer_that_has_the_first_ones(rig: Rig) -> None:
    first, first_link = rig.consumer(SHARED, permits=1)
    chunks = [rig.publish(1, chunk=("m", n, 3))[0] for n in range(3)]
    rig.loop.settle()
    _, second_link = rig.consumer(SHARED)
    plain = rig.publish(2)
    rig.loop.settle()
    assert second_link.places == plain
    rig.subscription.flow(first, 10)
    rig.loop.settle()
    assert first_link.places == chunks


def test_waiting_chunks_follow_when_their_consumer_leaves(rig: Rig) -> None:
    first, _ = rig.consumer(SHARED, permits=1)
    chunks = [rig.publish(1, chunk=("m", n, 3))[0] for n in range(3)]
    _, second_link = rig.consumer(SHARED)
    rig.subscription.remove_consumer(first)
    rig.loop.settle()
    assert second_link.places == chunks


# -- delays


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_delayed_message_waits_for_its_time_and_others_pass(rig: Rig, kind: int) -> None:
    _, link = rig.consumer(kind)
    now = rig.loop.now_ms()
    late = rig.publish(1, deliver_at_ms=now + 5000)
    later = rig.publish(1, deliver_at_ms=now + 9000)
    soon = rig.publish(1)
    rig.loop.settle()
    assert link.take() == soon
    assert subscription_stats(rig.subscription)["msgDelayed"] == 2
    rig.loop.advance(4.9)
    assert link.take() == []
    rig.loop.advance(0.2)
    assert link.take() == late
    rig.loop.advance(4)
    assert link.take() == later


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_delayed_message_is_not_early_by_a_part_of_a_millisecond(rig: Rig, kind: int) -> None:
    _, link = rig.consumer(kind)
    # Its producer cut its time to milliseconds: it may have meant nearly one more.
    now = rig.loop.now_ms()
    at_once = rig.publish(1, deliver_at_ms=now)
    late = rig.publish(1, deliver_at_ms=now + 5000)
    rig.loop.settle()
    assert link.take() == []
    rig.loop.advance(0.002)
    assert link.take() == at_once
    rig.loop.advance(4.998)
    assert link.take() == []
    rig.loop.advance(0.002)
    assert link.take() == late


def test_a_due_message_waits_for_permits(rig: Rig) -> None:
    consumer, link = rig.consumer(SHARED, permits=1)
    late = rig.publish(1, deliver_at_ms=rig.loop.now_ms() + 1000)
    rig.publish(1)
    rig.loop.settle()
    link.take()
    rig.loop.advance(2)
    assert link.take() == []
    rig.subscription.flow(consumer, 1)
    rig.loop.settle()
    assert link.take() == late


def test_delays_do_not_apply_where_order_is_kept(rig: Rig) -> None:
    places = rig.publish(1, deliver_at_ms=rig.loop.now_ms() + 5000)
    _, link = rig.consumer()
    assert link.places == places


def test_delayed_messages_are_found_again_after_everybody_left(rig: Rig) -> None:
    consumer, _ = rig.consumer(SHARED)
    late = rig.publish(1, deliver_at_ms=rig.loop.now_ms() + 5000)
    rig.loop.settle()
    rig.subscription.remove_consumer(consumer)
    _, link = rig.consumer(SHARED)
    assert link.places == []
    rig.loop.advance(6)
    assert link.places == late


def test_reading_stops_when_too_many_messages_are_delayed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(limits=DispatchLimits(delayed_max=5, burst_entries=1))
    _, link = rig.consumer(SHARED)
    rig.publish(20, deliver_at_ms=rig.loop.now_ms() + 1000)
    rig.publish(1)
    rig.loop.settle()
    assert subscription_stats(rig.subscription)["msgDelayed"] == 5
    rig.loop.advance(2)
    assert len(link.messages) == 21


def test_priorities_that_nobody_has_any_more_cost_nothing(rig: Rig) -> None:
    _, link = rig.consumer(SHARED, priority=7)
    for priority in (0, -(2**31), 2**31 - 1, *range(10, 60)):
        other, _ = rig.consumer(SHARED, priority=priority, permits=0)
        rig.subscription.remove_consumer(other)
    places = rig.publish(3)
    rig.loop.settle()
    assert link.places == places
    assert isinstance(rig.subscription.dispatcher, SharedDispatcher)
    assert rig.subscription.dispatcher.levels == [7]
