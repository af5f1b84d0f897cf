"""Closed topics give their memory back, however old their parts are."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from anabranch.broker.runtime.closed_topics import (
    CLOSED_MIN,
    QUIET_S,
    WAITING_MAX,
    ClosedTopics,
    are_enough,
)
from anabranch.simulation.machine.loop import SimLoop


@pytest.mark.parametrize(
    ("closed_count", "open_count", "expected"),
    [
        (CLOSED_MIN - 1, 0, False),
        (CLOSED_MIN, 0, True),
        (CLOSED_MIN, CLOSED_MIN, True),
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


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    """Only what is asked for is collected meanwhile."""
    gc.disable()
    loop = SimLoop()
    yield loop
    loop.close()
    gc.enable()


def test_they_wait_until_no_more_are_closed(loop: SimLoop) -> None:
    closed = ClosedTopics(loop, lambda: 0)
    held = weakref.ref(Part())

    async def main() -> None:
        for _ in range(CLOSED_MIN - 1):
            closed.add()
        await asyncio.sleep(10 * QUIET_S)
        assert held() is not None
        closed.add()
        await asyncio.sleep(0.9 * QUIET_S)
        closed.add()
        await asyncio.sleep(0.9 * QUIET_S)
        assert held() is not None
        await asyncio.sleep(2 * QUIET_S)
        assert held() is None

    loop.run_until_complete(main())


def test_they_do_not_wait_when_they_are_too_many(loop: SimLoop) -> None:
    closed = ClosedTopics(loop, lambda: 0)
    held = weakref.ref(Part())

    async def main() -> None:
        for number in range(WAITING_MAX * CLOSED_MIN):
            assert held() is not None, number
            closed.add()
            await asyncio.sleep(0.01)
        for _ in range(int(3 * QUIET_S)):
            closed.add()
            await asyncio.sleep(1)
        assert held() is None

    loop.run_until_complete(main())
