"""How late the event loop runs its timers: what everything else on it waits for."""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.model.histogram import Histogram

# How often it is measured.
LAG_S: Final = 0.25


class LoopLag:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.last_s = 0.0
        self.times = Histogram()

    async def measure(self) -> None:
        """Measures until it is cancelled."""
        while True:
            before = self._loop.time()
            await asyncio.sleep(LAG_S)
            self.last_s = max(0.0, self._loop.time() - before - LAG_S)
            self.times.observe(self.last_s)
