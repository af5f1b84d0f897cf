"""Data plane: decides whether a client's socket is read; lists the reasons to pause."""

from __future__ import annotations

import asyncio
from enum import IntFlag, auto
from typing import Final

# The longest pause for unanswered publishes. Shorter than the keep-alive: pings, acks and flow share the socket.
PAUSE_MAX_S: Final = 5.0
# With this many requests under way a connection is not read until half of them are answered.
REQUESTS_HIGH: Final = 1_000


class Pause(IntFlag):
    """Why a socket is not read."""

    LOG = auto()  # The log has too much unconfirmed.
    ANSWERS = auto()  # Too many of the connection's own publishes are unanswered.
    REQUESTS = auto()  # Too many of its requests are under way.
    RATE = auto()  # A topic's publish rate is exceeded.
    TURN = auto()  # The other connections have their turn.
    WORK = auto()  # A command takes several turns of the loop.


# As plain numbers: a connection that sends much is paused for others at each read, and operations on flags take a
# microsecond each.
_LOG: Final = Pause.LOG.value
_ANSWERS: Final = Pause.ANSWERS.value
_REQUESTS: Final = Pause.REQUESTS.value
_RATE: Final = Pause.RATE.value
_TURN: Final = Pause.TURN.value
_WORK: Final = Pause.WORK.value


class ReadGate:
    """Reads from one socket while there is no reason to pause. Without an open socket it only keeps the reasons."""

    __slots__ = (
        "_loop",
        "_reasons",
        "_transport",
        "_unanswered",
        "_unanswered_max",
        "_unanswered_timer",
        "_works",
        "is_reading",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, unanswered_max: int) -> None:
        """`unanswered_max`: how many publishes may be unanswered; 0 for no limit."""
        self.is_reading = True
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reasons = 0  # Values of `Pause`.
        self._works = 0
        self._unanswered = 0
        self._unanswered_max = unanswered_max
        self._unanswered_timer: asyncio.TimerHandle

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def close(self) -> None:
        self._transport = None

    @property
    def reasons(self) -> Pause:
        return Pause(self._reasons)

    @property
    def owes_too_much(self) -> bool:
        return bool(self._reasons & _ANSWERS)

    # -- the log

    def pause(self) -> None:
        self._stop(_LOG)

    def resume(self) -> None:
        self._go_on(_LOG)

    # -- publishes

    def owes(self, count: int) -> None:
        """Adds publishes that were accepted and are not answered yet."""
        self._unanswered += count
        if self._unanswered > self._unanswered_max > 0 and not self._reasons & _ANSWERS:
            self._stop(_ANSWERS)
            self._unanswered_timer = self._loop.call_later(PAUSE_MAX_S, self._read_on)

    def answered(self, count: int) -> None:
        self._unanswered -= count
        if self._reasons & _ANSWERS and self._unanswered * 2 <= self._unanswered_max:
            self._read_on()

    def _read_on(self) -> None:
        self._unanswered_timer.cancel()
        self._go_on(_ANSWERS)

    # -- requests

    def requests(self, count: int) -> None:
        """Sets the number of requests under way."""
        if self._reasons & _REQUESTS:
            if count * 2 <= REQUESTS_HIGH:
                self._go_on(_REQUESTS)
        elif count >= REQUESTS_HIGH:
            self._stop(_REQUESTS)

    # -- rates

    def hold(self, seconds: float) -> None:
        """Pauses reading for that time; a second call during it changes nothing."""
        if not self._reasons & _RATE:
            self._stop(_RATE)
            self._loop.call_later(seconds, self._go_on, _RATE)

    # -- turns of the loop

    def rest(self) -> None:
        """Gives other connections a turn: if more data is waiting, the loop would read it dozens of times in a row."""
        if not self._reasons & _TURN:
            self._stop(_TURN)
            self._loop.call_soon(self._go_on, _TURN)

    def work_begun(self) -> None:
        self._works += 1
        if self._works == 1:
            self._reasons |= _WORK
            # Most work ends in the turn in which it has begun.
            self._loop.call_soon(self._apply)

    def work_ended(self) -> None:
        self._works -= 1
        if not self._works:
            self._go_on(_WORK)

    # -- the socket

    def _stop(self, reason: int) -> None:
        self._reasons |= reason
        self._apply()

    def _go_on(self, reason: int) -> None:
        self._reasons &= ~reason
        self._apply()

    def _apply(self) -> None:
        transport, wanted = self._transport, not self._reasons
        if transport is not None and wanted is not self.is_reading:
            self.is_reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()
