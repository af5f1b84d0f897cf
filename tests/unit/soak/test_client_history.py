"""The rules of the client's run beyond those of the simulation: repetitions, acknowledgements, checkpoints."""

from __future__ import annotations

import pytest
from soak.client.history import ClientHistory, merged

from anabranch.simulation.world.history import HistoryPlace, Sent

FIRST, SECOND, THIRD = (Sent("p", number) for number in range(3))
HERE = HistoryPlace(0, 1, 0, 0)
THERE = HistoryPlace(1, 2, 0, 0)


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

    def takes(self, consumer: str, message: Sent, place: HistoryPlace = HERE) -> None:
        self.now += 0.1
        self.history.took(consumer, message, "k", place)

    def acks(self, consumer: str, message: Sent) -> None:
        self.now += 0.1
        self.history.acking(consumer, [message])
        self.history.acknowledged("s", [message])

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


def test_a_consumer_that_was_cut_off_may_give_out_what_another_was_sent_since() -> None:
    story = Story()
    story.history.cut_off(["two"], begins=True)
    story.takes("one", FIRST)
    story.history.cut_off(["two"], begins=False)
    story.takes("two", FIRST)
    assert not story.violations


def test_in_a_queue_a_cut_of_the_one_who_gets_it_again_is_no_reason_if_the_other_had_it_before() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.now += 0.1
    story.history.cut_off(["two"], begins=True)
    story.history.cut_off(["two"], begins=False)
    story.takes("two", FIRST)
    assert "came again to two without a reason" in story.violations[0]


def test_the_same_member_of_a_stream_may_not_get_a_message_twice_for_no_reason() -> None:
    story = Story(keeps_order=True)
    story.takes("one", FIRST)
    story.takes("one", FIRST)
    assert "came again to one without a reason" in story.violations[0]


def test_a_stream_may_repeat_what_moved_to_another_member_but_not_what_was_acknowledged() -> None:
    for is_acked in (False, True):
        story = Story(keeps_order=True)
        story.takes("one", FIRST)
        if is_acked:
            story.acks("one", FIRST)
        story.takes("two", FIRST)
        assert bool(story.violations) is is_acked


@pytest.mark.parametrize("keeps_order", [False, True])
@pytest.mark.parametrize("again_to", ["one", "two"])
@pytest.mark.parametrize(
    "trouble", ["cut", "end", "death of the broker", "another of its batch was given back"]
)
def test_what_began_after_an_acknowledgement_was_answered_is_no_reason(
    trouble: str, again_to: str, keeps_order: bool
) -> None:
    for is_acked_first in (True, False):
        story = Story(keeps_order=keeps_order)
        story.takes("one", FIRST)
        story.takes("one", SECOND, HERE._replace(index=1))
        if is_acked_first:
            story.acks("one", FIRST)
        story.now += 0.1
        match trouble:
            case "cut":
                story.history.cut_off(["one"], begins=True)
                story.now += 0.5
                story.history.cut_off(["one"], begins=False)
            case "end":
                story.history.ended("one")
            case "death of the broker":
                story.history.all_cut_off(begins=True)
                story.now += 0.5
                story.history.all_cut_off(begins=False)
            case _:
                story.history.gave_back("one", SECOND, HERE._replace(index=1))
        if not is_acked_first:
            story.acks("one", FIRST)  # It may have been sent again meanwhile.
        story.takes(again_to, FIRST)
        told = [one for one in story.violations if "without a reason" in one and "answered" in one]
        assert bool(told) is is_acked_first
        assert len(story.violations) == len(told)


def test_a_batch_may_have_been_sent_again_before_an_acknowledgement_and_be_given_back_once_more_after_it() -> (
    None
):
    story = Story()
    story.takes("one", FIRST)
    story.history.gave_back("one", FIRST, HERE)
    story.takes("one", SECOND, HERE._replace(index=1))
    story.acks("one", SECOND)
    story.takes("one", THIRD, HERE._replace(index=2))
    story.history.gave_back("one", THIRD, HERE._replace(index=2))
    story.takes("two", SECOND, HERE._replace(index=1))
    assert not story.violations


def test_an_acknowledged_message_may_not_come_to_a_consumer_that_was_opened_later() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.history.ended("one")
    story.acks("one", FIRST)
    story.history.joined("s", "three")
    story.takes("three", FIRST)
    assert "came back to three, opened after its ack was answered" in story.violations[0]


def test_acknowledged_messages_may_come_again_once_a_broker_may_have_forgotten_that() -> None:
    story = Story()
    story.takes("one", FIRST)
    story.acks("one", FIRST)
    story.history.joined("s", "three")
    story.history.all_cut_off(begins=True)
    story.history.all_cut_off(begins=False)
    story.history.acks_forgotten()
    story.takes("three", FIRST)
    assert not story.violations


def test_messages_of_a_key_may_not_change_places_in_a_stream() -> None:
    for keeps_order in (False, True):
        story = Story(keeps_order=keeps_order)
        story.takes("one", SECOND, THERE)
        story.takes("two", FIRST)
        assert any("first came after 1" in one for one in story.violations) is keeps_order


def test_a_message_that_nobody_sent_is_told() -> None:
    story = Story()
    story.takes("one", Sent("p", 77))
    assert "was never sent" in story.violations[0]


def test_a_stream_whose_oldest_message_is_never_acknowledged_stalls_though_others_are() -> None:
    story = Story(keeps_order=True)
    story.takes("one", FIRST)
    story.acks("one", FIRST)
    story.history.check_progress("s", 10.0)
    story.takes("two", THIRD)
    story.acks("two", THIRD)
    story.now += 9
    story.history.check_progress("s", 10.0)
    assert story.violations == []
    story.now += 1
    story.history.check_progress("s", 10.0)
    (told,) = story.violations
    assert told.startswith(f"s stalls: {SECOND}")


def test_a_stream_that_is_behind_and_goes_on_does_not_stall() -> None:
    story = Story(keeps_order=True)
    for message in (FIRST, SECOND, THIRD):
        story.history.check_progress("s", 10.0)
        story.now += 9
        story.takes("one", message)
        story.acks("one", message)
        story.history.check_progress("s", 10.0)
    story.now += 1000
    story.history.check_progress("s", 10.0)
    story.history.check_progress("s", 10.0)
    assert story.violations == []


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
