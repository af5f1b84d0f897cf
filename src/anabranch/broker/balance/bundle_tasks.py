"""Background work on bundles: one task for each bundle, which a newer one replaces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)


class BundleTasks:
    def __init__(self) -> None:
        self._tasks: dict[BundleName, tuple[int, asyncio.Task[None]]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, bundle: BundleName, version: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does the work, unless it is under way for the same version of the bundle; what is under way for another
        version is cancelled."""
        found = self._tasks.get(bundle)
        if self._is_closed or (found is not None and found[0] == version):
            return
        if found is not None:
            found[1].cancel()
        # Held in `_tasks` and cancelled by `close`.
        task = asyncio.get_running_loop().create_task(_logged(bundle, work))
        self._tasks[bundle] = (version, task)
        task.add_done_callback(lambda _: self._done(bundle, task))

    def _done(self, bundle: BundleName, task: asyncio.Task[None]) -> None:
        found = self._tasks.get(bundle)
        if found is not None and found[1] is task:
            del self._tasks[bundle]

    async def close(self) -> None:
        self._is_closed = True
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(bundle: BundleName, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s: work on the bundle failed", bundle)
