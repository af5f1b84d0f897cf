"""What the ZooKeeper adapter does beyond the port: lost answers, limits, rights, TLS, chroots, cost."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.metadata.errors import (
    StoreAbsent,
    StoreClosed,
    StoreForbidden,
    StoreUnavailable,
    VersionConflict,
)
from anabranch.metadata.port import SessionState
from anabranch.metadata.zookeeper.address import zookeeper_address
from anabranch.metadata.zookeeper.link import ZooKeeperAccess
from anabranch.metadata.zookeeper.store import ZooKeeperMetadata
from harness.metadata_process import until_state
from harness.zookeeper import Ensemble, TcpRelay, ZooKeeperServer, free_port, shared_server

pytestmark = pytest.mark.zookeeper

LONG = ZooKeeperAccess(session_timeout_ms=60_000)


async def connected(
    port: int, chroot: str, access: ZooKeeperAccess = LONG, *, makes_chroot: bool = True
) -> ZooKeeperMetadata:
    address = zookeeper_address(f"zk://127.0.0.1:{port}{chroot}")
    return await ZooKeeperMetadata.connect(address, access, wait_s=60, makes_chroot=makes_chroot)


@pytest.fixture
def chroot() -> str:
    return f"/{uuid.uuid4().hex}"


@pytest.fixture
def relay() -> TcpRelay:
    return TcpRelay(shared_server().server.port)


@pytest.fixture
async def store(relay: TcpRelay, chroot: str) -> AsyncIterator[ZooKeeperMetadata]:
    store = await connected(relay.port, chroot)
    yield store
    await store.close()
    relay.close()


@pytest.fixture
async def other(chroot: str) -> AsyncIterator[ZooKeeperMetadata]:
    store = await connected(shared_server().server.port, chroot)
    yield store
    await store.close()


# -- answers that are lost

CREATE, DELETE, GET, SET = 15, 2, 4, 5


async def test_a_write_whose_answer_is_lost_fails_as_unknown_and_is_not_repeated(
    store: ZooKeeperMetadata, other: ZooKeeperMetadata, relay: TcpRelay
) -> None:
    await store.put("/a", b"one")
    relay.cut_after.add(SET)
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"two")
    await until_state(store, SessionState.CONNECTED)
    found = await store.get("/a")
    assert found is not None
    assert (found.value, found.version) == (b"two", 1), "it took effect, once"
    assert await other.get("/a", fresh=True) == found


async def test_a_change_whose_answer_is_lost_is_told_by_its_version(
    store: ZooKeeperMetadata, relay: TcpRelay
) -> None:
    await store.put("/a", b"one")
    relay.cut_after.add(SET)
    with pytest.raises(StoreUnavailable):
        await store.put("/a", b"two", if_version=0)
    await until_state(store, SessionState.CONNECTED)
    with pytest.raises(VersionConflict) as refusal:
        await store.put("/a", b"two", if_version=0)
    assert refusal.value.current == 1


async def test_an_ephemeral_whose_answer_is_lost_is_found_as_ones_own(
    store: ZooKeeperMetadata, relay: TcpRelay
) -> None:
    await store.put("/brokers/other", b"")
    relay.cut_after.add(CREATE)
    with pytest.raises(StoreUnavailable):
        await store.create("/brokers/me", b"", ephemeral=True)
    await until_state(store, SessionState.CONNECTED)
    found = await store.get("/brokers/me")
    assert found is not None
    assert found.owner == store.session.id


async def test_ids_whose_answer_is_lost_are_skipped(store: ZooKeeperMetadata, relay: TcpRelay) -> None:
    assert await store.next_ids("/ids", 10) == range(10)
    relay.cut_after.add(SET)
    with pytest.raises(StoreUnavailable):
        await store.next_ids("/ids", 10)
    await until_state(store, SessionState.CONNECTED)
    assert await store.next_ids("/ids", 10) == range(20, 30)


async def test_all_that_waits_when_the_connection_breaks_fails_and_nothing_hangs(
    store: ZooKeeperMetadata, other: ZooKeeperMetadata, relay: TcpRelay
) -> None:
    for round_number in range(5):
        waiting = [asyncio.ensure_future(store.put(f"/many/{n}", b"x")) for n in range(1_000)]
        await asyncio.sleep(0)
        relay.break_connections()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(
                not isinstance(one, BaseException) or isinstance(one, StoreUnavailable) for one in outcomes
            )
            await until_state(store, SessionState.CONNECTED)
            told = {f"/many/{n}" for n, one in enumerate(outcomes) if not isinstance(one, BaseException)}
            # Once the session goes on, what is stored is stored: nothing of before comes later.
            here = dict(await store.scan("/many"))
            await other.put("/mark", b"%d" % round_number)
            assert told <= set(here)
            assert here == dict(await other.scan("/many"))


async def test_closing_while_the_server_is_away_ends_what_waits(chroot: str, relay: TcpRelay) -> None:
    store = await connected(relay.port, chroot)
    watch = store.watch("/w")
    assert (await anext(watch)).everything
    relay.cut()
    await until_state(store, SessionState.IN_DOUBT)
    await store.close()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)
    with pytest.raises(StoreClosed):
        await store.get("/a")


# -- limits


async def test_more_reads_than_may_be_under_way_are_answered_in_their_order(
    store: ZooKeeperMetadata,
) -> None:
    await store.put("/a", b"x")
    async with asyncio.timeout(60):
        assert all(await asyncio.gather(*(store.exists("/a") for _ in range(5_000))))


async def test_a_scan_of_many_nodes_costs_a_packet_for_each_hundred(
    store: ZooKeeperMetadata, relay: TcpRelay
) -> None:
    paths = [f"/many/{n % 7}/{n}" for n in range(1_000)]
    await asyncio.gather(*(store.put(path, b"x") for path in paths))
    relay.counts.clear()
    assert [path for path, _ in await store.scan("/many")] == sorted(paths)
    assert sum(relay.counts[kind] for kind in ("get", "children", "read many")) <= 16


async def test_folders_with_more_names_than_a_request_may_hold_are_listed(store: ZooKeeperMetadata) -> None:
    names = [f"{n:05}-{'x' * 200}" for n in range(6_000)]
    async with asyncio.timeout(100):
        await asyncio.gather(*(store.create(f"/wide/{name}", b"") for name in names))
        assert await store.children("/wide") == names


# -- chroots, servers, rights


async def test_a_chroot_that_is_not_there_is_said_and_not_made(chroot: str) -> None:
    port = shared_server().server.port
    with pytest.raises(StoreAbsent, match=f"has no {chroot}"):
        await connected(port, chroot, makes_chroot=False)
    store = await connected(port, f"{chroot}/deep/er")
    await store.put("/a", b"x")
    again = await connected(port, f"{chroot}/deep/er", makes_chroot=False)
    assert await again.exists("/a")
    below = await connected(port, chroot, makes_chroot=False)
    assert "/deep/er/a" in dict(await below.scan("/"))
    for one in (store, again, below):
        await one.close()


async def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    with pytest.raises(StoreUnavailable, match="no ZooKeeper server answers"):
        await ZooKeeperMetadata.connect(zookeeper_address(f"zk://127.0.0.1:{free_port()}"), wait_s=0.2)


async def test_the_next_server_is_tried_when_one_is_away(chroot: str) -> None:
    port = shared_server().server.port
    address = zookeeper_address(f"zk://127.0.0.1:{free_port()},127.0.0.1:{port}{chroot}")
    store = await ZooKeeperMetadata.connect(address, LONG, wait_s=60, makes_chroot=True)
    await store.put("/a", b"")
    await store.close()


async def test_with_credentials_nodes_are_for_their_creator_only(chroot: str) -> None:
    port = shared_server().server.port
    mine = await connected(port, chroot, ZooKeeperAccess(60_000, credentials="me:secret"))
    made = await mine.create("/a/b", b"x")
    for theirs in ("", "me:wrong"):
        stranger = await connected(
            port, chroot, ZooKeeperAccess(60_000, credentials=theirs), makes_chroot=False
        )
        for refused in (stranger.get("/a/b"), stranger.put("/a/b", b"y"), stranger.children("/a")):
            with pytest.raises(StoreForbidden, match="zooKeeperAuthFile"):
                await refused
        with pytest.raises(StoreForbidden):
            await stranger.scan("/a")
        await stranger.close()
    again = await connected(port, chroot, ZooKeeperAccess(60_000, credentials="me:secret"))
    assert await again.get("/a/b") == made
    await mine.close()
    await again.close()


# kazoo leaves the socket of a refused handshake to the collector.
@pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning", "ignore:unclosed:ResourceWarning")
async def test_with_tls_only_a_server_with_a_trusted_certificate_is_used(tmp_path: Path) -> None:
    for name in ("server", "stranger"):
        _make_certificate(tmp_path, name)
    secure = free_port()
    server = ZooKeeperServer(
        tmp_path / "zk",
        (
            f"secureClientPort={secure}",
            "ssl.clientAuth=none",
            f"ssl.keyStore.location={tmp_path}/server-both.pem",
            f"ssl.trustStore.location={tmp_path}/server.pem",
        ),
    )
    server.start()
    try:
        trusted = ZooKeeperAccess(60_000, has_tls=True, tls_trust_certs_file=str(tmp_path / "server.pem"))
        store = await connected(secure, "/tls", trusted)
        await store.put("/a", b"x")
        await store.close()
        other = ZooKeeperAccess(60_000, has_tls=True, tls_trust_certs_file=str(tmp_path / "stranger.pem"))
        with pytest.raises(StoreUnavailable):
            await ZooKeeperMetadata.connect(
                zookeeper_address(f"zk://127.0.0.1:{secure}/tls"), other, wait_s=3
            )
    finally:
        server.kill()
        gc.collect()


def _make_certificate(folder: Path, name: str) -> None:
    """A certificate for this address, signed by itself, with its key: for Java, and for Python."""
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.pem && "
        f"cat {name}.key {name}.pem > {name}-both.pem",
        cwd=folder,
        shell=True,
        check=True,
        capture_output=True,
    )


# -- a server that is behind


async def test_a_fresh_read_at_a_server_that_is_behind_has_what_others_were_told(chroot: str) -> None:
    ensemble = Ensemble(lag_s=0.4)
    try:
        leader, behind = ensemble.ports()
        writer, reader = await connected(leader, chroot), await connected(behind, chroot)
        plain_was_behind = 0
        for number in range(5):
            written = await writer.put("/a", b"%d" % number)
            plain_was_behind += await reader.get("/a") != written
            assert await reader.get("/a", fresh=True) == written
        assert plain_was_behind, "the server was not behind: this has shown nothing"
        await writer.close()
        await reader.close()
    finally:
        ensemble.stop()
