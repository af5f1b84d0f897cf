"""A session that is up to date with its metadata, and one that is behind."""

from __future__ import annotations

import asyncio
import random

from anabranch.simulation.machine.loop import SimLoop
from anabranch.simulation.machine.store import Store, StoreWeather, WatchedMetadata

CALM = StoreWeather(delay_min_s=0.0, delay_max_s=0.0)


async def stores(lag_s: float) -> tuple[Store, Store]:
    """One that is up to date, and one that may be so many seconds behind."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    service = WatchedMetadata(loop.now_ms, lambda paths: None)
    writer, reader = await service.connect(), await service.connect()
    chance = random.Random(1)
    return Store(writer, CALM, chance), Store(reader, CALM, chance, service.follower(reader, lag_s))
