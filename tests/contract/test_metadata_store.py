"""What every MetadataStore adapter promises. A new adapter is one more line in HARNESSES.

A harness stands for the shared tree behind the handles: it connects sessions and makes trouble for them. Nothing
here relies on more than the port says, so waits go through watches and never through time.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from anabranch.metadata.embedded import EmbeddedMetadata, EmbeddedStore
from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    InvalidPath,
    NotACounter,
    NotEmpty,
    StoreClosed,
    StoreUnavailable,
    ValueTooLarge,
    VersionConflict,
)
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import VALUE_BYTES_MAX, Changes, MetadataStore, SessionState, Watch
from anabranch.metadata.remote import RemoteMetadata
from anabranch.metadata.served import MetadataServer
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.metadata.zookeeper.address import zookeeper_address
from anabranch.metadata.zookeeper.link import ZooKeeperAccess
from anabranch.metadata.zookeeper.store import ZooKeeperMetadata
from harness.metadata_process import MetadataProcess, Relay, until_session, until_state
from harness.zookeeper import TcpRelay, ZooKeepers, end_session, shared_ensemble, shared_server

EVERYTHING = Changes(everything=True)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Harness(Protocol):
    is_durable: bool

    def __init__(self, folder: Path) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Stop the tree; a durable one can be started again."""

    async def connect(self) -> MetadataStore:
        """A handle with a session of its own."""
        ...

    async def cut(self, store: MetadataStore) -> None:
        """The session comes in doubt and stays so until `restore`."""

    async def expire(self, store: MetadataStore) -> None:
        """The tree ends the session, whether the handle can hear of it or not."""

    async def restore(self, store: MetadataStore) -> None:
        """The handle is connected again when this returns, with a new session if the old one ended."""


class EmbeddedHarness:
    is_durable = False
    service: EmbeddedMetadata

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def connect(self) -> EmbeddedStore:
        return await self.service.connect()

    async def cut(self, store: MetadataStore) -> None:
        assert isinstance(store, EmbeddedStore)
        store.disconnect()

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, EmbeddedStore)
        await store.expire_session()

    async def restore(self, store: MetadataStore) -> None:
        assert isinstance(store, EmbeddedStore)
        await store.reconnect()


class MemoryHarness(EmbeddedHarness):
    async def start(self) -> None:
        self.service = MemoryMetadata(wall_ms)

    async def stop(self) -> None:
        for store in self.service.stores():
            await store.close()


class SqliteHarness(EmbeddedHarness):
    is_durable = True

    async def start(self) -> None:
        self.service = self.sqlite = await SqliteMetadata.open(
            self.folder / "metadata.sqlite", clock_ms=wall_ms
        )

    async def stop(self) -> None:
        await self.sqlite.close()


class RelayHarness:
    """Handles over a socket. Each connects through a relay, which is cut to make trouble."""

    is_durable = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket_path = folder / "private" / "metadata.socket"
        self.relays: dict[MetadataStore, Relay] = {}

    async def start(self) -> None:
        await self.start_server()
        self.admin = await RemoteMetadata.connect(self.socket_path, wait_s=60)

    async def stop(self) -> None:
        for store, relay in self.relays.items():
            await store.close()
            relay.cut()
        self.relays.clear()
        await self.admin.close()
        await self.stop_server()

    async def start_server(self) -> None:
        raise NotImplementedError

    async def stop_server(self) -> None:
        raise NotImplementedError

    async def connect(self) -> RemoteMetadata:
        relay = Relay(self.folder / f"relay{len(self.relays)}", self.socket_path)
        await relay.open()
        store = await RemoteMetadata.connect(relay.path, wait_s=60)
        self.relays[store] = relay
        return store

    async def cut(self, store: MetadataStore) -> None:
        assert isinstance(store, RemoteMetadata)
        self.relays[store].cut()
        await until_state(store, SessionState.IN_DOUBT)

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, RemoteMetadata)
        ended, was_connected = store.session.id, store.session.state is SessionState.CONNECTED
        await self.admin.end_session(ended)
        if was_connected:
            await until_session(store, lambda: store.session.id != ended)

    async def restore(self, store: MetadataStore) -> None:
        assert isinstance(store, RemoteMetadata)
        await self.relays[store].open()
        await until_state(store, SessionState.CONNECTED)


