"""States of the session, lost answers and watches, at a server that a test directs: no Java is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.metadata.errors import StoreClosed, StoreForbidden, StoreUnavailable
from anabranch.metadata.port import SessionState
from anabranch.metadata.zookeeper.address import zookeeper_address
from anabranch.metadata.zookeeper.store import ZooKeeperMetadata
from harness.metadata_process import until_state
from unit.metadata.zookeeper.scripted import ADD_WATCH, EXISTS, SYNC, ScriptedZooKeeper

GET, CREATE, CHANGED = 4, 15, 3


@pytest.fixture
async def server() -> AsyncIterator[ScriptedZooKeeper]:
    made = ScriptedZooKeeper()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def store(server: ScriptedZooKeeper) -> AsyncIterator[ZooKeeperMetadata]:
    store = await ZooKeeperMetadata.connect(zookeeper_address(f"zk://127.0.0.1:{server.port}"), wait_s=60)
    yield store
    await store.close()


async def test_a_session_has_zookeepers_number(server: ScriptedZooKeeper, store: ZooKeeperMetadata) -> None:
    assert store.session.state is SessionState.CONNECTED
    assert store.session.id == "0x100"
    assert await store.get("/a") is None


async def test_a_broken_connection_is_doubt_and_the_session_goes_on(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    seen: list[SessionState] = []
    store.session.on_change(seen.append)
    server.drop()
    await until_state(store, SessionState.IN_DOUBT)
    await until_state(store, SessionState.CONNECTED)
    assert store.session.id == "0x100"
    await store.exists("/a")
    assert seen == [SessionState.IN_DOUBT, SessionState.CONNECTED]


async def test_an_ended_session_is_lost_and_replaced(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    seen: list[SessionState] = []
    store.session.on_change(seen.append)
    server.expire()
    await until_state(store, SessionState.IN_DOUBT)
    await until_state(store, SessionState.CONNECTED)
    assert store.session.id == "0x101"
    await store.exists("/a")
    assert seen == [SessionState.IN_DOUBT, SessionState.LOST, SessionState.CONNECTED]


async def test_who_hears_of_a_lost_answer_finds_the_session_in_doubt(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[CREATE] = None
    writes = [asyncio.ensure_future(store.create(f"/{number}", b"")) for number in range(300)]
    await server.until_asked(CREATE)
    states: list[SessionState] = []
    writes[0].add_done_callback(lambda _: states.append(store.session.state))
    server.drop()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(one) for one in outcomes} == {StoreUnavailable}
    assert states == [SessionState.IN_DOUBT]
    # Neither those that were sent nor those that waited are asked again.
    asked = server.asked.count(CREATE)
    await until_state(store, SessionState.CONNECTED)
    await store.exists("/a")
    assert server.asked.count(CREATE) == asked <= 128


async def test_a_watch_says_everything_once_the_server_has_confirmed_it(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[ADD_WATCH] = None
    watch = store.watch("/w")
    first = asyncio.ensure_future(anext(watch))
    await server.until_asked(ADD_WATCH)
    assert not first.done()
    del server.answers[ADD_WATCH]
    server.drop()
    assert (await first).everything
    server.tell(CHANGED, "/w/a")
    server.tell(CHANGED, "/elsewhere")
    assert (await anext(watch)).paths == {"/w/a"}
    watch.close()


async def test_after_a_return_watches_are_confirmed_before_the_session_counts_as_connected(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    watch = store.watch("/w")
    assert (await anext(watch)).everything
    server.answers[ADD_WATCH] = None
    server.asked.clear()
    server.drop()
    await server.until_asked(SYNC, ADD_WATCH)
    assert store.session.state is SessionState.IN_DOUBT
    del server.answers[ADD_WATCH]
    server.drop()
    await until_state(store, SessionState.CONNECTED)
    assert (await anext(watch)).everything


async def test_a_watch_that_is_opened_while_the_session_returns_is_armed_with_the_others(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    former = store.watch("/w")
    assert (await anext(former)).everything
    server.answers[ADD_WATCH] = None
    server.drop()
    await server.until_asked(SYNC, ADD_WATCH)
    watch = store.watch("/v")
    server.release()
    await server.until_asked(SYNC, ADD_WATCH, ADD_WATCH)
    await until_state(store, SessionState.CONNECTED)
    assert (await anext(watch)).everything
    server.tell(CHANGED, "/v/a")
    assert (await anext(watch)).paths == {"/v/a"}


async def test_answers_that_do_not_fit_their_requests_end_the_connection_and_not_the_session(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[GET] = None
    skipped = asyncio.ensure_future(store.get("/a"))
    await server.until_asked(GET)
    with pytest.raises(StoreUnavailable):
        await store.exists("/a")
    with pytest.raises(StoreUnavailable):
        await skipped
    del server.answers[GET]
    await until_state(store, SessionState.CONNECTED)
    assert await store.get("/a") is None


async def test_errors_that_no_release_knows_and_answers_that_cannot_be_read_end_nothing(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[GET] = -4711
    with pytest.raises(StoreUnavailable, match="4711"):
        await store.get("/a")
    server.answers[GET] = b"\0"
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await store.get("/a")
    del server.answers[GET]
    assert await store.get("/a") is None


async def test_a_read_that_is_not_allowed_names_the_setting(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[GET] = -102
    with pytest.raises(StoreForbidden, match="zooKeeperAuthFile"):
        await store.get("/a")


async def test_a_server_without_recursive_watches_is_refused_at_the_start(server: ScriptedZooKeeper) -> None:
    server.answers[ADD_WATCH] = -6
    with pytest.raises(StoreForbidden, match=r"3\.6 or later"):
        await ZooKeeperMetadata.connect(zookeeper_address(f"zk://127.0.0.1:{server.port}"), wait_s=60)


async def test_closing_fails_what_waits_and_refuses_what_follows(
    server: ScriptedZooKeeper, store: ZooKeeperMetadata
) -> None:
    server.answers[EXISTS] = None
    waiting = asyncio.ensure_future(store.exists("/a"))
    await server.until_asked(EXISTS)
    await store.close()
    with pytest.raises(StoreClosed):
        await waiting
    with pytest.raises(StoreClosed):
        await store.put("/a", b"")
