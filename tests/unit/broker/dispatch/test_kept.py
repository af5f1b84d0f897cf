"""Entries that are kept until they can be sent: how many bytes, and whose."""

from __future__ import annotations

from anabranch.broker.dispatch.kept import KeptBudget, KeptEntries

KB = 1 << 10


def entry(number: int, size: int) -> tuple[int, int, memoryview]:
    return number, 1, memoryview(bytearray(size))


def test_subscriptions_of_a_broker_share_one_budget() -> None:
    budget = KeptBudget(100)
    one, other = KeptEntries(budget, 4), KeptEntries(budget, 4)
    one.keep((5, 0), entry(0, 60), 0)
    other.keep((5, 0), entry(0, 60), 0)
    assert len(one) == 1
    assert not len(other)
    assert one.take((5, 0)) is not None
    assert one.take((5, 0)) is None
    other.keep((5, 0), entry(0, 60), 0)
    assert (5, 0) in other
    assert budget.left == 40


def test_a_bucket_has_a_share_and_no_more() -> None:
    kept = KeptEntries(KeptBudget(), 4, bytes_max=1024 * KB)
    for number in range(8):
        kept.keep((5, number), entry(number, 64 * KB), 1)
    assert len(kept) == 4
    kept.keep((5, 8), entry(8, 64 * KB), 2)
    assert (5, 8) in kept


def test_what_was_read_beside_an_entry_is_not_held_by_it() -> None:
    kept = KeptEntries(KeptBudget(), 1)
    read = bytearray(b"before, after")
    kept.keep((5, 1), (1, 1, memoryview(read)[8:]), 0)
    # Not possible while a view of it exists.
    read.clear()
    found = kept.take((5, 1))
    assert found is not None
    assert bytes(found[2]) == b"after"


def test_entries_below_a_position_are_given_up() -> None:
    kept = KeptEntries(KeptBudget(100), 2)
    for number in range(4):
        kept.keep((5, number), entry(number, 10), number % 2)
    kept.drop_below((5, 3))
    assert [(5, number) in kept for number in range(4)] == [False, False, False, True]
    kept.clear()
    assert kept.room == 100
