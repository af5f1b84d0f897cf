"""A faulty metadata store: slow, sometimes behind, and sometimes silent, before or after it has done what was asked.

`Store` is the metadata store of a simulated broker: the memory store, with every call delayed, some left without an
answer, and plain reads from a server that is behind. The world around it ends sessions and cuts the broker off through
`inner`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

from anabranch.metadata.embedded import EmbeddedStore, LocalSession
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.paths import below
from anabranch.metadata.port import SessionState, Versioned
from anabranch.metadata.watches import MergingWatch
from anabranch.simulation.machine.followers import Follower, Past

T = TypeVar("T")


@dataclass(slots=True)
class StoreWeather:
    """The present behaviour of the store."""

    delay_min_s: float = 0.0005
    delay_max_s: float = 0.003
    silent_before: float = 0.0  # The chance that a call is lost on its way,
    silent_after: float = 0.0  # … or that its answer is lost.
    read_only: str = ""  # Nothing is written below this path.


class WatchedMetadata(MemoryMetadata):
    """The shared tree, with an observer that is called at each change."""

    def __init__(self, clock_ms: Callable[[], int], look: Callable[[Iterable[str]], None]) -> None:
        super().__init__(clock_ms)
        self._look = look
        self._past = Past()
        self._followers: dict[EmbeddedStore, Follower] = {}

    def follower(self, store: EmbeddedStore, lag_s: float) -> Follower:
        """A server that is that far behind; from now on the store's watches hear of changes from it."""
        self._followers[store] = Follower(self._past, lag_s, store.changed)
        return self._followers[store]

    def forget(self, store: EmbeddedStore) -> None:
        super().forget(store)
        self._followers.pop(store, None)

    def peek(self, path: str) -> bytes | None:
        """A node's value, at once and without a session."""
        found = self._tree.get(path)
        return None if found is None else found.value

    def names_below(self, path: str) -> list[str]:
        return self._tree.children(path)

    def publish(self, paths: Iterable[str]) -> None:
        changed = list(paths)
        self._look(changed)
        self._past.note(asyncio.get_running_loop().time(), {path: self._tree.get(path) for path in changed})
        for store in self.stores():
            if (follower := self._followers.get(store)) is not None:
                follower.changed()
            else:
                store.changed(changed)


class SimulatedSession:
    """The session of the port. Callbacks run in the context in which they were registered: a paused broker's wait."""

    def __init__(self, inner: LocalSession) -> None:
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def state(self) -> SessionState:
        return self._inner.state

    def on_change(self, callback: Callable[[SessionState], None]) -> Callable[[], None]:
        context, loop = copy_context(), asyncio.get_running_loop()
        return self._inner.on_change(lambda state: void(loop.call_soon(callback, state, context=context)))


class Store:
    """The MetadataStore of the port."""

    def __init__(
        self,
        inner: EmbeddedStore,
        weather: StoreWeather,
        chance: random.Random,
        follower: Follower | None = None,
    ) -> None:
        """Plain reads and watches go by the `follower`, if there is one."""
        self.inner = inner
        self._weather = weather
        self._chance = chance
        self._follower = follower
        self._session = SimulatedSession(inner.session)

    @property
    def session(self) -> SimulatedSession:
        return self._session

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        weather, chance = self._weather, self._chance
        await asyncio.sleep(chance.uniform(weather.delay_min_s, weather.delay_max_s))
        if weather.silent_before and chance.random() < weather.silent_before:
            raise StoreUnavailable("the store does not answer")
        result = await call()
        if weather.silent_after and chance.random() < weather.silent_after:
            raise StoreUnavailable("the store did not answer")
        return result

    async def _read(self, read: Callable[[], Awaitable[T]], behind: Callable[[Follower], T]) -> T:
        """A plain read: refused or answered now, and answered with what the follower knows."""

        async def seen() -> T:
            found = await read()
            return found if self._follower is None else behind(self._follower)

        return await self._call(seen)

    async def _up_to_date(self, call: Callable[[], Awaitable[T]]) -> T:
        """A write or a fresh read. The session sees everything that was stored before, also if it is refused."""

        async def done() -> T:
            try:
                return await call()
            finally:
                if self._follower is not None:
                    self._follower.catch_up()

        return await self._call(done)

    async def _write(self, path: str, call: Callable[[], Awaitable[T]]) -> T:
        async def written() -> T:
            read_only = self._weather.read_only
            if read_only and path.startswith(below(read_only)):
                raise StoreUnavailable("the store takes no writes there")
            return await call()

        return await self._up_to_date(written)

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        if fresh:
            return await self._up_to_date(lambda: self.inner.get(path))
        return await self._read(lambda: self.inner.get(path), lambda follower: follower.node(path))

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        return await self._write(path, lambda: self.inner.create(path, value, ephemeral=ephemeral))

    async def put(self, path: str, value: bytes, *, if_version: int | None = None) -> Versioned:
        return await self._write(path, lambda: self.inner.put(path, value, if_version=if_version))

    async def delete(self, path: str, *, if_version: int | None = None) -> bool:
        return await self._write(path, lambda: self.inner.delete(path, if_version=if_version))

    async def children(self, path: str) -> list[str]:
        return await self._read(lambda: self.inner.children(path), lambda follower: follower.children(path))

    async def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        return await self._read(
            lambda: self.inner.scan(prefix), lambda follower: follower.records_below(prefix)
        )

    async def next_id(self, path: str) -> int:
        return await self._up_to_date(lambda: self.inner.next_id(path))

    async def next_ids(self, path: str, count: int) -> range:
        return await self._up_to_date(lambda: self.inner.next_ids(path, count))

    def watch(self, prefix: str) -> MergingWatch:
        return self.inner.watch(prefix)

    async def now_ms(self) -> int:
        return await self._call(lambda: self.inner.now_ms())

    async def close(self) -> None:
        await self.inner.close()


def void(_: object) -> None:
    """Drops a value where a callback must return nothing."""
