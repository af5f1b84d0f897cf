"""A medium that does everything an object store may do to a writer, as a seed says: for tests and simulations.

A creation may be answered late, or not at all; it may take effect long after its caller was told that its outcome is
unknown, in any order with others, also after a fence was created where it goes. A conflict may be reported where
nothing exists. Reads and deletes may fail. What was created is always found afterwards: object stores promise that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from anabranch.storage.object.medium import Created, MediumError, ObjectMedium
from anabranch.storage.port import Buffer


@dataclass(frozen=True, slots=True)
class Hostility:
    """Shares of requests. The turns are those of the event loop: no time passes by the clock."""

    # Takes effect, and its answer is lost.
    lost_answer: float = 0.1
    # Is answered as unknown at once, and takes effect later, or never.
    late: float = 0.1
    never: float = 0.05
    # Is refused as existing without having been looked at.
    conflict: float = 0.05
    failed_read: float = 0.05
    turns_max: int = 12
    late_turns_max: int = 200


class HostileMedium:
    """Implements `ObjectMedium` over another one. Objects that it creates late are created by the end of `close`."""

    def __init__(self, inner: ObjectMedium, random: Random, hostility: Hostility | None = None) -> None:
        self._inner = inner
        self._random = random
        self._is = hostility or Hostility()
        # Awaited by `close`.
        self._late: set[asyncio.Task[None]] = set()
        # How often each thing was done, for tests that claim to have met it.
        self.done: dict[str, int] = {}

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        # As an adapter does: buffers may be reused once the caller has its answer.
        data = b"".join(parts)
        await self._wait()
        draw = self._random.random()
        if (draw := draw - self._is.conflict) < 0:
            return self._note("conflict", Created.EXISTS)
        if (draw := draw - self._is.never) < 0:
            return self._note("never", Created.UNKNOWN)
        if (draw := draw - self._is.late) < 0:
            task = asyncio.create_task(self._create_late(key, data))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return self._note("late", Created.UNKNOWN)
        created = await self._inner.create(key, [data])
        await self._wait()
        if draw - self._is.lost_answer < 0:
            return self._note("lost answer", Created.UNKNOWN)
        return created

    async def _create_late(self, key: str, data: bytes) -> None:
        for _ in range(self._random.randrange(self._is.late_turns_max)):
            await asyncio.sleep(0)
        created = await self._inner.create(key, [data])
        self._note("refused late" if created is Created.EXISTS else "stored late", created)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        await self._wait()
        self._maybe_fail(f"reading {key}")
        return await self._inner.get(key, start, length)

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        await self._wait()
        self._maybe_fail(f"listing {folder}")
        return await self._inner.list(folder, after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._wait()
        self._maybe_fail("deleting")
        await self._inner.delete(keys)

    async def sign(self, key: str, seconds: int) -> str:
        return await self._inner.sign(key, seconds)

    def url(self, key: str) -> str:
        return self._inner.url(key)

    async def close(self) -> None:
        while self._late:
            await asyncio.gather(*self._late)
        await self._inner.close()

    async def _wait(self) -> None:
        for _ in range(self._random.randrange(self._is.turns_max)):
            await asyncio.sleep(0)

    def _maybe_fail(self, what: str) -> None:
        if self._random.random() < self._is.failed_read:
            self._note("failed", Created.UNKNOWN)
            raise MediumError(f"{what} failed, as the seed wanted")

    def _note(self, what: str, answer: Created) -> Created:
        self.done[what] = self.done.get(what, 0) + 1
        return answer
