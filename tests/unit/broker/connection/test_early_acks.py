"""Acknowledgements for consumers that are still being made are kept, in order and within bounds."""

from __future__ import annotations

from anabranch.broker.connection.early_acks import EARLY_ACKS_BYTES_MAX, EARLY_ACKS_MAX, EarlyAcks
from anabranch.wire import pulsar_pb2 as pb


def ack(consumer_id: int, entry: int, ack_set: int = 0) -> pb.CommandAck:
    """As it comes from a stranger: without the required type of acknowledgement."""
    made = pb.CommandAck(consumer_id=consumer_id)
    made.message_id.add(ledgerId=1, entryId=entry, ack_set=[-1] * ack_set)
    return made


def test_what_is_kept_comes_out_once_and_in_order() -> None:
    early = EarlyAcks()
    assert early.keep(ack(1, 0))
    assert early.keep(ack(2, 5))
    assert early.keep(ack(1, 1))
    assert [one.message_id[0].entryId for one in early.take(1)] == [0, 1]
    assert early.take(1) == []
    assert [one.message_id[0].entryId for one in early.take(2)] == [5]


def test_each_consumer_has_a_number_of_them() -> None:
    early = EarlyAcks()
    assert all(early.keep(ack(1, entry)) for entry in range(EARLY_ACKS_MAX))
    assert not early.keep(ack(1, EARLY_ACKS_MAX))
    assert early.keep(ack(2, 0))


def test_all_consumers_of_a_connection_share_the_room_and_give_it_back() -> None:
    early = EarlyAcks()
    words = EARLY_ACKS_BYTES_MAX // 20
    assert early.keep(ack(1, 0, words))
    assert not early.keep(ack(2, 0, words + 10_000))
    early.take(1)
    assert early.keep(ack(2, 0, words + 10_000))
