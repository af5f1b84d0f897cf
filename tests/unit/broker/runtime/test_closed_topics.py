"""Closed topics give their memory back, however old their parts are."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from anabranch.broker.runtime.closed_topics import CLOSED_MIN, OPEN_FEW, QUIET_S, ClosedTopics, is_time
from anabranch.simulation.machine.loop import SimLoop


@pytest.mark.parametrize(
    ("closed_count", "open_count", "quiet_s", "expected"),
    [
        pytest.param(CLOSED_MIN - 1, 0, 1e9, False, id="hardly any memory"),
        pytest.param(CLOSED_MIN, OPEN_FEW, 0.0, True, id="few others wait"),
        pytest.param(CLOSED_MIN, OPEN_FEW + 1, 0.0, False, id="others wait"),
        pytest.param(CLOSED_MIN, OPEN_FEW + 1, QUIET_S, True, id="no more are closed"),
        pytest.param(9_999, 10_000, 1e9, False, id="less memory than the open ones"),
        pytest.param(10_000, 10_000, QUIET_S - 1, False, id="more may be closed"),
        pytest.param(10_000, 10_000, QUIET_S, True, id="as much memory as the open ones"),
        pytest.param(39_999, 10_000, 0.0, False, id="as much as may wait"),
        pytest.param(40_000, 10_000, 0.0, True, id="too much to wait"),
    ],
)
def test_when_they_are_collected(closed_count: int, open_count: int, quiet_s: float, expected: bool) -> None:
    assert is_time(closed_count, open_count, quiet_s) is expected


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


@pytest.mark.parametrize(("open_count", "waits_s"), [(OPEN_FEW, 0.0), (OPEN_FEW + 1, QUIET_S)])
def test_what_was_closed_is_freed(loop: SimLoop, open_count: int, waits_s: float) -> None:
    closed = ClosedTopics(loop, lambda: open_count)
    held = weakref.ref(Part())

    async def main() -> None:
        for _ in range(CLOSED_MIN - 1):
            closed.add()
        await asyncio.sleep(2 * QUIET_S)
        assert held() is not None
        closed.add()
        await asyncio.sleep(0.9 * waits_s)
        assert held() is not None
        await asyncio.sleep(QUIET_S)
        assert held() is None

    loop.run_until_complete(main())
