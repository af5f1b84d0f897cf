"""The callers that wait for a topic's log to confirm something: appended entries, or a change of the topic's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.broker.runtime.outcomes import outcome
from anabranch.storage.topic.topic_log import TopicLog


class Confirmations:
    """`waiting` has the callbacks, each with the end of the entries that it waits for, ordered by that end."""

    __slots__ = ("_log", "_loop", "waiting")

    def __init__(self, log: TopicLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self.waiting: list[tuple[int, Callable[[], object]]] = []

    def when_confirmed(self, then: Callable[[], object]) -> None:
        """Calls `then` once everything appended so far is confirmed, or the log is lost."""
        entries_end = self._log.next_entry
        if self._log.confirmed_end >= entries_end:
            then()
        else:
            self.waiting.append((entries_end, then))

    async def wait(self) -> None:
        """Returns once everything appended so far is confirmed, or the log is lost."""
        done: asyncio.Future[None] = self._loop.create_future()
        self.when_confirmed(lambda: _settle(done, None))
        await done

    async def stored(self, delta: bytes) -> None:
        """Waits until a state change, and with it everything appended before, is confirmed."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._log.record(delta, lambda error: _settle(done, error))
        await outcome(done)

    def stored_in_full(self) -> asyncio.Future[None]:
        """A future that is done once the present state is confirmed in full, for changes that no delta can express."""
        done: asyncio.Future[None] = self._loop.create_future()
        # The caller may no longer wait by then; an error must not be reported as never retrieved.
        done.add_done_callback(lambda _: done.cancelled() or done.exception())
        self._log.store_snapshot(lambda error: _settle(done, error))
        return done


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
