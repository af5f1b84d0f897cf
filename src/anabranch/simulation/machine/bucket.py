"""The object store of the simulated brokers: a machine of its own, whose answers are late, lost, or wrong.

What a broker asked for may take effect long after the broker was told that nothing is known of it, also after it died
or was fenced. What was created is found by everybody from then on: object stores promise that.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from anabranch.model.position import Incarnation
from anabranch.simulation.machine.loop import SimLoop, context_of
from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.objects import LogKeys
from anabranch.storage.object.medium import Created, MediumError, MediumMissingError, MediumRefusedError
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer, LogFailedError

T = TypeVar("T")

# Seconds on the way there and back, and until a late request takes effect.
TRIP_MAX_S: Final = 0.02
LATE_MAX_S: Final = 8.0
# Shares of requests.
LATE, NEVER, LOST, CONFLICT, FAILED = 0.02, 0.01, 0.02, 0.01, 0.01

_SPACE: Final = ("/rewritten/", "/map/", "/gone")

POLICY: Final = ObjectLogPolicy(
    commit_bytes_max=64 << 10,
    puts_per_second=50,
    puts_burst=20,
    checkpoint_bytes=8 << 10,
    checkpoint_seconds=2.0,
    full_checkpoint_every=3,
    look_seconds=1.0,
    reclaim_seconds=1.0,
    # Shorter than brokers are paused: what they were about to read may be gone when they go on.
    delete_delay_seconds=3.0,
    # The logs of former lives are looked after, and whatever wastes anything is rewritten.
    dead_seconds=3.0,
    ask_seconds=2.0,
    grace_seconds=1.0,
    rewrite=RewritePolicy(object_waste_min=1, waste_bytes=1, live_bytes_max=32 << 10, object_bytes=16 << 10),
    map_states=3,
    cache_bytes=64 << 10,
    block_cache_bytes=256 << 10,
    block_bytes=16 << 10,
)


class SimBucket:
    """Implements `ObjectMedium` for all brokers of a simulation."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance
        self._bucket = MemoryBucket()
        # Objects that are in no list.
        self._hidden: set[str] = set()
        # Of the objects that give space back, how many of each folder were created, and how many of all were deleted.
        self.space: Counter[str] = Counter()

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        data = b"".join(parts)
        draw = self._chance.random()
        if (draw := draw - CONFLICT) < 0:
            return await self._asked(lambda: Created.EXISTS)
        if (draw := draw - NEVER) < 0:
            return await self._asked(lambda: Created.UNKNOWN)
        if (draw := draw - LATE) < 0:
            self._later(self._chance.uniform(0, LATE_MAX_S), lambda: self._create(key, data))
            return await self._asked(lambda: Created.UNKNOWN)
        created = await self._asked(lambda: self._create(key, data))
        return Created.UNKNOWN if draw < LOST else created

    def _create(self, key: str, data: bytes) -> Created:
        created = self._bucket.create_now(key, data)
        if created is Created.STORED and (kind := next((one for one in _SPACE if one in key), "")):
            self.space[kind.strip("/")] += 1
        return created

    def hide(self, incarnation: Incarnation) -> None:
        """No broker looks after this log, neither now nor once it exists, since no broker finds it."""
        self._hidden.add(LogKeys(incarnation).exists_mark)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await self._asked(lambda: self._bucket.objects.get(key))
        self._maybe_fail()
        if data is None:
            raise MediumMissingError(f"there is no object {key}")
        if start and start >= len(data):
            raise MediumError(f"{key} has {len(data)} bytes, and none at {start}")
        return data[start:] if length is None else data[start : start + length]

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        found = await self._asked(lambda: dict(self._bucket.objects))
        self._maybe_fail()
        return sorted(
            (key, len(data))
            for key, data in found.items()
            if key.startswith(f"{folder}/") and key > after and key not in self._hidden
        )

    async def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                self.space["deleted"] += self._bucket.objects.pop(key, None) is not None

        await self._asked(delete)
        self._maybe_fail()

    async def sign(self, key: str, seconds: int) -> str:
        raise MediumRefusedError("a simulated store signs nothing")

    def url(self, key: str) -> str:
        return f"simulated:///{key}"

    async def close(self) -> None:
        """The store outlives its brokers."""

    async def _asked(self, effect: Callable[[], T]) -> T:
        """The effect happens at the store some time later, and its result comes back some time after that."""
        answer = self._loop.create_future()

        def happen() -> None:
            back = partial(_give, answer, effect())
            self._later(self._chance.uniform(0, TRIP_MAX_S), back)

        self._later(self._chance.uniform(0, TRIP_MAX_S), happen)
        found: T = await answer
        return found

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        """On the store's machine: it runs whatever becomes of the broker."""
        self._loop.call_later(seconds, call, context=context_of(None))

    def _maybe_fail(self) -> None:
        if self._chance.random() < FAILED:
            raise MediumError("the store failed, as the seed wanted")


def _give(answer: asyncio.Future[T], result: T) -> None:
    """The caller may have been cancelled."""
    if not answer.done():
        answer.set_result(result)


class SimObjectLog(ObjectLogStore):
    """A broker's log in the simulated store."""

    def __init__(self, bucket: SimBucket, loop: SimLoop, incarnation: Incarnation) -> None:
        super().__init__(bucket, clock_ms=loop.now_ms, incarnation=incarnation, policy=POLICY)

    def fail(self) -> None:
        """Simulates an error of the log's own: the incarnation is over, and its requests may still be on their way."""
        self._log.end(LogFailedError("the log failed"))
