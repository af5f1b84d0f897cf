"""The collector looks at few objects at a time, and at everything only when memory has grown and few wait for it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from anabranch.broker.runtime.collecting import (
    BUSY_BLOCKS,
    LOOK_S,
    QUIET_BLOCKS,
    FullCollections,
    Seen,
    is_due,
)
from anabranch.simulation.machine.loop import SimLoop

# What a broker does that opens many topics: objects that stay, made in a process that runs as a broker's does.
OPENING = """
import asyncio, gc
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.process import run_to_end

most = {0: 0, 1: 0, 2: 0}

def looked(phase, info):
    if phase == "start":
        young = range(info["generation"] + 1)
        most[info["generation"]] = max(
            most[info["generation"]], sum(len(gc.get_objects(generation=number)) for number in young)
        )

async def work():
    gc.callbacks.append(looked)
    kept = [[number] for number in range(400_000)]
    gc.callbacks.remove(looked)
    print(*most.values())

run_to_end(work(), BrokerConfig())
"""


def test_a_process_that_makes_many_objects_never_looks_at_many_of_them_at_once() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OPENING], capture_output=True, text=True, timeout=60, check=True
    )
    youngest, young, everything = map(int, ran.stdout.split())
    assert 0 < youngest <= 15_000
    assert 0 < young <= 30_000
    assert everything == 0, "it was never begun"


QUIET = Seen(1_000_000, 500_000, share_of_core=0.01, expected_stop_s=0.05)


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        (QUIET, True),
        (Seen(1_000_000, 500_000, 0.2, 0.05), False),  # Others want the loop.
        (Seen(1_000_000, 900_000, 0.01, 0.05), False),  # It has not grown enough.
        (Seen(QUIET_BLOCKS + 49_999, 50_000, 0.01, 0.01), False),  # Nothing to gain.
        (Seen(4_000_000, 2_000_000, 0.01, 0.4), False),  # It would take long.
        (Seen(BUSY_BLOCKS, BUSY_BLOCKS // 4, 1.0, 0.5), True),  # Most of it may be garbage by now.
        (Seen(BUSY_BLOCKS - 1, 100_000, 1.0, 0.5), False),
        (Seen(BUSY_BLOCKS * 2, BUSY_BLOCKS, 1.0, 1.0), False),
        (Seen(0, 0, 0.0, 0.0), False),
    ],
)
def test_everything_is_looked_at_in_quiet_after_some_growth_and_in_any_case_after_much(
    seen: Seen, due: bool
) -> None:
    assert is_due(seen) == due


class Process:
    """The figures of a process at each look, and how often everything was looked at."""

    def __init__(self, blocks: Iterable[int], busy_s: float = 0.0) -> None:
        self._blocks, self._busy_s = iter(blocks), busy_s
        self._cpu_s = 0.0
        self.collected = 0
        self.at: list[float] = []

    def blocks(self) -> int:
        return next(self._blocks)

    def collect(self) -> int:
        self.collected += 1
        return 7

    def thread_time(self) -> float:
        self._cpu_s += self._busy_s
        return self._cpu_s


def run(process: Process, looks: int) -> None:
    loop = SimLoop()

    async def lived() -> None:
        with FullCollections(blocks=process.blocks, collect=process.collect, thread_time=process.thread_time):
            await asyncio.sleep(LOOK_S * looks + 1)
        assert not loop.timers

    loop.run_until_complete(lived())
    loop.close()


def _growing(start: int, step: int) -> Iterator[int]:
    while True:
        yield start
        start += step


def test_growth_counts_from_the_least_that_there_was_since(caplog: pytest.LogCaptureFixture) -> None:
    """Not from what there was at the start: the process became smaller meanwhile."""
    caplog.set_level(logging.INFO)
    process = Process([900_000, 300_000, 300_000, 500_000, 250_000, 300_000])
    run(process, 4)
    assert process.collected == 1
    assert "7 objects, 500000 blocks of memory became 250000" in caplog.text


def test_a_process_that_does_not_grow_is_left_alone() -> None:
    process = Process(_growing(300_000, 0))
    run(process, 100)
    assert process.collected == 0


@pytest.mark.parametrize(("looks", "collected"), [(46, 0), (47, 1)])
def test_a_busy_process_is_stopped_only_when_it_is_large(looks: int, collected: int) -> None:
    """It has 4,900,000 blocks at the one look and 5,000,000 at the next."""
    process = Process(_growing(300_000, 100_000), busy_s=LOOK_S)
    run(process, looks)
    assert process.collected == collected
