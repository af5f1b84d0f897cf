"""Data plane. What the threads of a blocking client hand to its loop: many things at a time, without waiting for it.

A thread that has to wake the loop's for every message sends 17,000 a second. Here it adds to a list and goes on; the
loop is woken once and takes all there is. Only a thread that is far ahead waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from anabranch.client.errors import Closed

log = logging.getLogger(__name__)

T = TypeVar("T")

# Held while a receipt is looked at for the first time, or settled: never for long, so there is one for all.
# Signal handlers may come here while their thread holds it, as they may with the locks below.
_changing: Final = threading.RLock()


class Receipt(concurrent.futures.Future[T]):
    """A future of what was posted. Few are ever looked at, so it becomes one only when it is.

    Making and settling one of the base class takes 3 µs, half of what posting a message may take; this, 0.4 µs.
    """

    def __init__(self) -> None:
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self._is_watched = False

    def __getattr__(self, name: str) -> Any:
        """Called for what the base class would have made in its `__init__`, and makes it now."""
        with _changing:
            if name not in self.__dict__:
                self._is_watched = True
                super().__init__()
                super().set_running_or_notify_cancel()  # What was posted cannot be called back.
                if self._outcome is not None:
                    self._settle(*self._outcome)
        return object.__getattribute__(self, name)

    def _settle(self, result: T | None, error: BaseException | None) -> None:
        if error is not None:
            super().set_exception(error)
        else:
            super().set_result(result)  # type: ignore[arg-type]  # A result may be None.

    def done(self) -> bool:
        return self._outcome is not None or (self._is_watched and super().done())

    def set_result(self, result: T) -> None:
        with _changing:
            if not self._is_watched:
                self._outcome = (result, None)
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with _changing:
            if not self._is_watched:
                self._outcome = (None, exception)
                return
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> T:
        if self._outcome is None:
            return super().result(timeout)
        result, error = self._outcome
        if error is not None:
            try:
                raise error
            finally:
                error = None  # As the base class does: the traceback would hold this frame, and it the error.
        return result  # type: ignore[return-value]  # A result may be None.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(timeout) if self._outcome is None else self._outcome[1]


class Outbox(Generic[T]):
    """Things that threads `put`, on their way into the loop, in order.

    `hand_in` gets them there, and takes what it is done with from the left of what it is given; what is left when the
    loop ends is given to `fail`. `size_max` is what may be on its way before a thread waits. It `is_slow` if handing in
    may have to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hand_in: Callable[[deque[T]], Awaitable[None]],
        size_max: int,
        fail: Callable[[T, Exception], None] = lambda item, error: None,
        *,
        is_slow: bool = False,
    ) -> None:
        self.is_slow = is_slow
        self._loop = loop
        self._hand_in = hand_in
        self._fail = fail
        self._size_max = size_max
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        # Under the lock: what was put and not taken, how much is on its way, and whether the loop knows.
        self._items: deque[T] = deque()
        self.size = 0
        self._is_woken = False
        self._ended: Exception | None = None
        self._put = 0
        # The loop's own.
        self._batch: deque[T] = deque()
        self._passed = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._draining: asyncio.Task[None] | None = None

    # -- from any thread

    def put(self, item: T, size: int) -> None:
        """Waits only while too much is on its way; not in the loop's own thread, which would wait for itself."""
        with self._lock:
            if self.size >= self._size_max and not _is_running(self._loop):
                while self.size >= self._size_max and self._ended is None:
                    self._room.wait()
            if self._ended is not None:
                raise self._ended
            if not self._is_woken:
                # In this order an interrupt at any point leaves nothing that nobody comes for.
                self._loop.call_soon_threadsafe(self._wake)
                self._is_woken = True
            self._items.append(item)
            self._put += 1
            self.size += size

    @property
    def is_idle(self) -> bool:
        """Whether all that this thread has put is handed in."""
        return self._passed >= self._put

    def end(self, error: Exception) -> None:
        """The loop has ended: whatever is left fails, and whatever comes."""
        with self._lock:
            self._ended = error
            left = [*self._batch, *self._items]
            self._batch.clear()
            self._items.clear()
            self._room.notify_all()
        for item in left:
            self._fail(item, error)

    # -- in the loop

    def _wake(self) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())  # Ends by itself, or with the loop.

    async def _drain(self) -> None:
        try:
            while size := self._take():
                count = len(self._batch)
                try:
                    await self._hand_in(self._batch)
                except Exception as error:
                    log.exception("something that was handed over got lost")
                    while self._batch:
                        self._fail(self._batch.popleft(), error)
                self._passed += count
                while self._waiting and self._waiting[0][0] <= self._passed:
                    _, waiter = self._waiting.popleft()
                    if not waiter.done():
                        waiter.set_result(None)
                with self._lock:
                    self.size -= size
                    self._room.notify_all()
                await asyncio.sleep(0)  # However much is put, others want to run too.
        finally:
            self._draining = None

    def _take(self) -> int:
        """Takes all that was put; its size, 0 if there is nothing and the loop must be woken again."""
        with self._lock:
            self._is_woken = bool(self._items)
            self._batch, self._items = self._items, self._batch
            return self.size if self._batch else 0

    async def passed(self) -> None:
        """Returns once all that was put so far is handed in."""
        mark = self._put
        if self._passed < mark:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((mark, waiter))
            await waiter


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop's own thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


Call = tuple[Callable[[Any], Awaitable[None]], Any]


async def make_calls(calls: deque[Call]) -> None:
    """For an outbox of calls that return at once, and whose results nobody waits for."""
    while calls:
        method, argument = calls.popleft()
        try:
            await method(argument)
        except Exception:
            log.exception("%s failed", method)


class Taken(Generic[T]):
    """What is on its way from the loop to a thread that waits for it, and may be interrupted: then it goes back."""

    __slots__ = ("_is_given_up", "_put_back", "_value")

    def __init__(self, put_back: Callable[[T], None]) -> None:
        self._put_back = put_back
        self._value: T | None = None
        self._is_given_up = False

    async def fetch(self, taking: Callable[[], Awaitable[T]]) -> T:
        value = await taking()
        # From here to the end nothing is awaited, and `settle` runs before or after it.
        if self._is_given_up:
            self._put_back(value)
        else:
            self._value = value
        return value

    def give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread goes away without it."""
        self._is_given_up = True
        try:
            loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return  # The loop has ended, and all messages with it.

    def _settle(self) -> None:
        if self._value is not None:
            self._put_back(self._value)
            self._value = None


def closed() -> Closed:
    return Closed("the client is closed: make another with connect()")
