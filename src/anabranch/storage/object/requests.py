"""Requests to an object store: counted, since each of them costs money, and made again until their outcome is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anabranch.storage.object.medium import Created, MediumError, MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer

T = TypeVar("T")


@dataclass(slots=True)
class RequestCounts:
    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    # Creations that were asked for a second time because the first one took long, or whose outcome was not known.
    hedges: int = 0
    retries: int = 0
    put_bytes: int = 0
    get_bytes: int = 0


class CountingMedium:
    """Implements `ObjectMedium` over another one."""

    def __init__(self, inner: ObjectMedium) -> None:
        self._inner = inner
        self.counts = RequestCounts()

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self.counts.puts += 1
        self.counts.put_bytes += sum(map(len, parts))
        return await self._inner.create(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self.counts.gets += 1
        found = await self._inner.get(key, start, length)
        self.counts.get_bytes += len(found)
        return found

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        self.counts.lists += 1
        return await self._inner.list(folder, after)

    async def delete(self, keys: Sequence[str]) -> None:
        self.counts.deletes += 1
        await self._inner.delete(keys)

    async def sign(self, key: str, seconds: int) -> str:
        return await self._inner.sign(key, seconds)

    def url(self, key: str) -> str:
        return self._inner.url(key)

    async def close(self) -> None:
        await self._inner.close()


async def asked(request: Callable[[], Awaitable[T]], policy: ObjectLogPolicy, tries: int = 8) -> T:
    """The answer of a request that changes nothing. It is made again if it fails; MediumError after so many times. What
    is missing is missing."""
    for failures in range(1, tries):
        try:
            return await request()
        except MediumMissingError:
            raise
        except MediumError:
            await asyncio.sleep(policy.retry_after(failures))
    return await request()


async def create_settled(medium: ObjectMedium, key: str, data: bytes, policy: ObjectLogPolicy) -> bool:
    """True if the object exists with these bytes, by whichever attempt; False if it has others. Goes on for as long as
    the store does not say."""
    failures = 0
    while True:
        created = await medium.create(key, [data])
        if created is Created.STORED:
            return True
        if created is Created.EXISTS:
            try:
                return bytes(await medium.get(key)) == data
            except MediumError:
                # Missing: it was a conflict.
                pass
        failures += 1
        await asyncio.sleep(policy.retry_after(failures))
