"""The object store of moved files, as the log on disk sees it: implements its port `Tier` over an `ObjectMedium`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from anabranch.storage.core import format as fmt
from anabranch.storage.core.tiered import FarEntries, TierDone, TierJob
from anabranch.storage.object.medium import MediumMissingError, MediumRefusedError, ObjectMedium
from anabranch.storage.object.obstore_medium import open_for_large_objects
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked
from anabranch.storage.port import Entry
from anabranch.storage.tier.move_worker import move_in_process
from anabranch.storage.tier.reading import FarReader

# Runs a job; the second argument is a lock that stays locked until the job has ended.
Mover = Callable[[TierJob, int | None], Awaitable[TierDone]]

_TRIES: Final = 3


class ObjectTier:
    def __init__(
        self, medium: ObjectMedium, url: str, mover: Mover, policy: ObjectLogPolicy | None = None
    ) -> None:
        self._medium = CountingMedium(medium)
        self._url = url
        self._mover = mover
        self._policy = policy or ObjectLogPolicy()
        self._reader = FarReader(self._medium, self._policy)

    @property
    def url(self) -> str:
        return self._url

    def named(self, key: str) -> str:
        return self._medium.url(key)

    async def read(self, wanted: FarEntries) -> list[Entry]:
        return await self._reader.read(wanted)

    async def move(self, job: TierJob, lock: int | None) -> TierDone:
        return await self._mover(job, lock)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._medium.delete(keys)

    async def list(self, folder: str) -> Sequence[tuple[str, int]]:
        return await self._medium.list(folder)

    async def tail(self, key: str, size: int) -> bytes | None:
        if size < fmt.TRAILER_BYTES:
            return None
        try:
            end = await self._part(key, size - fmt.TRAILER_BYTES, size)
            trailer = fmt.decode_trailer(end)
            if trailer is None or not 0 <= trailer.data_end <= trailer.directory_at <= size - len(end):
                return None
            return await self._part(key, trailer.data_end, size)
        except MediumMissingError:
            return None

    async def _part(self, key: str, start: int, stop: int) -> bytes:
        return bytes(await asked(lambda: self._medium.get(key, start, stop - start), self._policy, _TRIES))

    async def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        try:
            return [await self._medium.sign(key, seconds) for key in keys]
        except MediumRefusedError:
            return []

    def stats(self) -> dict[str, float]:
        counts = self._medium.counts
        return {
            "gets": counts.gets,
            "get_bytes": counts.get_bytes,
            "deletes": counts.deletes,
            "cache_bytes": self._reader.blocks.bytes,
        }

    async def close(self) -> None:
        await self._reader.close()
        await self._medium.close()


def open_tier(url: str, policy: ObjectLogPolicy) -> ObjectTier:
    """The store of `s3://bucket/prefix?endpoint=…` or `objects:///folder`. MediumRefusedError if the URL names nothing
    that can be used; whether the store answers is found out when it is needed."""

    async def mover(job: TierJob, lock: int | None) -> TierDone:
        return await move_in_process(url, job, lock)

    return ObjectTier(open_for_large_objects(url), url, mover, policy)
