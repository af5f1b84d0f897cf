"""Any run of operations gives the same answers from SQLite, from memory and from a model of twenty lines."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anabranch.metadata.embedded import EmbeddedStore
from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    MetadataError,
    NotACounter,
    NotEmpty,
    VersionConflict,
)
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import Versioned
from anabranch.metadata.sqlite import SqliteMetadata

SESSIONS = 2
# Few names, so that operations meet; "a-" and "a0" stand around "a/" in the order of strings.
segments = st.sampled_from(["a", "a-", "a0", "é"])
paths = st.lists(segments, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
prefixes = paths | st.just("/")
values = st.sampled_from([b"", b"7", b"text", b"x" * 9000])
versions = st.none() | st.integers(min_value=0, max_value=3)
sessions = st.integers(min_value=0, max_value=SESSIONS - 1)

Node = tuple[bytes, int, int | None]  # Value, version, owning session.


class Model:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def make(self, path: str, value: bytes, owner: int | None) -> Node:
        parts = path.split("/")
        above = ["/".join(parts[:end]) for end in range(2, len(parts))]
        if any(folder in self.nodes and self.nodes[folder][2] is not None for folder in above):
            raise EphemeralParent(path)
        for folder in above:
            self.nodes.setdefault(folder, (b"", 0, None))
        self.nodes[path] = (value, 0, owner)
        return self.nodes[path]

    def create(self, path: str, value: bytes, owner: int | None) -> Node:
        if path in self.nodes:
            raise AlreadyExists(path)
        return self.make(path, value, owner)

    def put(self, path: str, value: bytes, if_version: int | None) -> Node:
        old = self.nodes.get(path)
        if if_version is not None and (old is None or old[1] != if_version):
            raise VersionConflict(path, if_version, old[1] if old else None)
        if old is None:
            return self.make(path, value, None)
        self.nodes[path] = (value, old[1] + 1, old[2])
        return self.nodes[path]

    def delete(self, path: str, if_version: int | None) -> bool:
        if path not in self.nodes:
            return False
        if if_version not in (None, self.nodes[path][1]):
            raise VersionConflict(path, if_version or 0, self.nodes[path][1])
        if any(other.startswith(path + "/") for other in self.nodes):
            raise NotEmpty(path)
        del self.nodes[path]
        return True

    def children(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return sorted({p[len(start) :].split("/")[0] for p in self.nodes if p.startswith(start)})

    def scan(self, prefix: str) -> list[tuple[str, Node]]:
        start = prefix.rstrip("/") + "/"
        return sorted((p, node) for p, node in self.nodes.items() if p.startswith(start) and node[0])

    def next_ids(self, path: str, count: int) -> range:
        first = 0
        if path in self.nodes and self.nodes[path][0]:
            if not self.nodes[path][0].isdigit():
                raise NotACounter(path)
            first = int(self.nodes[path][0])
        self.put(path, str(first + count).encode(), None)
        return range(first, first + count)

    def end_session(self, session: int) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node[2] != session}


class StoresAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "metadata.sqlite"
        self.now_ms = 1_000
        self.last_ms = 0
        self.model = Model()
        self.memory = MemoryMetadata(lambda: self.now_ms)
        self.memory_stores = [self.runner.run(self.memory.connect()) for _ in range(SESSIONS)]
        self.open_sqlite()

    def open_sqlite(self) -> None:
        self.sqlite = self.runner.run(SqliteMetadata.open(self.file, clock_ms=lambda: self.now_ms))
        self.sqlite_stores = [self.runner.run(self.sqlite.connect()) for _ in range(SESSIONS)]

    def teardown(self) -> None:
        self.runner.run(self.sqlite.close())
        self.runner.close()
        self.folder.cleanup()

    def compare(
        self,
        session: int,
        verb: Callable[[EmbeddedStore], Awaitable[Any]],
        expected: Callable[[], Any],
    ) -> None:
        try:
            wanted: Any = expected()
        except MetadataError as refusal:
            wanted = (type(refusal), getattr(refusal, "current", None))
        for stores in (self.memory_stores, self.sqlite_stores):
            assert self.runner.run(self.outcome(stores, session, verb)) == wanted

    async def outcome(
        self, stores: list[EmbeddedStore], session: int, verb: Callable[[EmbeddedStore], Awaitable[Any]]
    ) -> Any:
        owners = {store.session.id: at for at, store in enumerate(stores)}

        def plain(found: Any) -> Any:
            if isinstance(found, Versioned):
                assert 0 <= found.created_ms <= found.modified_ms
                return found.value, found.version, owners[found.owner] if found.owner else None
            if isinstance(found, list):
                return [plain(item) for item in found]
            return (found[0], plain(found[1])) if isinstance(found, tuple) else found

        try:
            return plain(await verb(stores[session]))
        except MetadataError as refusal:
            return type(refusal), getattr(refusal, "current", None)

    @rule(session=sessions, path=paths, value=values, ephemeral=st.booleans())
    def create(self, session: int, path: str, value: bytes, ephemeral: bool) -> None:
        self.compare(
            session,
            lambda store: store.create(path, value, ephemeral=ephemeral),
            lambda: self.model.create(path, value, session if ephemeral else None),
        )

    @rule(session=sessions, path=paths, value=values, version=versions)
    def put(self, session: int, path: str, value: bytes, version: int | None) -> None:
        self.compare(
            session,
            lambda store: store.put(path, value, if_version=version),
            lambda: self.model.put(path, value, version),
        )

    @rule(session=sessions, path=paths, version=versions)
    def delete(self, session: int, path: str, version: int | None) -> None:
        self.compare(
            session,
            lambda store: store.delete(path, if_version=version),
            lambda: self.model.delete(path, version),
        )

    @rule(session=sessions, path=paths)
    def get(self, session: int, path: str) -> None:
        self.compare(session, lambda store: store.get(path), lambda: self.model.nodes.get(path))

    @rule(session=sessions, path=prefixes)
    def list_children(self, session: int, path: str) -> None:
        self.compare(session, lambda store: store.children(path), lambda: self.model.children(path))

    @rule(session=sessions, path=prefixes)
    def scan(self, session: int, path: str) -> None:
        self.compare(session, lambda store: store.scan(path), lambda: self.model.scan(path))

    @rule(session=sessions, path=paths, count=st.integers(min_value=1, max_value=5))
    def next_ids(self, session: int, path: str, count: int) -> None:
        self.compare(
            session,
            lambda store: store.next_ids(path, count),
            lambda: self.model.next_ids(path, count),
        )

    @rule(session=sessions)
    def lose_session(self, session: int) -> None:
        self.model.end_session(session)
        for stores in (self.memory_stores, self.sqlite_stores):
            self.runner.run(stores[session].expire_session())
            self.runner.run(stores[session].reconnect())

    @precondition(lambda self: self.model.nodes)
    @rule()
    def restart(self) -> None:
        """All sessions end with a process; the tree in memory has no process of its own to lose."""
        for session in range(SESSIONS):
            self.model.end_session(session)
            self.runner.run(self.memory_stores[session].expire_session())
            self.runner.run(self.memory_stores[session].reconnect())
        self.runner.run(self.sqlite.close())
        self.open_sqlite()

    @rule(step=st.integers(min_value=-500, max_value=500))
    def move_the_clock(self, step: int) -> None:
        self.now_ms += step

    @invariant()
    def time_never_runs_back(self) -> None:
        now = self.runner.run(self.sqlite_stores[0].now_ms())
        assert now >= self.last_ms
        assert now == self.runner.run(self.memory_stores[0].now_ms())
        self.last_ms = now


StoresAgree.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, database=None
)
test_stores_agree_with_the_model = StoresAgree.TestCase
