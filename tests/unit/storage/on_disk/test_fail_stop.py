"""The log is fail-stop: a commit that was begun is confirmed, or the log is over. Bad owners cost themselves only.

Every test ends with an heir that reads back, byte by byte, everything that was confirmed to anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk import fences
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import (
    Buffer,
    FencedError,
    LedgerState,
    LedgerWriter,
    LiveLedger,
    LogError,
    LogFailedError,
    LogMissingError,
)
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import FoldingOwner, Owner

KB = 1 << 10
ROOT = Path("/log")
L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)


def store_on(
    files: FaultyFiles,
    name: str = "first",
    *,
    file_bytes: int = 4 << 20,
    commit_bytes_max: int = 8 << 20,
    is_shared: bool = False,
) -> FileLogStore:
    return FileLogStore(
        ROOT,
        clock_ms=lambda: 0,
        files=files,
        incarnation=Incarnation(name),
        is_shared=is_shared,
        file_bytes=file_bytes,
        commit_bytes_max=commit_bytes_max,
        disk_reserve_bytes=0,
        reclaim_seconds=100.0,
        idle_seconds=0.001,
    )


async def contents(store: FileLogStore, ledger: LedgerId, of: Incarnation, end: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < end:
        found += [bytes(data) for _, _, data in await store.read(ledger, of, len(found), end, 100, 1 << 20)]
    return found


async def inherit(files: FaultyFiles, old: FileLogStore) -> tuple[FileLogStore, dict[LedgerId, LedgerState]]:
    """The next owner, after the power went."""
    disk = files.disk
    files.power_off()
    await old.close()
    disk.cut()
    heir = store_on(disk.boot(), "heir")
    await heir.start()
    return heir, dict(await heir.take(old.incarnation, None))


async def test_deltas_are_folded_in_a_commit_in_which_the_ledger_has_several_runs() -> None:
    disk = Disk(1)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    busy, quiet = FoldingOwner(), Owner()
    writer, other = (store.open_ledger(one, own, "ns") for one, own in ((L1, busy), (L2, quiet)))
    busy.state = b"folded"
    other.append(b"in the same commit, before", 1)
    for _ in range(3_000):
        writer.append_state(b"y" * 100)
    # Runs end at 256 KiB: these make two of them.
    entries = [bytes([n]) * 4096 for n in range(100)]
    for entry in entries:
        writer.append(entry, 1)
    await busy.until(100, 3_000)
    await quiet.until(1)
    assert busy.snapshots == 1
    other.append(b"later", 1)
    await quiet.until(2)
    assert store.ended is None
    assert await contents(store, L1, store.incarnation, 100) == entries
    assert await contents(store, L2, store.incarnation, 2) == [b"in the same commit, before", b"later"]
    heir, states = await inherit(files, store)
    assert states[L1] == LedgerState(100, b"folded", (), 100 * 4096)
    assert await contents(heir, L1, store.incarnation, 100) == entries
    assert await contents(heir, L2, store.incarnation, 2) == [b"in the same commit, before", b"later"]
    await heir.close()


async def test_a_log_that_fails_while_nobody_writes_says_so() -> None:
    files = Disk(1).boot()
    store = store_on(files)
    await store.start()
    ended = asyncio.Event()
    store.on_end(ended.set)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    writer.append(b"x", 1)
    writer.close()
    await owner.until(1)
    # What comes now is the commit that says that nothing follows.
    files.fail_sync_after = 0
    await asyncio.wait_for(ended.wait(), 10)
    assert isinstance(store.ended, LogFailedError)
    assert owner.error is None
    await store.close()


class Speechless(FoldingOwner):
    def snapshot(self) -> bytes:
        raise OverflowError("integer out of range")


async def test_an_owner_that_cannot_say_its_state_holds_up_no_checkpoint() -> None:
    disk = Disk(2)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB)
    await store.start()
    mute, quiet = Speechless(), FoldingOwner()
    writer, other = (store.open_ledger(one, own, "ns") for one, own in ((L1, mute), (L2, quiet)))
    writer.append_snapshot(b"before")
    writer.append_state(b"+1")
    writer.append(b"mine", 1)
    await mute.until(1, 2)
    entries = [b"%04d" % n + bytes(1000) for n in range(400)]
    for n, entry in enumerate(entries):
        other.append(entry, 1)
        if n % 10 == 9:
            await quiet.until(n + 1)
    assert "cannot say its state" in str(mute.error)
    assert store.ended is None
    # Files end, each with a checkpoint: none of them outgrows its size.
    sizes = [len(inode.data) for path, inode in disk.names.items() if path.suffix == ".wal"]
    assert len(sizes) > 4
    assert max(sizes) < 2 * 64 * KB
    heir, states = await inherit(files, store)
    assert states[L1] == LedgerState(1, b"before", (b"+1",), 4)
    assert await contents(heir, L1, store.incarnation, 1) == [b"mine"]
    assert await contents(heir, L2, store.incarnation, 400) == entries
    await heir.close()


class Appending(FoldingOwner):
    """Appends while it says its state, which nobody may."""

    store: FileLogStore

    def snapshot(self) -> bytes:
        self.store.open_ledger(L3, Owner(), "ns")
        self.append()
        return b"state"

    def append(self) -> None:
        raise NotImplementedError


async def test_a_commit_that_cannot_be_sealed_ends_the_log_before_anything_more_is_confirmed() -> None:
    disk = Disk(3)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB)
    await store.start()
    owner, quiet = Appending(), Owner()
    owner.store = store
    writer, other = (store.open_ledger(one, own, "ns") for one, own in ((L1, owner), (L2, quiet)))
    owner.append = lambda: writer.append(b"in the middle of it", 1)  # type: ignore[method-assign, assignment]
    writer.append(b"first", 1)
    other.append(b"first", 1)
    await quiet.until(1)
    appended = 1
    while store.ended is None:
        other.append(b"%04d" % appended + bytes(1000), 1)
        appended += 1
        await asyncio.sleep(0)
    with pytest.raises(LogFailedError):
        other.append(b"more", 1)
    assert isinstance(await owner.until_lost(), LogFailedError)
    assert isinstance(await quiet.until_lost(), LogFailedError)
    assert isinstance(store.ended, LogFailedError)
    confirmed = quiet.entries_end
    heir, states = await inherit(files, store)
    assert quiet.entries_end == confirmed
    assert confirmed <= states[L2].entries_end <= appended
    found = await contents(heir, L2, store.incarnation, states[L2].entries_end)
    assert found == [b"first", *(b"%04d" % n + bytes(1000) for n in range(1, states[L2].entries_end))]
    await heir.close()


async def test_a_file_ends_the_log_before_its_places_need_more_bits_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(4)
    files = disk.boot()
    store = store_on(files, file_bytes=4 << 20)
    await store.start()
    # As if the file had been filled beyond its size for as long as that takes.
    monkeypatch.setattr(fmt, "FILE_BYTES_MAX", 1 << 20)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    with contextlib.suppress(LogFailedError):
        while True:
            await owner.until(writer.append(b"%06d" % writer.next_entry + bytes(10_000), 1) + 1)
    assert "32 bits" in str(owner.error)
    monkeypatch.undo()
    heir, states = await inherit(files, store)
    assert states[L1].entries_end >= owner.entries_end > 90
    found = await contents(heir, L1, store.incarnation, owner.entries_end)
    assert [int(one[:6]) for one in found] == list(range(owner.entries_end))
    await heir.close()


async def test_a_checkpoint_of_very_many_ledgers_keeps_up_with_what_is_appended_meanwhile() -> None:
    disk = Disk(5)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB, commit_bytes_max=64 * KB)
    await store.start()
    for number in range(100, 5_100):
        store.open_ledger(LedgerId(number), Owner(), "ns").append_snapshot(b"state")
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    # 128 ledgers a turn would take 40 turns, of 64 KB each.
    for _ in range(200):
        for _ in range(4):
            writer.append(bytes(16 * KB), 1)
        await asyncio.sleep(0)
    await owner.until(800)
    assert store.ended is None
    sizes = [len(inode.data) for path, inode in disk.names.items() if path.suffix == ".wal"]
    assert max(sizes) < 32 * 64 * KB
    await store.close()


async def test_checkpoints_take_no_more_of_the_log_than_what_they_are_about() -> None:
    disk = Disk(10)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB, commit_bytes_max=64 * KB)
    await store.start()
    for number in range(100, 5_100):
        store.open_ledger(LedgerId(number), Owner(), "ns").append_snapshot(b"state" * 20)
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    size = 0
    for n in range(400):
        size += 16 * KB
        await owner.until(writer.append(bytes(16 * KB), 1) + 1, 0)
        assert n < 400
    await store.close()
    # A checkpoint of all of them is a megabyte, and would have followed every 64 KB.
    written = sum(len(inode.data) for path, inode in disk.names.items() if path.suffix == ".wal")
    assert written < 4 * size


# -- fences


async def test_a_ledger_fenced_by_somebody_who_died_is_found_by_the_next_one_however_late() -> None:
    disk = Disk(6)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB)
    await store.start()
    taken, quiet = FoldingOwner(), Owner()
    writer, other = (store.open_ledger(one, own, "ns") for one, own in ((L1, taken), (L2, quiet)))
    taken.state = b"state"
    writer.append_state(b"delta")
    writer.append(b"kept", 1)
    await taken.until(1, 1)
    # Somebody raises a fence, and dies before the answer is stored.
    fences.raise_fence(files, ROOT / "wal" / store.incarnation, [L1])
    # The writer lives on, through many checkpoints, and gives up the files in which nothing is live but states.
    store.retain(
        [LiveLedger(L1, store.incarnation, 0, None, "ns"), LiveLedger(L2, store.incarnation, 0, None, "ns")]
    )
    for n in range(400):
        other.append(b"%04d" % n + bytes(1000), 1)
        if n % 10 == 9:
            await quiet.until(n + 1)
    assert isinstance(taken.error, FencedError)
    heir, states = await inherit(files, store)
    assert states[L1] == LedgerState(1, None, (b"delta",), 4)
    assert await contents(heir, L1, store.incarnation, 1) == [b"kept"]
    await heir.close()


class SlowFiles(FaultyFiles):
    """Syncs of data wait while the gate is shut: what they would make durable can be seen by then."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def sync(self, fd: int) -> None:
        self.waiting.set()
        assert self.gate.wait(30)
        super().sync(fd)


