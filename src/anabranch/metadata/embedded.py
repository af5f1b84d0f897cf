"""Store handles over a tree in this process: sessions, watches and the faults a simulation asks for.

An adapter is an `EmbeddedMetadata` that knows how to run an operation on its tree; each `connect` gives a
handle with a session of its own, so several brokers of one process share a tree as they would share a server.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from anabranch.metadata.errors import StoreClosed, StoreUnavailable
from anabranch.metadata.kept import UNKNOWN, Unknown
from anabranch.metadata.paths import ROOT, check_path, check_prefix
from anabranch.metadata.port import SessionState, Versioned
from anabranch.metadata.tree import Tree
from anabranch.metadata.watches import MergingWatch, WatchTable

T = TypeVar("T")
Op = Callable[[Tree], T]


class LocalSession:
    """The Session of the port."""

    def __init__(self, session_id: str) -> None:
        self._id = session_id
        self._state = SessionState.CONNECTED
        self._loop = asyncio.get_running_loop()
        self._callbacks: dict[object, Callable[[SessionState], None]] = {}

    @property
    def id(self) -> str:
        return self._id

    @property
    def state(self) -> SessionState:
        return self._state

    def on_change(self, callback: Callable[[SessionState], None]) -> Callable[[], None]:
        key = object()
        self._callbacks[key] = callback
        return lambda: void(self._callbacks.pop(key, None))

    def move(self, state: SessionState, session_id: str | None = None) -> None:
        """Changes the state and schedules the callbacks on the loop: one that raises or closes the store does not
        affect others."""
        if session_id is not None:
            self._id = session_id
        if state is self._state:
            return
        self._state = state
        for key in tuple(self._callbacks):
            self._loop.call_soon(self._tell, key, state)

    def _tell(self, key: object, state: SessionState) -> None:
        callback = self._callbacks.get(key)
        if callback is not None:
            callback(state)


class EmbeddedMetadata(ABC):
    """The shared tree: runs operations and notifies every connected handle of changes."""

    def __init__(self) -> None:
        self._stores: dict[EmbeddedStore, None] = {}

    @abstractmethod
    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        """The operation's result, once its writes are as durable as the adapter makes them.

        The keywords describe the operation to adapters with a read cache: its result is the `node` at that path, or the
        names of that `folder`'s children; it `writes` the node at that path, perhaps with its parents, or any node if
        that is the root. `always`: run it even when so many operations wait that others are refused.
        """

    # What an adapter can answer at once for a session, with the answer that `run` would give. By default nothing.

    def kept_node(self, session: str, path: str) -> Versioned | Unknown | None:
        return UNKNOWN

    def kept_children(self, session: str, path: str) -> list[str] | Unknown:
        return UNKNOWN

    def kept_time(self, session: str) -> int | Unknown:
        return UNKNOWN

    async def end_session(self, session: str) -> None:
        # If the disk refuses the removal now, it is repeated before every later operation: the session is over.
        with suppress(StoreUnavailable):
            await self.run(lambda tree: tree.end_session(session), writes=ROOT, always=True)

    async def connect(self) -> EmbeddedStore:
        """A handle with a new session."""
        store = EmbeddedStore(self, await self.run(lambda tree: tree.begin_session()))
        self._stores[store] = None
        return store

    def stores(self) -> list[EmbeddedStore]:
        """The handles that are open."""
        return list(self._stores)

    def forget(self, store: EmbeddedStore) -> None:
        self._stores.pop(store, None)

    def publish(self, paths: Iterable[str]) -> None:
        for store in tuple(self._stores):
            store.changed(paths)


class EmbeddedStore:
    """The MetadataStore of the port, with a session of its own."""

    def __init__(self, service: EmbeddedMetadata, session_id: str) -> None:
        self._service = service
        self._session = LocalSession(session_id)
        self._watches = WatchTable()
        self._is_closed = False

    @property
    def session(self) -> LocalSession:
        return self._session

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        # All sessions share one tree in this process: every read is fresh.
        session = self._reachable()
        known = self._service.kept_node(session, path)
        if known is not UNKNOWN:
            return known
        check_path(path)
        return await self._ask(lambda tree: tree.get(path), node=path)

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        owner = self._session.id if ephemeral else None
        kept = bytes(value)  # Free for bytes; a buffer that its owner may change later is copied.
        return await self._ask(lambda tree: tree.create(path, kept, owner), writes=path)

    async def put(self, path: str, value: bytes, *, if_version: int | None = None) -> Versioned:
        kept = bytes(value)
        return await self._ask(lambda tree: tree.put(path, kept, if_version), writes=path)

    async def delete(self, path: str, *, if_version: int | None = None) -> bool:
        return await self._ask(lambda tree: tree.delete(path, if_version), writes=path)

    async def children(self, path: str) -> list[str]:
        known = self._service.kept_children(self._reachable(), path)
        return (
            known if known is not UNKNOWN else await self._ask(lambda tree: tree.children(path), folder=path)
        )

    async def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        return await self._ask(lambda tree: tree.scan(prefix))

    async def next_id(self, path: str) -> int:
        return (await self.next_ids(path, 1)).start

    async def next_ids(self, path: str, count: int) -> range:
        return await self._ask(lambda tree: tree.next_ids(path, count), writes=path)

    def watch(self, prefix: str) -> MergingWatch:
        if self._is_closed:
            raise StoreClosed
        return self._watches.open(check_prefix(prefix))

    async def now_ms(self) -> int:
        known = self._service.kept_time(self._reachable())
        return known if known is not UNKNOWN else await self._ask(lambda tree: tree.now_ms())

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        session = self._session.id
        self._watches.close()
        self._service.forget(self)
        self._session.move(SessionState.LOST)
        await self._service.end_session(session)

    # Faults, for simulations and contract tests.

    def disconnect(self) -> None:
        """Cut this handle off: its session is in doubt, replies on their way are lost, and no watch fires."""
        if self._session.state is SessionState.CONNECTED:
            self._session.move(SessionState.IN_DOUBT)

    async def expire_session(self) -> None:
        """End the session on the server's side. A handle that is cut off learns of it when it reconnects."""
        session = self._session.id
        if self._session.state is SessionState.CONNECTED:
            self._session.move(SessionState.LOST)
        await self._service.end_session(session)

    async def reconnect(self) -> None:
        """Reach the tree again: with the same session while it lives, else with a new one."""
        session = self._session.id
        is_live = await self._service.run(lambda tree: session in tree.live)
        if not is_live:
            self._session.move(SessionState.LOST)
            session = await self._service.run(lambda tree: tree.begin_session())
        self._session.move(SessionState.CONNECTED, session)
        self._watches.read_everything()

    def changed(self, paths: Iterable[str]) -> None:
        if self._session.state is SessionState.CONNECTED:
            self._watches.changed(paths)

    async def _ask(
        self, op: Op[T], *, node: str | None = None, folder: str | None = None, writes: str | None = None
    ) -> T:
        session = self._reachable()

        def checked(tree: Tree) -> T:
            tree.check_session(session)
            return op(tree)

        result = await self._service.run(checked, node=node, folder=folder, writes=writes)
        if self._reachable() != session:
            raise StoreUnavailable("the metadata session was replaced before the answer came")
        return result

    def _reachable(self) -> str:
        """The session's id."""
        if self._is_closed:
            raise StoreClosed
        if self._session.state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"the metadata session is {self._session.state.value}")
        return self._session.id


def void(_: object) -> None:
    """Drops a value where a callback must return nothing."""
