"""The MetadataStore of the port on ZooKeeper.

One operation of the port is one request of ZooKeeper where that is possible. Where it takes several (parents that are
missing, a value to overwrite or make, a counter), each further one is asked because of the answer to the one before,
never because an answer is missing: then the operation fails as retryable, and its outcome is unknown to the caller, who
reads before repeating. Once the session is connected again, such a write has taken effect or never will: ZooKeeper
refuses what an earlier connection of a session still has on its way, and answers this one in order.

A server that follows another may be behind, so plain reads may be; a write, refused or not, and a sync bring it up to
date, because ZooKeeper answers a session in the order of its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

from anabranch.metadata.embedded import LocalSession
from anabranch.metadata.errors import (
    AlreadyExists,
    NotACounter,
    StoreAbsent,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)
from anabranch.metadata.paths import ROOT, below, check_path, check_prefix, parent
from anabranch.metadata.port import SessionState, Versioned
from anabranch.metadata.tree import COUNTER_MAX, check_size, counter_of
from anabranch.metadata.watches import MergingWatch, WatchTable
from anabranch.metadata.zookeeper.address import ZooKeeperAddress, above_chroot
from anabranch.metadata.zookeeper.link import ZooKeeperAccess, ZooKeeperLink
from anabranch.metadata.zookeeper.names import Rooted, decoded
from anabranch.metadata.zookeeper.refusals import meaning
from anabranch.metadata.zookeeper.requests import (
    ANY_VERSION,
    BAD_VERSION,
    CREATOR_ONLY,
    EPHEMERAL,
    NO_NODE,
    NODE_EXISTS,
    OPEN_TO_ALL,
    AddWatch,
    CreateNode,
    DeleteNode,
    FindNode,
    GetNode,
    ListChildren,
    NodeEvent,
    NodeStat,
    ReadMany,
    RefusedRequest,
    RemoveWatch,
    SetNode,
    StoredNode,
    SyncWithLeader,
    ZooKeeperRequest,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_WAIT_S: Final = 30.0
# The store's time is when this node was last written. Its value is the latest time that was ever returned.
CLOCK: Final = "/anabranch/clock"
# How many nodes a scan reads in one packet, and how many such packets are under way: other operations wait in between.
SCAN_PACKET: Final = 100
SCAN_PACKETS_MAX: Final = 4
# How long to wait before a watch is asked for again that a server refused.
WATCH_RETRY_S: Final = 1.0
# ZooKeeper's own nodes, which are seen where there is no chroot.
_OF_ZOOKEEPER: Final = "zookeeper"


class ZooKeeperMetadata:
    """The MetadataStore of the port. Made by `connect`, used from that event loop."""

    def __init__(self, address: ZooKeeperAddress, access: ZooKeeperAccess) -> None:
        self._address = address
        self._names = Rooted(address.chroot)
        self._acl = CREATOR_ONLY if access.credentials else OPEN_TO_ALL
        self._loop = asyncio.get_running_loop()
        self._began: asyncio.Future[None] = self._loop.create_future()  # The first session.
        self._session = LocalSession("")
        self._session.move(SessionState.LOST)
        self._watches = _PrefixWatches(self)
        self._link = ZooKeeperLink(address, access, self)
        self._is_closed = False
        # The last write under way of each node: the next one begins after it.
        self._writing: dict[str, asyncio.Task[Any]] = {}
        # The last request for each watch that is not armed yet, or was refused.
        self._arming: dict[str, asyncio.Future[None]] = {}
        self._refused: set[str] = set()
        self._resuming: asyncio.Task[None] | None = None
        # Folders that are being made.
        self._making: dict[str, asyncio.Task[None]] = {}
        # What brings the server up to date for all that is read afresh in this turn of the loop.
        self._sync: asyncio.Future[None] | None = None
        # Who waits for the time: those before the present write of the clock, and those who came since.
        self._clock: asyncio.Task[int] | None = None
        self._next_clock: asyncio.Task[int] | None = None

    @classmethod
    async def connect(
        cls,
        address: ZooKeeperAddress,
        access: ZooKeeperAccess | None = None,
        *,
        wait_s: float = CONNECT_WAIT_S,
        makes_chroot: bool = False,
    ) -> Self:
        """A handle with a new session. Waits for a server that long, then StoreUnavailable. StoreAbsent if the chroot
        is not there, unless it may be made."""
        store = cls(address, access or ZooKeeperAccess())
        store._link.start()
        try:
            try:
                async with asyncio.timeout(wait_s):
                    await asyncio.shield(store._began)
            except TimeoutError:
                raise StoreUnavailable(f"no ZooKeeper server answers at {address.hosts}") from None
            await store._find_chroot(makes_chroot)
            # Servers before 3.6 have no such watches, and every broker needs them: better to hear of it now.
            await store._asked(AddWatch(store._names.real(CLOCK)), CLOCK)
            await store._asked(RemoveWatch(store._names.real(CLOCK)), CLOCK)
        except BaseException:
            store._is_closed = True
            await store._link.stop()
            raise
        return store

    async def _find_chroot(self, may_be_made: bool) -> None:
        for real in above_chroot(self._address.chroot):
            try:
                if may_be_made:
                    await self._link.ask(CreateNode(real, b"", self._acl))
                else:
                    await self._link.ask(FindNode(real))
            except RefusedRequest as refusal:
                if refusal.code == NO_NODE:
                    raise StoreAbsent(
                        f"{self._address.hosts} has no {self._address.chroot}: check the name, or make it with "
                        "`anabranch cluster init`"
                    ) from None
                if refusal.code != NODE_EXISTS:
                    raise meaning(refusal.code, real) from None

    @property
    def session(self) -> LocalSession:
        return self._session

    # -- the verbs

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        real = self._names.real(check_path(path))
        await self._written(path)
        sync = self._synced() if fresh else None
        answer = self._link.ask(GetNode(real))
        if sync is not None:
            # Neither is asked again if this one fails; the other one's outcome is of no use then.
            answer.add_done_callback(_heard)
            await self._answer(asyncio.shield(sync), path)
        return await self._found(answer, path)

    async def exists(self, path: str) -> bool:
        real = self._names.real(check_path(path))
        await self._written(path)
        try:
            await self._asked(FindNode(real), path)
        except _NoNode:
            return False
        return True

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        check_size(check_path(path), value)
        kept = bytes(value)
        return await self._in_line(path, lambda: self._create(path, kept, is_ephemeral=ephemeral))

    async def put(self, path: str, value: bytes, *, if_version: int | None = None) -> Versioned:
        check_size(check_path(path), value)
        kept = bytes(value)
        return await self._in_line(path, lambda: self._put(path, kept, if_version))

    async def delete(self, path: str, *, if_version: int | None = None) -> bool:
        check_path(path)
        return await self._in_line(path, lambda: self._delete(path, if_version))

    async def children(self, path: str) -> list[str]:
        real = self._names.real(check_prefix(path))
        await self._written_below(path)
        try:
            found = await self._asked(ListChildren(real), path)
        except _NoNode:
            return []
        return sorted(self._child_names(path, found))

    async def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        check_prefix(prefix)
        await self._written_below(prefix)
        found: list[tuple[str, Versioned]] = []
        folders = [prefix]
        while folders:
            listed = await self._read_many(folders, ListChildren, prefix)
            paths = [
                below(folder) + name
                for folder, names in zip(folders, listed, strict=True)
                if names is not None
                for name in self._child_names(folder, names)
            ]
            nodes = await self._read_many(paths, GetNode, prefix)
            folders = []
            for path, node in zip(paths, nodes, strict=True):
                if node is None:
                    continue  # It went since its folder was listed.
                if node.value:
                    found.append((path, _versioned(node.value, node.stat)))
                if node.stat.children:
                    folders.append(path)
        found.sort(key=lambda record: record[0])
        return found

    async def next_id(self, path: str) -> int:
        return (await self.next_ids(path, 1)).start

    async def next_ids(self, path: str, count: int) -> range:
        assert count > 0, "a block holds at least one id"
        check_path(path)
        return await self._in_line(path, lambda: self._next_ids(path, count))

    async def now_ms(self) -> int:
        self._check_usable()
        if self._clock is None or self._clock.done():
            self._clock = self._loop.create_task(self._write_clock())
            self._clock.add_done_callback(_heard)
            return await asyncio.shield(self._clock)
        # The write under way may have been carried out before this call: the time would be too early.
        if self._next_clock is None:
            self._next_clock = self._loop.create_task(self._write_clock_after(self._clock))
            self._next_clock.add_done_callback(_heard)
        return await asyncio.shield(self._next_clock)

    def watch(self, prefix: str) -> MergingWatch:
        if self._is_closed:
            raise StoreClosed
        return self._watches.open(check_prefix(prefix))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.close()
        if self._resuming is not None:
            self._resuming.cancel()
        await self._link.stop()
        if self._writing:
            await asyncio.wait(list(self._writing.values()))
        self._session.move(SessionState.LOST)

    # -- writes

    async def _create(self, path: str, value: bytes, *, is_ephemeral: bool = False) -> Versioned:
        request = CreateNode(self._names.real(path), value, self._acl, EPHEMERAL if is_ephemeral else 0)
        while True:
            with contextlib.suppress(_NoNode):
                return _versioned(value, await self._asked(request, path))
            await self._folders_made(parent(path))

    async def _folders_made(self, path: str) -> None:
        """Thousands may need the same folder at once: one makes it, and all of them try again."""
        task = self._making.get(path)
        if task is None:
            task = self._making[path] = self._loop.create_task(self._make_folders(path))
            task.add_done_callback(lambda _: self._making.pop(path, None))
            task.add_done_callback(_heard)
        await asyncio.shield(task)

    async def _make_folders(self, path: str) -> None:
        """Makes the node and those above it, as far as they are missing."""
        missing = []
        while path != ROOT:
            missing.append(path)
            try:
                await self._asked(CreateNode(self._names.real(path), b"", self._acl), path)
            except _NoNode:
                path = parent(path)
            except AlreadyExists:
                missing.pop()
                break
            else:
                missing.pop()
                break
        else:
            if self._address.chroot:
                raise StoreAbsent(f"{self._address.chroot} was deleted at {self._address.hosts}")
        for folder in reversed(missing):
            # Gone again in between: the caller tries once more from the start.
            with contextlib.suppress(AlreadyExists, _NoNode):
                await self._asked(CreateNode(self._names.real(folder), b"", self._acl), folder)

    async def _put(self, path: str, value: bytes, if_version: int | None) -> Versioned:
        if if_version is not None and if_version < 0:
            # ZooKeeper takes -1 for any version.
            raise await self._conflict(path, if_version)
        wanted = ANY_VERSION if if_version is None else if_version
        while True:
            try:
                stat = await self._asked(SetNode(self._names.real(path), value, wanted), path)
                return _versioned(value, stat)
            except _NoNode:
                if if_version is not None:
                    raise VersionConflict(path, if_version, None) from None
            except _OtherVersion:
                assert if_version is not None
                found = await self._conflict(path, if_version)
                if found.current != if_version:
                    raise found from None
                continue  # Deleted and made again in between.
            with contextlib.suppress(AlreadyExists):
                return await self._create(path, value)

    async def _delete(self, path: str, if_version: int | None) -> bool:
        wanted = ANY_VERSION if if_version is None else if_version
        while True:
            try:
                if if_version is not None and if_version < 0:
                    raise _OtherVersion(BAD_VERSION)
                await self._asked(DeleteNode(self._names.real(path), wanted), path)
                return True
            except _NoNode:
                return False
            except _OtherVersion:
                assert if_version is not None
                found = await self._conflict(path, if_version)
                if found.current is None:
                    return False
                if found.current != if_version:
                    raise found from None

    async def _conflict(self, path: str, expected: int) -> VersionConflict:
        """What to refuse a change with. A plain read: the refused write has brought this server up to date."""
        found = await self._found(self._link.ask(GetNode(self._names.real(path))), path)
        return VersionConflict(path, expected, None if found is None else found.version)

    async def _next_ids(self, path: str, count: int) -> range:
        while True:
            found = await self._found(self._link.ask(GetNode(self._names.real(path))), path)
            first = 0 if found is None else counter_of(path, found.value)
            if first + count > COUNTER_MAX:
                raise NotACounter(path)
            value = b"%d" % (first + count)
            with contextlib.suppress(_NoNode, _OtherVersion, AlreadyExists):
                if found is None:
                    await self._create(path, value)
                else:
                    await self._asked(SetNode(self._names.real(path), value, found.version), path)
                return range(first, first + count)

    async def _write_clock(self) -> int:
        """ZooKeeper's time is that of its leader, and the next leader's may be earlier. So each write carries the
        latest time returned so far, which no later one goes behind."""
        while True:
            found = await self._found(self._link.ask(GetNode(self._names.real(CLOCK))), CLOCK)
            if found is None:
                with contextlib.suppress(AlreadyExists):
                    return (await self._create(CLOCK, b"0")).modified_ms
                continue
            floor_ms = max(counter_of(CLOCK, found.value), found.modified_ms)
            with contextlib.suppress(_NoNode, _OtherVersion):
                request = SetNode(self._names.real(CLOCK), b"%d" % floor_ms, found.version)
                return max(floor_ms, (await self._asked(request, CLOCK)).modified_ms)

    async def _write_clock_after(self, former: asyncio.Task[int]) -> int:
        await asyncio.wait([former])
        self._clock, self._next_clock = self._next_clock, None
        return await self._write_clock()

    async def _in_line(self, path: str, write: Callable[[], Awaitable[T]]) -> T:
        """Writes of one node take effect in the order in which they were asked for, though some take several requests;
        and a caller who gives up does not stop one half way."""
        self._check_usable()
        task = self._loop.create_task(_after(self._writing.get(path), write))
        self._writing[path] = task
        task.add_done_callback(partial(self._left_line, path))
        return await asyncio.shield(task)

    def _left_line(self, path: str, task: asyncio.Task[Any]) -> None:
        _heard(task)
        if self._writing.get(path) is task:
            del self._writing[path]

    async def _written(self, path: str) -> None:
        """A read after a write is the last word on it, also if its caller gave it up."""
        self._check_usable()
        if (task := self._writing.get(path)) is not None:
            await asyncio.wait([task])
            self._check_usable()

    async def _written_below(self, prefix: str) -> None:
        self._check_usable()
        start = below(prefix)
        if tasks := [task for path, task in self._writing.items() if path.startswith(start)]:
            await asyncio.wait(tasks)
            self._check_usable()

    # -- requests

    async def _asked(self, request: ZooKeeperRequest[T], path: str) -> T:
        self._check_usable()
        return await self._answer(self._link.ask(request), path)

    async def _answer(self, answer: Awaitable[T], path: str) -> T:
        try:
            return await answer
        except RefusedRequest as refusal:
            if refusal.code == NO_NODE:
                raise _NoNode(refusal.code) from None
            if refusal.code == BAD_VERSION:
                raise _OtherVersion(refusal.code) from None
            raise meaning(refusal.code, path) from None
        except StoreUnavailable:
            if self._is_closed:
                raise StoreClosed from None
            raise

    async def _found(self, answer: Awaitable[StoredNode], path: str) -> Versioned | None:
        try:
            found = await self._answer(answer, path)
        except _NoNode:
            return None
        return _versioned(found.value, found.stat)

    def _synced(self) -> asyncio.Future[None]:
        """Whatever is asked after this in the same turn of the loop sees all that was stored before it."""
        if self._sync is None:
            self._sync = self._link.ask(SyncWithLeader(self._names.real(ROOT)))
            self._sync.add_done_callback(_heard)
            self._loop.call_soon(self._next_turn)
        return self._sync

    def _next_turn(self) -> None:
        self._sync = None

    async def _read_many(self, paths: Sequence[str], kind: Callable[[str], Any], prefix: str) -> list[Any]:
        """In the order of the paths; None for each that is absent."""
        found: list[Any] = []
        packets = [
            ReadMany([kind(self._names.real(path)) for path in some]) for some in _cut(paths, SCAN_PACKET)
        ]
        for some in _cut(packets, SCAN_PACKETS_MAX):
            answers = [self._link.ask(packet) for packet in some]
            for answer in answers:
                answer.add_done_callback(_heard)
            for answer in answers:
                found += await self._answer(answer, prefix)
                self._check_usable()
        return found

    def _child_names(self, folder: str, names: Iterable[str]) -> list[str]:
        if folder == ROOT and not self._address.chroot:
            return [decoded(name) for name in names if name != _OF_ZOOKEEPER]
        return [decoded(name) for name in names]

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreClosed
        if self._session.state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"the metadata session is {self._session.state.value}")

    # -- what the link tells

    def session_began(self, session_id: int) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        # Ended by the next one, or by `close`.
        self._resuming = self._loop.create_task(self._resume(_session_name(session_id)))

    async def _resume(self, name: str) -> None:
        """Connected is told once all watches are armed: what is stored from then on, they tell."""
        # A server may be behind the one before, and a new session does not say how far the last one was.
        asked = [self._link.ask(SyncWithLeader(self._names.real(ROOT)))]
        armed: set[str] = set()
        # Watches that are opened meanwhile are armed, too.
        while (missing := set(self._watches.prefixes()) - armed) or asked:
            asked += [self._arm(prefix) for prefix in sorted(missing)]
            armed |= missing
            await asyncio.wait(asked)
            if any(isinstance(answer.exception(), StoreUnavailable) for answer in asked):
                return  # The next connection does all of this again.
            asked.clear()
        is_new = name != self._session.id
        if is_new:
            self._session.move(SessionState.LOST)
        self._session.move(SessionState.CONNECTED, name)
        self._watches.read_everything()
        if self._began.done():
            how = "replaces the one that was lost" if is_new else "goes on"
            log.info("the ZooKeeper session %s %s", name, how)
        else:
            self._began.set_result(None)

    def session_in_doubt(self) -> None:
        self._session_left(SessionState.IN_DOUBT)

    def session_ended(self) -> None:
        self._session_left(SessionState.LOST)

    def _session_left(self, state: SessionState) -> None:
        self._sync = None
        if not self._is_closed and self._session.state is not state:
            self._session.move(state)
            log.warning("the ZooKeeper session %s is %s", self._session.id, state.value)

    def node_changed(self, event: NodeEvent) -> None:
        path = self._names.ours(event.path)
        if path is not None:
            self._watches.changed([path])

    # -- watches

    def watch_opened(self, prefix: str) -> None:
        if self._session.state is SessionState.CONNECTED:  # Else it is armed with the next session.
            self._arm(prefix)

    def watch_closed(self, prefix: str) -> None:
        self._arming.pop(prefix, None)
        if self._session.state is SessionState.CONNECTED and not self._is_closed:
            self._link.ask(RemoveWatch(self._names.real(prefix))).add_done_callback(_heard)

    def is_armed(self, prefix: str) -> bool:
        is_connected = self._session.state is SessionState.CONNECTED
        return is_connected and prefix in self._watches.prefixes() and prefix not in self._arming

    def _arm(self, prefix: str) -> asyncio.Future[None]:
        """Whatever is asked after this sees the tree after the watch is armed."""
        answer = self._arming[prefix] = self._link.ask(AddWatch(self._names.real(prefix)))
        answer.add_done_callback(partial(self._armed, prefix))
        return answer

    def _armed(self, prefix: str, answer: asyncio.Future[None]) -> None:
        _heard(answer)
        if self._arming.get(prefix) is not answer:
            return  # Asked for again since, or closed.
        error = None if answer.cancelled() else answer.exception()
        if error is None:
            del self._arming[prefix]
            if prefix in self._refused:
                self._refused.remove(prefix)
                self._watches.read_everything()  # It has missed what changed since the session began.
            elif self._session.state is SessionState.CONNECTED:
                self._watches.armed(prefix)
            # Else all are told together, once reads are answered again.
        elif isinstance(error, RefusedRequest) and not self._is_closed:
            self._refused.add(prefix)
            log.error("watching %s failed, trying again: %s", prefix, meaning(error.code, prefix))
            self._loop.call_later(WATCH_RETRY_S, self._arm_again, prefix, answer)
        # Else the next connection arms all of them.

    def _arm_again(self, prefix: str, refused: asyncio.Future[None]) -> None:
        is_wanted = self._arming.get(prefix) is refused and not self._is_closed
        if is_wanted and self._session.state is SessionState.CONNECTED:
            self._arm(prefix)


class _PrefixWatches(WatchTable):
    """Has each prefix watched once, however many watches it has."""

    def __init__(self, store: ZooKeeperMetadata) -> None:
        super().__init__()
        self._store = store

    def prefixes(self) -> list[str]:
        return list(self._by_prefix)

    def open(self, prefix: str) -> MergingWatch:
        if prefix not in self._by_prefix:
            self._store.watch_opened(prefix)
        return self.add(prefix, is_armed=self._store.is_armed(prefix))

    def forget(self, watch: MergingWatch) -> None:
        was_watched = watch.prefix in self._by_prefix
        super().forget(watch)
        if was_watched and watch.prefix not in self._by_prefix:
            self._store.watch_closed(watch.prefix)


class _NoNode(RefusedRequest):
    """The node is absent, or the one above it."""


class _OtherVersion(RefusedRequest):
    """The node is not at the version that was named."""


async def _after(former: asyncio.Task[Any] | None, write: Callable[[], Awaitable[T]]) -> T:
    if former is not None:
        await asyncio.wait([former])
    return await write()


def _versioned(value: bytes, stat: NodeStat) -> Versioned:
    owner = _session_name(stat.owner) if stat.owner else None
    return Versioned(value, stat.version, stat.created_ms, stat.modified_ms, owner)


def _session_name(session_id: int) -> str:
    """As ZooKeeper's tools write it; on the wire it is a signed number."""
    return f"0x{session_id & 0xFFFF_FFFF_FFFF_FFFF:x}"


def _cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _heard(answer: asyncio.Future[Any]) -> None:
    """Marks the outcome as seen: those who need it hear of it otherwise."""
    if not answer.cancelled():
        answer.exception()
