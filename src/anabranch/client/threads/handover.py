"""Data plane. How the threads of a blocking client hand items to its loop: many at a time, without waiting for it.

A thread that has to wake the loop's thread for every message sends 17,000 a second. Here it appends to a list and
continues; the loop is woken once and takes all items. Only a thread that is far ahead waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from anabranch.client.errors import Closed

log = logging.getLogger(__name__)

T = TypeVar("T")

# Held by the first thread that inspects a receipt. A signal handler may come here while its thread holds the lock, and
# wait for the loop: so this lock and those below are reentrant, and the loop takes none.
_looking: Final = threading.RLock()


def release_all(turns: deque[threading.Lock] | tuple[()]) -> None:
    """Releases the threads that wait; others may come meanwhile."""
    while turns:
        turns.popleft().release()


class Receipt(concurrent.futures.Future[T]):
    """A future for a posted message. Few are ever inspected, so the base class is initialised only when one is.

    Making and settling a future of the base class takes 3 µs, half of what posting a message may take; this one takes
    0.3 µs.
    """

    _turns: deque[threading.Lock] | None = None  # One for each thread that waits for the result.

    def __init__(self) -> None:
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self._is_watched = False

    def __getattr__(self, name: str) -> Any:
        """Called for attributes that the base class sets in its `__init__`, and sets them now."""
        with _looking:
            if name not in self.__dict__:
                own = set(self.__dict__)
                try:
                    super().__init__()
                    super().set_running_or_notify_cancel()  # A posted message cannot be cancelled.
                    self._is_watched = True
                except BaseException:
                    # Interrupted: undo the initialisation.
                    if not self._is_watched:
                        for made in set(self.__dict__) - own:
                            del self.__dict__[made]
                    raise
        # It may have been settled before it was known to be watched; then only this call settles the base class.
        if self._outcome is not None:
            self._tell()
        return object.__getattribute__(self, name)

    def _tell(self) -> None:
        assert self._outcome is not None
        result, error = self._outcome
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # Settled already, by another thread.
            if error is not None:
                super().set_exception(error)
            else:
                super().set_result(result)  # type: ignore[arg-type]  # A result may be None.

    def set_result(self, result: T) -> None:
        self._outcome = (result, None)
        if self._turns is not None or self._is_watched:
            self._settled()

    def set_exception(self, exception: BaseException | None) -> None:
        self._outcome = (None, exception)
        if self._turns is not None or self._is_watched:
            self._settled()

    def _settled(self) -> None:
        release_all(self._turns or ())
        if self._is_watched:
            self._tell()

    def done(self) -> bool:
        return self._outcome is not None

    def _wait(self, timeout: float | None) -> tuple[T | None, BaseException | None]:
        """Unlike the base class: a thread that is interrupted while it waits there may hold a lock that the loop has to
        take."""
        if self._outcome is None:
            turn = threading.Lock()
            turn.acquire()
            self.__dict__.setdefault("_turns", deque()).append(turn)
            if self._outcome is None:  # It was not settled before the append.
                turn.acquire(timeout=-1 if timeout is None else min(max(0, timeout), threading.TIMEOUT_MAX))
        if self._outcome is None:
            raise TimeoutError
        return self._outcome

    def result(self, timeout: float | None = None) -> T:
        result, error = self._wait(timeout)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # Like the base class: this frame must not keep the error alive.
        return result  # type: ignore[return-value]  # A result may be None.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._wait(timeout)[1]


async def shared(
    post: Callable[..., Coroutine[Any, Any, asyncio.Future[T]]], *args: Any, **options: Any
) -> Receipt[T]:
    """Posts, and returns a future for other threads that ends like that of `post`."""
    receipt = await post(*args, **options)
    other: Receipt[T] = Receipt()
    receipt.add_done_callback(lambda done: _settle(other, done))
    return other


def _settle(other: Receipt[T], receipt: asyncio.Future[T]) -> None:
    error = Closed("the client was closed meanwhile") if receipt.cancelled() else receipt.exception()
    if error is not None:
        other.set_exception(error)
    else:
        other.set_result(receipt.result())


class Outbox(Generic[T]):
    """Items that threads `put`, on their way into the loop, in order.

    `hand_in` passes them to the loop, and removes finished items from the left of its argument; `fail` is called with
    the items left when the loop ends. `size_max` is how much may be on its way before a thread waits. The outbox
    `is_slow` if handing in may have to wait.
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
        # Items with their sizes; and futures, of size 0, for callers that wait until all earlier items have passed.
        self._items: deque[tuple[Any, int]] = deque()
        self._is_woken = False  # The loop will check, or check again.
        self._full: deque[threading.Lock] = deque()  # Released when there is room.
        # Serialises the threads' puts.
        self._lock = threading.RLock()
        self._put_size = 0
        self._ended: Exception | None = None
        # Only the loop uses these.
        self._passed_size = 0
        self._batch: deque[T] = deque()
        self._draining: asyncio.Task[None] | None = None

    # -- from any thread

    def put(self, item: T, size: int) -> None:
        """Waits only while too much is on its way; never in the loop's own thread, which would wait for itself."""
        if self.size >= self._size_max and not _is_running(self._loop):
            self._wait_for_room()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._items.append((item, size))
            self._put_size += size
        if not self._is_woken:
            self._wake_loop()

    def _wake_loop(self) -> None:
        try:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._wake)
        except BaseException as error:
            # Interrupted, perhaps just before the call: another call has to wake the loop.
            self._is_woken = False
            if not isinstance(error, RuntimeError):  # The loop has ended, and all items with it.
                raise

    def _wait_for_room(self) -> None:
        if not self._is_woken:
            self._wake_loop()  # An interrupted thread may not have done so.
        while self.size >= self._size_max and self._ended is None:
            turn = threading.Lock()
            turn.acquire()
            self._full.append(turn)
            # Items may have passed before the loop could see that this thread waits: check once more.
            if self.size >= self._size_max and self._ended is None:
                turn.acquire()

    @property
    def size(self) -> int:
        """How much is on its way."""
        return self._put_size - self._passed_size

    @property
    def is_idle(self) -> bool:
        """Whether all items of this thread are handed in."""
        return not self._items and self._draining is None

    def end(self, error: Exception) -> None:
        """The loop has ended: all items that are left fail, and so do later ones."""
        with self._lock:
            self._ended = error
        self._make_room()
        left = [*self._batch, *(item for item, size in self._items if size)]
        self._batch.clear()
        self._items.clear()
        for item in left:
            self._fail(item, error)

    # -- in the loop

    def _wake(self) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())  # Ends with its work, or with the loop.

    async def _drain(self) -> None:
        try:
            while self._has_more():
                size, waiter = self._take()
                if self._batch:
                    await self._hand_in_batch()
                    self._passed_size += size
                    self._make_room()
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
                await asyncio.sleep(0)  # Other tasks must run too, however much is put.
        finally:
            self._draining = None

    def _has_more(self) -> bool:
        if not self._items:
            # In this order: earlier items are seen below, and later ones wake the loop.
            self._is_woken = False
        return bool(self._items)

    def _take(self) -> tuple[int, asyncio.Future[None] | None]:
        """Moves the items up to the first future into the batch; returns their size and that future."""
        total, items, batch = 0, self._items, self._batch
        while items:
            item, size = items.popleft()
            if not size:
                return total, item
            total += size
            batch.append(item)
        return total, None

    async def _hand_in_batch(self) -> None:
        try:
            await self._hand_in(self._batch)
        except Exception as error:
            log.exception("passing messages to the client's thread failed")
            while self._batch:
                self._fail(self._batch.popleft(), error)

    def _make_room(self) -> None:
        release_all(self._full)

    async def passed(self) -> None:
        """Returns once all items so far are handed in."""
        if self.is_idle:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._items.append((waiter, 0))
        self._wake()  # An interrupted thread may not have done so.
        await waiter


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop's own thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


Call = tuple[Callable[[Any], Awaitable[None]], Any]


async def make_calls(calls: deque[Call]) -> None:
    """For an outbox of calls that return at once, and whose results are not awaited."""
    while calls:
        method, argument = calls.popleft()
        try:
            await method(argument)
        except Exception:
            log.exception("%s failed", method)


class HandedOver(Generic[T]):
    """A value on its way from the loop to a waiting thread, which may be interrupted: then the value is put back."""

    __slots__ = ("_is_given_up", "_put_back", "_value")

    def __init__(self, put_back: Callable[[T], None]) -> None:
        self._put_back = put_back
        self._value: T | None = None
        self._is_given_up = False

    async def fetch(self, taking: Callable[[], Awaitable[T]]) -> T:
        value = await taking()
        # Nothing is awaited from here to the end, so `_settle` runs before or after it.
        if self._is_given_up:
            self._put_back(value)
        else:
            self._value = value
        return value

    def give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread stops waiting for the value."""
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
