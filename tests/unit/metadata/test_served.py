"""The metadata process: its sessions, its restarts, and clients that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata import served as served_module
from anabranch.metadata.errors import StoreInUse, StoreUnavailable, VersionConflict
from anabranch.metadata.messages import (
    PROTOCOL,
    AnswerKind,
    MessageCutter,
    NotAMessage,
    Verb,
    decode_answer,
    decode_request,
    encode,
)
from anabranch.metadata.port import SessionState, Watch
from anabranch.metadata.remote import RemoteMetadata
from anabranch.metadata.served import REQUESTS_MAX, UNSENT_BYTES_MAX, MetadataServer
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.metadata.unix_sockets import address_of
from harness.metadata_process import MetadataProcess, Relay, until_session, until_state

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[MetadataProcess]:
    process = MetadataProcess(tmp_path)
    await process.start()
    yield process
    await process.kill()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[MetadataServer]:
    server = await MetadataServer.start(
        tmp_path / "metadata.sqlite", socket_of(tmp_path), grace_s=60, silence_max_s=600
    )
    yield server
    await server.stop()


def socket_of(folder: Path) -> Path:
    return folder / "private" / "metadata.socket"


async def named(watch: Watch, path: str) -> None:
    async with asyncio.timeout(60):
        async for changes in watch:
            if path in changes.paths:
                return


# Restarts of the server.


async def test_a_killed_server_loses_no_answered_write_and_no_session(process: MetadataProcess) -> None:
    store, other = await process.connect(), await process.connect()
    session = store.session.id
    await store.create("/brokers/one", b"here", ephemeral=True)
    written = 0
    with other.watch("/brokers") as watch:
        await anext(watch)
        for _ in range(3):
            await process.kill()
            await until_state(store, SessionState.IN_DOUBT)
            with pytest.raises(StoreUnavailable):
                await store.put("/n", b"")
            await process.start()
            await until_state(store, SessionState.CONNECTED)
            await until_state(other, SessionState.CONNECTED)
            assert (await anext(watch)).everything
            found = await other.get("/n")
            assert written == 0 or (found is not None and found.value == b"%d" % written)
            for _ in range(20):
                written += 1
                await store.put("/n", b"%d" % written)
            assert store.session.id == session
            assert await other.children("/brokers") == ["one"]
        await store.close()
        await until_gone(other, watch, "/brokers/one")
    await other.close()


async def until_gone(store: RemoteMetadata, watch: Watch, path: str) -> None:
    async with asyncio.timeout(60):
        while await store.exists(path):
            await anext(watch)


async def test_writes_under_way_when_the_server_is_killed_are_whole_or_absent(
    process: MetadataProcess,
) -> None:
    store = await process.connect()
    done: set[int] = set()

    async def write(number: int) -> None:
        await store.create(f"/w/{number}", b"x" * 1000)
        done.add(number)

    writes = [asyncio.ensure_future(write(number)) for number in range(2000)]
    await asyncio.wait(writes[:200])
    await process.kill()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), StoreUnavailable}
    await process.start()
    await until_state(store, SessionState.CONNECTED)
    stored = {int(path.removeprefix("/w/")) for path, node in await store.scan("/w")}
    assert done <= stored
    assert all(node.value == b"x" * 1000 for _, node in await store.scan("/w"))
    await store.close()


async def test_a_session_that_does_not_come_back_to_the_next_server_ends(tmp_path: Path) -> None:
    first = await MetadataServer.start(tmp_path / "m", socket_of(tmp_path))
    relay = Relay(tmp_path / "relay", socket_of(tmp_path))
    await relay.open()
    store = await RemoteMetadata.connect(relay.path)
    await store.create("/gone", b"", ephemeral=True)
    relay.cut()
    await first.stop()
    second = await MetadataServer.start(tmp_path / "m", socket_of(tmp_path), grace_s=0.01)
    other = await RemoteMetadata.connect(socket_of(tmp_path))
    with other.watch("/gone") as watch:
        await until_gone(other, watch, "/gone")
    await relay.open()
    old = store.session.id
    await until_state(store, SessionState.CONNECTED)
    assert store.session.id != old
    await asyncio.gather(store.close(), other.close())
    relay.cut()
    await second.stop()


async def test_a_store_that_was_served_opens_in_one_process_without_its_sessions(tmp_path: Path) -> None:
    server = await MetadataServer.start(tmp_path / "m", socket_of(tmp_path), grace_s=60)
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    await store.create("/kept", b"v")
    await store.create("/gone", b"", ephemeral=True)
    with pytest.raises(StoreInUse):
        await MetadataServer.start(tmp_path / "m", tmp_path / "another")
    await server.stop()
    service = await SqliteMetadata.open(tmp_path / "m", clock_ms=lambda: 0)
    own = await service.connect()
    assert await own.exists("/kept")
    assert not await own.exists("/gone")
    await service.close()
    server = await MetadataServer.start(tmp_path / "m", socket_of(tmp_path), grace_s=60)
    old = store.session.id
    await until_session(store, lambda: store.session.id != old)
    assert await store.exists("/kept")
    await store.close()
    await server.stop()


# The ends of clients.


async def test_a_killed_client_loses_its_session_without_any_grace(process: MetadataProcess) -> None:
    store = await process.connect()
    client = await started_client(process, "/brokers/killed")
    stopped = await started_client(process, "/brokers/alive")
    with store.watch("/brokers") as watch:
        client.kill()
        await client.wait()
        await until_gone(store, watch, "/brokers/killed")  # The grace is a minute.
    assert await store.children("/brokers") == ["alive"]
    stopped.kill()
    await stopped.wait()
    await store.close()


async def started_client(process: MetadataProcess, path: str) -> asyncio.subprocess.Process:
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        PROGRAMS / "metadata_client.py",
        process.socket_path,
        path,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    async with asyncio.timeout(60):
        await client.stdout.readline()
    return client


async def test_a_client_that_is_silent_for_too_long_loses_its_session(tmp_path: Path) -> None:
    server = await MetadataServer.start(tmp_path / "m", socket_of(tmp_path), silence_max_s=1.5)
    watching = await RemoteMetadata.connect(socket_of(tmp_path), ping_every_s=0.1)
    silent = await RemoteMetadata.connect(socket_of(tmp_path), ping_every_s=3600)
    await silent.create("/e", b"", ephemeral=True)
    old = silent.session.id
    with watching.watch("/e") as watch:
        await until_gone(watching, watch, "/e")
    await until_session(silent, lambda: silent.session.id != old)
    assert await silent.now_ms() > 0
    await asyncio.gather(silent.close(), watching.close())
    await server.stop()


async def test_a_server_that_was_stopped_for_long_ends_no_session(process: MetadataProcess) -> None:
    store = await RemoteMetadata.connect(process.socket_path, wait_s=60, ping_every_s=0.05, silence_max_s=0.3)
    await store.create("/e", b"", ephemeral=True)
    session = store.session.id
    process.send_signal(signal.SIGSTOP)
    write = asyncio.ensure_future(store.put("/in-doubt", b""))
    await until_state(store, SessionState.IN_DOUBT)
    with pytest.raises(StoreUnavailable):
        await write
    process.send_signal(signal.SIGCONT)
    await until_state(store, SessionState.CONNECTED)
    assert store.session.id == session
    assert await store.exists("/e")
    await store.close()


async def test_another_process_may_end_a_session_and_its_client_gets_a_new_one(
    tmp_path: Path, server: MetadataServer
) -> None:
    store, other = [await RemoteMetadata.connect(socket_of(tmp_path)) for _ in range(2)]
    await store.create("/e", b"", ephemeral=True)
    old = store.session.id
    states: list[SessionState] = []
    store.session.on_change(states.append)
    await other.end_session(old)
    assert not await other.exists("/e")
    await other.end_session(old)
    await other.end_session("no such session")
    await until_session(store, lambda: store.session.id != old)
    assert states == [SessionState.LOST, SessionState.CONNECTED]
    await store.close()
    await other.close()


async def test_a_session_cannot_be_taken_without_its_secret(tmp_path: Path, server: MetadataServer) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, store.session.id, 12345)))
    [(_, kind, (session, _, is_resumed))] = await answers(reader, 1)
    assert (kind, is_resumed) == (AnswerKind.DONE, False)
    assert session != store.session.id
    assert await store.now_ms() > 0
    writer.close()
    await store.close()


# Doubt.


async def test_a_write_whose_answer_was_lost_is_in_doubt_and_takes_effect_before_the_session_goes_on(
    tmp_path: Path, server: MetadataServer
) -> None:
    relay = Relay(tmp_path / "relay", socket_of(tmp_path))
    await relay.open()
    store = await RemoteMetadata.connect(relay.path)
    other = await RemoteMetadata.connect(socket_of(tmp_path))
    version = (await store.create("/n", b"0")).version
    for number in range(30):
        writes = [asyncio.ensure_future(store.put("/n", b"%d" % number)) for _ in range(50)]
        await writes[0]
        relay.cut()
        await asyncio.gather(*writes, return_exceptions=True)
        await until_state(store, SessionState.IN_DOUBT)
        await relay.open()
        await until_state(store, SessionState.CONNECTED)
        found = await store.get("/n")
        assert found is not None
        # Nothing of the writes in doubt may take effect from here on.
        await other.put("/turn", b"")
        assert await store.get("/n") == found
        assert found.version > version
        version = found.version
    await store.close()
    await other.close()
    relay.cut()


async def test_the_stores_errors_arrive_as_they_are(tmp_path: Path, server: MetadataServer) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    await store.put("/a", b"")
    with pytest.raises(VersionConflict) as refusal:
        await store.put("/a", b"", if_version=7)
    assert (refusal.value.path, refusal.value.expected, refusal.value.current) == ("/a", 7, 0)
    await store.close()


async def test_without_a_server_connecting_fails_after_its_time(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no metadata process answers"):
        await RemoteMetadata.connect(tmp_path / "nobody", wait_s=0.05)


# Clients that misbehave.


async def raw(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with address_of(socket_of(folder)) as address:
        return await asyncio.open_unix_connection(address)


async def answers(reader: asyncio.StreamReader, count: int) -> list[tuple[int, AnswerKind, Any]]:
    cutter = MessageCutter()
    found: list[tuple[int, AnswerKind, Any]] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            data = await reader.read(65536)
            assert data, "the connection was closed"
            found += [decode_answer(message) for message in cutter.feed(data)]
    return found


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 100,
    b"\x00\x00\x00\x01\xc1",
    encode(1, Verb.GET, ["/a"]),  # Before a session was begun.
    encode(1, Verb.HELLO, [PROTOCOL + 1, None, 0]),
    encode(1, Verb.HELLO, ["x", None, 0]),
    encode(1, Verb.HELLO, []),
    b"\x00\x01\x00\x00\x93\x01\xa4ping" + b"\x91" * 65_530,  # Nested deeply.
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_bytes_that_are_no_message_cost_only_their_connection(
    tmp_path: Path, server: MetadataServer, garbage: bytes
) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    reader, writer = await raw(tmp_path)
    writer.write(garbage)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await store.put("/a", b"")
    assert store.session.state is SessionState.CONNECTED
    await store.close()


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (Verb.PUT, ["/a", "text", None]),
        (Verb.PUT, ["/a"]),
        (Verb.GET, [7]),
        (Verb.CREATE, ["/a", b"", 1]),
        (Verb.NEXT_IDS, ["/a", "1"]),
        (Verb.NEXT_IDS, ["/a", -1]),
        (Verb.NEXT_IDS, ["/a", 2**40]),
        (Verb.HELLO, [PROTOCOL, None, 0]),
    ],
)
async def test_a_request_with_wrong_arguments_ends_its_connection(
    tmp_path: Path, server: MetadataServer, verb: Verb, arguments: list[object]
) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, None, 0)))
    await answers(reader, 1)
    writer.write(encode(2, verb, arguments))
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    assert not await store.exists("/a")
    await store.close()


async def test_a_client_that_does_not_read_is_not_read_from_and_holds_nobody(
    tmp_path: Path, server: MetadataServer
) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    await store.put("/big", b"x" * 1_000_000)
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, None, 0)))
    await answers(reader, 1)
    writer.write(encode(2, Verb.WATCH, ["/"]))
    await answers(reader, 1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    asked = 3 * UNSENT_BYTES_MAX // 1_000_000 + 100
    for number in range(asked):
        writer.write(encode(3 + number, Verb.GET, ["/big"]))
    for part in range(25):
        await asyncio.gather(*(store.put(f"/n/{100 * part + n}", b"") for n in range(100)))
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    cutter, got = MessageCutter(), 0
    told: list[AnswerKind] = []
    async with asyncio.timeout(60):
        while got < asked or not told:
            for message in cutter.feed(await reader.read(1 << 20)):
                number, kind, _ = decode_answer(message)
                got += number > 0
                told += [kind] if number == 0 else []
    assert AnswerKind.EVERYTHING in told or AnswerKind.CHANGED in told
    writer.close()
    await store.close()


async def test_answers_are_not_made_before_the_client_has_read_the_ones_before_them(
    tmp_path: Path, server: MetadataServer
) -> None:
    """A request has some bytes and its answer up to a megabyte: one read may bring thousands of them."""
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    size, asked = 500_000, 200
    await store.put("/big", b"x" * size)
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, None, 0)))
    await answers(reader, 1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    made = 0

    def counted(number: int, *rest: Any) -> bytes:
        nonlocal made
        made += number > 1
        return encode(number, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served_module, "encode", counted)
        writer.write(b"".join(encode(2 + number, Verb.GET, ["/big"]) for number in range(asked)))
        while not made:
            await store.get("/big")
        for _ in range(10):
            await store.get("/big")
        # Ten of `made` are the other client's. The socket holds some answers, too.
        assert made * size < 4 * UNSENT_BYTES_MAX
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    cutter, got = MessageCutter(), 0
    async with asyncio.timeout(60):
        while got < asked:
            got += len(cutter.feed(await reader.read(1 << 20)))
    writer.close()
    await store.close()


async def test_a_client_that_reads_slowly_is_not_silent(tmp_path: Path, server: MetadataServer) -> None:
    """It is not read from while it has much to read: it cannot say that it lives."""
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    await store.put("/big", b"x" * 1_000_000)
    await store.close()
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, None, 0)))
    await answers(reader, 1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"".join(encode(2 + number, Verb.GET, ["/big"]) for number in range(100)))
    (link,) = server._links
    async with asyncio.timeout(60):
        while not link._is_full:  # noqa: ASYNC110  # Only the loop knows of the turns.
            await asyncio.sleep(0)
    for _ in range(3):
        server._look()
        # What the client reads now leaves the server's buffer.
        before = link._transport.get_write_buffer_size()
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            while link._transport.get_write_buffer_size() == before:
                await reader.read(1 << 16)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        link.heard_at = -1e9
        server._look()
        assert link.heard_at > 0
    writer.close()


async def test_those_who_ask_for_a_node_at_once_share_its_answer(
    tmp_path: Path, server: MetadataServer
) -> None:
    """Each of them could be a request of one client for a large record. A write between them is seen by those after."""
    store = await RemoteMetadata.connect(socket_of(tmp_path))
    await store.put("/a", b"old")
    made: list[int] = []

    def counted(number: int, *rest: Any) -> bytes:
        made.append(number)
        return encode(number, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served_module, "encode", counted)
        first = [asyncio.create_task(store.get("/a")) for _ in range(100)]
        put = asyncio.create_task(store.put("/a", b"new"))
        then = [asyncio.create_task(store.get("/a")) for _ in range(100)]
        await asyncio.sleep(0)
        first[0].cancel()
        then[99].cancel()
        found = await asyncio.gather(*first[1:], *then[:99])
        await put
        lists = await asyncio.gather(*(store.children("/") for _ in range(100)))
    assert [node.value for node in found if node] == [b"old"] * 99 + [b"new"] * 99
    assert lists == [["a"]] * 100
    assert len(set(map(id, lists))) == 100  # Each may change its own.
    assert len([number for number in made if number]) < 10
    await store.close()


@pytest.mark.parametrize("verb", [Verb.GET, Verb.CREATE, Verb.PUT, Verb.DELETE, Verb.CHILDREN, Verb.NEXT_IDS])
async def test_a_path_that_is_none_is_refused_before_anything_is_done_for_its_parts(
    tmp_path: Path, server: MetadataServer, verb: Verb
) -> None:
    """A megabyte of slashes has a million parents, of half a megabyte each."""
    rest: dict[Verb, list[Any]] = {
        Verb.CREATE: [b"", False],
        Verb.PUT: [b"", None],
        Verb.DELETE: [None],
        Verb.NEXT_IDS: [1],
    }
    reader, writer = await raw(tmp_path)
    writer.write(encode(1, Verb.HELLO, (PROTOCOL, None, 0)))
    writer.write(encode(2, verb, ["/" * 900_000, *rest.get(verb, [])]))
    _, (number, kind, body) = await answers(reader, 2)
    assert (number, kind, body[0]) == (2, AnswerKind.REFUSED, "InvalidPath")
    assert len(str(body)) < 1000
    writer.close()


async def test_more_requests_than_the_limit_are_all_answered(tmp_path: Path, server: MetadataServer) -> None:
    # Client and server share a loop here: beside a load the client hears nothing for longer than it waits by default.
    store = await RemoteMetadata.connect(socket_of(tmp_path), silence_max_s=600)
    count = 2 * REQUESTS_MAX
    done = await asyncio.gather(*(store.put("/n", b"") for _ in range(count)))
    assert [node.version for node in done] == list(range(count))
    await store.close()


async def test_a_long_scan_comes_in_pages_with_everything(tmp_path: Path, server: MetadataServer) -> None:
    store = await RemoteMetadata.connect(socket_of(tmp_path), silence_max_s=600)
    await asyncio.gather(
        *(store.put(f"/s/{n:05}", b"x" * (300_000 if n % 400 == 0 else 5)) for n in range(2001))
    )
    assert [path for path, _ in await store.scan("/s")] == [f"/s/{n:05}" for n in range(2001)]
    await store.close()


async def test_only_the_same_user_reaches_the_socket(tmp_path: Path, server: MetadataServer) -> None:
    path = socket_of(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    path.parent.chmod(0o711)
    path.chmod(0o666)
    stranger = await asyncio.create_subprocess_exec(
        sys.executable,
        PROGRAMS / "metadata_stranger.py",
        path,
        encode(1, Verb.HELLO, (PROTOCOL, None, 0)).hex(),
        stdout=subprocess.PIPE,
    )
    said, _ = await stranger.communicate()
    assert said.strip() == b"closed"


async def test_a_socket_may_have_a_longer_path_than_addresses_hold(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir(mode=0o700)
    server = await MetadataServer.start(tmp_path / "m", folder / "metadata.socket")
    store = await RemoteMetadata.connect(folder / "metadata.socket")
    assert await store.now_ms() > 0
    await store.close()
    await server.stop()


# Messages.


def test_any_cut_of_the_stream_gives_the_same_messages() -> None:
    frames = [encode(n, Verb.PUT, [f"/{n}", b"x" * n, None]) for n in range(1, 40)]
    stream = b"".join(frames)
    for step in (1, 3, 7, 64, len(stream)):
        cutter = MessageCutter()
        found: list[bytes] = []
        for at in range(0, len(stream), step):
            found += cutter.feed(stream[at : at + step])
        assert [decode_request(message)[0] for message in found] == list(range(1, 40))


def test_a_message_over_the_limit_is_refused_by_its_size_alone() -> None:
    with pytest.raises(NotAMessage, match="limit 10"):
        MessageCutter(10).feed((11).to_bytes(4, "big"))
