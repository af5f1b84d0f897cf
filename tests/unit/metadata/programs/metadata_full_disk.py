"""Runs out of room, says what still works, gets room again and says what works then."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.sqlite import SqliteMetadata


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def main(file: Path) -> None:
    service = await SqliteMetadata.open(file, clock_ms=lambda: 0)
    store, other = await service.connect(), await service.connect()
    await store.put("/kept", b"here")
    await other.create("/ephemeral", b"", ephemeral=True)

    limit_files(max(path.stat().st_size for path in file.parent.iterdir()))
    try:
        await store.put("/big", b"x" * 100_000)
    except StoreUnavailable as error:
        print("write refused,", "retryable" if error.retryable else "for ever")

    writes = (store.put(f"/burst/{n}", b"x" * 10_000) for n in range(20))
    reads = (store.get("/kept") for _ in range(20))
    results = await asyncio.gather(*writes, *reads, return_exceptions=True)
    if all(isinstance(result, StoreUnavailable) for result in results[:20]):
        answered = all(not isinstance(result, BaseException) and result for result in results[20:])
        print("burst of writes refused, reads", "answered" if answered else "failed")

    await other.close()
    print("session ended")

    limit_files(resource.RLIM_INFINITY)
    if (await store.put("/big", b"x" * 100_000)).version == 0:
        print("write accepted")
    if not await store.exists("/ephemeral") and await store.children("/burst") == []:
        print("ephemeral gone")
    await service.close()


asyncio.run(main(Path(sys.argv[1])))
