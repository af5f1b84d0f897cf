"""What the log on files promises beyond the contract: damage, full disks, checkpoints, the cache's budget."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import LedgerState, LedgerWriter, LogDamagedError, LogFullError, LogInUseError
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import FoldingOwner, Owner

KB = 1 << 10
FILE = 64 * KB
ROOT = Path("/log")
L1, L2 = LedgerId(1), LedgerId(2)


def store_on(
    files: FaultyFiles,
    boot: int = 0,
    cache_bytes: int = 16 * KB,
    reserve: int = 0,
    commit_bytes_max: int = 8 << 20,
    reclaim_seconds: float = 100.0,
) -> FileLogStore:
    return FileLogStore(
        ROOT,
        clock_ms=lambda: boot,
        files=files,
        incarnation=Incarnation(f"boot{boot}"),
        file_bytes=FILE,
        cache_bytes=cache_bytes,
        commit_bytes_max=commit_bytes_max,
        disk_reserve_bytes=reserve,
        reclaim_seconds=reclaim_seconds,
        idle_seconds=0.001,
    )


async def fill(store: FileLogStore, ledger: LedgerId, entries: int, size: int = 1000) -> Owner:
    owner = Owner()
    writer = store.open_ledger(ledger, owner, "public/default")
    for i in range(entries):
        writer.append(b"%06d" % i + bytes(size), 1)
        if i % 20 == 19:
            await owner.until(i + 1)
    await owner.until(entries)
    return owner


async def read_all(
    store: FileLogStore, ledger: LedgerId, incarnation: Incarnation, first: int, end: int
) -> int:
    """How many entries could be read before the end or an error."""
    at = first
    with contextlib.suppress(LogDamagedError):
        while at < end:
            for number, _, data in await store.read(ledger, incarnation, at, end, 50, 1 << 20):
                assert bytes(data[:6]) == b"%06d" % number
                at = number + 1
    return at - first


def spoil(disk: Disk, path: str, at: int) -> None:
    disk.names[Path(path)].data[at] ^= 1
    disk.names[Path(path)].durable[at] ^= 1


# -- damage


async def test_a_damaged_record_is_reported_with_file_and_offset_and_never_served() -> None:
    disk = Disk(1)
    store = store_on(disk.boot())
    await store.start()
    await fill(store, L1, 150)
    await fill(store, L2, 50)
    run = (await store.plan(L1, store.incarnation, 7, 8)).runs[0]
    spoil(disk, run.path, run.offsets[0] + 100)
    # What comes before is served, then reading stops.
    assert await read_all(store, L1, store.incarnation, 0, 150) == 7
    with pytest.raises(LogDamagedError) as caught:
        await store.read(L1, store.incarnation, 7, 150, 10, KB)
    error = caught.value
    assert (error.ledger, error.first_bad, error.next_good) == (1, 7, 8)
    assert (error.where, error.offset) == (run.path, run.offsets[0])
    assert await read_all(store, L1, store.incarnation, 8, 150) == 142
    assert await read_all(store, L2, store.incarnation, 0, 50) == 50
    await store.close()


async def test_damage_that_runs_on_says_where_reading_can_resume() -> None:
    disk = Disk(1)
    store = store_on(disk.boot())
    await store.start()
    await fill(store, L1, 100)
    run = (await store.plan(L1, store.incarnation, 5, 9)).runs[0]
    for offset in run.offsets:
        spoil(disk, run.path, offset)
    with pytest.raises(LogDamagedError) as caught:
        await store.read(L1, store.incarnation, 5, 100, 10, KB)
    assert caught.value.next_good == 9
    await store.close()


async def test_damage_found_in_recovery_stops_its_ledger_and_no_other() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    await fill(store, L1, 10)
    run = (await store.plan(L1, store.incarnation, 4, 5)).runs[0]
    await fill(store, L2, 10)
    files.power_off()
    await store.close()
    disk.cut()
    spoil(disk, run.path, run.offsets[0] + 50)
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    assert [states[one].entries_end for one in (L1, L2)] == [10, 10]
    assert await read_all(heir, L1, store.incarnation, 0, 10) == 4
    with pytest.raises(LogDamagedError) as caught:
        await heir.read(L1, store.incarnation, 4, 10, 10, KB)
    assert (caught.value.offset, caught.value.next_good) == (run.offsets[0], 5)
    assert await read_all(heir, L1, store.incarnation, 5, 10) == 5
    assert await read_all(heir, L2, store.incarnation, 0, 10) == 10
    await heir.close()


async def test_a_damaged_checkpoint_is_replaced_by_the_one_before() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(L2, owner, "public/default")
    writer.append_snapshot(b"only once, at the beginning")
    await owner.until(0, 1)
    await fill(store, L1, 200)
    files.power_off()
    await store.close()
    disk.cut()
    finished = sorted(
        path for path in disk.names if path.suffix == ".wal" and b"anbrend1" in disk.names[path].data
    )
    data = bytes(disk.names[finished[-1]].data)
    # The last copy in the last finished file is in its checkpoint.
    spoil(disk, str(finished[-1]), data.rindex(b"only once"))
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    assert states[L2] == LedgerState(0, b"only once, at the beginning", (), 0)
    assert states[L1].entries_end == 200
    await heir.close()


# -- checkpoints


class CountingFiles(FaultyFiles):
    """Counts the bytes looked at."""

    seen = 0

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        self.seen += size
        return super().map(path, offset, size)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self.seen += size
        return super().read(fd, size, offset)


@pytest.mark.parametrize("entries", [400, 2000])
async def test_recovery_reads_what_follows_the_last_checkpoint_however_long_the_log(entries: int) -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    await fill(store, L1, entries)
    files.power_off()
    await store.close()
    disk.cut()
    counting = CountingFiles(disk)
    heir = store_on(counting, boot=1)
    await heir.start()
    counting.seen = 0
    state = (await heir.take(store.incarnation, [L1]))[L1]
    assert state.entries_end == entries
    # The last finished file, the one being written, the spare one, and once more what nobody vouches for.
    assert counting.seen < 5 * FILE
    await heir.close()


async def test_a_checkpoint_asks_owners_that_can_fold_for_their_state() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    owner = FoldingOwner()
    writer = store.open_ledger(L2, owner, "public/default")
    for i in range(50):
        owner.state += b"%d;" % i
        writer.append_state(b"%d;" % i)
    await fill(store, L1, 200)
    assert owner.snapshots == 1
    files.power_off()
    await store.close()
    disk.cut()
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    assert (await heir.take(store.incarnation, [L2]))[L2] == LedgerState(0, owner.state, (), 0)
    await heir.close()


class LateOwner(FoldingOwner):
    """Brings its own state up to date only after `append_state` has returned, as an owner may."""

    is_appending = False

    def snapshot(self) -> bytes:
        assert not self.is_appending, "asked for its state in the middle of an append"
        return super().snapshot()


async def test_an_owner_is_never_asked_for_its_state_inside_an_append() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files, commit_bytes_max=2 * KB)
    await store.start()
    owner = LateOwner()
    writer = store.open_ledger(L1, owner, "public/default")
    for i in range(600):
        delta = b"%d" % (i % 10) * 1000
        owner.is_appending = True
        number = writer.append_state(delta)
        owner.is_appending = False
        owner.state += delta[:1]
        if i % 50 == 49:
            await owner.until(0, number + 1)
    assert owner.snapshots > 2
    files.power_off()
    await store.close()
    disk.cut()
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    state = (await heir.take(store.incarnation, None))[L1]
    assert (state.snapshot or b"") + b"".join(one[:1] for one in state.deltas) == owner.state
    await heir.close()


async def test_many_deltas_are_folded_before_they_fill_memory() -> None:
    store = store_on(Disk(1).boot())
    await store.start()
    owner = FoldingOwner()
    writer = store.open_ledger(L1, owner, "public/default")
    for i in range(40):
        owner.state = b"as of %d" % i
        await owner.until(0, writer.append_state(bytes(10_000)) + 1)
    writer.close()
    state = (await store.take(store.incarnation, [L1]))[L1]
    assert sum(map(len, state.deltas)) < 300_000
    assert owner.snapshots > 0
    await store.close()


@pytest.mark.parametrize("ledgers", [5, 700])
async def test_a_checkpoint_of_many_ledgers_is_complete(ledgers: int) -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    owners = [Owner() for _ in range(ledgers)]
    for i, owner in enumerate(owners):
        store.open_ledger(LedgerId(100 + i), owner, "public/default").append_snapshot(b"state %d" % i)
    await owners[-1].until(0, 1)
    await fill(store, L1, 200)
    files.power_off()
    await store.close()
    disk.cut()
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    assert {i: states[LedgerId(100 + i)].snapshot for i in range(ledgers)} == {
        i: b"state %d" % i for i in range(ledgers)
    }
    assert states[L1].entries_end == 200
    await heir.close()


# -- full disks


async def test_a_full_disk_refuses_publishes_while_state_and_deletes_go_on() -> None:
    disk = Disk(1, capacity=20 * FILE)
    store = store_on(disk.boot(), reserve=6 * FILE)
    told: list[bool] = []
    store.on_accepting_change(told.append)
    await store.start()
    store.retain([])
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    with pytest.raises(LogFullError):
        await publish_on(writer, owner)
    assert told == [False]
    assert not store.is_accepting
    assert disk.capacity - disk.used >= 3 * FILE
    number = writer.append_state(b"an ack")
    await owner.until(0, number + 1)
    # Consuming goes on too.
    assert len(await store.read(L1, store.incarnation, 0, owner.entries_end, 10, KB)) >= 1
    store.trim(L1, store.incarnation, owner.entries_end)
    await store.reclaim()
    assert told == [False, True]
    writer.append(b"again", 1)
    await owner.until(writer.next_entry)
    await store.close()


async def test_a_log_whose_listener_fails_is_looked_after_all_the_same() -> None:
    disk = Disk(1, capacity=20 * FILE)
    store = store_on(disk.boot(), reserve=6 * FILE, reclaim_seconds=0.01)
    resumed = asyncio.Event()

    def fails(is_accepting: bool) -> None:
        raise RuntimeError("a topic in a state that nobody thought of")

    store.on_accepting_change(fails)
    store.on_accepting_change(lambda is_accepting: resumed.set() if is_accepting else None)
    await store.start()
    store.retain([])
    owner = Owner()
    writer = store.open_ledger(L1, owner, "public/default")
    with pytest.raises(LogFullError):
        await publish_on(writer, owner)
    store.trim(L1, store.incarnation, owner.entries_end)
    await asyncio.wait_for(resumed.wait(), 20)
    writer.append(b"again", 1)
    await owner.until(writer.next_entry)
    await store.close()


async def publish_on(writer: LedgerWriter, owner: Owner) -> None:
    while True:
        await owner.until(writer.append(bytes(KB), 1) + 1)


# -- the cache


async def test_the_cache_keeps_to_its_budget_and_storage_serves_the_rest() -> None:
    store = store_on(Disk(1).boot(), cache_bytes=64 * KB)
    await store.start()
    await fill(store, L1, 300)
    assert 32 * KB < store.stats()["cache_bytes"] <= 64 * KB
    assert store.read_cached(L1, 0, 10, KB) is None
    recent = store.read_cached(L1, 299, 10, KB)
    assert recent is not None
    assert [number for number, _, _ in recent] == [299]
    assert await read_all(store, L1, store.incarnation, 0, 300) == 300
    await store.close()


async def test_a_commit_larger_than_the_cache_is_not_kept() -> None:
    store = store_on(Disk(1).boot(), cache_bytes=KB)
    await store.start()
    await fill(store, L1, 20)
    assert store.stats()["cache_bytes"] == 0
    assert await read_all(store, L1, store.incarnation, 0, 20) == 20
    await store.close()


async def test_an_entry_larger_than_a_file_is_stored() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    await fill(store, L1, 3, size=3 * FILE)
    await fill(store, L2, 3)
    files.power_off()
    await store.close()
    disk.cut()
    heir = store_on(disk.boot(), boot=1)
    await heir.start()
    await heir.take(store.incarnation, None)
    assert await read_all(heir, L1, store.incarnation, 0, 3) == 3
    assert await read_all(heir, L2, store.incarnation, 0, 3) == 3
    await heir.close()


# -- where it may lie


class NetworkFiles(FaultyFiles):
    def refuse_network(self, path: Path) -> None:
        raise LogInUseError(f"{path} is on a network file system (nfs): the log needs a local disk")


async def test_a_network_file_system_is_refused() -> None:
    store = store_on(NetworkFiles(Disk(1)))
    with pytest.raises(LogInUseError, match="network file system"):
        await store.start()
    await store.close()


# -- at the start


class HeldList(FaultyFiles):
    """The list of rewritten files waits until it may go on."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.may_list = threading.Event()

    def list(self, path: Path) -> list[str]:
        if path == ROOT / "ledgers":
            assert self.may_list.wait(60)
        return super().list(path)


async def test_a_reader_that_gives_up_while_rewritten_files_are_listed_leaves_the_others_alone() -> None:
    disk = Disk(1)
    former = store_on(disk.boot())
    await former.start()
    await fill(former, L1, 3)
    await former.close()
    files = HeldList(disk)
    store = store_on(files, 1)
    await store.start()
    await store.take(former.incarnation, [L1])
    hasty = asyncio.ensure_future(store.read(L1, former.incarnation, 0, 3, 10, 1 << 20))
    patient = asyncio.ensure_future(store.read(L1, former.incarnation, 0, 3, 10, 1 << 20))
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.wait([hasty])
    files.may_list.set()
    assert len(await patient) == 3
    assert await read_all(store, L1, former.incarnation, 0, 3) == 3
    await store.close()
