"""What only the SQLite adapter promises: one owner, nothing acked is lost, faults of the disk are survived."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.metadata.errors import (
    AlreadyExists,
    StoreClosed,
    StoreDamaged,
    StoreInUse,
    StoreTooNew,
    StoreUnavailable,
)
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.metadata.store_time import AHEAD_MS

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "metadata.sqlite"


@asynccontextmanager
async def opened(file: Path, now_ms: int = 0) -> AsyncIterator[SqliteMetadata]:
    service = await SqliteMetadata.open(file, clock_ms=lambda: now_ms)
    try:
        yield service
    finally:
        await service.close()


async def test_no_other_user_can_read_what_it_stores(file: Path) -> None:
    """It has the secret by which brokers know each other. Also where the user lets others read new files, and for files
    of a release that did not see to it."""

    def modes() -> set[int]:
        return {stat.S_IMODE(one.stat().st_mode) for one in file.parent.iterdir()}

    before = os.umask(0)
    try:
        for _ in range(2):
            async with opened(file) as service:
                store = await service.connect()
                await store.put("/secret", b"x")
                assert modes() == {0o600}
            for one in file.parent.iterdir():
                one.chmod(0o644)
    finally:
        os.umask(before)


@asynccontextmanager
async def program(name: str, *args: object) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAMS / name, *map(str, args), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):  # A line cut off by a kill was never said.
            yield line.decode().strip()


def contents(file: Path) -> bytes:
    return file.read_bytes()


def rewrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(change(file.read_bytes() if file.exists() else b""))


# One owner.


async def test_a_second_opening_is_refused_in_one_line_and_disturbs_nothing(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        with pytest.raises(StoreInUse) as refusal:
            await SqliteMetadata.open(file, clock_ms=lambda: 0)
        assert str(refusal.value) == f"metadata is in use by another process: {file}"
        await store.put("/a", b"still mine")
    async with opened(file) as service:
        assert await (await service.connect()).exists("/a")


async def test_another_process_is_refused_until_the_owner_dies(file: Path) -> None:
    async with program("metadata_writer.py", file) as owner:
        assert await anext(lines(owner)) == "0"
        with pytest.raises(StoreInUse):
            await SqliteMetadata.open(file, clock_ms=lambda: 0)
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
    async with opened(file):
        pass


# Durability.


@pytest.mark.parametrize("acks", [1, 40, 700])
async def test_what_was_acked_before_kill_9_is_there_after_it(file: Path, acks: int) -> None:
    said = -1
    async with program("metadata_writer.py", file) as writer:
        async for line in lines(writer):
            said = int(line)
            if said >= acks:
                break
        writer.send_signal(signal.SIGKILL)
        async for line in lines(writer):
            said = int(line)
    async with opened(file) as service:
        store = await service.connect()
        counter = await store.get("/counter")
        assert counter is not None
        assert int(counter.value) == counter.version >= said
        assert {f"/log/{n:06}" for n in range(said + 1)} <= {path for path, _ in await store.scan("/log")}
        assert await store.next_id("/ids") > said
        assert await store.children("/ephemerals") == []


async def test_time_never_runs_back_across_restarts(file: Path) -> None:
    async with opened(file, now_ms=5_000) as service:
        store = await service.connect()
        await store.put("/a", b"")
        await store.delete("/a")
    async with opened(file, now_ms=9_000) as service:
        assert await (await service.connect()).now_ms() == 9_000, "shown once, and no record holds it"
    async with opened(file, now_ms=100) as service:
        store = await service.connect()
        assert await store.now_ms() == 9_000
        assert (await store.create("/b", b"")).created_ms == 9_000


async def test_time_never_runs_back_across_kill_9_under_a_clock_set_back(file: Path) -> None:
    async with program("metadata_clock.py", file, 5_000) as teller:
        said = [int(await anext(lines(teller))) for _ in range(3)]
        assert said == [5_000, 15_000, 25_000]
        teller.send_signal(signal.SIGKILL)
        await teller.wait()
    async with opened(file, now_ms=100) as service:
        store = await service.connect()
        assert 25_000 <= await store.now_ms() <= 25_000 + AHEAD_MS


# Files that cannot be used.


async def test_a_file_that_is_no_database_is_reported_and_left_alone(file: Path) -> None:
    rewrite(file, lambda _: b"not a database at all" * 500)
    with pytest.raises(StoreDamaged, match="is damaged: file is not a database"):
        await SqliteMetadata.open(file, clock_ms=lambda: 0)
    assert contents(file) == b"not a database at all" * 500


async def test_a_database_of_something_else_is_refused(file: Path) -> None:
    file.parent.mkdir()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreDamaged, match="not a metadata store"):
        await SqliteMetadata.open(file, clock_ms=lambda: 0)


async def test_a_newer_format_is_refused_and_named(file: Path) -> None:
    async with opened(file):
        pass
    with sqlite3.connect(file) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreTooNew, match="has format 99; this release reads up to 1"):
        await SqliteMetadata.open(file, clock_ms=lambda: 0)


async def test_overwritten_pages_are_found_at_start(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        await asyncio.gather(*(store.put(f"/r/{n}", b"x" * 100) for n in range(500)))
    rewrite(file, lambda data: data[:8192] + os.urandom(32768) + data[40960:])
    with pytest.raises(StoreDamaged) as refusal:
        await SqliteMetadata.open(file, clock_ms=lambda: 0)
    assert "\n" not in str(refusal.value)


async def test_a_record_that_rotted_is_named_and_never_served(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        await store.put("/r/good", b"fine")
        await store.put("/r/bad", b"precious words")
    rewrite(file, lambda data: data.replace(b"precious words", b"precious worms"))
    async with opened(file) as service:
        store = await service.connect()
        good = await store.get("/r/good")
        assert good is not None
        assert good.value == b"fine"
        with pytest.raises(StoreDamaged, match="/r/bad fails its checksum"):
            await store.get("/r/bad")
        with pytest.raises(StoreDamaged, match="/r/bad fails its checksum"):
            await store.scan("/r")


async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await SqliteMetadata.open(tmp_path / "file" / "metadata.sqlite", clock_ms=lambda: 0)


# The thread.


async def test_ten_thousand_waiting_puts_share_their_transactions(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        done = await asyncio.gather(*(store.put(f"/t/{n}", b"v") for n in range(10_000)))
        assert {node.version for node in done} == {0}
        assert len(await store.scan("/t")) == 10_000


async def test_a_refusal_fails_alone_among_those_that_share_a_transaction(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        results = await asyncio.gather(
            store.create("/a", b"1"),
            store.create("/a", b"2"),
            store.create("/b", b"3"),
            return_exceptions=True,
        )
        assert [type(result) for result in results[1:2]] == [AlreadyExists]
        assert await store.children("/") == ["a", "b"]


async def test_cancelled_callers_leave_the_thread_at_work(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        writes = [asyncio.ensure_future(store.put(f"/a/{n}", b"")) for n in range(200)]
        await asyncio.wait(writes, timeout=0)  # One turn of the loop: all are queued, none is answered.
        for write in writes[::2]:
            write.cancel()
        async with asyncio.timeout(20):
            results = await asyncio.gather(*writes, return_exceptions=True)
        assert any(isinstance(result, asyncio.CancelledError) for result in results[::2])
        assert not any(isinstance(result, BaseException) for result in results[1::2])
        assert (await store.put("/after", b"")).version == 0


async def test_what_was_read_or_written_is_read_again_without_the_thread(file: Path) -> None:
    async with opened(file) as service:
        store, other = await service.connect(), await service.connect()
        made = await store.put("/f/a", b"1")
        await store.children("/f")
        reads = [
            (other.get("/f/a"), made),
            (other.children("/f"), ["a"]),
            (other.now_ms(), 0),
        ]
        for read, expected in reads:
            with pytest.raises(StopIteration) as answered:
                read.send(None)  # To the first wait, of which there is none.
            assert answered.value.value == expected


async def test_reads_sent_among_unanswered_writes_see_what_was_sent_before_them(file: Path) -> None:
    async with opened(file) as service:
        store, other = await service.connect(), await service.connect()
        await store.put("/f/a", b"0")
        await store.children("/f")
        sent: list[asyncio.Future[Any]] = []
        for number in range(1, 50):
            sent.append(asyncio.ensure_future(store.put("/f/a", b"%d" % number)))
            sent.append(asyncio.ensure_future(other.get("/f/a")))
            sent.append(asyncio.ensure_future(other.create(f"/f/{number}/deep", b"")))
            sent.append(asyncio.ensure_future(store.get(f"/f/{number}")))
            sent.append(asyncio.ensure_future(store.children("/f")))
            sent.append(asyncio.ensure_future(store.delete("/f/gone")))
            await asyncio.sleep(0)
        results = await asyncio.gather(*sent)
        for number in range(1, 50):
            _, found, _, folder, names, _ = results[6 * (number - 1) : 6 * number]
            assert found.value == b"%d" % number
            assert folder is not None
            assert len(names) == number + 1


async def test_a_read_that_shares_its_transaction_with_a_later_write_is_not_what_is_kept(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        for number in range(20):
            names = await store.children("/f")
            await asyncio.gather(
                store.put("/f/a", b"%d" % number),
                store.get("/f/a"),
                store.children("/f"),
                store.put("/f/a", b"again"),
                store.create(f"/f/{number}", b""),
            )
            found = await store.get("/f/a")
            assert found is not None
            assert found.value == b"again"
            assert set(await store.children("/f")) == {*names, "a", str(number)}


async def test_a_session_that_ended_is_told_so_even_of_what_is_known(file: Path) -> None:
    async with opened(file) as service:
        store = await service.connect()
        await store.put("/a", b"1")
        await service.end_session(store.session.id)
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        with pytest.raises(StoreUnavailable):
            await store.now_ms()


async def test_beyond_the_limit_of_waiting_operations_more_are_refused_as_retryable(file: Path) -> None:
    service = await SqliteMetadata.open(file, clock_ms=lambda: 0, pending_ops_max=10)
    store = await service.connect()
    results = await asyncio.gather(*(store.put(f"/a/{n}", b"") for n in range(50)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert len(refused) == 40
    assert all(isinstance(error, StoreUnavailable) and error.retryable for error in refused)
    assert (await store.put("/a/again", b"")).version == 0
    await service.close()


async def test_closing_finishes_what_waits_and_then_refuses(file: Path) -> None:
    service = await SqliteMetadata.open(file, clock_ms=lambda: 0)
    store, loose = await service.connect(), await service.connect()
    writes = [asyncio.ensure_future(store.put(f"/a/{n}", b"")) for n in range(50)]
    await loose.get("/a")
    await service.close()
    await service.close()
    await asyncio.gather(*writes, return_exceptions=True)
    with pytest.raises(StoreClosed):
        await loose.get("/a")
    with pytest.raises(StoreClosed):
        await service.connect()
    async with opened(file) as again:
        assert len(await (await again.connect()).children("/a")) == 50


async def test_a_cancelled_opening_gives_the_file_back(file: Path) -> None:
    opening = asyncio.ensure_future(SqliteMetadata.open(file, clock_ms=lambda: 0))
    await asyncio.wait([opening], timeout=0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(20):
        while True:
            try:
                async with opened(file):
                    break
            except StoreInUse:
                continue


# A disk without room.


async def test_a_full_disk_refuses_writes_serves_reads_and_recovers(file: Path) -> None:
    """The program limits the size of its own files, which SQLite meets as a write that fails."""
    async with program("metadata_full_disk.py", file) as process:
        said = [line async for line in lines(process)]
        assert await process.wait() == 0
    assert said == [
        "write refused, retryable",
        "burst of writes refused, reads answered",
        "session ended",
        "write accepted",
        "ephemeral gone",
    ]
