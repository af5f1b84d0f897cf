"""The metadata process: a store in one SQLite file, served to the brokers of this machine over a Unix socket.

A connection is a session. One that breaks has some time of grace to come back under the session's id, also to a later
process: sessions are stored, with a secret that only their clients know. A session whose process has ended, or that was
silent for too long, ends at once. Requests of a connection take effect in their order. Whatever a client does costs
only that client: bytes that are no message end its connection, one that does not read is not read from, and its changes
are merged meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

from anabranch.metadata.errors import MetadataError, StoreUnavailable
from anabranch.metadata.kept import UNKNOWN
from anabranch.metadata.messages import (
    PROTOCOL,
    AnswerKind,
    MessageCutter,
    NotAMessage,
    Verb,
    decode_request,
    encode,
    packed,
    refusal,
)
from anabranch.metadata.paths import check_path, check_prefix, upwards
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.metadata.sqlite_tree import SqliteTree
from anabranch.metadata.tree import Tree
from anabranch.metadata.unix_sockets import listening, open_process, peer_of
from anabranch.metadata.watches import PENDING_PATHS_MAX

log = logging.getLogger(__name__)

GRACE_S: Final = 2.0
# Clients send something every second. A client that was stopped for so long has lost its session.
SILENCE_MAX_S: Final = 6.0
LOOK_EVERY_S: Final = 0.5
# A look that is later than this means that the server itself did not run: no client is to blame.
LOOK_LATE_S: Final = 1.0
CONNECTIONS_MAX: Final = 1_024
# At this many unanswered requests of one connection, no more of it are begun: each answer may have a megabyte.
REQUESTS_MAX: Final = 256
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
# Brokers watch some ten prefixes each.
WATCHES_MAX: Final = 10_000
# A scan is read and sent in pages: no client waits for another's scan of everything.
PAGE_NODES: Final = 500
PAGE_BYTES: Final = 1024 * 1024
COUNT_MAX: Final = 1_000_000
SWITCH_INTERVAL_S: Final = 0.0001


class SharedTree(SqliteMetadata):
    """The store of the process. `tell` is called with the paths of each change, before any client is answered."""

    tell: Callable[[Iterable[str]], None]

    def publish(self, paths: Iterable[str]) -> None:
        super().publish(paths)
        self.tell(paths)


class ServedSession:
    """A session: with its connection, or within its time of grace."""

    def __init__(self, session_id: str, secret: int) -> None:
        self.id = session_id
        self.secret = secret
        self.link: ClientLink | None = None
        self.ends: asyncio.TimerHandle | None = None
        self.process: int | None = None  # A descriptor of the client's process.


class MetadataServer:
    """Serves until `stop`. Sessions live on when it stops."""

    def __init__(self, tree: SharedTree, grace_s: float, silence_max_s: float) -> None:
        self.tree = tree
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._silence_max_s = silence_max_s
        self._sessions: dict[str, ServedSession] = {}
        self._links: set[ClientLink] = set()
        self._server: asyncio.Server
        self._looked_at = self._loop.time()
        self._looking: asyncio.TimerHandle | None = None
        # Ends of sessions under way.
        self._ending: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        database: Path,
        socket_path: Path,
        *,
        grace_s: float = GRACE_S,
        silence_max_s: float = SILENCE_MAX_S,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> MetadataServer:
        """StoreInUse when another process serves that file."""
        tree = await SharedTree.open(database, clock_ms=clock_ms, keeps_sessions=True)
        try:
            server = cls(tree, grace_s, silence_max_s)
            tree.tell = server._changed
            await server._listen(socket_path)
        except BaseException:
            await tree.close()
            raise
        return server

    async def _listen(self, socket_path: Path) -> None:
        kept = await self.tree.run(lambda tree: cast(SqliteTree, tree).kept_sessions())
        for session_id, secret in kept.items():
            session = self._sessions[session_id] = ServedSession(session_id, secret)
            self._begin_grace(session)
        try:
            listener = listening(socket_path)
        except OSError as error:
            raise StoreUnavailable(f"no socket can be made at {socket_path}: {error.strerror}") from error
        self._server = await self._loop.create_unix_server(lambda: ClientLink(self), sock=listener)
        self._looking = self._loop.call_later(LOOK_EVERY_S, self._look)

    async def stop(self) -> None:
        """Answers what was asked, and gives the file back."""
        self._server.close()
        if self._looking is not None:
            self._looking.cancel()
        for link in list(self._links):
            link.stop_reading()
        for session in self._sessions.values():
            _stop_timer(session)
            self._forget_process(session)
        if self._ending:
            await asyncio.wait(self._ending)
        await self.tree.close()
        for _ in range(3):
            await asyncio.sleep(0)  # The last answers are being written.
        for link in list(self._links):
            link.close()

    # -- connections

    def connected(self, link: ClientLink) -> bool:
        """False if there are too many."""
        if len(self._links) >= CONNECTIONS_MAX:
            return False
        self._links.add(link)
        return True

    def disconnected(self, link: ClientLink) -> None:
        self._links.discard(link)
        session = link.session
        if session is not None and session.link is link:
            session.link = None
            if session.id in self._sessions:
                self._begin_grace(session)

    def _changed(self, paths: Iterable[str]) -> None:
        for link in self._links:
            link.changed(paths)

    # -- sessions

    async def begin(self) -> ServedSession:
        secret = secrets.randbits(62)
        session_id = await self.tree.run(lambda tree: cast(SqliteTree, tree).begin_kept_session(secret))
        session = self._sessions[session_id] = ServedSession(session_id, secret)
        return session

    async def resumed(self, session_id: str, secret: int) -> ServedSession | None:
        """The session, if it lives and the secret is right. Its former connection, if any, is cut first: nothing that
        it has asked takes effect after this."""
        session = self._sessions.get(session_id)
        if session is None or session.secret != secret:
            return None
        _stop_timer(session)
        if session.link is not None:
            session.link.hang_up()
            session.link = None
        # Behind everything that was asked before.
        is_live = await self.tree.run(lambda tree: session_id in tree.live)
        return session if is_live and session_id in self._sessions else None

    def attach(self, session: ServedSession, link: ClientLink, process: int | None) -> None:
        """The session has this connection from now on, and ends with this process."""
        if session.link is not None:
            session.link.hang_up()
        _stop_timer(session)
        session.link = link
        self._forget_process(session)
        session.process = process
        if process is not None:
            self._loop.add_reader(process, self.end, session.id, "its process has ended")

    def _forget_process(self, session: ServedSession) -> None:
        if session.process is not None:
            self._loop.remove_reader(session.process)
            os.close(session.process)
            session.process = None

    def _begin_grace(self, session: ServedSession) -> None:
        _stop_timer(session)
        session.ends = self._loop.call_later(
            self._grace_s, self.end, session.id, "its client did not come back"
        )

    def end(self, session_id: str, why: str) -> None:
        """Ends the session, and its connection with it."""
        task = self._loop.create_task(self.ended(session_id, why))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def ended(self, session_id: str, why: str) -> None:
        """As `end`, and returns once its ephemerals are gone."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        log.info("metadata session %s has ended: %s", session_id, why)
        _stop_timer(session)
        self._forget_process(session)
        link, session.link = session.link, None
        await self.tree.end_session(session_id)
        if link is not None:
            link.session_ended()

    def _look(self) -> None:
        """Ends sessions that are silent."""
        now = self._loop.time()
        late_s = now - self._looked_at - LOOK_EVERY_S
        self._looked_at = now
        for link in list(self._links):
            if late_s > LOOK_LATE_S or link.is_held or link.has_read_more():
                link.heard_at = now
            elif now - link.heard_at > self._silence_max_s:
                if link.session is not None:
                    self.end(link.session.id, f"its client was silent for {self._silence_max_s} s")
                else:
                    link.hang_up()
        self._looking = self._loop.call_later(LOOK_EVERY_S, self._look)


