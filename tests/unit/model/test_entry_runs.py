"""Runs of entries, against plain sets of entries."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.entry_runs import EntryRun, EntryRuns, GrowingRuns

RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(1, 4)).map(
        lambda r: (r[0], r[1], r[1] + r[2])
    )
)
MANY = st.builds(
    lambda first, step, size, count, ledger: [
        (ledger, first + n * step * size, first + n * step * size + size) for n in range(count)
    ],
    st.integers(0, 2**40),
    st.integers(2, 300),
    st.integers(1, 300),
    st.integers(1001, 1100),
    st.integers(0, 2**60),
)


def entries(runs: list[EntryRun] | EntryRuns) -> set[tuple[int, int]]:
    return {(ledger, n) for ledger, first, end in runs for n in range(first, end)}


@given(RUNS)
def test_runs_hold_the_same_entries_and_do_not_touch(runs: list[EntryRun]) -> None:
    found = EntryRuns.of(runs)
    assert entries(found) == entries(runs)
    assert found.entries == len(entries(runs))
    assert len(found) == len(list(found))
    assert all(one[0] < other[0] or one[2] < other[1] for one, other in pairwise(found))


@given(RUNS, RUNS, RUNS)
def test_merged_runs_hold_what_any_of_them_holds(
    one: list[EntryRun], two: list[EntryRun], three: list[EntryRun]
) -> None:
    merged = EntryRuns.of(one).merged(EntryRuns.of(two), EntryRuns.of(three))
    assert merged == EntryRuns.of([*one, *two, *three])


@given(st.lists(st.integers(0, 4), max_size=60))
def test_runs_of_many_that_take_turns_are_gathered(turns: list[int]) -> None:
    """Each of several writes some of the entries, of two ledgers, one after the other."""
    many = [GrowingRuns() for _ in range(4)]
    expected = set()
    for n, whose in enumerate(turns):
        if whose < len(many):
            many[whose].add(1 + n // 30, n, n + 1)
            expected.add((1 + n // 30, n))
    found = EntryRuns.gathered(many)
    assert entries(found) == expected
    assert found == EntryRuns().merged(*(one.value() for one in many))
    assert all(one[0] < other[0] or one[2] < other[1] for one, other in pairwise(found))


def test_very_many_attempts_are_dropped_at_once() -> None:
    """Each took as long as there were runs before it: 200,000 of them stopped the broker for most of a minute."""
    many = []
    for n in range(100_000):
        one = GrowingRuns()
        one.add(1, 2 * n, 2 * n + 1)
        many.append(one)
    found = EntryRuns.gathered(many)
    assert (len(found), found.first, found.last_end) == (100_000, (1, 0), (1, 199_999))
    joined = EntryRuns().merged(*(one.value() for one in many))
    assert joined == found


@given(RUNS, st.integers(0, 4), st.integers(0, 14))
def test_what_lies_below_a_position_is_left_out_and_the_rest_stays(
    runs: list[EntryRun], ledger: int, entry: int
) -> None:
    found = EntryRuns.of(runs)
    kept = found.from_((ledger, entry))
    assert list(kept) == [run for run in found if (run[0], run[2]) > (ledger, entry)]
    if len(kept) == len(found):
        assert kept is found, "whoever holds it need not look again"


@given(RUNS, MANY)
def test_what_is_stored_comes_back(runs: list[EntryRun], many: list[EntryRun]) -> None:
    for found in (EntryRuns.of(runs), EntryRuns.of(many), EntryRuns.of([*runs, *many])):
        assert EntryRuns.unpacked(found.packed()) == found


@given(st.lists(st.booleans(), max_size=50))
def test_growing_runs_are_what_was_added(turns: list[bool]) -> None:
    growing = GrowingRuns()
    expected = set()
    before = growing.value()
    for n, is_ours in enumerate(turns):
        if is_ours:
            growing.add(5, n, n + 1)
            expected.add((5, n))
    assert entries(growing.value()) == expected
    assert growing.entries == len(expected)
    assert growing.first == min(expected, default=None)
    assert list(before) == [], "a value does not grow"
