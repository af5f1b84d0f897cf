"""Writes one record after another and says each number once its writes are acknowledged, until it is killed."""

from __future__ import annotations

import asyncio
import sys
import time

from anabranch.metadata.sqlite import SqliteMetadata


async def main(file: str) -> None:
    service = await SqliteMetadata.open(file, clock_ms=lambda: time.time_ns() // 1_000_000)
    store = await service.connect()
    await store.create("/ephemerals/mine", b"", ephemeral=True)
    await store.create("/counter", b"0")
    for number in range(1_000_000):
        await asyncio.gather(
            store.create(f"/log/{number:06}", b"x" * 500),
            store.put("/counter", b"%d" % (number + 1), if_version=number),
            store.next_id("/ids"),
        )
        print(number, flush=True)


asyncio.run(main(sys.argv[1]))