SLEPT_ON = [b"confirmed", b"written, and found by the other"]


@dataclass(frozen=True, slots=True)
class Slept:
    """A store whose first entry is confirmed and whose second waits for its sync, and another store beside it."""

    store: FileLogStore
    files: SlowFiles
    owner: Owner
    writer: LedgerWriter
    other: FileLogStore


@pytest.fixture
async def slept() -> AsyncIterator[Slept]:
    disk = Disk(7)
    files = SlowFiles(disk)
    store = store_on(files, is_shared=True)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    writer.append(SLEPT_ON[0], 1)
    await owner.until(1)
    files.gate.clear()
    files.waiting.clear()
    writer.append(SLEPT_ON[1], 1)
    await asyncio.to_thread(files.waiting.wait, 30)
    other = store_on(disk.boot(), "other", is_shared=True)
    await other.start()
    yield Slept(store, files, owner, writer, other)
    files.gate.set()
    await other.close()
    await store.close()


async def dispatched(store: FileLogStore, ledger: LedgerId, of: Incarnation, end: int) -> list[bytes]:
    """As dispatchers read: what the cache has, and else from the files. They wait where the cache says that there is no
    more."""
    found: list[bytes] = []
    while len(found) < end:
        entries = store.read_cached(ledger, len(found), 100, 1 << 20)
        if entries is None:
            entries = await store.read(ledger, of, len(found), end, 100, 1 << 20)
        if not entries:
            break
        found += [bytes(data) for _, _, data in entries]
    return found