class ServedHarness(RelayHarness):
    """The server of the metadata process, in this one."""

    async def start_server(self) -> None:
        self.server = await MetadataServer.start(
            self.folder / "metadata.sqlite", self.socket_path, grace_s=60
        )

    async def stop_server(self) -> None:
        await self.server.stop()


class ZooKeeperHarness:
    """A real server. Each handle connects through a relay; a chroot for each test."""

    is_durable = True

    def __init__(self, folder: Path) -> None:
        self.chroot = f"/{uuid.uuid4().hex}"
        self.relays: dict[MetadataStore, TcpRelay] = {}
        self.servers: ZooKeepers | None = None

    def running(self) -> ZooKeepers:
        return shared_server()

    async def start(self) -> None:
        if self.servers is None:
            self.servers = self.running()
            self.ports = itertools.cycle(self.servers.ports())
        else:
            self.servers.restart()
            self.ports = itertools.cycle(self.servers.ports())

    async def stop(self) -> None:
        for store, relay in self.relays.items():
            await store.close()
            relay.close()
        self.relays.clear()

    async def connect(self) -> ZooKeeperMetadata:
        relay = TcpRelay(next(self.ports))
        store = await ZooKeeperMetadata.connect(
            zookeeper_address(f"zk://127.0.0.1:{relay.port}{self.chroot}"),
            ZooKeeperAccess(session_timeout_ms=60_000),
            wait_s=60,
            makes_chroot=True,
        )
        self.relays[store] = relay
        return store

    async def cut(self, store: MetadataStore) -> None:
        self.relays[store].cut()
        await until_state(store, SessionState.IN_DOUBT)

    async def expire(self, store: MetadataStore) -> None:
        relay, ended = self.relays[store], store.session.id
        was_connected = store.session.state is SessionState.CONNECTED
        await asyncio.to_thread(end_session, relay, ended)
        if was_connected:
            await until_session(store, lambda: store.session.id != ended)

    async def restore(self, store: MetadataStore) -> None:
        self.relays[store].open()
        await until_state(store, SessionState.CONNECTED)


class EnsembleHarness(ZooKeeperHarness):
    """Three servers: handles are connected in turn to the leader and to one that is behind."""

    def running(self) -> ZooKeepers:
        return shared_ensemble()


class ProcessHarness(RelayHarness):
    async def start_server(self) -> None:
        self.process = MetadataProcess(self.folder)
        self.socket_path = self.process.socket_path
        await self.process.start()

    async def stop_server(self) -> None:
        assert await self.process.stop() == 0


