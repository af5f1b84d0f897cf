"""Memory of closed topics.

The parts of a topic refer to each other, so only the collector can free them, and it hardly ever looks at objects that
have lived as long as a topic does (`process.GC_THRESHOLDS`). So it is asked to, once enough topics have been closed for
their memory to matter. Nothing else runs meanwhile, for a tenth of a millisecond for each closed topic and half as much
for each open one: so it waits until no more topics are closed, as long as their memory allows.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

# A closed topic keeps some 20 KB.
CLOSED_MIN: Final = 100
QUIET_S: Final = 10.0
# So many times as many closed topics do not wait any longer.
WAITING_MAX: Final = 4


def are_enough(closed_count: int, open_count: int) -> bool:
    """Closed topics keep as much memory as the open ones."""
    return closed_count >= max(CLOSED_MIN, open_count)


class ClosedTopics:
    def __init__(self, loop: asyncio.AbstractEventLoop, open_count: Callable[[], int]) -> None:
        self._loop = loop
        self._open_count = open_count
        self._count = 0
        self._last_s = 0.0
        self._is_due = False

    def add(self) -> None:
        self._count += 1
        self._last_s = self._loop.time()
        if not self._is_due and are_enough(self._count, self._open_count()):
            self._is_due = True
            self._loop.call_later(QUIET_S, self._look)

    def _look(self) -> None:
        is_quiet = self._loop.time() >= self._last_s + QUIET_S
        if is_quiet or are_enough(self._count // WAITING_MAX, self._open_count()):
            self._is_due = False
            self._count = 0
            gc.collect()
        else:
            self._loop.call_later(QUIET_S, self._look)
