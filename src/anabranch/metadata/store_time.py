"""The time of a store that lives in one file: it never runs back, not even after a crash under a clock set back.

The disk holds a mark, some seconds ahead, and no time after the mark is ever returned. So most reads of the time need
no write: a new mark goes to disk with writes that happen anyway. After a crash the time stands still at the mark until
the clock has caught up; an orderly end stores the exact time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

# How far time may stand ahead of the clock after a crash: people compare these times with their own clock. If the time
# is read while nothing is written, a mark is written once in this time.
AHEAD_MS = 2_000
# A write takes a new mark along if the last one is older than this: not every write need carry one.
MARK_AGAIN_MS = 1_000


class StoreTime:
    """The store's time. Read by the event loop and by the store's thread; only the thread writes marks."""

    def __init__(self, clock_ms: Callable[[], int], mark_ms: int) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self.last_ms = mark_ms
        self.mark_ms = mark_ms  # The mark on disk.

    def now_ms(self) -> int:
        """The time. Not to be returned to callers before a mark at or after it is on disk."""
        with self._lock:
            self.last_ms = max(self.last_ms, self._clock_ms())
            return self.last_ms

    def shown_ms(self) -> int | None:
        """The time, if the mark on disk allows returning it."""
        now_ms = self.now_ms()
        return now_ms if now_ms <= self.mark_ms else None

    def next_mark_ms(self, *, is_writing: bool) -> int | None:
        """The mark that a transaction must write, or writes if it writes anyway; None for none."""
        last_ms, left_ms = self.last_ms, self.mark_ms - self.last_ms
        if left_ms < 0 or (is_writing and left_ms <= AHEAD_MS - MARK_AGAIN_MS):
            return last_ms + AHEAD_MS
        return None
