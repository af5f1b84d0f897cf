"""Work that goes on beside the requests: once, again and again, or until it succeeds. The end of the broker ends it."""

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

    def run(self, work: Work) -> None:
        """Once; a failure is logged."""
        self.begin(_logged(work))

    def every(self, seconds: float, work: Callable[[], Work]) -> None:
        """Again and again, whether or not it fails; first after one such time."""
        self.begin(_every(seconds, work))

    def until_done(self, work: Callable[[], Work]) -> None:
        """Once; where something fails it, again."""
        self.begin(_until_done(work))

    def begin(self, work: Work) -> None:
        """Once; it sees to its own failures."""
        # Held in `_tasks` and cancelled by `close`.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
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
            log.exception("upkeep %s failed; it is tried again in %s s", work.__name__, seconds)


async def _until_done(work: Callable[[], Work]) -> None:
    while True:
        try:
            await work()
            return
        except AnabranchError as error:
            log.warning("%s failed; it is tried again in %s s: %s", work.__name__, RETRY_S, error)
        except Exception:
            # Our own fault, and no reason to give up what nobody else does.
            log.exception("%s failed; it is tried again in %s s", work.__name__, RETRY_S)
        await asyncio.sleep(RETRY_S)
