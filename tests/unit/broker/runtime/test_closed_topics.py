"""Closed topics give their memory back, however old their parts are."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from anabranch.broker.runtime.closed_topics import CLOSED_MIN, ClosedTopics, are_enough


@pytest.mark.parametrize(
    ("closed_count", "open_count", "expected"),
    [
        (CLOSED_MIN - 1, 0, False),
        (CLOSED_MIN, 0, True),
        (CLOSED_MIN, CLOSED_MIN, True),
        (CLOSED_MIN, 10_000, False),
        (9_999, 10_000, False),
        (10_000, 10_000, True),
    ],
)
def test_they_are_collected_before_they_keep_more_than_the_open_ones(
    closed_count: int, open_count: int, expected: bool
) -> None:
    assert are_enough(closed_count, open_count) is expected


class Part:
    """Refers to itself, as the parts of a topic do by way of each other."""

    def __init__(self) -> None:
        self.whole = self


async def test_what_was_closed_is_freed_without_the_collectors_own_decision() -> None:
    gc.disable()
    try:
        closed = ClosedTopics(asyncio.get_running_loop(), lambda: 0)
        freed = asyncio.Event()
        part = Part()
        weakref.finalize(part, freed.set)
        del part
        for _ in range(CLOSED_MIN - 1):
            closed.add()
        assert not freed.is_set()
        closed.add()
        await asyncio.wait_for(freed.wait(), 30)
    finally:
        gc.enable()
