"""The judge of histories must be able to say no: each rule with a history that breaks it, and one that does not."""

from __future__ import annotations

import pytest

from anabranch.simulation.history import History, Place, Sent


@pytest.fixture
def history() -> History:
    """Two subscriptions, five messages of one key with receipts, one consumer of each."""
    made = History()
    made.subscribed("stream", keeps_order=True)
    made.subscribed("queue", keeps_order=False)
    for number in range(5):
        made.sent("p", number, "k")
        made.receipt("p", number)
    made.opened("s1")
    made.opened("q1")
    return made


def take(
    history: History, subscription: str, *numbers: int, consumer: str = "", segment: int = 0, key: str = "k"
) -> None:
    for number in numbers:
        history.received(
            subscription,
            consumer or f"{subscription[0]}1",
            Sent("p", number),
            key,
            Place(segment, 1, number),
            keeps_order=subscription == "stream",
        )


def test_everything_once_and_in_order_is_fine(history: History) -> None:
    take(history, "stream", 0, 1, 2, 3, 4)
    take(history, "queue", 4, 2, 0, 1, 3)
    assert history.check() == []
    assert history.figures == (5, 5, 10)


def test_a_message_that_comes_again_is_fine(history: History) -> None:
    take(history, "stream", 0, 1, 2, 0, 1, 2, 3, 4)
    take(history, "queue", 0, 1, 2, 3, 4)
    assert history.check() == []


def test_a_receipted_message_that_never_comes_is_missed(history: History) -> None:
    take(history, "stream", 0, 1, 2, 3)
    take(history, "queue", 0, 1, 2, 3, 4)
    [found] = history.check()
    assert "number=4" in found
    assert "never came" in found


def test_a_message_without_a_receipt_may_be_lost(history: History) -> None:
    history.sent("p", 5, "k")
    take(history, "stream", 0, 1, 2, 3, 4)
    take(history, "queue", 0, 1, 2, 3, 4)
    assert history.unanswered == 1
    assert history.check() == []


def test_a_key_out_of_order_is_noticed(history: History) -> None:
    take(history, "stream", 0, 2, 1)
    assert "first came after 2" in history.violations[0]


def test_different_keys_and_unordered_subscriptions_may_overtake(history: History) -> None:
    history.sent("p", 5, "other")
    take(history, "stream", 5, key="other")
    take(history, "stream", 0)
    take(history, "queue", 3, 1)
    assert history.violations == []


def test_a_message_stored_twice_is_noticed(history: History) -> None:
    take(history, "stream", 0, 1, segment=0)
    take(history, "stream", 1, segment=2)
    assert "stored twice" in history.violations[0]


def test_a_second_copy_counts_for_nothing_where_the_first_was_deleted_sooner_than_promised() -> None:
    history = History(is_gone_early={0}.__contains__)
    history.subscribed("queue", keeps_order=False)
    for number in range(2):
        history.sent("p", number, "k")
    history.opened("q1")
    take(history, "queue", 0, segment=0)
    history.acknowledged("queue", [Sent("p", 0)])
    history.opened("q2")
    take(history, "queue", 0, segment=1, consumer="q2")
    assert history.violations == []
    take(history, "queue", 1, segment=1)
    take(history, "queue", 1, segment=2)
    assert "stored twice" in history.violations[0]


def test_a_message_whose_ack_was_answered_must_not_come_to_a_later_consumer(history: History) -> None:
    take(history, "queue", 0)
    history.acknowledged("queue", [Sent("p", 0)])
    take(history, "queue", 0)
    assert history.violations == [], "it may have been on its way to one that was there already"
    history.opened("q2")
    take(history, "queue", 0, consumer="q2")
    assert "came back" in history.violations[0]


def test_a_message_that_was_never_sent_is_noticed(history: History) -> None:
    take(history, "queue", 17)
    take(history, "queue", 1, key="another")
    assert len(history.violations) == 2


def test_a_subscription_is_owed_what_was_sent_after_it_was_there_and_nothing_before(history: History) -> None:
    history.subscribed("late", keeps_order=False)
    assert history.owed("late") == set()
    history.sent("p", 5, "k")
    history.receipt("p", 5)
    assert history.owed("late") == {Sent("p", 5)}


def test_a_subscription_that_is_being_deleted_is_owed_nothing_and_another_life_starts_anew(
    history: History,
) -> None:
    history.doomed("queue")
    assert history.owed("queue") == set()
    history.deleted("queue")
    history.subscribed("queue", keeps_order=False)
    assert history.owed("queue") == set()
    history.sent("p", 5, "k")
    history.receipt("p", 5)
    assert history.owed("queue") == {Sent("p", 5)}