HARNESSES: dict[str, Callable[[Path], Harness]] = {
    "memory": MemoryHarness,
    "sqlite": SqliteHarness,
    "served": ServedHarness,
    "process": ProcessHarness,
    "zookeeper": ZooKeeperHarness,
    "ensemble": EnsembleHarness,
}
# What needs a program of others, and its marker.
MARKS = {"zookeeper": [pytest.mark.zookeeper], "ensemble": [pytest.mark.zookeeper]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A process takes a while to start: it takes part where several sessions, trouble or a restart do."""
    if "tree" in metafunc.fixturenames:
        takes_part = "tree" in inspect.signature(metafunc.function).parameters
        names = [name for name in HARNESSES if name != "process" or takes_part]
        params = [pytest.param(name, marks=MARKS.get(name, ()), id=name) for name in names]
        metafunc.parametrize("tree", params, indirect=True)


@pytest.fixture
async def tree(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = HARNESSES[request.param](tmp_path)
    await harness.start()
    yield harness
    await harness.stop()


@pytest.fixture
async def store(tree: Harness) -> MetadataStore:
    return await tree.connect()


@pytest.fixture
async def other(tree: Harness) -> MetadataStore:
    return await tree.connect()


async def until(watch: Watch, holds: Callable[[], Awaitable[bool]]) -> None:
    """Read again whenever the watch says so, until what is awaited is true."""
    async with asyncio.timeout(20):
        async for _ in watch:
            if await holds():
                return


# Records and versions.


async def test_an_absent_node_reads_as_none(store: MetadataStore) -> None:
    assert await store.get("/absent") is None
    assert not await store.exists("/absent")
    assert await store.children("/absent") == []
    assert await store.scan("/absent") == []


async def test_a_created_node_starts_at_version_zero(store: MetadataStore, other: MetadataStore) -> None:
    made = await store.create("/a", b"one")
    assert (made.value, made.version, made.is_ephemeral) == (b"one", 0, False)
    assert await other.get("/a", fresh=True) == made
    assert await other.exists("/a")


async def test_create_refuses_a_node_that_exists(store: MetadataStore, other: MetadataStore) -> None:
    await store.create("/a", b"first")
    with pytest.raises(AlreadyExists):
        await other.create("/a", b"second")
    found = await other.get("/a")
    assert found is not None
    assert found.value == b"first"


async def test_create_makes_missing_parents_as_empty_nodes(store: MetadataStore) -> None:
    await store.create("/a/b/c", b"x")
    folder = await store.get("/a/b")
    assert folder is not None
    assert (folder.value, folder.version) == (b"", 0)
    with pytest.raises(AlreadyExists):
        await store.create("/a", b"")


async def test_put_without_a_version_makes_or_overwrites(store: MetadataStore) -> None:
    assert (await store.put("/a/b", b"one")).version == 0
    assert (await store.put("/a/b", b"two")).version == 1
    found = await store.get("/a/b")
    assert found is not None
    assert found.value == b"two"


async def test_put_at_the_current_version_raises_it_by_one(store: MetadataStore) -> None:
    made = await store.create("/a", b"one")
    changed = await store.put("/a", b"two", if_version=made.version)
    assert changed.version == made.version + 1
    assert await store.get("/a") == changed


async def test_put_at_another_version_is_refused_and_names_the_current_one(store: MetadataStore) -> None:
    await store.create("/a", b"one")
    await store.put("/a", b"two")
    for stale in (0, 2, -1):
        with pytest.raises(VersionConflict) as refusal:
            await store.put("/a", b"three", if_version=stale)
        assert refusal.value.current == 1
    found = await store.get("/a")
    assert found is not None
    assert found.value == b"two"


async def test_put_at_a_version_never_makes_a_node(store: MetadataStore) -> None:
    with pytest.raises(VersionConflict) as refusal:
        await store.put("/a", b"one", if_version=0)
    assert refusal.value.current is None
    assert not await store.exists("/a")


async def test_concurrent_incrementers_lose_no_update(tree: Harness) -> None:
    stores = [await tree.connect() for _ in range(8)]
    await stores[0].create("/n", b"0")

    async def increment(store: MetadataStore) -> None:
        while True:
            # Afresh: nothing else tells this session that another one has made the node.
            seen = await store.get("/n", fresh=True)
            assert seen is not None
            try:
                await store.put("/n", b"%d" % (int(seen.value) + 1), if_version=seen.version)
                return
            except VersionConflict:
                continue

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for at in range(64):
            group.create_task(increment(stores[at % len(stores)]))
    final = await stores[0].get("/n", fresh=True)
    assert final is not None
    assert (final.value, final.version) == (b"64", 64)


async def test_of_many_concurrent_creators_one_wins(tree: Harness) -> None:
    stores = [await tree.connect() for _ in range(8)]

    async def attempt(at: int) -> bytes | None:
        try:
            return (await stores[at].create("/leader", b"%d" % at, ephemeral=True)).value
        except AlreadyExists:
            return None

    won = [value for value in await asyncio.gather(*map(attempt, range(8))) if value is not None]
    found = await stores[0].get("/leader")
    assert found is not None
    assert won == [found.value]


async def test_writes_started_in_order_by_one_caller_take_effect_in_order(store: MetadataStore) -> None:
    writes = [asyncio.ensure_future(store.put("/a", b"%d" % n)) for n in range(100)]
    versions = [done.version for done in await asyncio.gather(*writes)]
    assert versions == list(range(100))
    found = await store.get("/a")
    assert found is not None
    assert found.value == b"99"


# Deleting.


async def test_delete_says_whether_there_was_something_to_delete(store: MetadataStore) -> None:
    await store.create("/a", b"")
    assert await store.delete("/a") is True
    assert await store.delete("/a") is False
    assert await store.delete("/a", if_version=3) is False
    assert not await store.exists("/a")


async def test_delete_at_another_version_is_refused(store: MetadataStore) -> None:
    await store.create("/a", b"one")
    await store.put("/a", b"two")
    with pytest.raises(VersionConflict) as refusal:
        await store.delete("/a", if_version=0)
    assert refusal.value.current == 1
    assert await store.delete("/a", if_version=1) is True


async def test_delete_of_a_node_with_children_is_refused(store: MetadataStore) -> None:
    await store.create("/a/b", b"x")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    await store.delete("/a/b")
    assert await store.exists("/a"), "a folder stays when its last child goes"
    assert await store.delete("/a") is True


async def test_a_node_made_again_starts_a_new_life(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    await store.put("/a", b"two")
    await store.delete("/a")
    assert (await store.create("/a", b"three")).version == 0


async def test_a_read_after_a_write_that_was_given_up_is_the_last_word_on_it(
    store: MetadataStore, other: MetadataStore
) -> None:
    await store.put("/a", b"before")
    for turns in range(4):
        write = asyncio.ensure_future(store.put("/a", b"%d" % turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        write.cancel()
        found = await store.get("/a")
        await asyncio.gather(write, return_exceptions=True)
        await other.put("/later", b"")
        assert await store.get("/a") == await other.get("/a") == found


async def test_what_one_session_was_told_is_what_a_fresh_read_of_another_gives(
    store: MetadataStore, other: MetadataStore
) -> None:
    assert await other.get("/f/a", fresh=True) is None
    assert await other.children("/f") == []
    for number in range(20):
        written = await store.put("/f/a", b"%d" % number)
        assert await other.get("/f/a", fresh=True) == written
    assert await other.children("/f") == ["a"]
    await store.delete("/f/a")
    assert await other.get("/f/a", fresh=True) is None
    assert await other.children("/f") == []
    assert await other.exists("/f")


async def test_a_session_reads_its_own_writes_without_asking_for_fresh_ones(store: MetadataStore) -> None:
    for number in range(20):
        written = await store.put(f"/f/{number}", b"x")
        assert await store.get(f"/f/{number}") == written
        assert len(await store.children("/f")) == len(await store.scan("/f")) == number + 1
        await store.put("/n", b"%d" % number)
        assert (await store.scan("/"))[-1][1].value == b"%d" % number
    await store.delete("/f/3")
    assert await store.get("/f/3") is None
    assert not await store.exists("/f/3")


async def test_after_a_write_of_its_own_a_session_reads_everything_stored_before(
    store: MetadataStore, other: MetadataStore
) -> None:
    await other.put("/mine", b"")
    for number in range(20):
        written = await store.put("/f/a", b"%d" % number)
        await other.put("/mine", b"")
        assert await other.get("/f/a") == written
    await store.delete("/f/a")
    with pytest.raises(AlreadyExists):
        await other.create("/mine", b"")
    assert await other.children("/f") == []


async def test_a_read_after_a_watch_named_a_change_has_the_change(
    store: MetadataStore, other: MetadataStore
) -> None:
    with other.watch("/w") as watch:
        await anext(watch)
        for number in range(20):
            written = await store.put("/w/a", b"%d" % number)
            await until_named(watch, "/w/a")
            assert await other.get("/w/a") == written


# Children and scans.


async def test_children_are_the_sorted_last_segments_of_one_level(store: MetadataStore) -> None:
    for path in ("/r/b", "/r/a", "/r/a/deep", "/r/c/deeper/still", "/rest", "/r0"):
        await store.put(path, b"x")
    assert await store.children("/r") == ["a", "b", "c"]
    assert await store.children("/r/a") == ["deep"]
    assert await store.children("/r/b") == []
    assert {"r", "r0", "rest"} <= set(await store.children("/"))


async def test_deep_paths_keep_every_level(store: MetadataStore) -> None:
    path = "".join(f"/level{n}" for n in range(60))
    await store.create(path, b"bottom")
    at = ""
    for n in range(60):
        assert await store.children(at or "/") == [f"level{n}"]
        at += f"/level{n}"
    assert [found for found, _ in await store.scan("/level0")] == [path]


async def test_scan_gives_the_records_below_a_prefix_sorted_and_no_folders(store: MetadataStore) -> None:
    for path in ("/m/t/ns/b", "/m/t/ns/a", "/m/t/ns/a/part", "/m/t/ns-2/z", "/m0", "/other", "/m"):
        await store.put(path, path.encode())
    await store.put("/m/empty", b"")
    found = await store.scan("/m")
    assert [path for path, _ in found] == ["/m/t/ns-2/z", "/m/t/ns/a", "/m/t/ns/a/part", "/m/t/ns/b"]
    assert [record for _, record in found] == [await store.get(path) for path, _ in found]
    assert {"/m", "/m0", "/other"} <= {path for path, _ in await store.scan("/")}


UNICODE_NAMES = ["é", "e\u0301", "日本語", "emoji 🛶", "a%2Fb", "spaces are fine", "-", "...", "\u00a0"]


async def test_unicode_names_are_kept_apart_and_sorted_by_code_point(store: MetadataStore) -> None:
    for segment in UNICODE_NAMES:
        await store.create(f"/names/{segment}", segment.encode())
    assert await store.children("/names") == sorted(UNICODE_NAMES)
    found = [(path, record.value.decode()) for path, record in await store.scan("/names")]
    assert found == [(f"/names/{segment}", segment) for segment in sorted(UNICODE_NAMES)]


@pytest.mark.parametrize(
    "path",
    [
        *("", "a", "a/b", "/", "/a/", "//a", "/a//b", "/.", "/a/../b", "/a\0", "/a\n", "/\ud800", "/\ufffe"),
        *("/zookeeper", "/zookeeper/x", "/" + "x" * 5000),
    ],
)
async def test_a_path_that_some_store_would_refuse_is_refused_by_all(store: MetadataStore, path: str) -> None:
    with pytest.raises(InvalidPath):
        await store.get(path)
    with pytest.raises(InvalidPath):
        await store.create(path, b"")
    with pytest.raises(InvalidPath):
        await store.put(path, b"")
    with pytest.raises(InvalidPath):
        await store.delete(path)
    with pytest.raises(InvalidPath):
        await store.next_id(path)
    if path != "/":
        with pytest.raises(InvalidPath):
            await store.scan(path)
        with pytest.raises(InvalidPath):
            store.watch(path)


async def test_values_are_any_bytes_up_to_the_limit(store: MetadataStore) -> None:
    values = [b"", b"\0" * 17, bytes(range(256)), b"\xff" * VALUE_BYTES_MAX]
    for at, value in enumerate(values):
        await store.put(f"/values/{at}", value)
    for at, value in enumerate(values):
        found = await store.get(f"/values/{at}")
        assert found is not None
        assert found.value == value
        assert type(found.value) is bytes


async def test_a_value_over_the_limit_is_refused_and_changes_nothing(store: MetadataStore) -> None:
    await store.put("/a", b"kept")
    for write in (store.put("/a", b"x" * (VALUE_BYTES_MAX + 1)), store.create("/b/c", b"x" * 2_000_000)):
        with pytest.raises(ValueTooLarge):
            await write
    found = await store.get("/a")
    assert found is not None
    assert found.value == b"kept"
    assert not await store.exists("/b")


# Ids.


async def test_ids_start_at_zero_and_grow_by_one(store: MetadataStore) -> None:
    assert [await store.next_id("/ids/ledger") for _ in range(3)] == [0, 1, 2]
    assert await store.next_id("/ids/another") == 0


async def test_concurrent_sessions_never_share_an_id(tree: Harness) -> None:
    stores = [await tree.connect() for _ in range(4)]
    singles = [store.next_id("/ids") for store in stores for _ in range(25)]
    blocks = [store.next_ids("/ids", 10) for store in stores for _ in range(5)]
    given = list(await asyncio.gather(*singles))
    for block in await asyncio.gather(*blocks):
        assert len(block) == 10
        given += block
    assert len(given) == len(set(given)) == 300
    assert await stores[0].next_id("/ids") > max(given)


async def test_a_node_that_holds_something_else_gives_no_ids(store: MetadataStore) -> None:
    for value in (b"text", b"-1", b" 1", b"1_0", "٣".encode(), b"9" * 5000, b"%d" % (2**63 - 1)):
        await store.put("/record", value)
        with pytest.raises(NotACounter):
            await store.next_id("/record")


# Times.


async def test_times_say_when_a_node_was_made_and_changed(store: MetadataStore) -> None:
    before = await store.now_ms()
    made = await store.create("/a", b"one")
    changed = await store.put("/a", b"two")
    after = await store.now_ms()
    assert made.created_ms == made.modified_ms == changed.created_ms
    assert before <= made.created_ms <= changed.modified_ms <= after


async def test_the_stores_time_is_one_for_all_sessions_and_never_runs_back(tree: Harness) -> None:
    stores = [await tree.connect() for _ in range(3)]
    times = [await stores[at % 3].now_ms() for at in range(30)]
    assert times == sorted(times)


# Sessions and ephemerals.


async def test_each_handle_has_a_session_of_its_own(store: MetadataStore, other: MetadataStore) -> None:
    assert store.session.id != other.session.id
    assert store.session.state is other.session.state is SessionState.CONNECTED


async def test_an_ephemeral_names_its_session_and_ends_when_it_closes(
    store: MetadataStore, other: MetadataStore
) -> None:
    made = await store.create("/brokers/one", b"here", ephemeral=True)
    assert made.is_ephemeral
    assert made.owner == store.session.id
    assert await other.get("/brokers/one", fresh=True) == made
    assert await other.children("/brokers") == ["one"]
    with other.watch("/brokers") as watch:
        await store.close()
        await until(watch, lambda: absent(other, "/brokers/one"))
    assert await other.children("/brokers") == []


async def absent(store: MetadataStore, path: str) -> bool:
    return not await store.exists(path)


async def test_an_ephemeral_ends_when_its_session_is_lost_and_others_stay(
    tree: Harness, store: MetadataStore, other: MetadataStore
) -> None:
    await store.create("/brokers/lost", b"", ephemeral=True)
    await store.create("/brokers/record", b"")
    await other.create("/brokers/kept", b"", ephemeral=True)
    old = store.session.id
    with other.watch("/brokers") as watch:
        await tree.expire(store)
        await until(watch, lambda: absent(other, "/brokers/lost"))
    assert await other.children("/brokers") == ["kept", "record"]
    await tree.restore(store)
    assert store.session.state is SessionState.CONNECTED
    assert store.session.id != old
    assert (await store.create("/brokers/lost", b"", ephemeral=True)).owner == store.session.id


async def test_an_ephemeral_outlives_a_short_cut(tree: Harness, store: MetadataStore) -> None:
    await store.create("/e", b"", ephemeral=True)
    old = store.session.id
    await tree.cut(store)
    await tree.restore(store)
    assert store.session.id == old
    assert await store.exists("/e")


async def test_put_and_delete_by_another_session_treat_an_ephemeral_as_any_node(
    store: MetadataStore, other: MetadataStore
) -> None:
    await store.create("/e", b"one", ephemeral=True)
    changed = await other.put("/e", b"two", if_version=0)
    assert changed.owner == store.session.id
    assert await other.delete("/e", if_version=1) is True


async def test_an_ephemeral_cannot_have_children(store: MetadataStore) -> None:
    await store.create("/e", b"", ephemeral=True)
    with pytest.raises(EphemeralParent):
        await store.create("/e/child", b"")
    with pytest.raises(EphemeralParent):
        await store.put("/e/deep/child", b"")
    with pytest.raises(EphemeralParent):
        await store.next_id("/e/ids")
    assert await store.children("/e") == []


async def test_a_session_tells_each_change_of_its_state(tree: Harness, store: MetadataStore) -> None:
    seen: asyncio.Queue[SessionState] = asyncio.Queue()
    stop = store.session.on_change(seen.put_nowait)
    async with asyncio.timeout(20):
        await tree.cut(store)
        assert store.session.state is SessionState.IN_DOUBT
        assert await seen.get() is SessionState.IN_DOUBT
        await tree.expire(store)
        await tree.restore(store)
        assert await seen.get() is SessionState.LOST
        assert await seen.get() is SessionState.CONNECTED
    stop()
    await tree.cut(store)
    await tree.restore(store)
    await store.get("/a")
    assert seen.empty()


async def test_operations_of_a_cut_handle_fail_as_retryable(tree: Harness, store: MetadataStore) -> None:
    await store.create("/a", b"")
    await tree.cut(store)
    with pytest.raises(StoreUnavailable) as refusal:
        await store.get("/a")
    assert refusal.value.retryable
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"x")
    await tree.restore(store)
    assert await store.exists("/a")


async def test_a_closed_handle_refuses_everything_and_closes_twice(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.get("/a")
    with pytest.raises(StoreClosed):
        store.watch("/a")


# Watches.


async def test_a_watch_first_says_read_everything(store: MetadataStore) -> None:
    with store.watch("/a") as watch:
        assert await anext(watch) == EVERYTHING


async def test_a_watch_names_what_was_made_changed_or_deleted_by_anyone(
    store: MetadataStore, other: MetadataStore
) -> None:
    with store.watch("/w") as watch:
        assert await anext(watch) == EVERYTHING
        await other.create("/w/a", b"1")
        await until_named(watch, "/w/a")
        await other.put("/w/a", b"2")
        await until_named(watch, "/w/a")
        await other.delete("/w/a")
        await until_named(watch, "/w/a")
        await store.put("/w", b"the prefix itself")
        await until_named(watch, "/w")


async def until_named(watch: Watch, path: str) -> None:
    async with asyncio.timeout(20):
        async for changes in watch:
            if changes.everything or path in changes.paths:
                return


async def test_a_reader_that_reads_again_when_told_ends_with_the_last_value(
    store: MetadataStore, other: MetadataStore
) -> None:
    async def write() -> None:
        for n in range(300):
            await other.put("/w/n", b"%d" % n)

    async def is_last() -> bool:
        found = await store.get("/w/n")
        return found is not None and found.value == b"299"

    with store.watch("/w") as watch:
        await asyncio.gather(write(), until(watch, is_last))


async def test_a_slow_reader_gets_changes_merged(store: MetadataStore, other: MetadataStore) -> None:
    with store.watch("/w") as slow, store.watch("/w") as quick:
        await anext(slow)
        await anext(quick)
        for _ in range(50):
            await other.put("/w/one", b"")
        await other.put("/w/last", b"")
        await until_named(quick, "/w/last")
        merged = await anext(slow)
        assert merged.everything or {"/w/one", "/w/last"} <= merged.paths


async def test_a_watch_is_silent_about_paths_outside_its_prefix(
    store: MetadataStore, other: MetadataStore
) -> None:
    with store.watch("/w") as watch:
        await anext(watch)
        for path in ("/wide", "/w0", "/v/w/x"):
            await other.put(path, b"")
        await other.put("/w/inside", b"")
        assert all(path == "/w" or path.startswith("/w/") for path in (await anext(watch)).paths)


async def test_every_watch_reads_everything_again_after_session_trouble(
    tree: Harness, store: MetadataStore, other: MetadataStore
) -> None:
    with store.watch("/w") as one, store.watch("/v/deep") as two:
        assert [await anext(one), await anext(two)] == [EVERYTHING, EVERYTHING]
        for has_expired in (False, True):
            await tree.cut(store)
            await other.put("/w/missed", b"")
            if has_expired:
                await tree.expire(store)
            await tree.restore(store)
            async with asyncio.timeout(20):
                while not (await anext(one)).everything:
                    pass
                while not (await anext(two)).everything:
                    pass
            await other.put("/w/later", b"%d" % has_expired)
            await until_named(one, "/w/later")


async def test_closing_a_watch_or_its_store_ends_the_iteration(store: MetadataStore) -> None:
    closed, orphan = store.watch("/w"), store.watch("/w")
    await anext(closed)
    await anext(orphan)
    waiting = [asyncio.ensure_future(drain(watch)) for watch in (closed, orphan)]
    await store.put("/w", b"")
    closed.close()
    closed.close()
    await store.close()
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)


async def drain(watch: Watch) -> None:
    async for _ in watch:
        pass


async def test_a_cancelled_reader_leaves_the_watch_usable(store: MetadataStore) -> None:
    with store.watch("/w") as watch:
        await anext(watch)
        reader = asyncio.ensure_future(drain(watch))
        await store.get("/w")
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await store.put("/w/a", b"")
        await until_named(watch, "/w/a")


# Restarts.


async def test_records_ids_and_time_go_on_after_a_restart_and_ephemerals_do_not(tree: Harness) -> None:
    if not tree.is_durable:
        pytest.skip("nothing outlives this adapter's process")
    store = await tree.connect()
    session = store.session.id
    record = await store.put("/kept/record", b"v")
    await store.create("/gone", b"", ephemeral=True)
    given = await store.next_ids("/ids", 100)
    then = await store.now_ms()
    await tree.stop()
    await tree.start()
    store = await tree.connect()
    assert store.session.id != session
    assert await store.get("/kept/record") == record
    assert await store.get("/gone") is None
    assert await store.next_id("/ids") >= given.stop
    assert await store.now_ms() >= then
