"""What nobody can parse is delivered all the same, and a subscription that fails costs nobody but itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from anabranch.broker.errors import NotReadyError
from anabranch.broker.ports import EntryBatch
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from unit.broker.rig import ListLog, RecordingLink, Rig, make_entry

ALL_KINDS = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]
GARBAGE = (20).to_bytes(4, "big") + b"\xff" * 20 + b"payload"


@dataclass(eq=False)
class RawLink(RecordingLink):
    """Notes places only: what is sent need not be readable."""

    sent: list[Position] = field(default_factory=list)
    acked: list[list[int]] = field(default_factory=list)

    def write(self, pieces: Sequence[Buffer]) -> None:
        for kind, command, _ in self.decoder.feed(b"".join(pieces)):
            assert kind == pb.BaseCommand.MESSAGE
            id = command.message.message_id
            self.sent.append((id.ledgerId, id.entryId))
            self.acked.append(list(command.message.ack_set))


class BrokenLog(ListLog):
    """Reading fails from some place on, in a way that no log has."""

    broken_from: Position | None = None

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        if self.broken_from is not None and at >= self.broken_from:
            raise RuntimeError("impossible")
        return super().read_cached(at, entries_max, bytes_max)


def read_compacted(rig: Rig) -> None:
    """From now on the subscription reads what compaction has left: here, everything."""
    left = ListLog()
    left.ledgers = rig.log.ledgers
    rig.subscription.read_from(left)


def ranges(start: int, end: int) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)])


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_an_entry_that_nobody_can_parse_is_delivered_like_the_others(rig: Rig, kind: int) -> None:
    places = [rig.log.append(entry) for entry in (make_entry(), GARBAGE, make_entry())]
    link = RawLink()
    rig.consumer(kind, link=link)
    assert link.sent == places


def test_a_consumer_of_what_compaction_has_left_passes_an_entry_that_nobody_can_parse(rig: Rig) -> None:
    read_compacted(rig)
    places = [rig.log.append(entry) for entry in (make_entry(), GARBAGE, make_entry())]
    link = RawLink()
    rig.consumer(EXCLUSIVE, link=link)
    assert link.sent == places


def test_a_consumer_of_some_keys_passes_an_entry_that_nobody_can_parse(rig: Rig) -> None:
    places = [rig.log.append(entry) for entry in (make_entry(), GARBAGE, make_entry())]
    link = RawLink()
    rig.consumer(EXCLUSIVE, link=link, key_shared=ranges(0, 65_535))
    assert link.sent == places


@pytest.mark.parametrize("places", [[-1], [2**31 - 1], [-(2**31), 7], [3], list(range(-70_000, 0))])
def test_marks_of_compaction_that_point_outside_the_batch_mean_nothing(rig: Rig, places: list[int]) -> None:
    read_compacted(rig)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3)
    metadata.compacted_batch_indexes.extend(places)
    raw = metadata.SerializeToString()
    at = rig.log.append(len(raw).to_bytes(4, "big") + raw + b"x", 3)
    link = RawLink()
    consumer, _ = rig.consumer(EXCLUSIVE, link=link, permits=10)
    assert (link.sent, link.acked) == ([at], [[]])
    assert consumer.permits == 7


def test_marks_of_compaction_inside_the_batch_are_obeyed(rig: Rig) -> None:
    read_compacted(rig)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=70)
    metadata.compacted_batch_indexes.extend([1, 66, 99])
    raw = metadata.SerializeToString()
    rig.log.append(len(raw).to_bytes(4, "big") + raw + b"x", 70)
    link = RawLink()
    rig.consumer(EXCLUSIVE, link=link)
    assert link.acked == [[0b10, 0b100]]


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("claimed", [2_000_000_000, 0, -1, -(2**31)])
def test_a_count_that_no_batch_has_costs_what_the_client_will_count(
    rig: Rig, kind: int, claimed: int
) -> None:
    rig.log.append(make_entry(messages=5), claimed)
    rig.log.append(make_entry(), claimed)
    rig.publish(1)
    consumer, link = rig.consumer(kind, permits=10)
    assert len(link.messages) == 3
    assert consumer.permits == 3


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_subscription_that_fails_begins_anew_at_its_cursor(
    make_rig: Callable[..., Rig], kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = BrokenLog()
    rig = make_rig(log=log)
    places = rig.publish(4)
    consumer, link = rig.consumer(kind, permits=2)
    rig.ack(consumer, places[:1])
    log.broken_from = places[2]
    with caplog.at_level(logging.ERROR):
        # Whoever wakes it does not hear of it.
        rig.subscription.flow(consumer, 10)
        rig.publish(1)
    assert rig.subscription.error is not None
    rig.loop.advance(1)
    assert link.closed == [consumer]
    assert not rig.subscription.consumers
    log.broken_from = None
    _, later = rig.consumer(kind)
    assert later.places == [*places[1:], rig.log.last]
    assert rig.subscription.error is None
    assert len([one for one in caplog.records if one.exc_info]) == 1


def test_what_fails_again_and_again_is_tried_less_and_less(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    log = BrokenLog()
    rig = make_rig(log=log)
    places = rig.publish(1)
    log.broken_from = places[0]
    came = 0
    link = RecordingLink()
    with caplog.at_level(logging.ERROR):
        for _ in range(600):
            if not rig.subscription.consumers:
                came += 1
                rig.consumer(SHARED, link=link)
            rig.loop.advance(1)
    # At once, then after 1, 2, 4 … seconds, and from then on every minute.
    assert 8 < came < 20
    assert len([one for one in caplog.records if one.exc_info]) == 1
    assert len(caplog.records) <= came
    log.broken_from = None
    rig.loop.advance(120)
    _, later = rig.consumer(SHARED)
    assert later.places == places


def test_while_a_subscription_waits_to_begin_anew_its_consumers_may_go_and_none_may_come(
    make_rig: Callable[..., Rig],
) -> None:
    log = BrokenLog()
    rig = make_rig(log=log)
    log.broken_from = rig.publish(1)[0]
    rig.consumer(SHARED)
    rig.loop.advance(1)
    first, link = rig.consumer(SHARED)
    with pytest.raises(NotReadyError):
        rig.consumer(SHARED)
    rig.subscription.remove_consumer(first)
    log.broken_from = None
    _, second = rig.consumer(SHARED)
    rig.loop.advance(100)
    assert second.places == [rig.log.last]
    assert not link.closed


def test_a_readers_subscription_that_fails_waits_for_its_return(make_rig: Callable[..., Rig]) -> None:
    log = BrokenLog()
    rig = make_rig(log=log, is_durable=False)
    log.broken_from = rig.publish(1)[0]
    rig.consumer(EXCLUSIVE)
    rig.loop.advance(1)
    assert not rig.ended
    rig.loop.advance(61)
    assert rig.ended == [rig.subscription]
