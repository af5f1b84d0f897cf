"""How much of a segment is counted ahead of a batch, and when files are looked at again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.reading.failures import NeedsClientError
from anabranch.client.reading.plans import NoPlanError
from anabranch.spark.driver.counted import Counted
from anabranch.spark.driver.row_counts import FIRST_PAUSE_S, FIRST_STRETCH, PAUSE_MAX_S, STRETCH_MAX, Detour
from anabranch.spark.plan.limit import Limit, Step

entries = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 100)), max_size=20)
limits = st.builds(Limit, st.none() | st.integers(1, 40), st.none() | st.integers(1, 900))


@given(entries, entries, st.integers(0, 20), st.integers(0, 6), limits)
def test_what_steps_come_to_is_known_as_they_come_and_go(
    first: list[tuple[int, int]], then: list[tuple[int, int]], start: int, index: int, limit: Limit
) -> None:
    counted = Counted()
    steps = [Step((5, n, 0), rows, size) for n, (rows, size) in enumerate([*first, *then])]
    for step in steps[: len(first)]:
        counted.add(step)
    counted.forget_before((5, start, index))
    for step in steps[len(first) :]:
        counted.add(step)
    left = [step for n, step in enumerate(steps) if n >= min(start, len(first))]
    assert list(counted.steps((9, 0, 0)).steps) == left
    # The rows before the index are part of an earlier batch.
    taken = min(index, left[0].rows) if left and left[0].at == (5, start, 0) else 0
    rows = sum(step.rows for step in left) - taken
    size = sum(step.bytes for step in left) - (left[0].bytes * taken // left[0].rows if taken else 0)
    assert counted.is_enough(limit) == (
        (limit.rows is not None and rows > limit.rows) or (limit.bytes is not None and size > limit.bytes)
    )


@given(st.integers(1, 10**7), st.integers(1, 2000))
def test_the_shares_of_a_limit_come_to_it_and_grow_up_to_it(rows: int, of: int) -> None:
    most = Limit(rows=rows)
    depth = most.share(of)
    assert depth.rows is not None
    assert depth.rows * of >= rows
    turns = 0
    while depth != most:
        depth = depth.times(4, most)
        turns += 1
        assert turns < 20
    assert most.share(1) == most


def test_files_are_tried_again_behind_what_needs_a_client() -> None:
    detour = Detour.of(NeedsClientError((5, 100), "is a piece of a message"), None, now=0.0)
    assert not detour.is_over((5, 100, 0), now=1e9)
    assert not detour.is_over((5, 100 + FIRST_STRETCH - 1, 3), now=1e9)
    assert detour.is_over((5, 100 + FIRST_STRETCH, 0), now=0.0)
    assert detour.is_over((6, 0, 0), now=0.0)


def test_a_detour_is_longer_than_the_last_unless_files_were_good_for_as_long() -> None:
    def at(entry: int, last: Detour | None) -> Detour:
        return Detour.of(NeedsClientError((5, entry), "is encrypted"), last, now=0.0)

    first = at(0, None)
    second = at(FIRST_STRETCH + 10, first)
    assert second.stretch > first.stretch
    assert at(second.until[1] + 10, second).stretch > second.stretch
    assert at(second.until[1] + second.stretch, second).stretch == FIRST_STRETCH
    last = second
    for _ in range(50):
        last = at(last.until[1], last)
    assert last.stretch == STRETCH_MAX


def test_after_a_plan_that_did_not_come_files_are_tried_again_later() -> None:
    detour = Detour.of(NoPlanError("no answer"), None, now=100.0)
    assert not detour.is_over((5, 0, 0), now=100.0 + FIRST_PAUSE_S - 0.1)
    assert detour.is_over((5, 0, 0), now=100.0 + FIRST_PAUSE_S)
    again = Detour.of(NoPlanError("no answer"), detour, now=detour.ends + 1)
    assert again.pause_s > detour.pause_s
    assert Detour.of(NoPlanError("no answer"), detour, now=detour.ends + 60).pause_s == FIRST_PAUSE_S
    for _ in range(50):
        again = Detour.of(NoPlanError("no answer"), again, now=again.ends)
    assert again.pause_s == PAUSE_MAX_S
