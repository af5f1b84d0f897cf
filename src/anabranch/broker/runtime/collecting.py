"""When Python's garbage collector runs in a process of ours, and how much it looks at in one go.

Nothing else runs during a collection. What a broker closes is freed by counting references
(`tests/unit/broker/topic/test_freed.py`), so collections hardly ever find anything. They look at new objects in small
steps, and at what survived that no more: a broker that opens a thousand topics would stop for 60 to 110 ms at a time.

Everything is looked at only if memory has grown a lot since it was least, which may be garbage in a circle: soon if the
process has little to do and it takes a moment, and in any case before that garbage becomes most of a large process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

log = logging.getLogger(__name__)

# New objects between two collections, of which each second one also looks at what survived the one before: 3 to 8 ms
# and 6 to 18. Each third would cost a fifth more in all, since it finds no more.
YOUNG_MAX: Final = 10_000
YOUNG_MAX_TIMES: Final = 0
# The interpreter never begins to look at everything by itself.
NEVER: Final = 2**31 - 1

LOOK_S: Final = 10.0
# An idle process looks at everything after growing by so much, if it takes no longer than that.
QUIET_GROWTH: Final = 1.5
QUIET_BLOCKS: Final = 100_000
QUIET_STOP_S_MAX: Final = 0.1
QUIET_SHARE: Final = 0.05
# A busy one after growing by so much more, and not below a size that a broker of some 10,000 topics has.
BUSY_GROWTH: Final = 4.0
BUSY_BLOCKS: Final = 5_000_000
# What a block costs until it was measured: 0.06 to 0.18 µs.
BLOCK_S: Final = 1e-7


def collect_in_steps() -> None:
    """For the rest of this process. What exists by now is never looked at."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_MAX_TIMES, NEVER)


@dataclass(frozen=True, slots=True)
class Seen:
    """`least` is the smallest number of blocks of memory since everything was last looked at."""

    blocks: int
    least: int
    share_of_core: float
    expected_stop_s: float


def is_due(seen: Seen) -> bool:
    """Whether to look at everything now."""
    grown = seen.blocks / max(1, seen.least)
    if grown >= BUSY_GROWTH and seen.blocks >= BUSY_BLOCKS:
        return True
    return (
        grown >= QUIET_GROWTH
        and seen.blocks - seen.least >= QUIET_BLOCKS
        and seen.share_of_core <= QUIET_SHARE
        and seen.expected_stop_s <= QUIET_STOP_S_MAX
    )


class FullCollections:
    """Decides every ten seconds while entered, on the loop that it was entered on."""

    def __init__(
        self,
        *,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        collect: Callable[[], int] = gc.collect,
        thread_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._blocks, self._collect, self._thread_time = blocks, collect, thread_time
        self._least = 0
        self._cpu_s = 0.0
        self._block_s = BLOCK_S
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._least, self._cpu_s = self._blocks(), self._thread_time()
        self._timer = self._loop.call_later(LOOK_S, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        blocks, cpu_s = self._blocks(), self._thread_time()
        self._least = min(self._least, blocks)
        share = (cpu_s - self._cpu_s) / LOOK_S
        if is_due(Seen(blocks, self._least, share, blocks * self._block_s)):
            found = self._collect()
            took_s = self._thread_time() - cpu_s
            self._least, self._block_s = self._blocks(), took_s / blocks
            log.info(
                "collected all garbage in %.0f ms: %d objects, %d blocks of memory became %d",
                took_s * 1000,
                found,
                blocks,
                self._least,
            )
        self._cpu_s = self._thread_time()
        self._timer = self._loop.call_later(LOOK_S, self._look)