async def test_what_others_found_of_a_ledger_is_read_here_when_the_topic_comes_back(
    slept: Slept,
) -> None:
    store = slept.store
    found = await slept.other.take(store.incarnation, [L1])
    assert found[L1].entries_end == 2
    slept.files.gate.set()
    assert isinstance(await slept.owner.until_lost(), FencedError)
    assert slept.owner.entries_end == 1
    # The topic moves back here.
    assert await store.take(store.incarnation, [L1]) == found
    assert await contents(store, L1, store.incarnation, 2) == SLEPT_ON
    assert await dispatched(store, L1, store.incarnation, 2) == SLEPT_ON


async def test_what_others_found_is_waited_for_by_readers_as_long_as_its_writer_knows_of_no_fence(
    slept: Slept,
) -> None:
    store = slept.store
    assert (await slept.other.take(store.incarnation, [L1]))[L1].entries_end == 2
    # Its owner hears from elsewhere that the topic was taken, and the topic is back before the sync has ended. Readers
    # try again after an error; where there is no more they wait for an append.
    slept.writer.close()
    with pytest.raises(LogMissingError):
        await dispatched(store, L1, store.incarnation, 2)
    slept.files.gate.set()
    await slept.owner.until_lost()
    assert await dispatched(store, L1, store.incarnation, 2) == SLEPT_ON


