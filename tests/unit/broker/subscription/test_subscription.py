"""A subscription as its consumers see it: who is sent what, what acknowledging does, how seeks and closes behave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.dispatch.base import BATCH_MESSAGES_MAX
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import ConsumerBusyError, NotAllowedError, NotReadyError, SubscriptionBusyError
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.state import topic_state as state
from anabranch.broker.state.cursor import Cursor, words_of_bits
from anabranch.broker.subscription.subscription import NotConnectedError, start_position
from anabranch.model.position import Position
from anabranch.storage.port import FencedError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from unit.broker.rig import ListLog, Rig, make_entry

ALL_KINDS = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_entry_reaches_the_only_consumer_in_order(rig: Rig, kind: int) -> None:
    places = rig.publish(5)
    consumer, link = rig.consumer(kind)
    places += rig.publish(5)
    rig.loop.settle()
    assert link.places == places
    assert consumer.permits == 990


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_entries_that_are_not_cached_are_read_and_keep_their_order(rig: Rig, kind: int) -> None:
    rig.log.cold.add(5)
    places = rig.publish(30)
    rig.log.roll()
    places += rig.publish(5)
    _, link = rig.consumer(kind)
    assert link.places == places


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_nothing_is_sent_without_permits(rig: Rig, kind: int) -> None:
    consumer, link = rig.consumer(kind, permits=0)
    rig.publish(5)
    rig.loop.settle()
    assert not link.messages
    rig.subscription.flow(consumer, 3)
    rig.loop.settle()
    assert len(link.messages) == 3


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_batch_costs_its_messages_and_is_never_cut(rig: Rig, kind: int) -> None:
    consumer, link = rig.consumer(kind, permits=15)
    rig.publish(4, messages=10)
    rig.loop.settle()
    assert len(link.messages) == 2
    assert consumer.permits == -5


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_full_socket_pauses_and_resumes_dispatch(rig: Rig, kind: int) -> None:
    _, link = rig.consumer(kind)
    link.is_writable = False
    places = rig.publish(3)
    rig.loop.settle()
    assert not link.messages
    link.is_writable = True
    rig.subscription.link_writable(link)
    rig.loop.settle()
    assert link.places == places


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_socket_that_fills_up_while_the_disk_is_read_is_sent_nothing_more(rig: Rig, kind: int) -> None:
    rig.log.cold.add(5)
    _, link = rig.consumer(kind)
    places = rig.publish(3)
    link.is_writable = False
    rig.loop.settle()
    assert not link.messages
    link.is_writable = True
    rig.subscription.link_writable(link)
    rig.loop.settle()
    assert link.places == places


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_was_not_acknowledged_is_sent_to_the_next_consumer(rig: Rig, kind: int) -> None:
    places = rig.publish(6)
    first, _ = rig.consumer(kind)
    rig.ack(first, places[:2] + places[4:5])
    rig.subscription.remove_consumer(first)
    _, link = rig.consumer(kind)
    assert link.places == [places[2], places[3], places[5]]
    assert rig.subscription.backlog() == 3


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_redelivery_sends_the_unacknowledged_entries_again(rig: Rig, kind: int) -> None:
    places = rig.publish(4)
    consumer, link = rig.consumer(kind)
    rig.ack(consumer, places[:1])
    link.take()
    rig.subscription.redeliver(consumer, None, 1)
    rig.loop.settle()
    assert link.places == places[1:]
    assert all(message.epoch == 1 for message in link.messages)


# -- who may join


def test_an_exclusive_subscription_takes_one_consumer(rig: Rig) -> None:
    rig.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError) as refused:
        rig.consumer(EXCLUSIVE)
    assert refused.value.code == pb.ConsumerBusy


def test_a_consumer_of_another_type_is_refused_until_the_others_left(rig: Rig) -> None:
    consumer, _ = rig.consumer(SHARED)
    with pytest.raises(SubscriptionBusyError):
        rig.consumer(FAILOVER)
    rig.subscription.remove_consumer(consumer)
    rig.consumer(FAILOVER)
    assert rig.subscription.type_name == "Failover"


def test_a_refused_consumer_changes_nothing(rig: Rig) -> None:
    _, link = rig.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        rig.consumer(EXCLUSIVE)
    places = rig.publish(2)
    rig.loop.settle()
    assert link.places == places


# -- acknowledging


def test_an_answer_waits_until_its_record_is_confirmed(rig: Rig) -> None:
    places = rig.publish(3)
    consumer, _ = rig.consumer(SHARED)
    rig.journal.is_holding = True
    answers = rig.ack(consumer, places[:1])
    again = rig.ack(consumer, places[:1])
    assert answers == again == []
    rig.journal.confirm()
    assert answers == again == [None]


def test_acknowledgements_of_one_turn_share_a_record(rig: Rig) -> None:
    places = rig.publish(100)
    consumer, _ = rig.consumer(SHARED)
    answers: list[Exception | None] = []
    for ledger, entry in places:
        command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=ledger, entryId=entry)
        rig.subscription.ack(consumer, command, answers.append)
    rig.loop.settle()
    assert answers == [None] * 100
    assert len(rig.journal.deltas) == 1
    assert len(rig.journal.deltas[0]) < 30


def test_a_lost_journal_is_an_error_for_whoever_waits(rig: Rig) -> None:
    places = rig.publish(1)
    consumer, _ = rig.consumer(EXCLUSIVE)
    rig.journal.failure = FencedError("taken")
    assert rig.ack(consumer, places) == [rig.journal.failure]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_cumulative_acknowledgement_is_refused_where_order_is_shared(rig: Rig, kind: int) -> None:
    places = rig.publish(3)
    consumer, _ = rig.consumer(kind)
    (error,) = rig.ack(consumer, places[2:], is_cumulative=True)
    assert isinstance(error, NotAllowedError)
    assert rig.subscription.backlog() == 3


def test_transactional_acknowledgements_are_refused_clearly(rig: Rig) -> None:
    rig.publish(1)
    consumer, _ = rig.consumer(EXCLUSIVE)
    command = pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Individual, txnid_least_bits=1, txnid_most_bits=0
    )
    answers: list[Exception | None] = []
    rig.subscription.ack(consumer, command, answers.append)
    assert isinstance(answers[0], NotAllowedError)


def test_a_cumulative_acknowledgement_covers_all_before_it(rig: Rig) -> None:
    places = rig.publish(5)
    consumer, _ = rig.consumer(EXCLUSIVE)
    assert rig.ack(consumer, places[3:4], is_cumulative=True) == [None]
    assert rig.subscription.backlog() == 1
    assert rig.subscription.mark_delete == places[3]


def test_a_cumulative_acknowledgement_of_the_place_before_a_ledger_covers_nothing_of_it(rig: Rig) -> None:
    consumer, _ = rig.consumer(EXCLUSIVE)
    rig.publish(3)
    rig.log.roll()
    kept = rig.publish(3, messages=10)
    rig.log.roll()
    rig.publish(3)
    before = (kept[0][0], (1 << 64) - 1)  # -1, as the wire has it.
    assert rig.ack(consumer, [before], is_cumulative=True) == [None]
    assert rig.subscription.cursor.next == kept[0]


def test_a_cumulative_acknowledgement_inside_a_batch_leaves_its_rest(rig: Rig) -> None:
    rig.publish(2)
    (batch,) = rig.publish(1, messages=10)
    consumer, _ = rig.consumer(EXCLUSIVE)
    rig.ack(consumer, [batch], is_cumulative=True, ack_set=words_of_bits(0b1111100000), batch_size=10)
    assert rig.subscription.backlog() == 1
    rig.subscription.remove_consumer(consumer)
    consumer, link = rig.consumer(EXCLUSIVE, permits=100)
    assert [(m.at, m.ack_set) for m in link.messages] == [(batch, [0b1111100000])]
    assert consumer.permits == 95


def test_positions_that_do_not_exist_are_tolerated_and_leave_no_hole(rig: Rig) -> None:
    rig.publish(2)
    rig.log.roll()
    rig.publish(1)
    consumer, _ = rig.consumer(EXCLUSIVE)
    assert rig.ack(consumer, [(5, 99), (6, 0), (99, 0), (2**64 - 1, 2**64 - 1)]) == [None]
    assert rig.ack(consumer, [(99, 3)], is_cumulative=True) == [None]
    assert (rig.subscription.backlog(), rig.subscription.cursor.held) == (3, 0)


def test_folding_the_journal_gives_the_live_cursor(rig: Rig) -> None:
    rig.loop.run(rig.subscription.announce())
    places = rig.publish(20)
    batches = rig.publish(2, messages=4)
    consumer, _ = rig.consumer(SHARED)
    rig.ack(consumer, places[3:9])
    rig.ack(consumer, batches[:1], ack_set=[0b0110], batch_size=4)
    rig.ack(consumer, places[:2])
    folded = state.fold(None, rig.journal.deltas).subscriptions["sub"].cursor
    folded.settle(rig.log)
    assert folded == rig.subscription.cursor


# -- seeking


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_seek_closes_the_consumer_and_starts_again_from_there(rig: Rig, kind: int) -> None:
    places = rig.publish(6)
    consumer, link = rig.consumer(kind)
    rig.ack(consumer, places)
    rig.loop.run(rig.subscription.seek(places[2]))
    assert link.closed == [consumer]
    assert rig.subscription.backlog() == 4
    _, link = rig.consumer(kind)
    assert link.places == places[2:]
    assert all(message.redeliveries == 0 for message in link.messages)


def test_consumers_wait_while_a_seek_is_being_stored(rig: Rig) -> None:
    rig.publish(3)
    rig.journal.is_holding = True
    seeking = rig.loop.create_task(rig.subscription.seek(rig.log.first))
    rig.loop.settle()
    waiting = rig.loop.create_task(rig.subscription.wait_for_seek())
    rig.loop.settle()
    assert not waiting.done()
    rig.journal.confirm()
    rig.loop.settle()
    assert seeking.done()
    assert waiting.done()


def test_a_seek_may_start_inside_a_batch(rig: Rig) -> None:
    (batch,) = rig.publish(1, messages=4)
    rig.loop.run(rig.subscription.seek(batch, [0b1100]))
    consumer, link = rig.consumer(EXCLUSIVE, permits=10)
    assert link.messages[0].ack_set == [0b1100]
    assert consumer.permits == 8


def test_seeking_beyond_both_ends_means_the_ends(rig: Rig) -> None:
    places = rig.publish(3)
    rig.loop.run(rig.subscription.seek((2**63 - 1, 2**63 - 1)))
    assert rig.subscription.backlog() == 0
    rig.loop.run(rig.subscription.seek((-1, -1)))
    assert rig.subscription.next == places[0]


def test_seeking_to_a_time_finds_the_first_entry_published_since(rig: Rig) -> None:
    places = [rig.publish(1, publish_time_ms=t)[0] for t in (10, 20, 30)]
    rig.loop.run(rig.subscription.seek_to_time(15))
    assert rig.subscription.next == places[1]


def test_a_readers_subscription_survives_its_own_seek_but_not_its_absence(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(is_durable=False)
    places = rig.publish(3)
    rig.consumer(EXCLUSIVE)
    rig.loop.run(rig.subscription.seek(places[1]))
    assert not rig.ended
    _, link = rig.consumer(EXCLUSIVE)
    assert link.places == places[1:]
    rig.loop.run(rig.subscription.seek(places[2]))
    rig.loop.advance(61)
    assert rig.ended == [rig.subscription]


def test_a_readers_subscription_goes_with_its_last_consumer(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(is_durable=False)
    places = rig.publish(2)
    consumer, _ = rig.consumer(EXCLUSIVE)
    assert rig.ack(consumer, places) == [None]
    assert not rig.journal.deltas
    rig.subscription.remove_consumer(consumer)
    assert rig.ended == [rig.subscription]
    assert rig.subscription.is_closed


# -- ending


def test_the_end_of_a_terminated_topic_is_told_once_all_is_acknowledged(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, link = rig.consumer(SHARED)
    rig.subscription.topic_terminated()
    rig.ack(consumer, places[:1])
    assert not link.commands
    rig.ack(consumer, places[1:])
    rig.subscription.topic_terminated()
    assert [command.type for command in link.commands] == [pb.BaseCommand.REACHED_END_OF_TOPIC]


@pytest.mark.parametrize("is_terminated_first", [True, False])
def test_the_end_of_a_terminated_topic_is_not_told_before_the_last_acknowledgement_is_stored(
    rig: Rig, is_terminated_first: bool
) -> None:
    places = rig.publish(2)
    consumer, link = rig.consumer(SHARED)
    rig.journal.is_holding = True
    if is_terminated_first:
        rig.subscription.topic_terminated()
    rig.ack(consumer, places)
    rig.subscription.topic_terminated()
    _, late = rig.consumer(SHARED)
    assert not link.commands
    assert not late.commands
    rig.journal.confirm()
    rig.loop.settle()
    for told in (link, late):
        assert [command.type for command in told.commands] == [pb.BaseCommand.REACHED_END_OF_TOPIC]


def test_the_end_of_a_terminated_topic_is_not_told_if_an_acknowledgement_is_lost(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, link = rig.consumer(SHARED)
    rig.subscription.topic_terminated()
    rig.ack(consumer, places[:1])
    rig.journal.is_holding = True
    rig.ack(consumer, places[1:])
    rig.journal.confirm(FencedError("another broker has it"))
    rig.loop.settle()
    assert not link.commands
    assert not rig.subscription.is_drained
    assert not rig.drained


def test_a_consumer_that_comes_to_a_finished_topic_is_told_at_once(rig: Rig) -> None:
    rig.subscription.topic_terminated()
    _, link = rig.consumer(EXCLUSIVE)
    assert [command.type for command in link.commands] == [pb.BaseCommand.REACHED_END_OF_TOPIC]


def test_unsubscribing_needs_the_others_to_leave_first(rig: Rig) -> None:
    consumer, link = rig.consumer(SHARED)
    other, other_link = rig.consumer(SHARED)
    with pytest.raises(NotConnectedError):
        rig.loop.run(rig.subscription.unsubscribe(consumer))
    rig.loop.run(rig.subscription.unsubscribe(consumer, force=True))
    assert not link.closed
    assert other_link.closed == [other]
    assert rig.ended == [rig.subscription]
    assert state.fold(None, rig.journal.deltas).subscriptions == {}


# -- an operator


def test_skipping_counts_only_entries_that_are_not_acknowledged(rig: Rig) -> None:
    places = rig.publish(6)
    consumer, _ = rig.consumer(SHARED)
    rig.ack(consumer, places[1:3])
    rig.loop.run(rig.subscription.skip(2))
    assert rig.subscription.next == places[4]
    assert consumer.unacked == 2
    rig.loop.run(rig.subscription.skip_all())
    assert rig.subscription.backlog() == 0
    assert consumer.unacked == 0


def test_peeking_delivers_nothing(rig: Rig) -> None:
    places = rig.publish(4)
    found = [rig.loop.run(rig.subscription.peek(index)) for index in range(5)]
    assert [one and one[0] for one in found] == [*places, None]
    assert rig.subscription.backlog() == 4


@given(st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39), max_size=5), st.integers(0, 45))
def test_the_n_th_unacknowledged_entry_is_found_by_arithmetic(
    acked: set[int], skipped: set[int], index: int
) -> None:
    rig = Rig()
    try:
        places = rig.publish(20)
        rig.log.roll()
        places += rig.publish(20)
        rig.log.skipped.update(places[n] for n in skipped)
        for n in acked - skipped:
            rig.subscription.cursor.ack(places[n])
        left = [at for n, at in enumerate(places) if n not in acked | skipped]
        found = rig.loop.run(rig.subscription.peek(index))
        assert (found and found[0]) == (left[index] if index < len(left) else None)
        rig.loop.run(rig.subscription.skip(index))
        assert rig.subscription.next == (left[index] if index < len(left) else rig.log.end)
    finally:
        rig.close()


def test_expiry_gives_up_what_is_too_old(rig: Rig) -> None:
    for t in (10, 20, 30):
        rig.publish(1, publish_time_ms=t)
    assert rig.loop.run(rig.subscription.expire_before(25)) == 2
    assert subscription_stats(rig.subscription)["totalMsgExpired"] == 2


def test_damage_stops_dispatch_until_it_is_skipped(rig: Rig) -> None:
    rig.log.cold.add(5)
    places = rig.publish(4)
    rig.log.damaged.add(places[2])
    _, link = rig.consumer(EXCLUSIVE)
    assert link.places == places[:2]
    assert "wal-1 at byte 77" in subscription_stats(rig.subscription)["dispatchError"]
    rig.subscription.entries_confirmed()
    rig.loop.settle()
    reads = rig.log.reads
    rig.loop.advance(10)
    assert rig.log.reads == reads
    rig.log.skipped.add(places[2])
    rig.subscription.entries_confirmed()
    rig.loop.settle()
    assert link.places == [*places[:2], places[3]]
    assert "dispatchError" not in subscription_stats(rig.subscription)


def test_a_read_that_fails_for_now_is_tried_again(rig: Rig) -> None:
    rig.log.cold.add(5)
    places = rig.publish(2)
    rig.log.failure = FencedError("not yet")
    _, link = rig.consumer(SHARED)
    assert not link.messages
    rig.log.failure = None
    rig.loop.advance(1.1)
    assert link.places == places


def test_stats_have_pulsars_fields(rig: Rig) -> None:
    places = rig.publish(4)
    consumer, _ = rig.consumer(SHARED, metadata={"zone": "b"})
    rig.ack(consumer, places[1:2])
    rig.subscription.update_rates(2.0)
    stats = subscription_stats(rig.subscription)
    assert (stats["msgBacklog"], stats["unackedMessages"], stats["type"]) == (3, 3, "Shared")
    assert stats["nonContiguousDeletedMessagesRanges"] == 1
    assert stats["msgRateOut"] == 2.0
    (one,) = stats["consumers"]
    assert (one["consumerName"], one["availablePermits"], one["unackedMessages"]) == ("c1", 996, 3)
    assert one["metadata"] == {"zone": "b"}


# -- bursts


def test_a_long_backlog_leaves_the_loop_to_others_between_bursts(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(limits=DispatchLimits(burst_entries=10))
    rig.publish(100)
    _, link = rig.consumer(EXCLUSIVE)
    assert link.writes == 10
    assert len(link.messages) == 100


# -- where subscriptions start


@pytest.mark.parametrize(
    ("start", "durable", "initial", "expected"),
    [
        (None, True, "Latest", (5, 3)),
        (None, True, "Earliest", (5, 0)),
        ((2**64 - 1, 2**64 - 1), False, "Latest", (5, 0)),
        ((2**63 - 1, 2**63 - 1), False, "Latest", (5, 3)),
        ((2**63 - 1, 2**63 - 1), False, "Earliest", (5, 0)),
        ((5, 1), False, "Latest", (5, 1)),
        ((5, 2**64 - 1), False, "Latest", (5, 0)),
        ((4, 7), False, "Latest", (5, 0)),
        ((7, 0), False, "Latest", (5, 3)),
    ],
)
def test_start_positions(
    start: tuple[int, int] | None, durable: bool, initial: str, expected: tuple[int, int]
) -> None:
    log = ListLog()
    for _ in range(3):
        log.append(make_entry())
    request = pb.CommandSubscribe(
        topic="t", subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )
    request.durable = durable
    if initial == "Earliest":
        request.initialPosition = pb.CommandSubscribe.Earliest
    if start is not None:
        request.start_message_id.ledgerId, request.start_message_id.entryId = start
    assert start_position(log, request) == expected


def ack_of(consumer: AttachedConsumer, *parts: pb.MessageIdData) -> pb.CommandAck:
    return pb.CommandAck(consumer_id=consumer.id, ack_type=pb.CommandAck.Individual, message_id=parts)


def part_of(at: Position, words: Sequence[int], batch_size: int = 0) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=at[0], entryId=at[1], ack_set=words, batch_size=batch_size)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    ("words", "batch_size"),
    [([1], -1), ([1], 2**31 - 1), ([1, 1], 64), ([1] * 20_000, 0), ([1] * 20_000, 2**31 - 1)],
)
def test_an_acknowledgement_that_no_batch_can_have_is_refused_whole(
    rig: Rig, kind: int, words: list[int], batch_size: int
) -> None:
    places = rig.publish(3, messages=10)
    consumer, link = rig.consumer(kind)
    before = len(rig.journal.deltas)
    answers: list[Exception | None] = []
    command = ack_of(consumer, part_of(places[0], []), part_of(places[1], words, batch_size))
    rig.subscription.ack(consumer, command, answers.append)
    rig.loop.settle()
    assert [type(answer) for answer in answers] == [NotAllowedError]
    assert rig.subscription.backlog() == 3
    assert not rig.subscription.cursor.batches
    assert len(rig.journal.deltas) == before
    assert link.works == 0


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_acknowledging_thousands_of_messages_at_once_leaves_the_loop_to_others(rig: Rig, kind: int) -> None:
    places = rig.publish(9_000)
    consumer, link = rig.consumer(kind, permits=100_000)
    answers: list[Exception | None] = []
    command = ack_of(consumer, *(part_of(at, []) for at in places[1:]))
    rig.subscription.ack(consumer, command, answers.append)
    # Nothing is read from that client until it is done.
    assert link.works == 1
    assert rig.subscription.cursor.held < 5_000
    assert not answers
    rig.loop.settle()
    assert answers == [None]
    assert link.works == 0
    assert (rig.subscription.cursor.next, rig.subscription.cursor.held) == (places[0], 8_999)
    live = state.fold(state.encode_snapshot({}, producers={}, producers_as_of=(-1, -1), is_sealed=False), [])
    live.subscriptions["sub"] = state.SubscriptionState(Cursor(places[0]))
    for delta in rig.journal.deltas:
        state.apply(live, delta)
    assert live.subscriptions["sub"].cursor.held == 8_999


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_follows_a_long_acknowledgement_finds_it_done(rig: Rig, kind: int) -> None:
    places = rig.publish(9_000)
    consumer, link = rig.consumer(kind, permits=100_000)
    rig.loop.settle(200)
    assert len(link.take()) == 9_000
    stored: list[Exception | None] = []
    command = ack_of(consumer, *(part_of(at, []) for at in places[:8_999]))
    rig.subscription.ack(consumer, command)
    rig.subscription.redeliver(consumer, places)
    rig.subscription.when_stored(stored.append)
    rig.loop.settle(200)
    assert link.take() == places[8_999:]
    assert stored == [None]
    assert rig.subscription.backlog() == 1


def test_a_seek_ends_a_long_acknowledgement(rig: Rig) -> None:
    places = rig.publish(9_000)
    consumer, link = rig.consumer(SHARED, permits=100_000)
    answers: list[Exception | None] = []
    rig.subscription.ack(consumer, ack_of(consumer, *(part_of(at, []) for at in places)), answers.append)
    rig.loop.run(rig.subscription.seek(places[0]))
    rig.loop.settle()
    assert [type(answer) for answer in answers] == [NotReadyError]
    assert rig.subscription.backlog() == 9_000
    assert link.works == 0


def test_an_ack_set_of_a_seek_counts_only_for_the_batch_it_names(rig: Rig) -> None:
    places = rig.publish(3, messages=4)
    rig.log.skipped.add(places[1])
    rig.loop.run(rig.subscription.seek(places[1], [0b1100]))
    assert (rig.subscription.next, rig.subscription.cursor.batches) == (places[2], {})
    rig.loop.run(rig.subscription.seek(rig.log.end, [0b1100]))
    assert not rig.subscription.cursor.batches


def test_the_parts_of_batches_that_one_subscription_keeps_have_an_end(rig: Rig) -> None:
    words = words_of_bits((1 << BATCH_MESSAGES_MAX) - 2)
    places = rig.publish(300, messages=2)
    consumer, _ = rig.consumer(SHARED, permits=100_000)
    refused = [
        at
        for at in places
        if any(rig.ack(consumer, [at], ack_set=words, batch_size=BATCH_MESSAGES_MAX, turns=5))
    ]
    assert 0 < len(refused) < 100
    assert rig.subscription.cursor.parts_bytes < 40 << 20
    # Whole batches can be acknowledged all the same.
    assert rig.ack(consumer, places) == [None]
    assert rig.subscription.cursor.parts_bytes == 0


def test_skipping_and_peeking_far_ahead_read_one_entry_at_most(rig: Rig) -> None:
    rig.log.cold.add(5)
    places = rig.publish(2_000)
    found = rig.loop.run(rig.subscription.peek(1_999))
    assert found is not None
    assert found[0] == places[-1]
    assert rig.loop.run(rig.subscription.peek(2**31)) is None
    rig.loop.run(rig.subscription.skip(2**31))
    assert rig.subscription.next == rig.log.end
    assert rig.log.entries_read == 1


def test_the_publish_time_of_an_entry_that_nobody_can_parse_is_not_known(rig: Rig) -> None:
    rig.log.append((20).to_bytes(4, "big") + b"\xff" * 20)
    assert rig.loop.run(rig.subscription.earliest_publish_time()) == 0


def test_the_properties_of_a_subscription_have_a_size(rig: Rig) -> None:
    rig.loop.run(rig.subscription.set_properties({"a": "x" * 10_000}))
    for large in ({"a": "x" * 20_000}, {str(n): "" for n in range(20_000)}):
        with pytest.raises(NotAllowedError, match="16384"):
            rig.loop.run(rig.subscription.set_properties(large))
    assert list(rig.subscription.properties) == ["a"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_entries_sent_again_leave_the_loop_to_others_between_bursts(
    make_rig: Callable[..., Rig], kind: int
) -> None:
    rig = make_rig(limits=DispatchLimits(burst_entries=50))
    places = rig.publish(1_000)
    consumer, link = rig.consumer(kind, permits=1_000)
    rig.loop.settle(200)
    assert len(link.take()) == 1_000
    rig.subscription.redeliver(consumer, None)
    rig.subscription.flow(consumer, 1_000)
    assert len(link.places) <= 50
    rig.loop.settle(200)
    assert link.take() == places


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_all_that_is_handed_back_in_several_turns_is_sent_again_in_order(rig: Rig, kind: int) -> None:
    places = rig.publish(9_000, key="k")
    consumer, link = rig.consumer(kind, permits=20_000)
    rig.loop.settle(200)
    assert link.take() == places
    rig.subscription.redeliver(consumer, None)
    assert link.works == 1
    places += rig.publish(1, key="k")
    rig.loop.settle(200)
    assert link.works == 0
    assert link.take() == places


def test_parts_of_a_batch_acknowledged_one_by_one_in_a_turn_are_written_once(rig: Rig) -> None:
    places = rig.publish(2, messages=1_000)
    consumer, _ = rig.consumer(EXCLUSIVE, permits=5_000)
    rig.ack(consumer, [places[1]], ack_set=words_of_bits((1 << 1000) - 2), batch_size=1_000)
    written = sum(map(len, rig.journal.deltas))
    left = (1 << 1000) - 1
    for n in range(0, 999, 3):
        left &= ~(1 << n)
        part = part_of(places[0], words_of_bits(((1 << 1000) - 1) & ~(1 << n)), 1_000)
        rig.subscription.ack(consumer, ack_of(consumer, part))
    rig.loop.settle()
    assert sum(map(len, rig.journal.deltas)) - written < 1_000
    stored = state.TopicState({"sub": state.SubscriptionState(Cursor(places[0]))})
    for delta in rig.journal.deltas:
        state.apply(stored, delta)
    assert stored.subscriptions["sub"].cursor == rig.subscription.cursor
    assert rig.subscription.cursor.batches[places[0]] == left


@pytest.mark.parametrize("what", ["seek", "seek to time", "skip", "expire", "properties"])
def test_a_deleted_subscription_writes_nothing_that_would_count_for_the_next_of_its_name(
    rig: Rig, what: str
) -> None:
    old = rig.subscription
    rig.publish(3)

    async def late() -> None:
        match what:
            case "seek":
                await old.seek(rig.log.end)
            case "seek to time":
                await old.seek_to_time(rig.loop.now_ms() + 60_000)
            case "skip":
                await old.skip_all()
            case "expire":
                await old.expire_before(rig.loop.now_ms() + 60_000)
            case "properties":
                await old.set_properties({"a": "b"})

    rig.loop.run(old.announce())
    rig.loop.run(old.delete())
    rig.journal.record(state.subscribed("sub", rig.log.first))
    with contextlib.suppress(NotReadyError):
        rig.loop.run(late())
    rig.loop.settle()
    found = state.fold(None, rig.journal.deltas).subscriptions["sub"]
    assert (found.cursor.next, found.properties) == (rig.log.first, {})
