"""Memory of closed topics.

The parts of a topic refer to each other, so only the collector can free them, and it hardly ever looks at objects that
have lived as long as a topic does (`process.GC_THRESHOLDS`). So it is asked to, once closed topics keep as much memory
as the open ones. Nothing else runs meanwhile, for a tenth of a millisecond for each closed topic and half as much for
each open one. Where many topics are open it waits until no more are closed, as long as memory allows.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

# A closed topic keeps some 20 KB.
CLOSED_MIN: Final = 100
LOOK_EVERY_S: Final = 2.0
# With so few open topics there is nothing to wait for.
OPEN_FEW: Final = 50
QUIET_S: Final = 60.0
# So many closed topics for each open one do not wait any longer.
WAITING_MAX: Final = 4


def is_time(closed_count: int, open_count: int, quiet_s: float) -> bool:
    """Whether closed topics are to be collected, if the last one was closed so long ago."""
    if closed_count < max(CLOSED_MIN, open_count):
        return False
    return open_count <= OPEN_FEW or quiet_s >= QUIET_S or closed_count >= WAITING_MAX * open_count


class ClosedTopics:
    def __init__(self, loop: asyncio.AbstractEventLoop, open_count: Callable[[], int]) -> None:
        self._loop = loop
        self._open_count = open_count
        self._count = 0
        self._last_s = 0.0
        self._is_looking = False

    def add(self) -> None:
        self._count += 1
        self._last_s = self._loop.time()
        if self._count >= CLOSED_MIN and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        if is_time(self._count, self._open_count(), self._loop.time() - self._last_s):
            self._is_looking = False
            self._count = 0
            gc.collect()
        else:
            self._loop.call_later(LOOK_EVERY_S, self._look)
