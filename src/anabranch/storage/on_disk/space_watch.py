"""Measures the room that the log has on its disk, and what the log takes of it; `space.py` decides what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.storage.core.space import SpacePolicy
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.reclaim import Reclaimer

# How often the files of a shared log are counted.
COUNT_SECONDS: Final = 5.0


class SpaceWatch:
    def __init__(
        self,
        policy: SpacePolicy,
        root: LogRoot,
        reclaimer: Reclaimer,
        *,
        spare_bytes: int,
        count_all: Callable[[], int] | None,
    ) -> None:
        """`spare_bytes` are taken by a file that is prepared and not in the catalog. `count_all` counts the bytes of a
        log that several processes write; None for a log of one."""
        self._policy = policy
        self._root = root
        self._reclaimer = reclaimer
        self._spare_bytes = spare_bytes
        self._count_all = count_all
        # The bytes of the whole log, and when they were counted.
        self._shared_bytes = 0
        self._counted_at = float("-inf")
        self._is_known = False
        self.free_bytes = 0  # As of the last check.

    def used_bytes(self) -> int:
        return self._known_bytes() if self._count_all is None else self._shared_bytes

    def _known_bytes(self) -> int:
        known = sum(file.disk_bytes for file in self._root.catalog.files.values())
        return known + self._spare_bytes + self._reclaimer.doomed_bytes

    def capacity_bytes(self) -> int | None:
        """None before the first check."""
        if not self._is_known:
            return None
        known, used = self._known_bytes(), self.used_bytes()
        whole = self._policy.capacity(free=self.free_bytes, used=used)
        # Each of several processes has the part of the capacity that its files have of the log.
        return whole if known >= used else whole * known // used

    def room_bytes(self) -> int:
        """How much can be added, the reserve included, as of the last check."""
        return self._policy.room(free=self.free_bytes, used=self.used_bytes())

    def told(self) -> str:
        return self._policy.told(free=self.free_bytes, used=self.used_bytes())

    async def check(self, *, was_accepting: bool) -> bool:
        """Looks at the disk; returns whether publishes are to be accepted."""
        loop = asyncio.get_running_loop()
        if self._count_all is not None and loop.time() - self._counted_at >= COUNT_SECONDS:
            self._shared_bytes = await self._root.in_reader(self._count_all)
            self._counted_at = loop.time()
        self.free_bytes = await self._root.in_reader(self._root.files.free_bytes, self._root.path)
        self._is_known = True
        return self._policy.is_accepting(
            free=self.free_bytes, used=self.used_bytes(), was_accepting=was_accepting
        )
