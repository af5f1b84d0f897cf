"""Running totals of messages: what they say below each entry."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.core.message_counts import MARK_ENTRIES, RECENT_ENTRIES, MessageCounts, below_in

SOME = st.lists(st.integers(1, 1000), max_size=50)


@given(st.lists(SOME, max_size=10))
def test_the_newest_entries_are_counted_exactly(appended: list[list[int]]) -> None:
    counts, one_by_one = MessageCounts(), MessageCounts()
    for some in appended:
        counts.add(some)
        for one in some:
            one_by_one.add_one(one)
    assert one_by_one.total == counts.total
    assert [one_by_one.below(n) for n in range(counts.end + 1)] == [
        counts.below(n) for n in range(counts.end + 1)
    ]
    held = [count for some in appended for count in some]
    assert [counts.below(n) for n in range(len(held) + 1)] == list(accumulate(held, initial=0))
    assert (counts.end, counts.total) == (len(held), sum(held))


@given(st.integers(1, 700), st.integers(0, 3 * RECENT_ENTRIES))
def test_older_entries_are_counted_to_the_nearest_mark(run: int, seed: int) -> None:
    counts = MessageCounts()
    held = [1 + (n * 7919 + seed) % 97 for n in range(4 * RECENT_ENTRIES)]
    for at in range(0, len(held), run):
        counts.add(held[at : at + run])
    below = list(accumulate(held, initial=0))
    assert counts.below(len(held)) == counts.total == below[-1]
    recent = range(len(held) - RECENT_ENTRIES, len(held) + 1)
    assert [counts.below(n) for n in recent] == below[-RECENT_ENTRIES - 1 :]
    marks = range(0, len(held), MARK_ENTRIES)
    assert [counts.below(n) for n in marks] == below[:-1:MARK_ENTRIES]
    # Between two marks the answer stays between theirs.
    at = seed
    low, high = below[at // MARK_ENTRIES * MARK_ENTRIES], below[(at // MARK_ENTRIES + 1) * MARK_ENTRIES]
    assert low <= counts.below(at) <= high


def test_entries_of_one_size_are_counted_exactly_however_old() -> None:
    counts = MessageCounts()
    for _ in range(5 * RECENT_ENTRIES // 100):
        counts.add([3] * 100)
    assert all(counts.below(n) == 3 * n for n in range(counts.end + 1))
    # A place beyond the end is the end.
    assert counts.below(counts.end + 5) == counts.total


@pytest.mark.parametrize(
    ("total", "end", "entry", "below"),
    [(100, 10, 0, 0), (100, 10, 10, 100), (100, 10, 5, 50), (100, 10, 99, 100), (-1, 10, 4, 4), (0, 0, 3, 0)],
)
def test_a_ledger_with_one_total_goes_by_its_mean(total: int, end: int, entry: int, below: int) -> None:
    assert below_in(total, end, entry) == below
