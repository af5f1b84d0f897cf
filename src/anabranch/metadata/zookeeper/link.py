"""One session at ZooKeeper on an event loop: kazoo's connection and its thread, and nothing else of kazoo.

kazoo connects, keeps the session alive and moves to another server. Its thread passes what comes in, answers, events of
watches and states of the session, to the loop, in the order in which they came. Nothing here waits on the loop, and
nothing is asked twice: a request whose connection breaks fails, and its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import Close
from kazoo.protocol.states import KazooState

from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.zookeeper.address import ZooKeeperAddress
from anabranch.metadata.zookeeper.requests import NodeEvent, RefusedRequest, ZooKeeperRequest, read_event

log = logging.getLogger(__name__)
# kazoo tells of each step of a connection; what matters of it, the store tells.
_KAZOO_LOG: Final = logging.getLogger(f"{__name__}.kazoo")
_KAZOO_LOG.setLevel(logging.ERROR)

T = TypeVar("T")

# kazoo is woken by a byte for each request, through a socket pair that blocks once some 270 wait in it. The loop must
# never block, so the others wait here, in their order.
UNDER_WAY_MAX: Final = 128
# Behaviour at the limit: refuse, retryable.
WAITING_MAX: Final = 100_000
# Between two rounds of attempts to reach a server.
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 1.0
STOP_WAIT_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How a session is made, and who makes it."""

    session_timeout_ms: int = 6_000
    # `user:password`; empty: none, and nodes are open to all.
    credentials: str = ""
    has_tls: bool = False
    # Of files in PEM; empty authorities: the system's.
    tls_trust_certs_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    verifies_host: bool = True


class SessionListener(Protocol):
    """Hears of a link, on the event loop."""

    def session_began(self, session_id: int) -> None:
        """Connected, with that session: the one before, or a new one."""
        ...

    def session_in_doubt(self) -> None: ...

    def session_ended(self) -> None: ...

    def node_changed(self, event: NodeEvent) -> None: ...


class ZooKeeperLink:
    """Bound to the event loop it was made on. `ask` works between `session_began` and whatever ends that."""

    def __init__(self, address: ZooKeeperAddress, access: ZooKeeperAccess, listener: SessionListener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._inbox: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._waiting: deque[_Answer[Any]] = deque()
        self._under_way: dict[_Answer[Any], None] = {}
        # Between the beginning of a session, or its return, and the first sign of trouble.
        self._is_up = False
        self._client = KazooClient(
            address.hosts,
            timeout=access.session_timeout_ms / 1000,
            auth_data={("digest", access.credentials)} if access.credentials else None,
            logger=_KAZOO_LOG,
            connection_retry={"max_tries": -1, "delay": RETRY_S, "max_delay": RETRY_MAX_S},
            use_ssl=access.has_tls,
            ca=access.tls_trust_certs_file or None,
            certfile=access.tls_certificate_file or None,
            keyfile=access.tls_key_file or None,
            check_hostname=access.has_tls and access.verifies_host,
        )
        self._client._connection = _Connection(self._client, self)
        self._client.add_listener(self._state_changed)

    def start(self) -> None:
        """Begins to connect; the listener hears of success. Goes on until `stop`."""
        self._client.start_async()
        # See `UNDER_WAY_MAX`: no more bytes than that wait, so this refuses none that kazoo needs.
        self._client._connection._write_sock.setblocking(False)

    async def stop(self) -> None:
        """Ends the session, if a server can be reached, and the threads. Requests without an answer fail."""

        def stop() -> None:
            self._client.stop()
            self._client.close()

        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await asyncio.to_thread(stop)
        except (KazooException, OSError, TimeoutError) as error:
            log.warning("the ZooKeeper session was not ended in an orderly way: %s", error)
        self._drain()
        self._fail_all("the metadata store was closed")

    def ask(self, request: ZooKeeperRequest[T]) -> asyncio.Future[T]:
        """The answer; RefusedRequest, or StoreUnavailable where none came. Requests take effect in the order of these
        calls."""
        answer: _Answer[T] = _Answer(self, request, self._loop.create_future())
        if not self._is_up:
            answer.future.set_exception(StoreUnavailable("there is no connection to ZooKeeper"))
            return answer.future
        if len(self._waiting) >= WAITING_MAX:
            answer.future.set_exception(
                StoreUnavailable(f"{WAITING_MAX} metadata operations are waiting already")
            )
            return answer.future
        self._waiting.append(answer)
        self._send_waiting()
        return answer.future

    # -- on the loop

    def _send_waiting(self) -> None:
        while self._waiting and len(self._under_way) < UNDER_WAY_MAX:
            answer = self._waiting.popleft()
            if answer.future.done():
                continue  # Its caller was cancelled before it was sent.
            self._under_way[answer] = None
            self._client._queue.append((answer.request, answer))
            # A full pipe has more bytes than there are requests: kazoo is awake. One that is closed has been told of.
            with contextlib.suppress(BlockingIOError, OSError, AttributeError):
                self._client._connection._write_sock.send(b"\0")

    def _settled(self, answer: _Answer[Any], value: Any, error: BaseException | None) -> None:
        self._under_way.pop(answer, None)
        if not answer.future.done():  # Else the caller was cancelled, or the session was in doubt meanwhile.
            if error is None:
                answer.future.set_result(value)
            else:
                answer.future.set_exception(error)
        self._send_waiting()

    def _fail_all(self, why: str) -> None:
        """Fails every request, also one that kazoo forgot: it drops those that arrive while it resets its queues."""
        failed, self._under_way = [*self._under_way, *self._waiting], {}
        self._waiting.clear()
        for answer in failed:
            if not answer.future.done():
                answer.future.set_exception(StoreUnavailable(why))

    def _up(self, session_id: int) -> None:
        self._is_up = True
        self._listener.session_began(session_id)

    def _broken(self) -> None:
        """kazoo fails the requests before it tells why. A caller whose request failed must not find a session that
        looks well."""
        if self._is_up:
            self._suspended()

    def _suspended(self) -> None:
        self._is_up = False
        self._fail_all("the connection to ZooKeeper broke before the answer came")
        self._listener.session_in_doubt()

    def _lost(self) -> None:
        self._is_up = False
        self._fail_all("the ZooKeeper session ended before the answer came")
        self._listener.session_ended()

    def _drain(self) -> None:
        self._is_woken = False
        while self._inbox:
            try:
                self._inbox.popleft()()
            except Exception:
                # One event that cannot be dealt with must not take the others with it.
                log.exception("an answer of ZooKeeper was not dealt with")

    # -- in kazoo's thread

    def post(self, event: Callable[[], None]) -> None:
        """Has that called on the loop, after all that was posted before."""
        self._inbox.append(event)
        # Cleared before the inbox is emptied: if it is set here, what was appended will be found.
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._drain)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            session_id: int = self._client._session_id
            self.post(lambda: self._up(session_id))
        else:
            self.post(self._suspended if state == KazooState.SUSPENDED else self._lost)

    def event_came(self, event: NodeEvent) -> None:
        self.post(lambda: self._listener.node_changed(event))

    def unanswered(self) -> None:
        self.post(self._broken)

    def answered(self, answer: _Answer[Any], value: Any, error: BaseException | None) -> None:
        self.post(lambda: self._settled(answer, value, error))


