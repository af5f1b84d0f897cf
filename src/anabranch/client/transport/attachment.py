"""Attaching to a broker, and attaching again: connects, asks, lives until the part is lost, pauses, and connects again.

Every part of the client that outlives its connection uses this module: producers and consumers of segments, watches,
registrations with controllers, and requests that are repeated until a broker answers. A part provides one attempt,
which connects, asks, and then either returns its answer or lives on until it is lost, and a rule for which errors end
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from anabranch.client.errors import ConnectionLost, RequestRefused, TimedOut
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

T = TypeVar("T")


async def keep_trying(
    attempt: Callable[[], Awaitable[T]],
    backoff: Backoff,
    what: str,
    ends: Callable[[AnabranchError], AnabranchError | bool],
    *,
    wake: asyncio.Event | None = None,
    level: int = logging.DEBUG,
) -> T:
    """Returns the result of the first attempt that succeeds; pauses between two attempts, unless `wake` is set.

    After an error `ends` says whether that was the last attempt: True raises the error, another error is raised in its
    place, False tries again. Errors that are not ours are raised at once. An attempt that has reached its goal resets
    the back-off. `what` names the work in the log.
    """
    while True:
        try:
            return await attempt()
        except AnabranchError as error:
            end = ends(error)
            if isinstance(end, AnabranchError):
                raise end from None
            if end:
                raise
            log.log(
                logging.DEBUG if isinstance(error, ConnectionLost) else level,
                "%s: failed, trying again: %s",
                what,
                error,
            )
            troubled(error)
        await backoff.wait(wake)


def refused_with(part: RefusedPart, *ends: Meaning) -> Callable[[AnabranchError], bool]:
    """The rule that only refusals with these meanings are the end."""
    return lambda error: isinstance(error, RequestRefused) and meaning(error, part) in ends


def never(error: AnabranchError) -> bool:
    """The rule that no error is the end."""
    return False


def unless_lost(error: AnabranchError) -> bool:
    """The rule that every error is the end, except a lost connection."""
    return not isinstance(error, ConnectionLost)


class Backoff:
    """Pauses that double up to a limit, each shortened at random so that many clients do not return at once."""

    def __init__(self, chance: random.Random, *, first_s: float = 0.02, limit_s: float = 2.0) -> None:
        self._chance = chance
        self._first_s = first_s
        self._limit_s = limit_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def hasten(self, limit_s: float) -> None:
        """The next pause is at most so long."""
        self._next_s = min(self._next_s, limit_s)

    def next_s(self) -> float:
        """The next pause."""
        pause, self._next_s = self._next_s, min(self._limit_s, self._next_s * 2)
        return pause * self._chance.uniform(0.5, 1.0)

    async def wait(self, wake: asyncio.Event | None = None) -> None:
        """Pauses, at most until `wake` is set."""
        if wake is None:
            await asyncio.sleep(self.next_s())
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.next_s()):
                await wake.wait()


class AttachedPart:
    """A part on one connection: `over` has no result, but fails once the part is lost."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lost(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)
            self.over.exception()  # No task may be waiting for it.


class SilentPart:
    """Holds an id on a connection, for a request that needs one, and ignores commands for that id."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass


class Trouble:
    """Why something is retried: the last refusal or loss. It goes into the error of a caller that gives up."""

    def __init__(self) -> None:
        self.last: AnabranchError | None = None
        self._is_over = False

    def note(self, error: AnabranchError) -> None:
        if not self._is_over:
            self.last = error

    def forget(self) -> None:
        """The trouble is not needed any more, though tasks that were started within may go on."""
        self.last, self._is_over = None, True

    def timed_out(self, what: str, way_out: str) -> TimedOut:
        """The error for a caller that waited for `what` in vain, with the last trouble as its cause."""
        last = self.last
        if last is None:
            error = TimedOut(f"{what}; is the broker reachable? {way_out}")
        elif isinstance(last, RequestRefused):
            error = TimedOut(f"{what}: the broker's last answer was {last}; {way_out}")
        else:
            error = TimedOut(f"{what}: {last}; is the broker reachable? {way_out}")
        error.__cause__ = last
        return error


# The trouble of what is being opened in this context, by all tasks that were started for it.
_opening: ContextVar[Trouble | None] = ContextVar("opening", default=None)


@contextlib.contextmanager
def troubles() -> Iterator[Trouble]:
    """Collects errors within, including those of tasks that are started within."""
    trouble = Trouble()
    token = _opening.set(trouble)
    try:
        yield trouble
    finally:
        _opening.reset(token)
        trouble.forget()


def troubled(error: AnabranchError) -> None:
    """Notes an error after which something is tried again."""
    trouble = _opening.get()
    if trouble is not None:
        trouble.note(error)
