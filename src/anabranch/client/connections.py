"""The connections of one client object, by broker: opened when asked for, forgotten when lost, looked up by topic.

Reconnecting is its users' business: they ask again, after a pause that `Backoff` measures.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from anabranch.client.connection import ClientConnection
from anabranch.client.errors import ConnectionLost, RequestRefused, TimedOut
from anabranch.client.security import NOBODY, TLS_SCHEME, Security
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand

LOOKUPS_MAX = 20
# A broker that answers pings but not a request for so long has lost it: the connection is given up.
REQUEST_MAX_S = 30.0
# For a broker that does not take the last bytes.
CLOSE_MAX_S = 2.0


class Trouble:
    """Why something is being tried again and again: the last refusal or loss. Whoever gives up tells it."""

    def __init__(self) -> None:
        self.last: AnabranchError | None = None
        self._is_over = False

    def note(self, error: AnabranchError) -> None:
        if not self._is_over:
            self.last = error

    def forget(self) -> None:
        """Nobody will ask any more, though tasks that were started within may go on."""
        self.last, self._is_over = None, True

    def timed_out(self, what: str, way_out: str) -> TimedOut:
        """The error of who has waited for `what` in vain, with what went wrong last as its cause."""
        last = self.last
        if last is None:
            error = TimedOut(f"{what}; is the broker reachable? {way_out}")
        elif isinstance(last, RequestRefused):
            error = TimedOut(f"{what}: the broker's last answer was {last}; {way_out}")
        else:
            error = TimedOut(f"{what}: {last}; is the broker reachable? {way_out}")
        error.__cause__ = last
        return error


# Of what is being opened in this context, by all tasks that were started for it.
_opening: ContextVar[Trouble | None] = ContextVar("opening", default=None)


@contextmanager
def troubles() -> Iterator[Trouble]:
    """Collects what goes wrong within, in tasks that are started within as well."""
    trouble = Trouble()
    token = _opening.set(trouble)
    try:
        yield trouble
    finally:
        _opening.reset(token)
        trouble.forget()


def troubled(error: AnabranchError) -> None:
    """Something went wrong and is tried again."""
    trouble = _opening.get()
    if trouble is not None:
        trouble.note(error)


class Backoff:
    """Pauses that double up to a limit, each shortened by chance so that many clients do not come back at once."""

    def __init__(self, chance: random.Random, *, first_s: float = 0.02, limit_s: float = 2.0) -> None:
        self._chance = chance
        self._first_s = first_s
        self._limit_s = limit_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next pause."""
        pause, self._next_s = self._next_s, min(self._limit_s, self._next_s * 2)
        return pause * self._chance.uniform(0.5, 1.0)

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s())


class Connections:
    """`service_url` may name several brokers, `pulsar://one:6650,two:6650`: they are tried in turn."""

    def __init__(self, service_url: str, security: Security = NOBODY) -> None:
        scheme, _, hosts = service_url.partition("://")
        self.security = security
        self.has_tls = scheme == TLS_SCHEME
        self._service = [f"{scheme}://{host.strip()}" for host in hosts.split(",")]
        self._turn = 0
        self._open: dict[str, asyncio.Task[ClientConnection]] = {}
        self._is_closed = False

    async def to(self, url: str) -> ClientConnection:
        """An open connection to that broker; ConnectionLost if there is no way to have one."""
        if self._is_closed:
            raise ConnectionLost("the client is closed")
        opening = self._open.get(url)
        if opening is None or (opening.done() and not _is_usable(opening)):
            # Awaited here by everybody who asks meanwhile, and by `close`.
            opening = self._open[url] = asyncio.create_task(ClientConnection.open(url, self.security))
        connection = await asyncio.shield(opening)
        if self._is_closed:
            connection.abort()
            raise ConnectionLost("the client is closed")
        return connection

    async def service(self) -> ClientConnection:
        """A connection to any broker of the service; the next call after a failure tries the next one."""
        try:
            return await self.to(self._service[self._turn])
        except Exception:
            self._turn = (self._turn + 1) % len(self._service)
            raise

    def choose(self, plain: str, tls: str) -> str:
        """Which of a broker's two addresses is used: a client that began with TLS stays with it."""
        return tls if self.has_tls else plain

    async def owner(self, topic: str) -> ClientConnection:
        """A connection to the broker that serves a classic topic or a segment, by lookup."""
        connection = await self.service()
        authoritative = False
        for _ in range(LOOKUPS_MAX):
            answer = await ask(connection, C.LOOKUP, "lookupTopic", topic=topic, authoritative=authoritative)
            if url := self.choose(answer.brokerServiceUrl, answer.brokerServiceUrlTls):
                connection = await self.to(url)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return connection
            authoritative = answer.authoritative
        raise ConnectionLost(f"{LOOKUPS_MAX} lookups did not find the owner of {topic}")

    async def close(self) -> None:
        self._is_closed = True
        for opening in self._open.values():
            opening.cancel()
        for result in await asyncio.gather(*self._open.values(), return_exceptions=True):
            if isinstance(result, ClientConnection):
                try:
                    async with asyncio.timeout(CLOSE_MAX_S):
                        await result.close()
                except TimeoutError:
                    result.abort()
        self._open.clear()

    def abort(self) -> None:
        """Drops every connection without a word."""
        self._is_closed = True
        for opening in self._open.values():
            opening.cancel()
            if _is_usable(opening):
                opening.result().abort()
        self._open.clear()


def _is_usable(opening: asyncio.Task[ClientConnection]) -> bool:
    return (
        opening.done()
        and not opening.cancelled()
        and opening.exception() is None
        and not opening.result().is_closed
    )


async def ask(connection: ClientConnection, kind: int, field: str, **fields: Any) -> Any:
    """As `connection.request`, but a broker that never answers loses the connection."""
    try:
        async with asyncio.timeout(REQUEST_MAX_S):
            return await connection.request(kind, field, **fields)
    except TimeoutError:
        connection.abort()
        raise ConnectionLost(f"no answer to {field} within {REQUEST_MAX_S:.0f} s") from None
