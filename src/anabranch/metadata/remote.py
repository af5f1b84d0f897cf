"""A session at the metadata process of this machine: implements the port over its Unix socket.

When the connection breaks, requests without an answer are in doubt, as is the session, and the handle connects again on
its own: under the same session while the server keeps it, else under a new one. Either way every watch then says that
everything must be read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self, cast

from anabranch.metadata.embedded import LocalSession
from anabranch.metadata.errors import (
    MetadataError,
    StoreClosed,
    StoreUnavailable,
    ValueTooLarge,
)
from anabranch.metadata.messages import (
    PROTOCOL,
    AnswerKind,
    MessageCutter,
    NotAMessage,
    Verb,
    decode_answer,
    encode,
    error_of,
    unpacked,
)
from anabranch.metadata.paths import check_path, check_prefix
from anabranch.metadata.port import VALUE_BYTES_MAX, SessionState, Versioned
from anabranch.metadata.unix_sockets import address_of
from anabranch.metadata.watches import MergingWatch, WatchTable

log = logging.getLogger(__name__)

CONNECT_WAIT_S: Final = 10.0
PING_EVERY_S: Final = 1.0
# A server that has not answered for so long is given up, and the session is in doubt.
SILENCE_MAX_S: Final = 4.0
RETRY_MIN_S: Final = 0.01
RETRY_MAX_S: Final = 0.25
CLOSE_WAIT_S: Final = 2.0
# Behaviour at the limits: refuse, retryable.
PENDING_OPS_MAX: Final = 100_000
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Lists of children and pages of scans come in one piece.
ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024


class RemoteMetadata:
    """The MetadataStore of the port. Made by `connect`, used from that event loop."""

    def __init__(self, socket_path: Path, ping_every_s: float, silence_max_s: float) -> None:
        self._socket_path = socket_path
        self._ping_every_s = ping_every_s
        self._silence_max_s = silence_max_s
        self._loop = asyncio.get_running_loop()
        self._session: LocalSession
        self._secret = 0
        self._watches = _RemoteWatches(self)
        self._link: _ServerLink | None = None  # Set while connected.
        self._is_closed = False
        self._living: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        socket_path: Path | str,
        *,
        wait_s: float = CONNECT_WAIT_S,
        ping_every_s: float = PING_EVERY_S,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> Self:
        """A handle with a new session. Waits for the server that long, then StoreUnavailable."""
        store = cls(Path(socket_path), ping_every_s, silence_max_s)
        try:
            async with asyncio.timeout(wait_s):
                link, (session_id, store._secret, _) = await store._reached(None)
        except TimeoutError:
            raise StoreUnavailable(f"no metadata process answers at {socket_path}") from None
        store._session = LocalSession(session_id)
        store._link = link
        if link.lost.done():
            store.link_lost(link)
        store._living = store._loop.create_task(store._live(link), name="metadata session")
        return store

    @property
    def session(self) -> LocalSession:
        return self._session

    # -- the verbs

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        # Every read asks the server, which has everything: every read is fresh.
        return unpacked(await self._linked().ask_shared(Verb.GET, check_path(path)))

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        return Versioned(*await self._ask(Verb.CREATE, check_path(path), _checked(path, value), ephemeral))

    async def put(self, path: str, value: bytes, *, if_version: int | None = None) -> Versioned:
        return Versioned(*await self._ask(Verb.PUT, check_path(path), _checked(path, value), if_version))

    async def delete(self, path: str, *, if_version: int | None = None) -> bool:
        return bool(await self._ask(Verb.DELETE, check_path(path), if_version))

    async def children(self, path: str) -> list[str]:
        return list(await self._linked().ask_shared(Verb.CHILDREN, check_prefix(path)))

    async def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        found = await self._ask(Verb.SCAN, check_prefix(prefix))
        return [(path, Versioned(*node)) for path, node in found or ()]

    async def next_id(self, path: str) -> int:
        return (await self.next_ids(path, 1)).start

    async def next_ids(self, path: str, count: int) -> range:
        first = await self._ask(Verb.NEXT_IDS, check_path(path), count)
        return range(first, first + count)

    async def now_ms(self) -> int:
        return cast(int, await self._ask(Verb.NOW))

    def watch(self, prefix: str) -> MergingWatch:
        if self._is_closed:
            raise StoreClosed
        return self._watches.open(check_prefix(prefix))

    async def end_session(self, session_id: str) -> None:
        """Ends the session of another process, which is known to have ended. Returns once its ephemerals are gone."""
        await self._ask(Verb.END, session_id)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.close()
        link, self._link = self._link, None
        if link is not None:
            link.ask(Verb.END, self._session.id).add_done_callback(_heard)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await asyncio.shield(link.lost)
            link.hang_up("the store was closed")
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
        self._session.move(SessionState.LOST)

    async def _ask(self, verb: Verb, *arguments: Any) -> Any:
        return await self._linked().ask(verb, *arguments)

    def _linked(self) -> _ServerLink:
        if self._is_closed:
            raise StoreClosed
        if self._link is None:
            raise StoreUnavailable(f"the metadata session is {self._session.state.value}")
        return self._link

    # -- the connection

    async def _live(self, link: _ServerLink) -> None:
        """Pings the server while it answers, and connects again when it does not."""
        while True:
            while not link.lost.done():
                link.ask(Verb.PING).add_done_callback(_heard)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._ping_every_s):
                        await asyncio.shield(link.lost)
                if not link.lost.done() and self._loop.time() - link.heard_at > self._silence_max_s:
                    link.hang_up("the metadata process does not answer")
                    await asyncio.shield(link.lost)
            link = await self._again(link)

    def link_lost(self, link: _ServerLink) -> None:
        """Called at once: nothing is asked any more, and the session's users are told."""
        if self._link is link:
            self._link = None
            self._session.move(SessionState.LOST if link.has_ended else SessionState.IN_DOUBT)
            log.warning("the metadata session %s is %s", self._session.id, self._session.state.value)

    async def _again(self, former: _ServerLink) -> _ServerLink:
        session_id = None if former.has_ended else self._session.id
        link, (found_id, self._secret, is_resumed) = await self._reached(session_id)
        if not is_resumed:
            self._session.move(SessionState.LOST)
        for prefix in self._watches.prefixes():
            link.ask(Verb.WATCH, prefix).add_done_callback(_heard)
        if link.lost.done():
            return link
        self._link = link
        self._session.move(SessionState.CONNECTED, found_id)
        self._watches.read_everything()
        log.info(
            "the metadata session %s %s",
            found_id,
            "goes on" if is_resumed else "replaces the one that was lost",
        )
        return link

    async def _reached(self, session_id: str | None) -> tuple[_ServerLink, tuple[str, int, bool]]:
        """A connection with a session: that one if it lives, else a new one. Tries until it succeeds."""
        pause_s = RETRY_MIN_S
        while True:
            try:
                link = await self._opened()
            except OSError:
                pass
            else:
                try:
                    async with asyncio.timeout(self._silence_max_s):
                        return link, await link.ask(Verb.HELLO, PROTOCOL, session_id, self._secret)
                except (TimeoutError, MetadataError):
                    link.hang_up("the metadata process does not answer")
                except BaseException:
                    link.hang_up("the store was closed")
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _opened(self) -> _ServerLink:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            with address_of(self._socket_path) as address:
                # Unix sockets connect at once or not at all: a full backlog is EAGAIN.
                connection.connect(address)
            _, link = await self._loop.create_unix_connection(lambda: _ServerLink(self), sock=connection)
        except BaseException:
            connection.close()
            raise
        return link

    # -- what links and watches call

    def changed(self, paths: Sequence[str]) -> None:
        self._watches.changed(paths)

    def read_everything(self) -> None:
        self._watches.read_everything()

    def watch_opened(self, prefix: str) -> None:
        if self._link is not None:
            self._link.ask(Verb.WATCH, prefix).add_done_callback(_heard)

    def watch_closed(self, prefix: str) -> None:
        if self._link is not None:
            self._link.ask(Verb.UNWATCH, prefix).add_done_callback(_heard)


