"""Memory of closed topics.

The parts of a topic refer to each other, so only the collector can free them, and it hardly ever looks at objects that
have lived as long as a topic does (`process.GC_THRESHOLDS`). So it is asked to, once enough topics have been closed for
their memory to matter. That takes a millisecond for some thirty open topics: the more there are, the rarer it is.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

# A closed topic keeps some 20 KB.
CLOSED_MIN: Final = 100
# What closes a topic still refers to it for a moment.
DELAY_S: Final = 0.5


def are_enough(closed_count: int, open_count: int) -> bool:
    """Closed topics keep at most as much memory as the open ones."""
    return closed_count >= max(CLOSED_MIN, open_count)


class ClosedTopics:
    def __init__(self, loop: asyncio.AbstractEventLoop, open_count: Callable[[], int]) -> None:
        self._loop = loop
        self._open_count = open_count
        self._count = 0
        self._is_due = False

    def add(self) -> None:
        self._count += 1
        if not self._is_due and are_enough(self._count, self._open_count()):
            self._is_due = True
            self._loop.call_later(DELAY_S, self._collect)

    def _collect(self) -> None:
        self._is_due = False
        self._count = 0
        gc.collect()
