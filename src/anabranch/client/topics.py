"""A consumer for each topic of a changing set: opened as topics come, closed as they go, tried again for ever.

One that cannot be opened, or fails later, is tried again after a growing pause and never disturbs the others; only its
leaving the set ends that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from anabranch.client.connections import Backoff
from anabranch.client.topic_set import Change
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 30 * 60.0
# Opened at once, so that a large namespace does not ask everything in one moment.
OPENING_MAX: Final = 50


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
Failed = Callable[[Exception], None]


def topic_backoff(chance: random.Random) -> Backoff:
    return Backoff(chance, first_s=FIRST_PAUSE_S, limit_s=PAUSE_MAX_S)


class Topics(Generic[T]):
    """`open_one` makes the consumer of a topic, which calls what it is given when it can go on no more."""

    def __init__(
        self, open_one: Callable[[str, Failed], Awaitable[T]], backoff: Callable[[], Backoff]
    ) -> None:
        self._open_one = open_one
        self._backoff = backoff
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._going: set[asyncio.Task[None]] = set()
        self._tried: dict[str, asyncio.Event] = {}
        self.open: dict[str, T] = {}

    def apply(self, change: Change) -> None:
        """Closes first; a topic that is in both is another one of the same name."""
        gone = {name: self._end(name) for name in sorted(change.closed) if name in self._kept}
        for name in sorted(change.opened):
            self._tried[name] = asyncio.Event()
            # Awaited by `close`.
            self._kept[name] = asyncio.create_task(self._keep(name, gone.get(name), self._tried[name]))

    async def tried(self, names: Iterable[str]) -> None:
        """Returns once each of them was opened, or refused once."""
        for event in [self._tried[name] for name in names if name in self._tried]:
            await event.wait()

    async def gone(self) -> None:
        """Returns once those that left are closed."""
        while self._going:
            await asyncio.wait(self._going)

    async def close(self) -> None:
        for name in list(self._kept):
            self._end(name)
        await self.gone()

    def _end(self, name: str) -> asyncio.Task[None]:
        task = self._kept.pop(name)
        self._tried.pop(name).set()
        task.cancel()
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return task

    async def _keep(self, name: str, former: asyncio.Task[None] | None, tried: asyncio.Event) -> None:
        if former is not None:
            await asyncio.wait([former])
        backoff = self._backoff()
        while True:
            try:
                await self._live(name, tried, backoff)
            except AnabranchError as error:
                log.info("%s cannot be consumed, and is tried again: %s", name, error)
            tried.set()
            await backoff.wait()

    async def _live(self, name: str, tried: asyncio.Event, backoff: Backoff) -> None:
        """Returns by an exception: when the topic cannot be opened or its consumer fails."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: Exception) -> None:
            if not over.done():
                over.set_exception(error)
                over.exception()  # Nobody may be waiting.

        async with self._opening:
            consumer = await self._open_one(name, failed)
        self.open[name] = consumer
        tried.set()
        backoff.reset()
        try:
            await over
        finally:
            if self.open.get(name) is consumer:
                del self.open[name]
            await consumer.close()
