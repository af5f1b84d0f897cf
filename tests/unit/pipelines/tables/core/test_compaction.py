"""Which small files become one."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipelines.tables.core.compaction import TableFile, groups, is_closed

MAX = 1000


def parts(*sizes: int) -> list[TableFile]:
    return [
        TableFile(f"date=2026-05-01/part-{number:08}-00000.parquet", size)
        for number, size in enumerate(sizes)
    ]


def sizes(found: list[tuple[TableFile, ...]]) -> list[list[int]]:
    return [[part.bytes for part in group] for group in found]


def test_small_files_become_one_in_the_order_they_were_written() -> None:
    assert sizes(groups(reversed(parts(10, 30, 20)), MAX)) == [[10, 30, 20]]


def test_files_of_more_than_half_the_limit_are_left_alone() -> None:
    assert sizes(groups(parts(10, 501, 20), MAX)) == [[10, 20]]


def test_one_small_file_is_left_alone() -> None:
    assert groups(parts(10, 900), MAX) == []
    assert groups(parts(), MAX) == []


def test_a_large_file_is_not_rewritten_for_a_little_that_came_late() -> None:
    assert groups(parts(400, 1), MAX) == []
    assert sizes(groups(parts(400, 1, 2), MAX)) == [[1, 2]]
    assert sizes(groups(parts(400, 150, 60), MAX)) == [[400, 150, 60]]


def test_a_group_that_is_full_is_followed_by_another() -> None:
    assert sizes(groups(parts(400, 400, 400, 400), MAX)) == [[400, 400], [400, 400]]


def test_a_day_is_closed_once_it_is_over() -> None:
    today = date(2026, 5, 2)
    assert is_closed(date(2026, 5, 1), today)
    assert not is_closed(today, today)
    assert not is_closed(today + timedelta(days=1), today)
    assert not is_closed(None, today)


file_sizes = st.lists(st.integers(0, 2 * MAX), max_size=60)


@given(file_sizes)
def test_every_file_is_in_one_group_at_most_and_no_group_is_larger_than_a_file_may_be(
    given: list[int],
) -> None:
    found = groups(parts(*given), MAX)
    used = [part for group in found for part in group]
    assert len(used) == len(set(used))
    assert all(len(group) > 1 for group in found)
    assert all(sum(part.bytes for part in group) <= MAX for group in found)


@given(file_sizes)
def test_the_largest_of_a_group_grows_by_half_at_least(given: list[int]) -> None:
    for group in groups(parts(*given), MAX):
        largest = max(part.bytes for part in group)
        assert 2 * sum(part.bytes for part in group) >= 3 * largest


@given(st.lists(st.integers(1, MAX // 2), max_size=400))
def test_what_stays_small_is_a_handful_however_often_late_rows_come(late: list[int]) -> None:
    kept: list[int] = []
    rewritten = 0
    for size in late:
        kept.append(size)
        while found := groups(parts(*kept), MAX):
            for group in sizes(found):
                for one in group:
                    kept.remove(one)
                kept.append(sum(group))
                rewritten += sum(group)
    small = [size for size in kept if size * 2 <= MAX]
    # Neighbours in size are at least three times apart, within each stretch of MAX bytes.
    assert len(small) <= 8 * (1 + 2 * sum(small) // MAX)
    # log(MAX) / log(1.5) times at most, for each byte.
    assert rewritten <= 18 * sum(late)
