"""An event loop whose time is a number: it runs the ready callbacks, then jumps to the next timer.

Nothing here touches a socket, a thread or the real clock, so a run depends on its seed alone. Callbacks run first in,
first out. Every callback belongs to a host (`HOST`, carried by the context it was scheduled from): the callbacks of a
paused host are held until it resumes, those of a dead one never run. When the main task waits and nothing can wake it,
the loop raises `Deadlock` with what every task is waiting for, instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    # Sockets, signals and processes are missing on purpose; type checkers would call that abstract.
    Base = asyncio.BaseEventLoop
else:
    Base = asyncio.AbstractEventLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Callback = Callable[[Unpack[Ts]], object]

# Far more callbacks than any honest work needs between two moments of virtual time.
CALLBACKS_PER_MOMENT_MAX = 200_000
# Tasks left at the end of a run are cancelled, and given this many turns to end.
CLOSING_ROUNDS_MAX = 200
TASKS_PRUNED_AT = 500


class Deadlock(AssertionError):
    """The main task waits, and nothing is left that could wake it."""


class Livelock(AssertionError):
    """Callbacks run endlessly while time stands still."""


class Host:
    """A machine: its callbacks can be held, or ended for good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_dead = False
        self.held: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"<host {self.name}, {'dead' if self.is_dead else 'paused' if self.is_paused else 'up'}>"


HOST: ContextVar[Host | None] = ContextVar("HOST", default=None)


def context_of(host: Host | None) -> Context:
    """A context in which everything belongs to that host."""
    context = copy_context()
    context.run(HOST.set, host)
    return context


class LoopNetwork(Protocol):
    """A loop's calls of its network, for connecting and listening."""

    def listen(self, factory: Any, host: str, port: int) -> Any: ...

    async def connect(self, factory: Any, host: str, port: int) -> Any: ...


class SimLoop(Base):
    """Call `run_until_complete` once or more, then `close`. `network` must be set before connections are made."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._timer_count = 0
        # All tasks that may still be waiting, with their hosts. A task of a dead host must not be collected during the
        # run, for that would run its `finally` blocks.
        self._tasks: list[tuple[asyncio.Task[Any], Host | None]] = []
        self._prune_at = TASKS_PRUNED_AT
        self._is_running = False
        self._is_closing = False
        self._is_closed = False
        self._is_stopping = False
        self.callbacks = 0
        # Called after every callback when set: safety is checked there.
        self.after_each: Callable[[], None] | None = None
        # Unhandled exceptions; a run that has any has failed.
        self.unhandled: list[dict[str, Any]] = []
        self.network: LoopNetwork

    # -- time

    @property
    def timers(self) -> int:
        """The number of pending timers."""
        return sum(not handle.cancelled() for _, _, handle in self._timers)

    def time(self) -> float:
        return self._now

    def now_ms(self) -> int:
        return int(self._now * 1000)

    # -- scheduling

    def call_soon(
        self, callback: Callback[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callback[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # There are no other threads.

    def call_later(
        self, delay: float, callback: Callback[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callback[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """TimerHandle calls this. A cancelled timer is dropped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        self._tasks.append((task, (context or copy_context()).get(HOST)))
        if len(self._tasks) > self._prune_at:
            self._tasks = [one for one in self._tasks if not one[0].done()]
            self._prune_at = 2 * len(self._tasks) + TASKS_PRUNED_AT
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs the function inline: a thread would make the run depend on chance."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    # -- hosts

    def resume(self, host: Host) -> None:
        """Runs the held callbacks now, in the order in which they became due."""
        host.is_paused = False
        self._ready.extend(host.held)
        host.held = []

    # -- running

    def run_until_complete(self, future: Any) -> Any:
        main = asyncio.ensure_future(future, loop=self)
        main.add_done_callback(self._stop)
        try:
            self.run_forever()
        finally:
            main.remove_done_callback(self._stop)
        if not main.done():
            raise RuntimeError("the loop was stopped before its task was done")
        return main.result()

    def _stop(self, _: object) -> None:
        self._is_stopping = True

    def stop(self) -> None:
        self._is_stopping = True

    def run_forever(self) -> None:
        if self._is_closed or self._is_running:
            raise RuntimeError("the loop is closed" if self._is_closed else "the loop is running already")
        self._is_running = True
        before = events._get_running_loop()
        events._set_running_loop(None)
        events._set_running_loop(self)
        try:
            self._run()
        finally:
            self._is_stopping = False
            self._is_running = False
            events._set_running_loop(before)

    def _run(self) -> None:
        ready = self._ready
        moment = self.callbacks
        while not self._is_stopping:
            if not ready:
                if not self._advance():
                    raise Deadlock(f"at {self._now:.3f} s nothing can run\n{self.describe_tasks()}")
                moment = self.callbacks
                continue
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host: Host | None = handle._context.get(HOST)  # type: ignore[attr-defined]
            if host is not None and not self._may_run(host, handle):
                continue
            handle._run()
            self.callbacks += 1
            if self.after_each is not None:
                self.after_each()
            if self.callbacks - moment > CALLBACKS_PER_MOMENT_MAX:
                raise Livelock(f"time stands still at {self._now:.3f} s; last was {handle!r}")

    @staticmethod
    def _may_run(host: Host, handle: asyncio.Handle) -> bool:
        if host.is_dead:
            return False
        if host.is_paused:
            host.held.append(handle)
            return False
        return True

    def _advance(self) -> bool:
        """Jumps to the next moment at which a timer fires; False if there is none."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            return False
        now = self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def describe_tasks(self) -> str:
        """What every task that is not done waits for, one a line."""
        lines = [
            f"  {task.get_name()}{f' on {host.name}' if host else ''}: {_where(task)}"
            for task, host in self._tasks
            if not task.done() and not (host and host.is_dead)
        ]
        return "\n".join(lines) or "  no task waits"

    # -- life

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Does nothing: asyncio's debug mode uses the real clock."""

    def close(self) -> None:
        """Ends the remaining tasks, including those of dead hosts."""
        if self._is_closed:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._is_closing = True
        try:
            self._end_tasks()
        finally:
            events._set_running_loop(before)
            self._is_closed = True
            self._ready.clear()
            self._timers.clear()

    def _end_tasks(self) -> None:
        # Repeated, as ending one task may start another. Timers fire too, for a task may wait before it ends.
        for _ in range(CLOSING_ROUNDS_MAX):
            self._tasks = [one for one in self._tasks if not one[0].done()]
            for task, _host in self._tasks:
                task.cancel()
            if not self._ready and not (self._tasks and self._advance()):
                break
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        # The remaining tasks belonged to dead hosts and have lost the callbacks that would have woken them.
        self._is_closed = True
        for task, _host in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                task.get_coro().close()

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: no generators are tracked."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (asyncio's name)
        """Does nothing: there is no executor."""

    # -- errors

    def get_exception_handler(self) -> None:
        return None

    def set_exception_handler(self, handler: Any) -> None:
        raise NotImplementedError("a simulation collects what nobody handled")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not (self._is_closing or self._is_closed):
            self.unhandled.append(context)

    # -- the network

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host, port)


def _where(task: asyncio.Task[Any]) -> str:
    """The chain of coroutines that a task is suspended in, outermost first."""
    steps = []
    at: Any = task.get_coro()
    while at is not None and hasattr(at, "cr_frame") and at.cr_frame is not None:
        steps.append(f"{at.__qualname__}:{at.cr_frame.f_lineno}")
        at = at.cr_await
    return " > ".join(steps) + (f" > {type(at).__name__}" if at is not None else "")
