"""The rules of the client's run beyond those of the simulation: repetitions, acknowledgements, checkpoints."""

from __future__ import annotations

import pytest
from soak.client.history import ClientHistory, merged

from anabranch.simulation.history import Place, Sent

FIRST, SECOND, THIRD = (Sent("p", number) for number in range(3))
HERE = Place(0, 1, 0, 0)
THERE = Place(1, 2, 0, 0)


class Story:
    """A history with a clock that a test moves."""

    def __init__(self, *, keeps_order: bool = False, doubting: str = "") -> None:
        self.now = 100.0
        self.history = ClientHistory(lambda: self.now, may_double=lambda producer: producer == doubting)
        self.history.expect("s", lambda producer: producer == "p", keeps_order=keeps_order, echo_s=2.0)
        for sent in (FIRST, SECOND, THIRD):
            self.history.sent(*sent, "k")
            self.history.stored(*sent, HERE)
        for consumer in ("one", "two"):
            self.history.joined("s", consumer)
        self.now += 10

    def takes(self, consumer: str, message: Sent, place: Place = HERE) -> None:
        self.now += 0.1
        self.history.took(consumer, message, "k", place)

    @property
    def violations(self) -> list[str]:
        return self.history.violations


def test_a_message_may_not_come_again_for_no_reason() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.takes("two", FIRST)
    assert "came again to two without a reason" in story.violations[0]


def test_a_message_that_was_handed_back_may_come_again_with_its_batch_and_not_much_later() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.takes("one", SECOND, HERE._replace(index=1))
    story.takes("one", THIRD, THERE)
    story.history.gave_back("one", FIRST, HERE)
    story.takes("two", FIRST)
    story.takes("two", SECOND, HERE._replace(index=1))
    assert not story.violations
    story.takes("two", THIRD, THERE)
    assert len(story.violations) == 1
    story.now += 61
    story.takes("two", SECOND, HERE._replace(index=1))
    assert len(story.violations) == 2


@pytest.mark.parametrize("is_cut", [True, False])
def test_what_a_consumer_had_may_come_again_once_it_is_cut_off_or_ends(is_cut: bool) -> None:
    story = Story()
    story.takes("one", FIRST)
    if is_cut:
        story.history.cut_off(["one"], begins=True)
    else:
        story.history.ended("one")
    story.takes("two", FIRST)
    assert not story.violations


def test_in_a_queue_the_trouble_of_others_is_no_reason_and_in_a_stream_it_is() -> None:
    for keeps_order in (False, True):
        story = Story(keeps_order=keeps_order)
        story.takes("one", FIRST)
        story.history.ended("two")
        story.takes("one", FIRST)
        assert bool(story.violations) is not keeps_order


def test_a_cut_that_is_long_over_is_no_reason() -> None:
    story = Story()
    story.history.cut_off(["one"], begins=True)
    story.history.cut_off(["one"], begins=False)
    story.now += 3
    story.takes("one", FIRST)
    story.takes("one", FIRST)
    assert story.violations


def test_what_was_received_and_never_acknowledged_is_owed() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.takes("one", SECOND)
    story.history.acking("one", [FIRST])
    assert story.history.owed("s") == {SECOND, THIRD}


def test_a_copy_at_another_place_is_told_unless_its_producer_had_to_change_its_name() -> None:
    for doubting in ("", "p"):
        story = Story(doubting=doubting)
        story.takes("one", FIRST)
        story.history.ended("one")
        story.takes("two", FIRST, THERE)
        assert any("stored twice" in one for one in story.violations) is not bool(doubting)


# -- checkpoints


def test_a_reader_gets_each_message_of_a_key_once_and_in_order() -> None:
    story = Story()
    story.history.reads("r", {})
    story.history.read("r", FIRST, "k")
    story.history.read("r", SECOND, "k")
    assert not story.violations
    story.history.read("r", SECOND, "k")
    assert "came again" in story.violations[0]


def test_a_reader_that_skips_a_message_is_found_out() -> None:
    story = Story()
    story.history.reads("r", {})
    story.history.read("r", SECOND, "k")
    assert "0 never did" in story.violations[0]


def test_a_reader_goes_on_exactly_where_its_checkpoint_was_taken() -> None:
    story = Story()
    story.history.reads("first", {})
    story.history.read("first", FIRST, "k")
    kept = story.history.progress("first")
    story.history.read("first", SECOND, "k")
    story.history.reads("second", kept)
    story.history.read("second", SECOND, "k")
    assert not story.violations
    assert story.history.unread("second", lambda _: True) == {THIRD}


def test_a_member_of_a_group_may_skip_what_another_has_read_but_nobody_else() -> None:
    story = Story()
    story.history.reads("one", {}, "g")
    story.history.reads("two", {}, "g")
    story.history.read("one", FIRST, "k")
    story.history.read("two", SECOND, "k")
    assert not story.violations
    story.history.reads("three", {}, "other")
    story.history.read("three", THIRD, "k")
    assert story.violations


def test_a_groups_progress_is_the_furthest_of_its_members() -> None:
    assert merged([{("p", "k"): 3}, {("p", "k"): 1, ("q", "k"): 2}]) == {("p", "k"): 3, ("q", "k"): 2}
