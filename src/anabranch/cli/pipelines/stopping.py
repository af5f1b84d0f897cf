"""Ctrl-C for jobs on Spark: noted, so that a batch can be finished first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def without_interrupts() -> Iterator[None]:
    """A Java that PySpark starts within the block gets no Ctrl-C, nor do its Python workers: tasks are to finish.

    A terminal sends the signal to the whole group of processes, and workers, unlike Java, handle it. So they get a
    group of their own, for which PySpark has no setting. Java still ends with this process: its standard input ends.
    """
    from pyspark import java_gateway

    started: Any = java_gateway
    before = started.Popen
    started.Popen = partial(before, process_group=0)
    try:
        yield
    finally:
        started.Popen = before


class JobStopping:
    """A context. Within it the first SIGINT or SIGTERM is noted, and a second one has its usual effect at once."""

    def __init__(self) -> None:
        self.number = 0
        self._at = 0.0

    def is_late(self, seconds: float) -> bool:
        """Whether the signal came at least that long ago."""
        return self.number != 0 and time.monotonic() - self._at > seconds

    def __enter__(self) -> JobStopping:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = {one: signal.signal(one, self._stop) for one in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_main:
            for one, before in self._before.items():
                signal.signal(one, before)

    def _stop(self, number: int, frame: object) -> None:
        self.number, self._at = number, time.monotonic()
        for one in self._before:
            signal.signal(one, signal.SIG_DFL)