class ClientLink(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._tree = server.tree
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._cutter = MessageCutter()
        # Of the last read: requests that wait until the client has read its answers, or earlier ones are answered.
        self._waiting: deque[bytes] = deque()
        self._pid = 0
        self.session: ServedSession | None = None
        self.heard_at = self._loop.time()
        self._is_over = False
        self._greeting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Sending: answers of one turn of the loop leave together.
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._written_bytes = 0
        self._read_bytes = 0  # By the client, at the last look.
        self._requests = 0
        self._is_full = False  # The client reads too slowly.
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_reading = True
        # Prefixes that are watched, and what is to be told of them once the client reads again.
        self._watched: Counter[str] = Counter()
        self._merged: set[str] = set()
        self._has_everything = False
        self._verbs: dict[Verb, Callable[..., None]] = {
            Verb.PING: self._ping,
            Verb.GET: self._get,
            Verb.CREATE: self._create,
            Verb.PUT: self._put,
            Verb.DELETE: self._delete,
            Verb.CHILDREN: self._children,
            Verb.SCAN: self._scan,
            Verb.NEXT_IDS: self._next_ids,
            Verb.NOW: self._now,
            Verb.WATCH: self._watch,
            Verb.UNWATCH: self._unwatch,
            Verb.END: self._end,
        }

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._pid, uid = peer_of(cast(socket.socket, transport.get_extra_info("socket")))
        if uid != os.getuid():
            log.warning("a process of user %s was refused the metadata", uid)
            self.hang_up()
        elif not self._server.connected(self):
            log.warning("a connection was refused: %s are open already", CONNECTIONS_MAX)
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._has_room.set()
        self._unsent.clear()
        self._waiting.clear()
        self._server.disconnected(self)

    def hang_up(self) -> None:
        self._is_over = True
        self._transport.abort()

    def stop_reading(self) -> None:
        self._is_over = True
        self._transport.pause_reading()

    def close(self) -> None:
        self._flush()
        self._is_over = True
        self._transport.close()

    def session_ended(self) -> None:
        """Tells the client that its session has ended, and closes."""
        self._send(0, AnswerKind.ENDED, None)
        self.close()

    @property
    def is_held(self) -> bool:
        """Whether it is the server that does not read, not the client that does not send."""
        return not self._is_reading and not self._is_full

    def has_read_more(self) -> bool:
        """Whether a client that is not read from, because it has much to read itself, has read some of it since the
        last look. It is not silent, whatever it has said."""
        read = self._written_bytes - self._transport.get_write_buffer_size()
        before, self._read_bytes = self._read_bytes, read
        return self._is_full and read > before

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        if self._is_over:
            return
        try:
            self._waiting += self._cutter.feed(data)
        except NotAMessage as error:
            self._refuse(error)
        else:
            self._work()

    def _refuse(self, error: NotAMessage) -> None:
        log.warning("a metadata connection is closed: %s", error)
        self.hang_up()

    @property
    def _is_welcome(self) -> bool:
        """Whether the next request may be begun."""
        return not self._is_full and self._requests < REQUESTS_MAX and self._greeting is None

    def _work(self) -> None:
        """Begins requests in their order, while they are welcome. One read may bring thousands, and each of their
        answers may have a megabyte."""
        try:
            while self._waiting and self._is_welcome and not self._is_over:
                self._asked(*decode_request(self._waiting.popleft()))
        except NotAMessage as error:
            self._refuse(error)
        self._read_or_wait()

    def pause_writing(self) -> None:
        self._is_full = True
        self._has_room.clear()
        self._read_or_wait()

    def resume_writing(self) -> None:
        self._is_full = False
        self._has_room.set()
        self._tell_merged()
        self._work()

    def _read_or_wait(self) -> None:
        is_welcome = self._is_welcome and not self._waiting
        if is_welcome != self._is_reading and not self._is_over:
            self._is_reading = is_welcome
            if is_welcome:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _send(self, number: int, kind: AnswerKind, body: Any) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        frame = encode(number, kind, body)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._flush()  # At once: the transport tells whether the client reads.

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._written_bytes += self._unsent_bytes
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0

    # -- watches

    def changed(self, paths: Iterable[str]) -> None:
        watched = self._watched
        if not watched:
            return
        self._merged.update(path for path in paths if any(prefix in watched for prefix in upwards(path)))
        if not self._is_full:
            self._tell_merged()
        elif len(self._merged) > PENDING_PATHS_MAX:
            self._merged.clear()
            self._has_everything = True

    def _tell_merged(self) -> None:
        if len(self._merged) > PENDING_PATHS_MAX:
            self._has_everything = True
        if self._has_everything:
            self._send(0, AnswerKind.EVERYTHING, None)
        elif self._merged:
            self._send(0, AnswerKind.CHANGED, sorted(self._merged))
        self._has_everything = False
        self._merged.clear()

    # -- requests

    def _asked(self, number: int, verb: Verb, arguments: list[Any]) -> None:
        if verb is Verb.HELLO:
            self._hello(number, arguments)
            return
        if self.session is None:
            raise NotAMessage(f"{verb} was asked before a session was begun")
        try:
            self._verbs[verb](number, self.session.id, *arguments)
        except MetadataError as error:
            self._send(number, AnswerKind.REFUSED, refusal(error))

    def _hello(self, number: int, arguments: list[Any]) -> None:
        protocol, session_id, secret = arguments
        if self.session is not None or self._greeting is not None:
            raise NotAMessage("a second hello")
        if protocol != PROTOCOL:
            raise NotAMessage(f"protocol {protocol}; this metadata process speaks {PROTOCOL}")
        self._greeting = self._begun(self._greet(number, session_id, secret))
        self._read_or_wait()

    async def _greet(self, number: int, session_id: str | None, secret: int) -> None:
        try:
            session = None if session_id is None else await self._server.resumed(session_id, secret)
            is_resumed = session is not None
            session = session or await self._server.begin()
        except MetadataError as error:
            self._send(number, AnswerKind.REFUSED, refusal(error))
        else:
            self.session = session
            self._server.attach(session, self, open_process(self._pid))
            if self._is_over:
                self._server.disconnected(self)  # It went while it was greeted.
                return
            self._send(number, AnswerKind.DONE, (session.id, session.secret, is_resumed))
        finally:
            self._greeting = None
            self._work()

    def _begun(self, work: Any) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _submit(
        self,
        number: int,
        session: str,
        op: Callable[[Tree], Any],
        shape: Callable[[Any], Any] | None = None,
        **about: Any,
    ) -> None:
        """The operation has its place in the order of all when this returns. It is answered with its result in that
        shape."""
        done = self._tree.submit(_checked(session, op), **about)
        self._requests += 1
        done.add_done_callback(lambda done: self._answer(number, done, shape))

    def _answer(self, number: int, done: asyncio.Future[Any], shape: Callable[[Any], Any] | None) -> None:
        error = done.exception()
        if not self._transport.is_closing():
            if error is not None:
                self._send(number, AnswerKind.REFUSED, refusal(cast(Exception, error)))
            else:
                self._send(number, AnswerKind.DONE, done.result() if shape is None else shape(done.result()))
        self._answered()

    def _answered(self) -> None:
        """One request fewer is under way."""
        self._requests -= 1
        if not self._is_reading:
            self._work()

    def _ping(self, number: int, session: str) -> None:
        self._send(number, AnswerKind.DONE, None)

    def _get(self, number: int, session: str, path: str) -> None:
        known = self._tree.kept_node(session, path)
        if known is not UNKNOWN:
            self._send(number, AnswerKind.DONE, packed(known))
            return
        check_path(path)
        self._submit(number, session, lambda tree: tree.get(path), packed, node=path)

    def _create(self, number: int, session: str, path: str, value: bytes, ephemeral: bool) -> None:
        owner = session if ephemeral else None
        check_path(path)
        self._submit(number, session, lambda tree: tree.create(path, value, owner), packed, writes=path)

    def _put(self, number: int, session: str, path: str, value: bytes, if_version: int | None) -> None:
        check_path(path)
        self._submit(number, session, lambda tree: tree.put(path, value, if_version), packed, writes=path)

    def _delete(self, number: int, session: str, path: str, if_version: int | None) -> None:
        check_path(path)
        self._submit(number, session, lambda tree: tree.delete(path, if_version), writes=path)

    def _children(self, number: int, session: str, path: str) -> None:
        known = self._tree.kept_children(session, path)
        if known is not UNKNOWN:
            self._send(number, AnswerKind.DONE, known)
            return
        check_prefix(path)
        self._submit(number, session, lambda tree: tree.children(path), folder=path)

    def _next_ids(self, number: int, session: str, path: str, count: int) -> None:
        if not 0 < count <= COUNT_MAX:
            raise NotAMessage(f"{count} ids at once")
        check_path(path)
        self._submit(number, session, lambda tree: tree.next_ids(path, count).start, writes=path)

    def _now(self, number: int, session: str) -> None:
        known = self._tree.kept_time(session)
        if known is not UNKNOWN:
            self._send(number, AnswerKind.DONE, known)
        else:
            self._submit(number, session, lambda tree: tree.now_ms())

    def _watch(self, number: int, session: str, prefix: str) -> None:
        if len(self._watched) >= WATCHES_MAX:
            raise NotAMessage(f"more than {WATCHES_MAX} watches")
        self._watched[check_prefix(prefix)] += 1
        self._send(number, AnswerKind.DONE, None)

    def _unwatch(self, number: int, session: str, prefix: str) -> None:
        if self._watched[prefix] > 1:
            self._watched[prefix] -= 1
        else:
            del self._watched[prefix]
        self._send(number, AnswerKind.DONE, None)

    def _end(self, number: int, session: str, ended: str) -> None:
        self._requests += 1
        self._begun(self._end_session(number, ended))

    async def _end_session(self, number: int, ended: str) -> None:
        # Its own end is not answered: the connection closes.
        why = "its client has closed it" if self.session and ended == self.session.id else "as was asked"
        await self._server.ended(ended, why)
        if not self._is_over:
            self._send(number, AnswerKind.DONE, None)
        self._answered()

    def _scan(self, number: int, session: str, prefix: str) -> None:
        check_prefix(prefix)
        self._requests += 1
        self._begun(self._scan_pages(number, session, prefix))

    async def _scan_pages(self, number: int, session: str, prefix: str) -> None:
        try:
            await self._send_pages(number, session, prefix)
        finally:
            self._answered()

    async def _send_pages(self, number: int, session: str, prefix: str) -> None:
        after, is_last = "", False
        try:
            while not is_last:
                page, is_last = await self._tree.run(_checked(session, _page(prefix, after)))
                if self._is_over:
                    return
                if page:
                    after = page[-1][0]
                    self._send(number, AnswerKind.PART, [(path, packed(node)) for path, node in page])
                    self._flush()
                await self._has_room.wait()
        except MetadataError as error:
            self._send(number, AnswerKind.REFUSED, refusal(error))
            return
        self._send(number, AnswerKind.DONE, None)


def _page(prefix: str, after: str) -> Callable[[Tree], Any]:
    return lambda tree: cast(SqliteTree, tree).page(prefix, after, PAGE_NODES, PAGE_BYTES)


def _checked(session: str, op: Callable[[Tree], Any]) -> Callable[[Tree], Any]:
    def checked(tree: Tree) -> Any:
        tree.check_session(session)
        return op(tree)

    return checked


def _stop_timer(session: ServedSession) -> None:
    if session.ends is not None:
        session.ends.cancel()
        session.ends = None


# -- the process


def run_metadata(database: Path | str, socket_path: Path | str, *, grace_s: float = GRACE_S) -> int:
    """Serves the store in that file until SIGTERM; returns the process's exit code.

    SIGINT is ignored: Ctrl-C reaches every process of a terminal at once, and brokers need their metadata to stop.
    """
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(Path(database), Path(socket_path), grace_s))
    except MetadataError as error:
        log.error("%s", error)
        return 1
    return 0


async def _serve(database: Path, socket_path: Path, grace_s: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await MetadataServer.start(database, socket_path, grace_s=grace_s)
    log.info("metadata in %s is served at %s", database, socket_path)
    try:
        await stop.wait()
    finally:
        await server.stop()
