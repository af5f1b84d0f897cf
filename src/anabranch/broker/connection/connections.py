"""The connections that a broker serves: counts them, probes silent ones, pauses reading while the log is behind."""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.errors import NotAllowedError
from anabranch.storage.port import LogStore

# The longest pause. Shorter than the keep-alive: pings, acks and flow share the socket with publishes.
PAUSE_MAX_S: Final = 5.0
# Links of other brokers are not limited, and only the handshake shows that a connection is one. So many connections
# beyond the limits may be open until they have shown it, each for so long.
UNPROVEN_MAX: Final = 64
UNPROVEN_MAX_S: Final = 5.0


class ServedConnections:
    """Implements `Surroundings` for its sessions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        log: LogStore,
        limits: ConnectionLimits,
        *,
        unconfirmed_bytes_max: int,
        may_have_peers: bool = False,
    ) -> None:
        """Reading from publishers pauses while the log has more than `unconfirmed_bytes_max` bytes to confirm, and
        resumes below half of that. `may_have_peers`: connections may be links of other brokers, which the limits do not
        apply to."""
        self.sessions: dict[ClientSession, None] = {}  # In the order of their opening.
        self.opened_total = 0
        self.refused_total = 0
        self._loop = loop
        self._log = log
        self._limits = limits
        self._unconfirmed_bytes_max = unconfirmed_bytes_max
        self._paused: dict[ClientSession, None] = {}
        self._resuming: asyncio.TimerHandle | None = None
        self._may_have_peers = may_have_peers
        # Connections beyond the limits that may turn out to be links, and the timers that end them.
        self._unproven: dict[ClientSession, asyncio.TimerHandle] = {}

    def opened(self, session: ClientSession) -> None:
        """Adds the session. NotAllowedError if there are too many connections; the caller then closes the session."""
        self.sessions[session] = None
        self.opened_total += 1
        try:
            self._limits.opened(session.host)
        except NotAllowedError as error:
            if not self._may_have_peers or len(self._unproven) >= UNPROVEN_MAX:
                raise
            session.excess = error
            self._unproven[session] = self._loop.call_later(UNPROVEN_MAX_S, session.refuse, error)

    def became_peer(self, session: ClientSession) -> None:
        """The session is the link of another broker, which does not count."""
        self._proven(session)
        self._limits.closed(session.host)

    def _proven(self, session: ClientSession) -> None:
        session.excess = None
        if (timer := self._unproven.pop(session, None)) is not None:
            timer.cancel()

    def closed(self, session: ClientSession) -> None:
        self._proven(session)
        if session in self.sessions and not session.peer:
            self._limits.closed(session.host)
        self.sessions.pop(session, None)
        self._paused.pop(session, None)

    def refused(self) -> None:
        """Counts a connection that ended before its handshake was done."""
        self.refused_total += 1

    async def probe(self) -> None:
        """Probes silent peers; to be called several times in a keep-alive interval."""
        now = self._loop.time()
        for session in list(self.sessions):
            session.tick(now)

    # -- back-pressure

    @property
    def is_congested(self) -> bool:
        return self._log.unconfirmed_bytes > self._unconfirmed_bytes_max

    def pause(self, session: ClientSession) -> None:
        session.pause_reading()
        self._paused[session] = None
        if self._resuming is None:
            self._resuming = self._loop.call_later(PAUSE_MAX_S, self._resume_some)

    @property
    def paused(self) -> int:
        """How many connections are not read because the log is behind."""
        return len(self._paused)

    def progressed(self) -> None:
        """The log has confirmed something: resumes the connections that waited for that."""
        if self._paused and self._log.unconfirmed_bytes * 2 < self._unconfirmed_bytes_max:
            self._resume_all()

    def _resume_some(self) -> None:
        """Pings, acks and flow share the socket with publishes, so no connection is left unread for long; but if the
        disk hangs, only as many connections are read as fit into twice the limit, those that have waited longest first.
        """
        self._resuming = None
        room = 2 * self._unconfirmed_bytes_max - self._log.unconfirmed_bytes
        for session in list(self._paused):
            if room <= 0:
                break
            room -= session.read_bytes
            del self._paused[session]
            session.resume_reading()
        if self._paused and self._resuming is None:
            self._resuming = self._loop.call_later(PAUSE_MAX_S, self._resume_some)

    def _resume_all(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        paused, self._paused = self._paused, {}
        for session in paused:
            session.resume_reading()
