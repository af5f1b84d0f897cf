"""What is sent again and when, and which messages of a batch that comes again are news."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consuming.core.redelivery import NackDelay, Redeliveries
from anabranch.client.errors import BadArgument
from anabranch.client.message import EntryOrigin, ReceivedEntry
from anabranch.wire import pulsar_pb2 as pb

DELAY = NackDelay(first_s=1.0, max_s=5.0)


def batch(count: int = 3, redeliveries: int = 0) -> ReceivedEntry:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count
    )
    return ReceivedEntry(EntryOrigin("t"), 1, 0, metadata, b"", redeliveries, owner="segment")


def hand_back(again: Redeliveries, entry: ReceivedEntry, index: int, now: float) -> None:
    if bits := again.take_back(entry, 1 << index):
        again.later(entry, bits, now)


def test_the_pause_grows_with_every_delivery_up_to_its_limit() -> None:
    assert [DELAY.after(n) for n in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert DELAY.after(10**9) == 5.0
    with pytest.raises(BadArgument):
        NackDelay(first_s=2.0, max_s=1.0)


def test_a_message_handed_back_is_due_after_its_pause() -> None:
    again = Redeliveries(DELAY)
    entry = batch(redeliveries=1)
    assert again.next_due is None
    hand_back(again, entry, 1, now=10.0)
    assert again.next_due == 12.0
    assert again.due(11.9) == []
    assert again.due(12.0) == [(entry, 0b010)]
    assert again.next_due is None


def test_a_message_handed_back_twice_is_asked_for_once_and_not_at_all_if_acknowledged_since() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    hand_back(again, entry, 0, now=0.0)
    hand_back(again, entry, 0, now=0.0)
    hand_back(again, entry, 2, now=0.0)
    assert again.acked(entry, 2) == 0b011
    assert again.due(9.0) == [(entry, 0b001)]


def test_messages_of_one_batch_handed_back_one_by_one_are_asked_for_together_when_the_last_is_due() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    hand_back(again, entry, 0, now=0.0)
    hand_back(again, entry, 2, now=0.5)
    again.acked(entry, 1)
    assert again.due(1.0) == []
    assert again.next_due == 1.5
    assert again.due(1.5) == [(entry, 0b101)]
    assert again.next_due is None


def test_a_batch_that_comes_again_has_only_what_was_asked_for() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    hand_back(again, entry, 1, now=0.0)
    ((_, bits),) = again.due(1.0)
    again.asked(entry, bits)
    copy = batch(redeliveries=1)
    assert again.is_wanted(copy)
    assert copy.wanted == 0b010
    # The messages of both deliveries are of one batch.
    assert again.acked(entry, 0) == 0b110
    assert again.acked(copy, 1) == 0b100
    assert again.acked(entry, 2) == 0


def test_a_batch_that_comes_twice_for_one_question_is_not_given_out_twice() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    again.take_back(entry, 0b010)
    again.asked(entry, 0b010)
    assert again.is_wanted(batch(redeliveries=1))
    assert not again.is_wanted(batch(redeliveries=2))


def test_a_batch_of_which_nothing_is_held_comes_again_as_the_broker_sends_it() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    again.take_back(entry, 0b010)
    again.asked(entry, 0b010)
    again.acked(entry, 0)
    again.acked(entry, 2)
    copy = batch(redeliveries=1)
    copy.want(0b010)
    assert again.is_wanted(copy)
    assert copy.wanted == 0b010


def test_what_is_acknowledged_while_a_batch_is_on_its_way_again_is_not_given_out_twice() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    again.take_back(entry, 0b001)
    again.asked(entry, 0b001)
    # The broker has sent it already, with all three.
    again.acked(entry, 1)
    again.acked(entry, 2)
    copy = batch(redeliveries=1)
    assert again.is_wanted(copy)
    assert copy.wanted == 0b001
    again.acked(copy, 0)
    # Nothing is remembered of it: if it comes once more, somebody has sought back.
    third = batch(redeliveries=2)
    assert again.is_wanted(third)
    assert third.wanted == -1


def test_a_new_life_of_a_segment_brings_everything_again() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    again.take_back(entry, 0b010)
    again.asked(entry, 0b010)
    again.forget("segment")
    copy = batch(redeliveries=1)
    assert again.is_wanted(copy)
    assert copy.wanted == -1


def test_after_a_lost_connection_all_that_is_handed_back_comes_again() -> None:
    again = Redeliveries(DELAY)
    entry = batch()
    entry.life = "first life"
    again.take_back(entry, 0b010)
    again.asked(entry, 0b010)
    # The connection is lost. The broker sends what was not acknowledged; another message of it is handed back.
    copy = batch(redeliveries=1)
    copy.life = "second life"
    assert again.is_wanted(copy)
    assert copy.wanted == -1
    again.take_back(copy, 0b100)
    again.asked(copy, 0b100)
    third = batch(redeliveries=2)
    third.life = "second life"
    assert again.is_wanted(third)
    assert third.wanted == 0b100


def test_a_message_that_is_not_settled_in_time_comes_again() -> None:
    again = Redeliveries(DELAY, processing_timeout_s=30.0)
    entry, other = batch(), batch()
    again.given(entry, 0b001, now=0.0)
    again.given(entry, 0b010, now=1.0)
    again.given(other, 0b001, now=2.0)
    again.acked(entry, 0)
    assert again.next_due == 31.0
    assert again.due(31.0) == [(entry, 0b010)]
    assert again.next_due == 32.0
    hand_back(again, other, 0, now=31.5)
    assert again.due(32.0) == []
    assert again.due(32.5) == [(other, 0b001)]


@given(st.lists(st.tuples(st.sampled_from("anr"), st.integers(0, 5)), max_size=30))
def test_no_message_is_with_the_application_twice(steps: list[tuple[str, int]]) -> None:
    again = Redeliveries(NackDelay(first_s=0.0, max_s=0.0))
    held = dict.fromkeys(range(6), batch(6))  # Which delivery of a message the application has.
    acked: set[int] = set()
    for what, index in steps:
        if what == "a" and index in held:
            again.acked(held.pop(index), index)
            acked.add(index)
        elif what == "n" and index in held:
            hand_back(again, held.pop(index), index, now=0.0)
        elif what == "r":
            for entry, bits in again.due(0.0):
                again.asked(entry, bits)
                copy = batch(6, redeliveries=1)
                # The broker leaves out what was acknowledged.
                copy.want(sum(1 << n for n in range(6) if n not in acked))
                if again.is_wanted(copy):
                    for n in range(6):
                        if copy.wanted >> n & 1:
                            assert n not in held
                            held[n] = copy
    assert not acked & held.keys()
