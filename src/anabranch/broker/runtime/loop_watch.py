"""Measures how long single turns of the event loop take, and finds the code that held the loop.

A turn is all that the loop runs between two checks of its timers. No client is served meanwhile, so each turn must be
short. A beat on the loop notes the time and the processor time of the loop's thread: every 10 ms while the loop works,
every 25 ms while it has little to do. A late beat was delayed by one turn of at least that length. The processor time
between two beats is that of the turn and of the work before it: the figure is never too low, and too high by at most
what the loop does in 25 ms. It distinguishes a turn that works from one that waits for a busy machine.

A thread checks the beats. When they are missing, it notes where the loop's thread is. Beats and checks together cost an
idle broker about five thousandths of a core. Python's garbage collector may run at any allocation, so its part in a
slow turn is reported beside the code that it ran in.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

log = logging.getLogger(__name__)

BEAT_S: Final = 0.01
IDLE_BEAT_S: Final = 0.025
# The loop is idle if it worked for less than this between two beats.
IDLE_S: Final = 0.001
LOOK_S: Final = 0.05
# A turn that uses more processor time than this is logged, with the code that used it.
SLOW_S: Final = 0.05
# A turn that lasts longer than this is logged while it runs: it may never end.
HELD_S: Final = 1.0
# The longest turns are kept for a minute, in steps of ten seconds.
STEP_S: Final = 10.0
STEPS: Final = 6
_FRAMES: Final = 6
_SOURCE: Final = Path(__file__).parents[1]


class TurnTimes:
    """The longest turns of the last minute, and how many were slow."""

    def __init__(self) -> None:
        self._longest: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=STEPS)
        self._step_end_s = 0.0
        self.slow = 0

    @property
    def longest_s(self) -> float:
        return max(wall for wall, _ in self._longest)

    @property
    def longest_cpu_s(self) -> float:
        return max(cpu for _, cpu in self._longest)

    def observe(self, now_s: float, wall_s: float, cpu_s: float) -> bool:
        """Records a turn; returns whether it was slow."""
        if now_s >= self._step_end_s:
            self._step_end_s = now_s + STEP_S
            self._longest.append((wall_s, cpu_s))
        else:
            wall, cpu = self._longest[-1]
            if wall_s > wall or cpu_s > cpu:
                self._longest[-1] = (max(wall, wall_s), max(cpu, cpu_s))
        is_slow = cpu_s > SLOW_S
        self.slow += is_slow
        return is_slow


class LoopWatch:
    """Watches the running loop while entered."""

    def __init__(self, times: TurnTimes) -> None:
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._cpu_s = 0.0
        self._due_s = 0.0  # When the next beat is due.
        self._place: str | None = None  # Where the thread found the loop, since the last beat.
        self._collecting_s = 0.0  # The time of garbage collection since the last beat.
        self._collecting_since_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._timer: asyncio.TimerHandle

    def __enter__(self) -> Self:
        self._cpu_s = time.thread_time()
        gc.callbacks.append(self._collecting)
        self._wait(BEAT_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        gc.callbacks.remove(self._collecting)
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        at_s, cpu_s = time.perf_counter(), time.thread_time()
        late_s, used_s = max(0.0, at_s - self._due_s), cpu_s - self._cpu_s
        if self._times.observe(at_s, late_s, used_s):
            place = self._place or "code that ended before it was looked at"
            log.warning(
                "one turn of the event loop kept others waiting for %.0f ms and used %.0f ms of processor time"
                " (%.0f ms of it to collect garbage), in %s",
                late_s * 1000,
                used_s * 1000,
                self._collecting_s * 1000,
                place,
                extra={
                    "turn_seconds": round(late_s, 4),
                    "turn_cpu_seconds": round(used_s, 4),
                    "turn_collecting_seconds": round(self._collecting_s, 4),
                    "place": place,
                },
            )
        self._cpu_s = cpu_s
        self._collecting_s = 0.0
        self._place = None
        self._wait(IDLE_BEAT_S if used_s < IDLE_S else BEAT_S)

    def _collecting(self, phase: str, _: dict[str, Any]) -> None:
        if threading.get_ident() == self._loop_thread:
            if phase == "start":
                self._collecting_since_s = time.thread_time()
            else:
                self._collecting_s += time.thread_time() - self._collecting_since_s

    def _wait(self, seconds: float) -> None:
        self._due_s = time.perf_counter() + seconds
        self._timer = self._loop.call_later(seconds, self._beat)

    def _look(self) -> None:
        told_s = 0.0  # The missing beat that was logged last.
        while not self._is_over.wait(LOOK_S):
            due_s = self._due_s
            late_s = time.perf_counter() - due_s
            # Once for each turn: the code that runs after such a time is the code that holds the loop.
            if self._place is None and late_s > SLOW_S / 2:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None:
                    self._place = _place(frame)
            if late_s > HELD_S and due_s != told_s:
                told_s = due_s
                log.warning(
                    "one turn of the event loop keeps others waiting for more than %.0f s so far, in %s",
                    HELD_S,
                    self._place,
                )


def _place(frame: FrameType | None) -> str:
    """The innermost function and its callers in this package: `broker/runtime/turns.py:27 take, called by …`."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        path = Path(frame.f_code.co_filename)
        is_ours = path.is_relative_to(_SOURCE)
        if is_ours or not found:
            name = path.relative_to(_SOURCE) if is_ours else path.name
            found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return ", called by ".join(found)
