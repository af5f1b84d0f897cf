"""The judge of the fault runs: a history that no correct broker allows is found, and one that it allows is not."""

from __future__ import annotations

from soak.checker import ProducerHistory, Rules, SubscriptionHistory, Violations, audit
from soak.history import Fields


def event(line: str) -> Fields:
    return tuple(line.split())


class Case:
    """Histories written down as lines."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.violations = Violations()
        self.producer = ProducerHistory("p", self.violations)
        self.subscription = SubscriptionHistory("s", rules or Rules(), self.violations)

    def published(self, *lines: str) -> Case:
        for line in lines:
            self.producer.feed(event(line))
        return self

    def stored(self, count: int) -> Case:
        """Messages 0 up to `count`, each an entry of ledger 1."""
        for index in range(count):
            self.published(f"s p {index}", f"r p {index} -1 1 {index} -1")
        return self

    def consumed(self, *lines: str) -> Case:
        for line in lines:
            self.subscription.feed(event(line))
        return self

    def received(self, *indexes: int, consumer: str = "c", key: str = "-") -> Case:
        return self.consumed(*(f"m {consumer} p {index} {key} -1 1 {index} -1" for index in indexes))

    def acked(self, *indexes: int, answered: bool = False) -> Case:
        self.consumed(*(f"a c -1 1 {index} -1" for index in indexes))
        return self.consumed(*(f"A c -1 1 {index} -1" for index in indexes if answered))

    def verdict(self) -> list[str]:
        self.producer.finish()
        self.subscription.finish([self.producer])
        return self.violations.found


def test_everything_received_in_order_and_acknowledged_is_fine() -> None:
    assert Case().stored(3).received(0, 1, 2).acked(0, 1, 2).verdict() == []


def test_a_receipted_message_that_never_came_is_lost() -> None:
    found = Case().stored(3).received(0, 2).acked(0, 2).verdict()
    assert found == ["s: p message 1 has a receipt and never came"]


def test_a_message_without_a_receipt_may_be_missing_and_may_be_there() -> None:
    case = Case().published("s p 0", "r p 0 -1 1 0 -1", "s p 1", "s p 2")
    assert case.received(0, 2).acked(0, 2).verdict() == []


def test_messages_of_a_producer_that_first_come_out_of_order_are_reordered() -> None:
    found = Case().stored(3).received(0, 2, 1).acked(0, 1, 2).verdict()
    assert found == ["s: p message 1 first came after message 2 (key '-')"]


def test_a_message_may_come_again_after_later_ones() -> None:
    assert Case().stored(3).received(0, 1, 2, 0, 1, 2).acked(0, 1, 2).verdict() == []


def test_a_shared_subscription_promises_no_order() -> None:
    assert Case(Rules(order="none")).stored(3).received(2, 0, 1).acked(0, 1, 2).verdict() == []


def test_keys_have_their_own_order() -> None:
    case = Case(Rules(order="key")).stored(4)
    case.received(1, key="a").received(0, key="b").received(3, key="b").received(2, key="b")
    assert case.acked(0, 1, 2, 3).verdict() == ["s: p message 2 first came after message 3 (key 'b')"]


def test_a_message_that_was_not_acknowledged_and_never_came_again_shows_a_cursor_beyond() -> None:
    found = Case().stored(2).received(0, 1).acked(1).verdict()
    assert found == ["s: ('p', 0) at (-1, 1, 0, -1) was not acknowledged, and did not come again"]


def batch(entry: int, *indexes: int) -> list[str]:
    """Messages of a batch as a reader gets them: its entry, and the index of each in it."""
    return [f"m c p {entry * 10 + index} - -1 1 {entry} {index}" for index in indexes]


def test_a_reader_gets_nothing_twice_but_the_batch_that_it_read_last() -> None:
    rules = Rules(acks=False, once=True)
    sent = [f"s p {index}" for index in range(30)]
    last_again = [*batch(0, 0, 1), *batch(1, 0, 1), *batch(1, 0, 1), *batch(2, 0)]
    assert Case(rules).published(*sent).consumed(*last_again).verdict() == []
    older_again = [*batch(0, 0, 1), *batch(1, 0, 1), *batch(0, 1)]
    assert Case(rules).published(*sent).consumed(*older_again).verdict() == [
        "s: ('p', 1) came twice, at (-1, 1, 0, 1) and (-1, 1, 0, 1)"
    ]
    stored_twice = [*batch(0, 0), "m c p 0 - -1 1 0 1"]
    assert Case(rules).published(*sent).consumed(*stored_twice).verdict() == [
        "s: ('p', 0) came twice, at (-1, 1, 0, 0) and (-1, 1, 0, 1)"
    ]
    single_again = ["m c p 0 - -1 1 0 -1", "m c p 0 - -1 1 0 -1"]
    assert len(Case(rules).published(*sent).consumed(*single_again).verdict()) == 1


def test_a_message_must_not_come_back_once_its_ack_was_answered() -> None:
    found = Case().stored(1).received(0).acked(0, answered=True).received(0).verdict()
    assert found == ["s: ('p', 0) at (-1, 1, 0, -1) came back after its ack was answered"]


def test_a_message_may_come_back_while_its_ack_has_no_answer() -> None:
    assert Case().stored(1).received(0).acked(0).received(0).verdict() == []


def test_an_answered_cumulative_ack_covers_everything_before_it() -> None:
    case = Case().stored(3).received(0, 1, 2).consumed("c c -1 1 2 -1", "C c -1 1 1 -1")
    assert case.received(2).verdict() == []
    assert case.received(1).verdict() == [
        "s: ('p', 1) at (-1, 1, 1, -1) came back after its ack was answered"
    ]


def test_an_answered_ack_of_part_of_a_batch_covers_that_part_only() -> None:
    case = Case().published("s p 0", "s p 1")
    case.consumed("m c p 0 - -1 1 0 0", "m c p 1 - -1 1 0 1", "a c -1 1 0 0", "A c -1 1 0 0", "a c -1 1 0 1")
    assert case.consumed("m c p 1 - -1 1 0 1").verdict() == []
    assert len(case.consumed("m c p 0 - -1 1 0 0").verdict()) == 1


def test_a_new_connection_starts_behind_the_last_cumulative_ack_and_not_later() -> None:
    rules = Rules(once_per_connection=True)
    right = Case(rules).stored(4).consumed("o c").received(0, 1, 2, 3).consumed("c c -1 1 1 -1", "o c")
    assert right.received(2, 3).consumed("c c -1 1 3 -1").verdict() == []
    wrong = Case(rules).stored(4).consumed("o c").received(0, 1, 2, 3).consumed("c c -1 1 1 -1", "o c")
    found = wrong.received(3).consumed("c c -1 1 3 -1").verdict()
    assert found == ["s: the cursor skipped (-1, 1, 2, -1), never acknowledged: it went on at (-1, 1, 3, -1)"]


def test_one_connection_goes_forward_only() -> None:
    case = Case(Rules(once_per_connection=True)).stored(2).consumed("o c").received(0, 1, 0).acked(0, 1)
    assert len(case.verdict()) == 1


def test_with_deduplication_a_message_lies_at_one_place() -> None:
    case = Case(Rules(single_place=True)).stored(1).received(0).consumed("m c p 0 - -1 2 5 -1")
    found = case.acked(0).consumed("a c -1 2 5 -1").verdict()
    assert found == ["s: ('p', 0) is stored twice, at (-1, 1, 0, -1) and (-1, 2, 5, -1)"]


def test_without_deduplication_a_message_sent_again_may_lie_at_two_places() -> None:
    case = Case().stored(1).received(0).consumed("m c p 0 - -1 2 5 -1", "a c -1 2 5 -1")
    assert case.acked(0).verdict() == []


def test_a_message_nobody_sent_is_found() -> None:
    assert Case().stored(1).received(0, 7).acked(0, 7).verdict() == ["s: p message 7 came and was never sent"]


def test_receipts_must_place_messages_in_the_order_they_were_sent() -> None:
    case = Case(Rules(acks=False)).published("s p 0", "s p 1", "r p 0 -1 1 5 -1", "r p 1 -1 1 4 -1")
    case.consumed("m c p 0 - -1 1 5 -1", "m c p 1 - -1 1 4 -1")
    assert len(case.verdict()) == 1


def test_a_producer_told_that_it_is_stored_up_to_an_id_counts_on_all_of_them() -> None:
    case = Case().published("s p 0", "s p 1", "l p 1").received(1).acked(1)
    assert case.verdict() == ["s: p message 0 has a receipt and never came"]


def test_the_log_must_hold_each_message_where_its_receipt_said() -> None:
    case = Case(Rules(acks=False)).stored(2).received(0).consumed("m c p 1 - -1 9 9 -1")
    audit("log", case.subscription, [case.producer], case.violations)
    assert case.violations.found == ["log: nothing at (-1, 1, 1, -1), the receipt of p 1"]
