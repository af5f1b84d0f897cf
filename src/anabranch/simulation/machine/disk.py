"""The medium of the simulated brokers' logs: a memory that is slow, and forgets what it has not confirmed.

Entries that a broker appended without a confirmation are gone when the broker dies: a longer sync only makes that
likely.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore, MemoryMedium


@dataclass(slots=True)
class DiskWeather:
    """The present behaviour of the disks: the longest time of a sync, and the chance that a sync takes any time at
    all."""

    sync_max_s: float = 0.0
    slow_chance: float = 0.5


class SlowLog(MemoryLogStore):
    def __init__(
        self, medium: MemoryMedium, weather: DiskWeather, chance: random.Random, *, incarnation: Incarnation
    ) -> None:
        super().__init__(medium, incarnation=incarnation)
        self._weather = weather
        self._chance = chance

    def _confirm(self) -> None:
        """Confirms on the next turn of the loop, or later if the disk is slow. Entries appended meanwhile are synced
        too."""
        weather = self._weather
        if weather.sync_max_s and self._chance.random() < weather.slow_chance:
            seconds = self._chance.uniform(0.0, weather.sync_max_s)
            asyncio.get_running_loop().call_later(seconds, super()._confirm)
        else:
            super()._confirm()
