"""Background work beside the requests: once, at intervals, or until it succeeds. It ends with the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

Work: TypeAlias = Coroutine[Any, Any, None]


class Background:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False

    def run(self, work: Work) -> None:
        """Runs the work once; a failure is logged."""
        self.begin(_logged(work))

    def every(self, seconds: float, work: Callable[[], Work]) -> None:
        """Runs the work at intervals, even after failures; first after one interval."""
        self.begin(_every(seconds, work))

    def until_done(self, work: Callable[[], Work]) -> None:
        """Runs the work until it succeeds."""
        self.begin(_until_done(work))

    def begin(self, work: Work) -> None:
        """Runs the work once; it handles its own failures."""
        # Held in `_tasks` and cancelled by `close`.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self.is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(work: Work) -> None:
    try:
        await work
    except Exception:
        log.exception("%s failed", work)


async def _every(seconds: float, work: Callable[[], Work]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("upkeep %s failed, trying again in %s s", work.__name__, seconds)


async def _until_done(work: Callable[[], Work]) -> None:
    while True:
        try:
            await work()
            return
        except AnabranchError as error:
            log.warning("%s failed, trying again in %s s: %s", work.__name__, RETRY_S, error)
        except Exception:
            # A bug of ours; the work is retried, since nothing else would do it.
            log.exception("%s failed, trying again in %s s", work.__name__, RETRY_S)
        await asyncio.sleep(RETRY_S)