class _Answer(Generic[T]):
    """What kazoo keeps beside a request. Told in kazoo's thread."""

    __slots__ = ("_link", "future", "request")

    def __init__(self, link: ZooKeeperLink, request: ZooKeeperRequest[T], future: asyncio.Future[T]) -> None:
        self._link = link
        self.request = request
        self.future = future

    def came(self, code: int, data: bytes, at: int) -> None:
        """Takes the answer apart in this thread: the loop has enough to do."""
        try:
            if code:
                raise RefusedRequest(code)
            value = self.request.deserialize(data, at)
        except RefusedRequest as error:
            self._link.answered(self, None, error)
        except Exception as error:
            log.exception("an answer of ZooKeeper cannot be read")
            self._link.answered(self, None, StoreUnavailable(f"ZooKeeper's answer cannot be read: {error!r}"))
        else:
            self._link.answered(self, value, None)

    def set_exception(self, error: BaseException) -> None:
        """kazoo's word for a request without an answer. All of them fail together."""
        self._link.unanswered()


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types.
    """kazoo's connection without what it does with answers and events.

    Its own has a table of errors that ends with Python's own where a server knows one more, forgets a watch once it has
    fired, and knows no recursive ones. Answers and events would come through two further threads besides, each in its
    own order.
    """

    def __init__(self, client: KazooClient, link: ZooKeeperLink) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._link = link

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        self._link.event_came(read_event(buffer, offset))

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> object:
        client = self.client
        request, answer, xid = client._pending.popleft()
        if header.zxid > 0:
            client.last_zxid = header.zxid
        if header.xid != xid:
            # The answers of this connection cannot be told apart any more: kazoo connects again.
            if answer is not None:
                answer.set_exception(ConnectionDropped("answers out of order"))
            raise ConnectionDropped(f"the answer to request {header.xid} came instead of that to {xid}")
        if answer is not None:
            answer.came(header.err, buffer, offset)
        return CLOSE_RESPONSE if isinstance(request, Close) else None
