"""Turns of the event loop that take long are measured, told from those that only wait, and named."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import time
from collections.abc import Callable

import pytest

from anabranch.broker.runtime.loop_watch import BEAT_S, SLOW_S, STEP_S, STEPS, LoopWatch, TurnTimes


def work(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110  # The figures belong to the product and have no event.
            await asyncio.sleep(0.01)


async def test_a_turn_that_works_for_long_is_counted_and_its_code_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = TurnTimes()
    with caplog.at_level(logging.WARNING), LoopWatch(times):
        work(0.3)
        await until(lambda: times.slow > 0)
    assert times.longest_cpu_s >= 0.29
    assert times.longest_s >= 0.29 - BEAT_S
    assert "one turn of the event loop kept others waiting" in caplog.text
    assert "test_loop_watch.py" in caplog.text
    assert "work" in caplog.text


async def test_what_collecting_garbage_took_of_a_slow_turn_is_told(caplog: pytest.LogCaptureFixture) -> None:
    times = TurnTimes()
    with caplog.at_level(logging.WARNING), LoopWatch(times):
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            gc.collect()
        await until(lambda: times.slow > 0)
    told = re.search(r"\((\d+) ms of it to collect garbage\)", caplog.text)
    assert told is not None
    assert int(told[1]) > 50


async def test_a_turn_that_only_waits_is_long_but_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    times = TurnTimes()
    with caplog.at_level(logging.WARNING), LoopWatch(times):
        time.sleep(0.25)  # noqa: ASYNC251  # The loop is held on purpose.
        await until(lambda: times.longest_s > 0.19)
    assert times.slow == 0
    assert "one turn of the event loop kept others waiting" not in caplog.text


async def test_a_turn_that_may_never_end_is_told_of_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    times = TurnTimes()
    with caplog.at_level(logging.WARNING), LoopWatch(times):
        end = time.monotonic() + 60
        while "keeps others waiting" not in caplog.text and time.monotonic() < end:
            work(0.05)
    assert "test_loop_watch.py" in caplog.text
    assert times.slow == 0  # The turn has not ended yet.


async def test_many_short_turns_are_not_one_long_one() -> None:
    times = TurnTimes()
    with LoopWatch(times):
        for _ in range(100):
            work(0.002)
            await asyncio.sleep(0)
    assert times.longest_cpu_s < 0.15  # Of 200 ms in all; a turn is at most 2 ms and a beat 10 ms.


def test_the_longest_turn_is_forgotten_after_a_minute() -> None:
    times = TurnTimes()
    assert times.observe(0.0, 0.4, 0.3)
    for step in range(1, STEPS):
        assert not times.observe(step * STEP_S, 0.01, 0.0)
        assert times.longest_cpu_s == 0.3
        assert times.longest_s == 0.4
    times.observe(STEPS * STEP_S, 0.02, 0.01)
    assert (times.longest_s, times.longest_cpu_s) == (0.02, 0.01)
    assert times.slow == 1


def test_a_turn_is_slow_beyond_the_bound_only() -> None:
    times = TurnTimes()
    assert not times.observe(0.0, 1.0, SLOW_S)
    assert times.observe(0.0, 1.0, SLOW_S + 0.001)
