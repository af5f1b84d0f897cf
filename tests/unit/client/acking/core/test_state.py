"""Acknowledgements: grouped, numbered, sent again, lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.acking.core.state import GROUP_MAX, Acks, Until, bits_of, words_of


def test_single_acknowledgements_leave_in_groups_and_are_settled_once_all_are_confirmed() -> None:
    acks = Acks()
    for entry in range(GROUP_MAX + 1):
        acks.add((1, entry))
    first, second = acks.take()
    assert (len(first.singles), len(second.singles)) == (GROUP_MAX, 1)
    assert (acks.waiting, acks.settled) == (0, 0)
    acks.stored(second)
    assert acks.settled == 0
    acks.stored(first)
    assert (acks.settled, acks.lost) == (GROUP_MAX + 1, 0)


def test_what_is_acknowledged_later_does_not_keep_the_earlier_from_being_settled() -> None:
    acks = Acks()
    acks.add((1, 0))
    (group,) = acks.take()
    acks.add((1, 1))
    acks.stored(group)
    assert acks.settled == 1


def test_the_furthest_position_is_sent() -> None:
    acks = Acks()
    acks.add_until(Until(1, 7))
    acks.add_until(Until(1, 3))
    acks.add_until(Until(1, 7, at=2, size=5))
    (group,) = acks.take()
    assert group.until == Until(1, 7)


def test_a_place_inside_a_batch_leaves_the_messages_behind_it() -> None:
    assert Until(1, 7, at=2, size=5).left == 0b11000
    assert Until(1, 7, at=2, size=5, wanted=0b01110).left == 0b01000
    assert Until(1, 7).left == 0


def test_a_lost_connection_sends_again_what_was_not_confirmed() -> None:
    acks = Acks()
    acks.add((1, 0), (0b110, 3))
    acks.add((1, 1))
    acks.take()
    acks.add((1, 0), (0b100, 3))
    acks.again()
    (group,) = acks.take()
    assert group.singles == {(1, 0): (0b100, 3), (1, 1): (0, 0)}
    acks.stored(group)
    assert (acks.settled, acks.lost) == (3, 0)


def test_positions_under_way_are_sent_again_unless_a_further_one_waits() -> None:
    acks = Acks()
    acks.add_until(Until(1, 3))
    acks.take()
    acks.again()
    acks.add_until(Until(1, 5))
    (group,) = acks.take()
    assert group.until == Until(1, 5)
    acks.add_until(Until(1, 6))
    acks.take()
    acks.again()
    assert [group.until for group in acks.take()] == [Until(1, 6)]


def test_what_is_refused_or_forgotten_is_lost_and_settled() -> None:
    acks = Acks()
    acks.add((1, 0))
    (group,) = acks.take()
    acks.refused(group)
    acks.refused(group)
    assert (acks.settled, acks.lost) == (1, 1)
    acks.add((1, 1))
    acks.forget_waiting()
    acks.forget_waiting()
    assert (acks.settled, acks.lost) == (2, 2)
    acks.add((1, 2))
    acks.take()
    acks.add((1, 3))
    acks.give_up()
    assert (acks.settled, acks.lost) == (4, 4)


@given(st.integers(min_value=0, max_value=1 << 300))
def test_bits_survive_the_way_over_the_wire(bits: int) -> None:
    words = words_of(bits)
    assert bits_of(words) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