async def test_files_that_go_while_they_are_listed_do_not_make_a_log_look_empty() -> None:
    class Hasty(FaultyFiles):
        """The writer gives a file up right after somebody has seen its name."""

        doomed: Path | None = None

        def list(self, path: Path) -> list[str]:
            names = super().list(path)
            doomed, self.doomed = self.doomed, None
            if doomed is not None:
                self.unlink(doomed)
            return names

    disk = Disk(8)
    files = disk.boot()
    store = store_on(files, file_bytes=64 * KB, is_shared=True)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    for n in range(100):
        await owner.until(writer.append(b"%04d" % n + bytes(2000), 1) + 1)
    logs = sorted(path for path in disk.names if path.suffix == ".wal")
    # The spare file has nothing in it, and is the first that is looked at.
    hasty = Hasty(disk)
    heir = store_on(hasty, "heir", is_shared=True)
    await heir.start()
    hasty.doomed = logs[-1]
    assert (await heir.take(store.incarnation, [L1]))[L1].entries_end == 100
    await heir.close()
    files.power_off()
    await store.close()


class Vanishing(FaultyFiles):
    """Some calls find that a file has just gone, as those of one who reads behind a living writer may."""

    def __init__(self, disk: Disk, call: str, times: int) -> None:
        super().__init__(disk)
        self.call, self.times = call, times

    def _meet(self, call: str, path: Path) -> None:
        if call == self.call and self.times > 0 and "first" in path.parts:
            self.times -= 1
            raise FileNotFoundError(path)

    def rewrite(self, path: Path, parts: Sequence[tuple[int, Buffer]]) -> None:
        self._meet("rewrite", path)
        super().rewrite(path, parts)

    def link(self, source: Path, target: Path) -> None:
        self._meet("link", target)
        super().link(source, target)


@pytest.mark.parametrize(
    ("call", "times", "is_taken"), [("rewrite", 1, True), ("rewrite", 99, False), ("link", 1, False)]
)
async def test_a_file_that_is_gone_is_never_taken_for_a_log_that_never_was(
    call: str, times: int, is_taken: bool
) -> None:
    disk = Disk(8)
    files = disk.boot()
    store = store_on(files, is_shared=True)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    for n in range(20):
        writer.append(b"%04d" % n, 1)
    await owner.until(20)
    hasty = Vanishing(disk, call, times)
    heir = store_on(hasty, "heir", is_shared=True)
    await heir.start()
    if not is_taken:
        with pytest.raises(LogError):
            await heir.take(store.incarnation, [L1])
        hasty.times = 0
    # Whoever asks again gets the answer. An empty one would be stored in the topic's record as its end.
    assert (await heir.take(store.incarnation, [L1]))[L1].entries_end == 20
    await heir.close()
    files.power_off()
    await store.close()


async def test_a_log_that_is_lost_refuses_appends_with_the_reason() -> None:
    disk = Disk(9)
    files = disk.boot()
    store = store_on(files)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(L1, owner, "ns")
    files.fail_sync_after = 0
    writer.append(b"x", 1)
    with pytest.raises(LogFailedError):
        await owner.until(1)
    with pytest.raises(LogError, match="sync failed"):
        writer.append(b"x", 1)
    with pytest.raises(LogError, match="sync failed"):
        writer.append_state(b"x")
    await store.close()


async def test_an_owner_that_closed_its_ledger_hears_of_the_end_if_it_has_not_heard_of_its_entries() -> None:
    """Both are told of one commit. The first one's part of the log breaks before the second is told."""

    class Breaking(Owner):
        def confirmed(self, entries_end: int, state_end: int) -> None:
            super().confirmed(entries_end, state_end)
            store._wal.broken(RuntimeError("inconsistent"))

    store = store_on(Disk(1).boot())
    await store.start()
    owner = Owner()
    first, second = store.open_ledger(L1, Breaking(), "ns"), store.open_ledger(L2, owner, "ns")
    first.append(b"x", 1)
    second.append(b"y", 1)
    second.close()
    assert isinstance(await owner.until_lost(), LogFailedError)
    await store.close()
