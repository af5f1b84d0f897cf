"""Says the store's time, once with a write and once without, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from anabranch.metadata.sqlite import SqliteMetadata


async def main(file: str, now_ms: int) -> None:
    clock = now_ms
    service = await SqliteMetadata.open(file, clock_ms=lambda: clock)
    store = await service.connect()
    await store.put("/a", b"")
    print(await store.now_ms(), flush=True)
    clock += 10_000
    print(await store.now_ms(), flush=True)
    clock += 10_000
    print(await store.now_ms(), flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
