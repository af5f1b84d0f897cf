"""A loop in its own thread, and the ways to call it: the base of the blocking face."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from anabranch.client.errors import Closed
from anabranch.client.threads.handover import HandedOver, Outbox, closed

T = TypeVar("T")

STOP_MAX_S: Final = 5.0
EXIT_MAX_S: Final = 1.0


class Portal:
    """A loop in a thread. `call` runs a coroutine there and waits for its result."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.is_stopped = False
        # Once it is over no call is started. Signal handlers may come here while their thread holds the lock.
        self._lock = threading.RLock()
        self._is_over = False
        self._outboxes: weakref.WeakSet[Outbox[Any]] = weakref.WeakSet()
        # A daemon thread: a program that forgets to close its client must be able to end.
        self._thread = threading.Thread(target=self._run, name="anabranch", daemon=True)
        self._thread.start()
        _portals.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            with self._lock:
                self._is_over = True
            self.loop.run_until_complete(_cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self._is_over = True
            for outbox in self.outboxes():
                outbox.end(closed())
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call in the client's own thread would wait for itself: use another thread"
            )
        with self._lock:
            if self.is_stopped or self._is_over:
                work.close()
                raise closed()
            calling = _Calling(self.loop, work)
            self.loop.call_soon_threadsafe(calling.begin)
        try:
            return calling.result()
        except asyncio.CancelledError:
            raise Closed("the client was closed meanwhile") from None
        finally:
            if not calling.is_over:  # The wait was interrupted.
                with contextlib.suppress(RuntimeError):
                    self.loop.call_soon_threadsafe(calling.cancel)

    def take(self, taking: Callable[[], Awaitable[T]], put_back: Callable[[T], None]) -> T:
        """Like `call`; a value that an interrupted call has taken is put back."""
        taken = HandedOver(put_back)
        try:
            return self.call(taken.fetch(taking))
        except BaseException:
            taken.give_up(self.loop)
            raise

    # -- outboxes

    def add(self, outbox: Outbox[Any]) -> None:
        """Adds an outbox, which is ended with the loop."""
        with self._lock:
            self._outboxes.add(outbox)
            is_over = self._is_over
        if is_over:
            outbox.end(closed())

    def outboxes(self) -> list[Outbox[Any]]:
        with self._lock:
            return list(self._outboxes)

    def stop(self, within_s: float = STOP_MAX_S) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(within_s)


class _Calling(Generic[T]):
    """A coroutine in the loop that a thread waits for.

    Unlike a future it has no lock that both the loop and a thread interrupted by a signal may need.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._turn = threading.Lock()
        self._turn.acquire()
        self.is_over = False

    def begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        self.is_over = True
        if not task.cancelled():
            task.exception()  # The thread may have stopped waiting.
        self._turn.release()

    def cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def result(self) -> T:
        self._turn.acquire()
        assert self._task is not None
        return self._task.result()


async def _cancel_all() -> None:
    """Ends all tasks, including those that were scheduled just before the end and have not begun."""
    while True:
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for portal in list(_portals):
        with contextlib.suppress(RuntimeError):
            portal.stop(EXIT_MAX_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # It does not exist for Windows.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
