"""When a subscription tells that it has drained a sealed topic, and how little it reads to find out."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import SHARED
from unit.broker.rig import Rig


def lost_chunks(rig: Rig, count: int, uuid: str = "u") -> None:
    for number in range(count):
        rig.publish(chunk=(uuid, number, count + 1))


def test_the_last_acknowledgement_tells_once(rig: Rig) -> None:
    one, two = rig.publish(2)
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.ack(consumer, [one])
    assert not rig.drained
    rig.ack(consumer, [two])
    rig.ack(consumer, [two])
    assert rig.drained == [rig.subscription]


def test_an_acknowledgement_that_is_not_stored_drains_nothing(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.journal.is_holding = True
    rig.ack(consumer, places)
    assert rig.subscription.backlog() == 0
    assert not rig.subscription.is_drained
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    assert not rig.drained
    rig.journal.confirm()
    assert rig.subscription.is_drained
    assert rig.loop.run(rig.subscription.look_whether_drained())
    assert rig.drained == [rig.subscription]


def test_before_lost_chunks_an_acknowledgement_that_is_not_stored_drains_nothing(rig: Rig) -> None:
    (place,) = rig.publish()
    lost_chunks(rig, 3)
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.journal.is_holding = True
    rig.ack(consumer, [place])
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    assert not rig.drained
    rig.journal.confirm()
    rig.loop.settle()
    assert rig.drained == [rig.subscription]


def test_sealing_tells_if_nothing_is_left(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, _ = rig.consumer()
    rig.ack(consumer, places)
    assert not rig.drained
    rig.subscription.topic_terminated()
    assert rig.drained == [rig.subscription]


def test_nothing_is_told_before_the_seal(rig: Rig) -> None:
    consumer, _ = rig.consumer()
    rig.ack(consumer, rig.publish(2))
    assert not rig.subscription.is_drained
    assert not rig.drained


def test_skipping_and_expiring_tell_too(make_rig: Callable[..., Rig]) -> None:
    skipping, expiring = make_rig(), make_rig()
    for rig in (skipping, expiring):
        rig.publish(2, publish_time_ms=5)
        rig.subscription.topic_terminated()
    skipping.loop.run(skipping.subscription.skip_all())
    expiring.loop.run(expiring.subscription.expire_before(6))
    assert skipping.drained
    assert expiring.drained


def test_a_seek_tells_and_drains_anew(rig: Rig) -> None:
    places = rig.publish(2)
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.ack(consumer, places)
    assert rig.subscription.is_drained
    rig.loop.run(rig.subscription.seek(places[0]))
    assert not rig.subscription.is_drained
    told = len(rig.drained)
    assert told == 2
    consumer, _ = rig.consumer()
    rig.ack(consumer, places)
    assert len(rig.drained) == told + 1


def test_lost_chunks_are_noticed_once_everything_was_sent(rig: Rig) -> None:
    (place,) = rig.publish()
    lost_chunks(rig, 3)
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.loop.settle()
    assert not rig.drained
    rig.ack(consumer, [place])
    assert rig.drained == [rig.subscription]
    assert rig.subscription.is_drained
    assert rig.subscription.backlog() == 3


def test_chunks_of_several_messages_between_acknowledged_ones_do_not_count(rig: Rig) -> None:
    consumer, _ = rig.consumer(SHARED)
    lost_chunks(rig, 2, "one")
    first = rig.publish(3)
    lost_chunks(rig, 2, "other")
    last = rig.publish(2)
    rig.subscription.topic_terminated()
    rig.ack(consumer, [*first, last[0]])
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    rig.ack(consumer, [last[1]])
    assert rig.loop.run(rig.subscription.look_whether_drained())
    assert rig.drained == [rig.subscription]


def test_a_message_counts_while_all_its_chunks_are_there(rig: Rig) -> None:
    first = rig.publish(chunk=("u", 0, 2))
    lost_chunks(rig, 2, "other")
    rig.publish(chunk=("u", 1, 2))
    consumer, _ = rig.consumer(SHARED)
    rig.subscription.topic_terminated()
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    # Nobody is sent the first one again.
    rig.ack(consumer, first)
    assert rig.loop.run(rig.subscription.look_whether_drained())


def test_chunks_without_a_beginning_do_not_count(rig: Rig) -> None:
    """As for a subscription that began in the middle of a message."""
    rig.publish(chunk=("u", 1, 3))
    rig.publish(chunk=("u", 2, 3))
    rig.subscription.topic_terminated()
    assert rig.loop.run(rig.subscription.look_whether_drained())


def test_lost_chunks_that_are_sent_last_are_noticed_and_their_consumer_is_told_of_the_end(rig: Rig) -> None:
    (place,) = rig.publish()
    lost_chunks(rig, 3)
    consumer, link = rig.consumer(permits=1)
    rig.subscription.topic_terminated()
    rig.ack(consumer, [place])
    rig.loop.settle()
    assert not rig.drained
    rig.subscription.flow(consumer, 100)
    rig.loop.settle()
    assert rig.drained == [rig.subscription]
    assert [command.type for command in link.commands] == [pb.BaseCommand.REACHED_END_OF_TOPIC]


def test_a_verdict_of_before_a_seek_does_not_outlive_it(rig: Rig) -> None:
    lost_chunks(rig, 1, "one")
    message = rig.publish()[0]
    lost_chunks(rig, 1, "other")
    consumer, _ = rig.consumer(SHARED)
    rig.subscription.topic_terminated()
    rig.ack(consumer, [message])
    assert rig.subscription.is_drained
    rig.loop.run(rig.subscription.seek(rig.log.first))
    consumer, _ = rig.consumer(SHARED)
    other = rig.log.after(message)
    rig.ack(consumer, [other])  # As many acknowledged beyond the same place as before, and not the same ones.
    assert not rig.subscription.is_drained
    assert not rig.loop.run(rig.subscription.look_whether_drained())


def test_a_long_backlog_is_not_read_to_find_out(rig: Rig) -> None:
    rig.publish(1000)
    rig.subscription.topic_terminated()
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    assert not rig.loop.run(rig.subscription.look_whether_drained())
    assert rig.log.reads == 1
    assert rig.log.entries_read <= 64


def test_nothing_is_read_while_messages_are_on_their_way(rig: Rig) -> None:
    rig.publish(100)
    consumer, link = rig.consumer(permits=10)
    rig.subscription.topic_terminated()
    rig.ack(consumer, link.take())
    assert rig.log.reads == 0


def test_a_reader_that_acknowledges_and_leaves_in_one_breath_is_still_known(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(is_durable=False)
    (place,) = rig.publish()
    consumer, _ = rig.consumer()
    rig.subscription.topic_terminated()
    rig.ack(consumer, [place], is_cumulative=True, turns=0)
    rig.subscription.remove_consumer(consumer)
    assert rig.drained == [rig.subscription]
