"""An event loop for a command, and the end of a command: the first signal asks it to end, the second forces it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(command: Coroutine[Any, Any, int]) -> int:
    """Runs the command on uvloop, which moves some more messages a second."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(command)


class CommandStopping:
    """A context. Within it the first SIGINT or SIGTERM is noted, and a second one has its usual effect at once."""

    def __init__(self) -> None:
        self.number = 0  # The signal that came; 0 without one.
        self._asked = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether the command is to end."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        return 128 + self.number

    def __enter__(self) -> CommandStopping:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._stop, number)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before)

    def _stop(self, number: int) -> None:
        self.number = number
        self._asked.set()
        for listener in self._listeners:
            listener()
        for other in _SIGNALS:
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when the first signal comes."""
        self._listeners.append(listener)

    async def unless_asked(self, awaitable: Awaitable[T]) -> T | None:
        """Awaits and returns the result; None, after cancelling it, if the command is to end first."""
        task = asyncio.ensure_future(awaitable)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not task.done():
                task.cancel()
        await asyncio.wait([task, asked])
        return None if task.cancelled() else task.result()
