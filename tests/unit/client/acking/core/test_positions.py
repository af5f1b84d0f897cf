"""What acknowledging one message acknowledges in each segment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.acking.core.positions import Vector


def test_a_message_acknowledges_the_last_entry_before_it_in_every_segment() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    for number, (segment, entry) in enumerate([("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]):
        vector.given(segment, number, (1, entry))
    assert dict(vector.up_to(3)) == {"a": (1, 1), "b": (1, 1)}
    assert vector.up_to(3) == []
    assert dict(vector.up_to(4)) == {"a": (1, 2)}


def test_a_batch_counts_from_its_last_message_on() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    vector.given("a", 9, (1, 0))
    assert vector.up_to(8) == []
    assert vector.up_to(9) == [("a", (1, 0))]


def test_a_forgotten_segment_is_not_acknowledged() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    vector.given("a", 0, (1, 0))
    vector.given("b", 1, (1, 0))
    vector.forget("a")
    assert vector.up_to(5) == [("b", (1, 0))]


def test_an_entry_between_the_chunks_of_another_message_is_acknowledged_by_itself() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    vector.given("a", 0, (1, 0))
    vector.given_alone("a", 1, (1, 2))
    vector.given_alone("a", 2, (1, 3))
    vector.given("a", 3, (1, 4))
    assert vector.up_to(1) == [("a", (1, 0))]
    assert vector.alone_up_to(1) == [("a", (1, 2))]
    assert vector.alone_up_to(1) == []
    vector.forget("a")
    assert vector.up_to(9) == vector.alone_up_to(9) == []


def test_what_was_not_given_out_after_all_is_not_acknowledged_and_what_was_before_it_is() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    for last_number, segment, entry in ((1, "a", 0), (3, "b", 0), (6, "a", 1), (8, "a", 2)):
        vector.given(segment, last_number, (1, entry))
    vector.given_alone("a", 9, (1, 4))
    # The second message of an entry of three.
    vector.take_back("a", 5)
    vector.take_back("c", 0)
    assert dict(vector.up_to(20)) == {"a": (1, 0), "b": (1, 0)}
    assert vector.alone_up_to(20) == []


def test_a_segment_is_out_until_the_last_of_its_entries_is_acknowledged_or_forgotten() -> None:
    vector: Vector[str, tuple[int, int]] = Vector()
    vector.given("a", 2, (1, 0))
    vector.given_alone("b", 3, (1, 0))
    vector.up_to(1)
    assert vector.is_out("a")
    vector.up_to(2)
    assert not vector.is_out("a")
    assert vector.is_out("b")
    vector.alone_up_to(3)
    assert not vector.is_out("b")
    vector.given("c", 4, (1, 0))
    vector.forget("c")
    assert not vector.is_out("c")


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_each_segment_moves_to_the_furthest_entry_acknowledged(given_: list[int], acked: list[int]) -> None:
    vector: Vector[int, tuple[int, int]] = Vector()
    for number, segment in enumerate(given_):
        vector.given(segment, number, (1, number))
    seen: dict[int, int] = {}
    for number in acked:
        for segment, (_, entry) in vector.up_to(number):
            assert entry > seen.get(segment, -1)
            seen[segment] = entry
    furthest = max(acked, default=-1)
    assert seen == {s: n for n, s in enumerate(given_) if n <= furthest}
