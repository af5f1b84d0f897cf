"""The judge of histories must be able to say no: each rule with a history that breaks it, and one that does not."""

from __future__ import annotations

import pytest

from anabranch.simulation.world.history import History, HistoryPlace, Sent


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
            HistoryPlace(segment, 1, number),
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


# -- what the kinds of `anabranch.simulation.world.kinds` look for


def test_a_message_reported_as_stored_of_which_one_chunk_is_there_is_missed(history: History) -> None:
    """C5: the segment was sealed behind the first chunk, its producer was told that it has the message, and no child
    was ever sent it."""
    history.sent("chunker", 0, "k")
    history.receipt("chunker", 0)
    take(history, "stream", 0, 1, 2, 3, 4)
    take(history, "queue", 0, 1, 2, 3, 4)
    assert history.check() == [
        f"{name}: Sent(producer='chunker', number=0) and 0 more have receipts and never came"
        for name in ("stream", "queue")
    ]


def test_a_message_that_is_not_whole_is_found(history: History) -> None:
    history.received(
        "queue", "q1", Sent("p", 0), "k", HistoryPlace(0, 1, 0), keeps_order=False, is_whole=False
    )
    [found] = history.violations
    assert "other bytes than were sent" in found


def test_a_batch_taken_for_a_duplicate_of_another_keys_is_missed() -> None:
    """F1: keys A (0, 2) and B (1, 3); both batches have receipts and only the first is there."""
    history = History()
    history.subscribed("stream", keeps_order=True)
    history.opened("s1")
    for number, key in ((0, "A"), (1, "B"), (2, "A"), (3, "B")):
        history.sent("p", number, key)
        history.receipt("p", number)
    for number in (0, 2):
        history.received(
            "stream", "s1", Sent("p", number), "A", HistoryPlace(0, 1, 0, number // 2), keeps_order=True
        )
    assert history.owed("stream") == {Sent("p", 1), Sent("p", 3)}
    [found] = history.check()
    assert "number=1) and 1 more have receipts and never came" in found


def test_a_key_batch_that_comes_behind_later_ids_of_other_keys_is_in_order() -> None:
    history = History()
    history.subscribed("stream", keeps_order=True)
    history.opened("s1")
    for number, key in ((0, "A"), (1, "B"), (2, "A"), (3, "B")):
        history.sent("p", number, key)
        history.receipt("p", number)
    for entry, (key, numbers) in enumerate((("A", (0, 2)), ("B", (1, 3)))):
        for number in numbers:
            history.received(
                "stream", "s1", Sent("p", number), key, HistoryPlace(0, 1, entry), keeps_order=True
            )
    assert history.check() == []


def test_a_receipt_of_ids_that_the_entry_does_not_hold_is_found(history: History) -> None:
    history.receipt_beyond("p", 5, 4)
    assert history.violations == ["p was given a receipt up to 5 for an entry that ends at 4"]


def test_a_topic_that_is_gone_with_hidden_entries_that_have_won_is_found(history: History) -> None:
    history.vanished("persistent://a/b/c", "batch 0 of write 'w'")
    [found] = history.violations
    assert found.startswith("persistent://a/b/c is gone, with the hidden entries of batch 0")


def test_a_subscription_that_was_reported_as_made_and_does_not_exist_is_found(history: History) -> None:
    history.missing("t", "queue")
    [found] = history.violations
    assert found == "subscription queue of t was reported as made, and does not exist"


def test_a_subscription_that_nobody_was_told_of_may_be_missing(history: History) -> None:
    history.missing("t", "another")
    history.doomed("queue")
    history.missing("t", "queue")
    assert history.violations == []


def test_messages_published_behind_a_lost_subscription_are_missed() -> None:
    """C13: told before it was durable; made again later, it starts behind what was published meanwhile."""
    history = History()
    history.sent("p", 0, "k")
    history.receipt("p", 0)
    history.subscribed("late", keeps_order=False)
    history.sent("p", 1, "k")
    history.receipt("p", 1)
    history.opened("c")
    assert history.owed("late") == {Sent("p", 1)}


def test_a_topic_that_cannot_be_closed_is_found(history: History) -> None:
    history.stays_open("persistent://a/b/c")
    [found] = history.violations
    assert "was to be closed" in found
