"""Work of one command that is too long for one turn of the event loop, done a slice per turn.

A frame of 5 MB can name hundreds of thousands of messages. A piece of work is an iterator that stops after each slice;
pieces are done one after the other, in the order in which they were added.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)


class Turns:
    """The long work of one subscription. `owner` names it in the log."""

    __slots__ = ("_loop", "_owner", "_pieces")

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        self._loop = loop
        self._owner = owner
        self._pieces: deque[Iterator[None]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._pieces

    def add(self, work: Iterator[None]) -> None:
        """Adds work. Its first slice is done now, unless other work is pending."""
        self._pieces.append(work)
        if len(self._pieces) == 1:
            self._step()

    def after_all(self, then: Callable[[], object]) -> None:
        """Calls `then` once all work added so far is done; at once if there is none."""
        if self.is_idle:
            then()
        else:
            self._pieces.append(_call(then))

    def _step(self) -> None:
        try:
            next(self._pieces[0])
        except StopIteration:
            self._pieces.popleft()
        except Exception:  # The boundary of a command: it ends here, and those behind it continue.
            _log.exception("%s: a long command failed", self._owner)
            self._pieces.popleft()
        if self._pieces:
            self._loop.call_soon(self._step)


def _call(then: Callable[[], object]) -> Iterator[None]:
    then()
    return
    yield