class _RemoteWatches(WatchTable):
    """Tells the server which prefixes are watched: each once, however many watches it has."""

    def __init__(self, store: RemoteMetadata) -> None:
        super().__init__()
        self._store = store

    def prefixes(self) -> list[str]:
        return list(self._by_prefix)

    def open(self, prefix: str) -> MergingWatch:
        if prefix not in self._by_prefix:
            # Whatever is asked after this sees the tree after the watch is armed.
            self._store.watch_opened(prefix)
        return super().open(prefix)

    def forget(self, watch: MergingWatch) -> None:
        was_watched = watch.prefix in self._by_prefix
        super().forget(watch)
        if was_watched and watch.prefix not in self._by_prefix:
            self._store.watch_closed(watch.prefix)


class _ServerLink(asyncio.Protocol):
    """One connection. Requests of one turn of the loop leave together."""

    def __init__(self, store: RemoteMetadata) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._cutter = MessageCutter(ANSWER_BYTES_MAX)
        self._last = 0
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._parts: dict[int, list[Any]] = {}
        # Reads that are not sent yet, as long as nothing else was asked behind them; and the waiters for the same: a
        # client may ask for one large node a thousand times at once.
        self._asked_reads: dict[tuple[Verb, str], int] = {}
        self._shared: dict[int, list[asyncio.Future[Any]]] = {}
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._why = "the connection to the metadata process broke"
        self.has_ended = False  # The session.
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()

    def ask(self, verb: Verb, *arguments: Any) -> asyncio.Future[Any]:
        """The answer. Requests take effect in the order of these calls."""
        self._asked_reads.clear()
        return self._begun(verb, arguments)

    def _begun(self, verb: Verb, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            answer.set_exception(StoreUnavailable(self._why))
            return answer
        if len(self._pending) >= PENDING_OPS_MAX or self._unsent_bytes > UNSENT_BYTES_MAX:
            answer.set_exception(
                StoreUnavailable(f"{len(self._pending)} metadata operations are waiting already")
            )
            return answer
        self._last += 1
        self._pending[self._last] = answer
        if not self._unsent:
            self._loop.call_soon(self._flush)
        frame = encode(self._last, verb, arguments)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        return answer

    def ask_shared(self, verb: Verb, path: str) -> asyncio.Future[Any]:
        """As `ask` for a node or its children. Those who ask in the same turn of the loop have one request and one
        answer: it is not older than what each would have heard alone."""
        number = self._asked_reads.get((verb, path))
        if number is not None and number in self._pending:
            shared: asyncio.Future[Any] = self._loop.create_future()
            self._shared.setdefault(number, []).append(shared)
            return shared
        answer = self._begun(verb, (path,))
        if not answer.done():
            self._asked_reads[verb, path] = self._last
        return answer

    def _flush(self) -> None:
        self._asked_reads.clear()
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
            self._unsent_bytes = self._transport.get_write_buffer_size()
        self._unsent.clear()

    def hang_up(self, why: str) -> None:
        self._why = why
        self._transport.abort()
        self._lose()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def _lose(self) -> None:
        if self.lost.done():
            return
        self.lost.set_result(None)
        self._store.link_lost(self)
        pending, self._pending = self._pending, {}
        shared, self._shared = self._shared, {}
        for answer in chain(pending.values(), *shared.values()):
            if not answer.done():
                answer.set_exception(StoreUnavailable(f"{self._why} before the answer came"))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for message in self._cutter.feed(data):
                self._answered(*decode_answer(message))
        except NotAMessage as error:
            self.hang_up(f"the metadata process sent what is no message: {error}")

    def _answered(self, number: int, kind: AnswerKind, body: Any) -> None:
        if number == 0:
            self._told(kind, body)
            return
        if kind is AnswerKind.PART:
            self._parts.setdefault(number, []).extend(body)
            return
        answer = self._pending.pop(number, None)
        parts = self._parts.pop(number, None)
        if answer is None:
            return
        _settle(answer, kind, body if parts is None else parts)
        for shared in self._shared.pop(number, ()):
            _settle(shared, kind, body)

    def _told(self, kind: AnswerKind, body: Any) -> None:
        if kind is AnswerKind.CHANGED:
            self._store.changed(body)
        elif kind is AnswerKind.EVERYTHING:
            self._store.read_everything()
        elif kind is AnswerKind.ENDED:
            self.has_ended = True
            self.hang_up("the metadata session has ended")


def _checked(path: str, value: bytes) -> bytes:
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(f"value of {len(value)} bytes for {path}, limit {VALUE_BYTES_MAX}")
    return bytes(value)  # Free for bytes; a buffer that its owner may change later is copied.


def _settle(answer: asyncio.Future[Any], kind: AnswerKind, body: Any) -> None:
    if answer.done():
        return  # The caller was cancelled; its operation was carried out all the same.
    if kind is AnswerKind.REFUSED:
        answer.set_exception(error_of(body))
    else:
        answer.set_result(body)


def _heard(answer: asyncio.Future[Any]) -> None:
    """The link's loss is told otherwise."""
    if not answer.cancelled():
        answer.exception()
