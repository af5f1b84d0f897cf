"""Entry buckets: consumers share a segment, each bucket in order and with one consumer at a time."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from anabranch.broker.dispatch import (
    base,
    bucket_queues,
    bucket_scan,
    concurrent,
    entry_buckets,
    every_bucket,
)
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.kept import KEPT_BYTES_MAX, KeptBudget
from anabranch.broker.errors import ConsumerBusyError, SubscriptionBusyError
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.state import topic_state as state
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED
from unit.broker.dispatch.bucket_rig import SPLITS, BucketRig
from unit.broker.rig import ListLog


@pytest.fixture
def make() -> Iterator[Callable[..., BucketRig]]:
    rigs: list[BucketRig] = []

    def build(*args: Any, **options: Any) -> BucketRig:
        rigs.append(BucketRig(*args, **options))
        return rigs[-1]

    yield build
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make: Callable[..., BucketRig]) -> BucketRig:
    return make()


@pytest.mark.parametrize("splits", SPLITS)
def test_each_bucket_goes_to_the_consumer_that_is_named_for_it(
    make: Callable[..., BucketRig], splits: Splits
) -> None:
    rig = make(splits)
    count = len(splits) + 1
    links = [rig.sharer(f"c{n}")[1] for n in range(count)]
    rig.give(*(f"c{n}" for n in range(count)))
    places = [[at for _ in range(3) for at in rig.stamped(bucket)] for bucket in range(count)]
    assert [link.places for link in links] == places


def test_a_bucket_without_a_named_or_connected_owner_is_withheld_and_others_flow(rig: BucketRig) -> None:
    _, link = rig.sharer("a")
    rig.give("a", None, "away", "a")
    rig.stamped(1)
    rig.stamped(2)
    mine = [*rig.stamped(0), *rig.stamped(3)]
    assert link.take() == mine
    assert subscription_stats(rig.subscription)["entryBucketsWithheld"] == 2
    _, away = rig.sharer("away")
    assert away.places == [(5, 1)]
    rig.give("a", "a")
    assert link.places == [(5, 0)]
    assert subscription_stats(rig.subscription)["entryBucketsWithheld"] == 0


def test_a_moving_bucket_waits_for_the_acknowledgements_of_its_former_owner(rig: BucketRig) -> None:
    old, old_link = rig.sharer("old")
    _, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    held = [*rig.stamped(1, 2), *rig.stamped(2)]
    rig.give("old", "new", "old", "old")
    later = rig.stamped(1, 2)
    flowing = rig.stamped(2)
    assert old_link.places == [*held, *flowing]
    assert not new_link.messages
    assert rig.dispatcher.withheld == 1
    rig.ack(old, held[:1])
    assert not new_link.messages
    rig.ack(old, held[1:2])
    assert new_link.places == later
    assert rig.dispatcher.withheld == 0


def test_a_partly_acknowledged_batch_keeps_its_bucket_until_the_last_message(rig: BucketRig) -> None:
    old, _ = rig.sharer("old")
    _, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    held = rig.stamped(0, messages=3)
    rig.give("new")
    later = rig.stamped(0)
    for left in (0b110, 0b100):
        rig.ack(old, held, ack_set=[left], batch_size=3)
        assert not new_link.messages
    rig.ack(old, held, ack_set=[0b011], batch_size=3)
    assert new_link.places == later


def test_entries_of_an_owner_that_dies_in_the_hand_over_come_first_and_in_order(rig: BucketRig) -> None:
    old, _ = rig.sharer("old")
    _, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    held = rig.stamped(1, 3)
    rig.give("old", "new", "old", "old")
    later = rig.stamped(1, 2)
    rig.ack(old, held[1:2])
    rig.subscription.remove_consumer(old)
    rig.loop.settle()
    assert new_link.places == [held[0], held[2], *later]


def test_a_new_owner_that_dies_before_its_first_entry_leaves_nothing_behind(rig: BucketRig) -> None:
    old, old_link = rig.sharer("old")
    new, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    held = rig.stamped(1)
    rig.give("old", "new", "old", "old")
    later = rig.stamped(1)
    rig.subscription.remove_consumer(new)
    rig.ack(old, held)
    assert not new_link.messages
    rig.give("old", "old", "old", "old")
    assert old_link.places == [*held, *later]


@pytest.mark.parametrize(
    "stamp", [(None, None), (5, None), (None, 5), (9, 8), (0, 1 << 17), (70_000, 70_001)]
)
def test_an_entry_without_a_sound_stamp_may_be_of_every_bucket(
    rig: BucketRig, stamp: tuple[int | None, int | None]
) -> None:
    first, first_link = rig.sharer("first")
    second, second_link = rig.sharer("second")
    rig.give("first", "first", "second", "second")
    before = rig.stamped(3)
    odd = rig.spread(*stamp)
    after = [*rig.stamped(3), *rig.stamped(0)]
    assert (first_link.places, second_link.places) == ([], before)
    rig.ack(second, before)
    # It goes to the owner of the first bucket, which holds all of them now.
    assert (first_link.places, second_link.places) == ([*odd, after[1]], before)
    rig.ack(first, odd)
    assert second_link.places == [*before, after[0]]


def test_an_entry_across_two_buckets_waits_for_those_two_only(rig: BucketRig) -> None:
    _, a_link = rig.sharer("a")
    b, b_link = rig.sharer("b")
    rig.give("a", "b", "b", "a")
    held = rig.stamped(1)
    across = rig.spread(100, 0x4000)
    behind = rig.stamped(0)
    other = rig.stamped(3)
    assert (a_link.places, b_link.places) == (other, held)
    rig.ack(b, held)
    assert a_link.places == [*other, *across, *behind]


def test_a_bucket_far_behind_stops_no_other_and_catches_up_in_order(make: Callable[..., BucketRig]) -> None:
    rig = make(limits=DispatchLimits(held_per_consumer_max=3, burst_entries=5))
    slow, slow_link = rig.sharer("slow", permits=1)
    _, quick_link = rig.sharer("quick", permits=100_000)
    rig.give("slow", "quick", "quick", "quick")
    late, soon = [], []
    for n in range(300):
        late += rig.stamped(0)
        soon += rig.stamped(1 + n % 3)
    assert quick_link.places == soon
    assert slow_link.places == late[:1]
    # What waits in memory has an end, however much of the bucket is behind.
    assert subscription_stats(rig.subscription)["msgInReplay"] <= 3
    rig.subscription.flow(slow, 100_000)
    rig.loop.settle(3000)
    assert slow_link.places == late
    assert quick_link.places == soon


def test_what_waits_for_room_is_read_from_a_file_once(make: Callable[..., BucketRig]) -> None:
    rig = make(limits=DispatchLimits(burst_entries=8))
    rig.log.cold.add(5)
    places = [[at for _ in range(20) for at in rig.stamped(bucket)] for bucket in range(4)]
    sharers = [rig.sharer(name, permits=1) for name in "abcd"]
    rig.give(*"abcd")
    for _ in range(20):
        # One after the other, as clients ask for more.
        for consumer, _ in sharers:
            rig.subscription.flow(consumer, 1)
            rig.loop.settle()
    assert [link.places for _, link in sharers] == places
    assert rig.log.entries_read == 80


def test_a_consumer_that_stands_does_not_take_the_room_of_others(make: Callable[..., BucketRig]) -> None:
    rig = make(limits=DispatchLimits(burst_entries=4))
    rig.log.cold.add(5)
    rig.ownership.kept_budget = KeptBudget(1 << 20)
    late = [at for _ in range(40) for at in (*rig.stamped(0), *rig.stamped(1))][::2]
    slow, slow_link = rig.sharer("slow", permits=0)
    _, quick_link = rig.sharer("quick", permits=100_000)
    rig.give("slow", "quick", "quick", "quick")
    rig.loop.settle(1000)
    assert len(quick_link.messages) == 40
    assert rig.ownership.kept_budget.left < 1 << 20
    rig.subscription.flow(slow, 100_000)
    rig.loop.settle(1000)
    assert slow_link.places == late
    assert rig.log.entries_read == 80
    assert rig.ownership.kept_budget.left == 1 << 20


def test_what_is_kept_is_forgotten_with_the_last_consumer(make: Callable[..., BucketRig]) -> None:
    rig = make()
    rig.log.cold.add(5)
    rig.stamped(0, 10)
    rig.stamped(1, 10)
    slow, _ = rig.sharer("slow", permits=0)
    quick, _ = rig.sharer("quick", permits=100_000)
    rig.give("slow", "quick", "quick", "quick")
    rig.loop.settle(100)
    budget = rig.ownership.kept_budget
    assert budget.left < KEPT_BYTES_MAX
    for one in (slow, quick):
        rig.subscription.remove_consumer(one)
    assert budget.left == KEPT_BYTES_MAX


def test_others_go_on_while_a_bucket_catches_up(make: Callable[..., BucketRig]) -> None:
    rig = make(limits=DispatchLimits(held_per_consumer_max=1, burst_entries=2))
    slow, slow_link = rig.sharer("slow", permits=0)
    _, quick_link = rig.sharer("quick", permits=100_000)
    rig.give("slow", "quick", "quick", "quick")
    late = rig.stamped(0, 200)
    rig.loop.settle(500)
    rig.subscription.flow(slow, 100_000)
    rig.loop.settle(20)
    assert 0 < len(slow_link.messages) < 200
    fresh = rig.publish(1, hashes=(0x4000, 0x4000))
    rig.loop.settle(20)
    assert quick_link.places == fresh
    assert len(slow_link.messages) < 200
    rig.loop.settle(2000)
    assert slow_link.places == late


def test_chunks_follow_the_holder_of_their_message_when_the_bucket_moves(rig: BucketRig) -> None:
    """And the message has its turn where it becomes whole, as for a lone consumer."""
    old, old_link = rig.sharer("old")
    new, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    chunks = [rig.chunk(1, "m", 0, 3)]
    rig.give("old", "new", "old", "old")
    between = rig.stamped(1)
    chunks += [rig.chunk(1, "m", 1, 3), rig.chunk(1, "m", 2, 3)]
    behind = rig.stamped(1)
    assert new_link.places == between
    assert old_link.places == chunks[:1]
    rig.ack(new, between)
    assert old_link.places == chunks
    assert new_link.places == between
    rig.ack(old, chunks)
    assert new_link.places == [*between, *behind]


@pytest.mark.parametrize("bucket", [1, None])
@pytest.mark.parametrize("aside_max", [1, 1000])
def test_chunks_that_waited_when_the_bucket_moved_reach_the_holder(
    make: Callable[..., BucketRig], bucket: int | None, aside_max: int
) -> None:
    rig = make(limits=DispatchLimits(held_per_consumer_max=aside_max))
    old, old_link = rig.sharer("old", permits=1)
    new, new_link = rig.sharer("new")
    rig.give("old", "old", "new", "new")
    chunks = [rig.chunk(bucket, "m", 0, 3)]
    between = rig.stamped(1, 5)
    chunks += [rig.chunk(bucket, "m", 1, 3), rig.chunk(bucket, "m", 2, 3)]
    behind = rig.stamped(1)
    assert old_link.places == chunks[:1]
    rig.give("new", "new", "new", "new")
    rig.subscription.flow(old, 10)
    rig.loop.settle(500)
    assert new_link.places == between
    rig.ack(new, between, turns=500)
    assert old_link.places == chunks
    assert new_link.places == between
    rig.ack(old, chunks, turns=500)
    assert new_link.places == [*between, *behind]


# Which bucket two messages in chunks are of, and what comes between their chunks.
CHUNKS_APART = [(3, (None, None)), (3, (0x8000, 0xFFFF)), (None, (0xC000, 0xFFFF))]


@pytest.mark.parametrize(("chunked", "between"), CHUNKS_APART)
@pytest.mark.parametrize("aside_max", [1, 1000])
@pytest.mark.parametrize("permits", [1, 1000])
def test_what_comes_between_the_chunks_of_messages_does_not_stop_them(
    make: Callable[..., BucketRig],
    chunked: int | None,
    between: tuple[int | None, int | None],
    aside_max: int,
    permits: int,
) -> None:
    """Nothing of a message is acknowledged before all of it is there."""
    rig = make(limits=DispatchLimits(held_per_consumer_max=aside_max))
    sharers = {name: rig.sharer(name, permits=0) for name in "ab"}
    rig.give("a", "a", "a", "b")
    first, second = rig.chunk(chunked, "m", 0, 3), rig.chunk(chunked, "n", 0, 2)
    odd = rig.spread(*between, count=2)
    m = [first, rig.chunk(chunked, "m", 1, 3)]
    n = [second, rig.chunk(chunked, "n", 1, 2)]
    m.append(rig.chunk(chunked, "m", 2, 3))
    for _ in range(20):
        for one, _link in sharers.values():
            rig.subscription.flow(one, permits)
            rig.loop.settle(500)
            whole = [message for message in (m, n) if set(message) <= set(one.pending)]
            rig.ack(one, [at for at in one.pending if at in odd or any(at in message for message in whole)])
    assert sorted(at for _, link in sharers.values() for at in link.places) == sorted([*m, *n, *odd])
    assert rig.subscription.backlog() == 0
    assert rig.dispatcher.is_all_sent


# Which bucket a message that never becomes whole is of, and what comes behind it.
@pytest.mark.parametrize("bucket", [1, None])
@pytest.mark.parametrize("behind", [(None, None), (0x2000, 0xFFFF), (0x4000, 0x4000)])
@pytest.mark.parametrize("aside_max", [1, 1000])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_message_whose_producer_never_finishes_it_stops_nobody(
    make: Callable[..., BucketRig],
    bucket: int | None,
    behind: tuple[int | None, int | None],
    aside_max: int,
    chunks: int,
) -> None:
    """Its chunks are never acknowledged. The producer that lost its connection sends it again under another name."""
    rig = make(limits=DispatchLimits(held_per_consumer_max=aside_max))
    sharers = {name: rig.sharer(name) for name in "abcd"}
    rig.give("d", "d", "d", "d")
    left = [rig.chunk(bucket, "m", number, 3) for number in range(chunks)]
    consumer, link = sharers["d"]
    assert link.places == left
    rig.give("a", "b", "c", "d")
    later = [*rig.spread(*behind, count=2), *(rig.chunk(bucket, "n", number, 2) for number in range(2))]
    later += [at for number in range(4) for at in rig.stamped(number, 2)]
    for _ in range(20):
        for one, _link in sharers.values():
            rig.ack(one, [at for at in one.pending if at not in left], turns=100)
    assert sorted(at for _, one in sharers.values() for at in one.places) == [*left, *later]
    assert list(consumer.pending) == left
    assert rig.dispatcher.is_all_sent


@pytest.mark.parametrize("how", ["leaves", "refuses"])
def test_a_message_begins_again_with_the_owner_of_its_bucket(rig: BucketRig, how: str) -> None:
    old, old_link = rig.sharer("old", permits=1)
    new, new_link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    chunks = [rig.chunk(1, "m", number, 3) for number in range(3)]
    rig.give("new", "new", "new", "new")
    assert old_link.places == chunks[:1]
    assert not new_link.messages
    if how == "leaves":
        rig.subscription.remove_consumer(old)
    else:
        rig.subscription.redeliver(old, None)
    rig.loop.settle(200)
    assert new_link.places == chunks
    rig.ack(new, chunks)
    assert rig.dispatcher.is_all_sent


def test_delivery_times_are_ignored(rig: BucketRig) -> None:
    _, link = rig.sharer("a")
    rig.give("a", "a", "a", "a")
    far = rig.loop.now_ms() + 3_600_000
    places = [*rig.publish(1, hashes=(1, 1), deliver_at_ms=far), *rig.stamped(0)]
    rig.loop.settle()
    assert link.places == places


def test_any_number_of_messages_may_be_unacknowledged_but_not_of_entries(
    make: Callable[..., BucketRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(limits=DispatchLimits(consumer_unacked_max=3, subscription_unacked_max=4))
    monkeypatch.setattr(entry_buckets, "ENTRIES_UNACKED_MAX", 6)
    consumer, link = rig.sharer("a")
    _, other = rig.sharer("b")
    rig.give("a", "a", "a", "b")
    places = rig.stamped(0, 10, messages=5)
    rig.subscription.limit(rig.limits, 0, None)
    rig.loop.settle()
    assert link.places == places[:6]
    figures = subscription_stats(rig.subscription)
    assert (figures["unackedEntries"], figures["unackedEntriesPerConsumerMax"]) == (6, 6)
    assert figures["consumers"][0]["blockedConsumerOnUnackedMsgs"]
    flowing = rig.stamped(3)
    assert other.places == flowing
    rig.ack(consumer, places[:3])
    assert link.places == places[:9]


def test_a_refused_entry_comes_again_before_later_ones_of_its_bucket(rig: BucketRig) -> None:
    consumer, link = rig.sharer("a", permits=2)
    rig.give("a", "a", "a", "a")
    places = rig.stamped(1, 4)
    assert link.take() == places[:2]
    rig.subscription.redeliver(consumer, [places[1], places[0]])
    rig.subscription.flow(consumer, 10)
    rig.loop.settle()
    assert link.places == places
    assert [message.redeliveries for message in link.messages] == [1, 1, 0, 0]


def test_a_sharer_cannot_acknowledge_cumulatively(rig: BucketRig) -> None:
    consumer, _ = rig.sharer("a")
    rig.give("a", "a", "a", "a")
    places = rig.stamped(0, 2)
    (refused,) = rig.ack(consumer, places[-1:], is_cumulative=True)
    assert "cumulative" in str(refused)
    assert rig.subscription.backlog() == 2


def test_a_second_consumer_of_a_name_must_wait_for_the_first(rig: BucketRig) -> None:
    first, _ = rig.sharer("a")
    with pytest.raises(ConsumerBusyError):
        rig.sharer("a")
    rig.subscription.remove_consumer(first)
    rig.sharer("a")


def test_consumers_of_other_ways_do_not_join_sharers(rig: BucketRig) -> None:
    sharer, _ = rig.sharer("a")
    with pytest.raises(ConsumerBusyError):
        rig.consumer(EXCLUSIVE)
    for kind in (SHARED, KEY_SHARED):
        with pytest.raises(SubscriptionBusyError):
            rig.consumer(kind)
    rig.subscription.remove_consumer(sharer)
    rig.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        rig.sharer("a")


def test_nothing_follows_the_records_once_all_sharers_have_left(rig: BucketRig) -> None:
    consumer, _ = rig.sharer("a")
    assert len(rig.ownership.followers) == 1
    rig.subscription.remove_consumer(consumer)
    assert not rig.ownership.followers


def test_an_exclusive_consumer_takes_over_where_the_sharers_stopped(rig: BucketRig) -> None:
    a, _ = rig.sharer("a")
    b, _ = rig.sharer("b")
    rig.give("a", "b", "a", "b")
    first = [*rig.stamped(0), *rig.stamped(1), *rig.stamped(2), *rig.stamped(3)]
    rig.ack(b, [first[3]])
    rig.ack(a, [first[0]])
    rig.subscription.remove_consumer(a)
    rig.subscription.remove_consumer(b)
    _, link = rig.consumer(EXCLUSIVE)
    assert link.places == first[1:3]


def test_the_progress_of_each_bucket_survives_a_restart(make: Callable[..., BucketRig]) -> None:
    rig = make()
    rig.loop.run(rig.subscription.announce())
    a, _ = rig.sharer("a")
    b, _ = rig.sharer("b")
    rig.give("a", "a", "b", "b")
    places = [at for _ in range(5) for n in range(4) for at in rig.stamped(n)]
    done = [*places[0:20:4], places[2], places[3]]
    rig.ack(a, done[:5])
    rig.ack(b, done[5:])
    stored = state.fold(None, rig.journal.deltas).subscriptions["sub"]
    again = make(log=rig.log, cursor=stored.cursor)
    _, all_of_it = again.sharer("c")
    again.give("c", "c", "c", "c")
    assert all_of_it.places == [at for at in places if at not in done]


def test_every_sharer_learns_of_the_end_and_a_seek_disconnects_all(rig: BucketRig) -> None:
    a, a_link = rig.sharer("a")
    b, b_link = rig.sharer("b")
    rig.give("a", "b", "a", "b")
    first, second = rig.stamped(0), rig.stamped(1)
    rig.subscription.topic_terminated()
    rig.ack(a, first)
    assert not rig.subscription.is_drained
    rig.ack(b, second)
    assert rig.subscription.is_drained
    ended = pb.BaseCommand.REACHED_END_OF_TOPIC
    assert [[one.type for one in link.commands] for link in (a_link, b_link)] == [[ended], [ended]]
    rig.loop.run(rig.subscription.seek(first[0]))
    assert (a_link.closed, b_link.closed) == ([a], [b])


def test_a_drain_does_not_read_the_remainder_while_entries_wait(rig: BucketRig) -> None:
    old, _ = rig.sharer("old")
    rig.sharer("new")
    rig.give("old", "old", "old", "old")
    held = rig.stamped(1, 3)
    rig.give("old", "new", "old", "old")
    rig.stamped(1, 2)
    other = rig.stamped(0, 20)
    rig.subscription.topic_terminated()
    assert not rig.dispatcher.is_all_sent
    reads = rig.log.reads
    for at in other:
        rig.ack(old, [at])
    assert rig.log.reads == reads
    rig.ack(old, held)
    assert rig.dispatcher.is_all_sent


def test_skipped_entries_stop_nothing(rig: BucketRig) -> None:
    old, _ = rig.sharer("old")
    _, link = rig.sharer("new")
    rig.give("old", "old", "old", "old")
    rig.stamped(1, 3)
    rig.give("old", "new", "old", "old")
    rig.stamped(1, 2)
    rig.loop.run(rig.subscription.skip_all())
    rig.loop.settle()
    after = rig.stamped(1)
    assert link.places == after
    assert not old.pending


def test_figures_name_the_buckets_of_each_consumer(rig: BucketRig) -> None:
    rig.sharer("a")
    rig.sharer("b")
    rig.give("a", "b", "b", "a")
    figures = subscription_stats(rig.subscription)
    assert figures["entryBuckets"] == 4
    assert [one["keyHashRanges"] for one in figures["consumers"]] == [
        ["[0, 16383]", "[49152, 65535]"],
        ["[16384, 32767]", "[32768, 49151]"],
    ]


def test_dispatch_unpacks_nothing_and_hashes_no_key() -> None:
    """A claim about the code: behaviour cannot show that a payload was not looked at."""
    for module in (entry_buckets, bucket_queues, bucket_scan, every_bucket, concurrent, base):
        text = inspect.getsource(module)
        assert not re.search(r"decompress|zlib|zstd|lz4|snappy|murmur|sticky_key|keyhash|payload\(", text)


def test_a_payload_that_cannot_be_unpacked_is_delivered_as_it_is(rig: BucketRig) -> None:
    _, link = rig.sharer("a")
    rig.give("a", "a", "a", "a")
    entry = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        compression=pb.ZSTD,
        uncompressed_size=1 << 20,
        num_messages_in_batch=7,
        entry_hash_min=1,
        entry_hash_max=2,
    ).SerializeToString()
    rig.log.append(len(entry).to_bytes(4, "big") + entry + b"no frame of zstd", 7)
    rig.subscription.entries_confirmed()
    rig.loop.settle()
    assert [message.body for message in link.messages] == [b"no frame of zstd"]


def test_a_cold_log_is_shared_like_a_warm_one(make: Callable[..., BucketRig]) -> None:
    log = ListLog()
    log.cold.add(5)
    rig = make(log=log)
    _, a = rig.sharer("a")
    _, b = rig.sharer("b")
    places = [rig.stamped(n)[0] for _ in range(10) for n in range(4)]
    rig.give("a", "b", "a", "b")
    rig.loop.settle(200)
    assert a.places == [at for at in places if at[1] % 2 == 0]
    assert b.places == [at for at in places if at[1] % 2]


def test_a_bucket_that_gets_its_owner_while_the_disk_is_read_does_not_wait_for_the_next_event(
    make: Callable[..., BucketRig],
) -> None:
    log = ListLog()
    log.cold.add(5)
    rig = make(log=log)
    _, link = rig.sharer("a")
    rig.give("a")
    waiting = rig.stamped(1)
    # The read has begun, and ends at the end of the log.
    last = rig.publish(1, hashes=(0, 0))
    rig.give("a", "a")
    rig.loop.settle(200)
    assert link.places == [*last, *waiting]


def test_an_entry_that_is_acknowledged_while_it_waits_for_a_bucket_behind_stops_no_other(
    make: Callable[..., BucketRig],
) -> None:
    rig = make(limits=DispatchLimits(held_per_consumer_max=1))
    mine, link = rig.sharer("mine")
    rig.give("away", "mine", "mine", "mine")
    # One waits in bucket 0, which is passed over at the next. The third waits for it in the three others.
    behind = rig.stamped(0, 2)
    across = rig.spread(None, None)
    fresh = rig.stamped(1)
    assert not link.messages
    # As a consumer does that comes back: an earlier connection of it had the entry.
    rig.ack(mine, across)
    rig.loop.settle(500)
    assert link.places == fresh
    _, away = rig.sharer("away")
    assert away.places == behind


def test_a_bucket_in_which_many_entries_wait_moves_in_linear_time(rig: BucketRig) -> None:
    old, _ = rig.sharer("old", permits=10_001)
    _, new = rig.sharer("new", permits=0)
    rig.give("old")
    begun = rig.chunk(0, "m", 0, 3)
    refused = rig.publish(10_000, hashes=(0, 0))
    rig.loop.settle(2000)
    assert len(old.pending) == 10_001
    old.permits = 0
    rig.subscription.redeliver(old, refused)
    rig.loop.settle(100)
    assert list(old.pending) == [begun]
    started = time.perf_counter()
    rig.give("new")
    # Seven seconds, if each of them moved those behind it.
    assert time.perf_counter() - started < 2
    assert not new.messages


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the dispatchers' modules that work runs."""
    count = 0

    def in_module(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return in_module

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        return in_module if "/broker/dispatch/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_entries_without_a_stamp_that_a_sharer_leaves_behind_cost_no_more_with_many_buckets(
    make: Callable[..., BucketRig],
) -> None:
    costs = {}
    for count in (2, 1024):
        rig = make(buckets.even(count))
        leaver, _ = rig.sharer("leaver")
        _, heir = rig.sharer("heir", permits=5000)
        rig.give(*["leaver"] * count)
        left = [*rig.spread(None, None, 1000), *rig.spread(0, 0xFFFF, 50)]
        rig.give(*["heir"] * count)
        assert not heir.messages

        def leave(rig: BucketRig = rig, leaver: AttachedConsumer = leaver) -> None:
            rig.subscription.remove_consumer(leaver)
            rig.loop.settle()

        costs[count] = lines_run(leave)
        assert heir.places == left
    # Each bucket may be looked at a few times, but not again for each entry.
    assert costs[1024] < costs[2] + 200 * 1024
