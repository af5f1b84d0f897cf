"""A consumer for each topic of a changing set: opened as topics join, closed as they leave, retried for ever.

A consumer that cannot be opened, or fails later, is retried after a growing pause and never disturbs the others; only
the topic's leaving the set ends that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from anabranch.client.transport.attachment import Backoff, keep_trying, never
from anabranch.client.transport.core.topic_diff import TopicChange

FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 30 * 60.0
# How many topics are opened at once, so that a large namespace does not send all its requests in one moment.
OPENING_MAX: Final = 50


class ClosablePart(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=ClosablePart)
Failed = Callable[[Exception], None]


def topic_backoff(chance: random.Random) -> Backoff:
    return Backoff(chance, first_s=FIRST_PAUSE_S, limit_s=PAUSE_MAX_S)


class Topics(Generic[T]):
    """`open_one` makes the consumer of a topic, which calls the given `Failed` when it cannot continue."""

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

    def apply(self, change: TopicChange) -> None:
        """Closes first; a topic that is in both sets is another topic of the same name."""
        gone = {name: self._end(name) for name in sorted(change.closed) if name in self._kept}
        for name in sorted(change.opened):
            self._tried[name] = asyncio.Event()
            # Awaited by `close`.
            self._kept[name] = asyncio.create_task(self._keep(name, gone.get(name), self._tried[name]))

    async def tried(self, names: Iterable[str]) -> None:
        """Returns once each of these topics was opened, or refused once."""
        for event in [self._tried[name] for name in names if name in self._tried]:
            await event.wait()

    async def gone(self) -> None:
        """Returns once the consumers of topics that left are closed."""
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
        await keep_trying(
            lambda: self._live(name, tried, backoff),
            backoff,
            f"consuming {name}",
            never,
            level=logging.INFO,
        )

    async def _live(self, name: str, tried: asyncio.Event, backoff: Backoff) -> None:
        """Opens the topic's consumer and waits. Raises when the topic cannot be opened or its consumer fails."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: Exception) -> None:
            if not over.done():
                over.set_exception(error)
                over.exception()  # No task may be waiting for it.

        try:
            async with self._opening:
                consumer = await self._open_one(name, failed)
            self.open[name] = consumer
        finally:
            tried.set()
        backoff.reset()
        try:
            await over
        finally:
            if self.open.get(name) is consumer:
                del self.open[name]
            await consumer.close()
