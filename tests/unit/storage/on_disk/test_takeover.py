"""What taking ledgers costs: a writer's look for fences, one recovery for many ledgers, an index that only grows."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk import fences, takeover
from anabranch.storage.on_disk.catalog import Catalog
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.indexing import index_incarnation, open_stretch
from anabranch.storage.on_disk.recovery import scan_headers
from anabranch.storage.port import FencedError, LedgerState
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import Owner

KB = 1 << 10
FILE = 64 * KB
ROOT = Path("/log")
OLD = Incarnation("old")
FENCES = ROOT / "wal" / OLD / fences.FENCES
TAKEN = ROOT / "wal" / OLD / fences.TAKEN


class Counting(FaultyFiles):
    """Counts what is listed, opened and looked at."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.listed: Counter[Path] = Counter()
        self.opened: Counter[Path] = Counter()
        self.mapped = 0

    def list(self, path: Path) -> list[str]:
        self.listed[path] += 1
        return super().list(path)

    def open(self, path: Path) -> int:
        found = super().open(path)
        self.opened[path] += 1
        return found

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        self.mapped += size
        return super().map(path, offset, size)


def store_on(files: FaultyFiles, name: str) -> FileLogStore:
    return FileLogStore(
        ROOT,
        clock_ms=lambda: 0,
        files=files,
        incarnation=Incarnation(name),
        is_shared=True,
        file_bytes=FILE,
        disk_reserve_bytes=0,
        reclaim_seconds=100.0,
        idle_seconds=0.001,
    )


async def started(files: FaultyFiles, name: str) -> FileLogStore:
    store = store_on(files, name)
    await store.start()
    return store


async def fill(store: FileLogStore, ledger: int, entries: int = 1) -> Owner:
    owner = Owner()
    writer = store.open_ledger(LedgerId(ledger), owner, "public/default")
    for i in range(entries):
        writer.append(b"%06d" % i + bytes(1000), 1)
        await owner.until(i + 1)
    return owner


def raised(disk: Disk) -> int:
    return sum(path.parent == FENCES and not path.name.startswith(".") for path in disk.names)


async def test_a_commit_does_not_list_fences_that_were_met_before() -> None:
    disk = Disk(1)
    files = Counting(disk)
    old, new = await started(files, OLD), await started(disk.boot(), "new")
    for ledger in range(1, 21):
        await fill(old, ledger)
        await new.take(OLD, [LedgerId(ledger)])
    await fill(old, 99)
    files.listed.clear()
    await fill(old, 100, entries=50)
    assert files.listed[FENCES] == 0
    await new.close()
    await old.close()


async def test_a_result_is_read_once_however_many_follow() -> None:
    disk = Disk(1)
    files = Counting(disk)
    old, new = await started(disk.boot(), OLD), await started(files, "new")
    for ledger in range(1, 21):
        await fill(old, ledger, entries=2)
        (state,) = (await new.take(OLD, [LedgerId(ledger)])).values()
        assert state.entries_end == 2
        await new.read(LedgerId(ledger), OLD, 0, 2, 10, KB)
    # Once by who takes, once by who indexes.
    assert max(count for path, count in files.opened.items() if path.parent == TAKEN) <= 2
    await new.close()
    await old.close()


async def test_ledgers_that_are_asked_for_at_once_are_recovered_at_once() -> None:
    disk = Disk(1)
    old, new = await started(disk.boot(), OLD), await started(disk.boot(), "new")
    for ledger in range(1, 31):
        await fill(old, ledger, entries=ledger)
    answers = await asyncio.gather(*(new.take(OLD, [LedgerId(ledger)]) for ledger in range(1, 31)))
    ends = {ledger: state.entries_end for one in answers for ledger, state in one.items()}
    assert ends == {ledger: ledger for ledger in range(1, 31)}
    # The first one's, and that of all who came meanwhile.
    assert raised(disk) <= 2
    await new.close()
    await old.close()


async def test_a_caller_that_gave_up_waiting_takes_nothing() -> None:
    disk = Disk(1)
    old, new = await started(disk.boot(), OLD), await started(disk.boot(), "new")
    owners = [await fill(old, ledger) for ledger in range(1, 4)]
    takes = [asyncio.ensure_future(new.take(OLD, [LedgerId(ledger)])) for ledger in range(1, 4)]
    await asyncio.sleep(0)
    takes[1].cancel()
    await asyncio.gather(*takes, return_exceptions=True)
    old.look_for_fences()
    await owners[0].until_lost()
    await owners[2].until_lost()
    assert owners[1].error is None
    await new.close()
    await old.close()


async def test_a_dead_writer_is_recovered_once_for_all_its_ledgers_and_all_brokers() -> None:
    disk = Disk(1)
    files = disk.boot()
    old = await started(files, OLD)
    for ledger in range(1, 31):
        await fill(old, ledger, entries=3)
    files.power_off()
    await old.close()
    disk.cut()
    heirs = [await started(disk.boot(), f"heir{n}") for n in range(3)]
    answers = await asyncio.gather(
        *(heirs[ledger % 3].take(OLD, [LedgerId(ledger)]) for ledger in range(1, 31))
    )
    assert {state.entries_end for one in answers for state in one.values()} == {3}
    assert raised(disk) == 1
    for heir in heirs:
        await heir.close()


async def test_a_taker_that_is_stopped_holds_nobody_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "TURN_MAX_S", 0.02)
    disk = Disk(1)
    stopped = disk.boot()
    old, new = await started(disk.boot(), OLD), await started(disk.boot(), "new")
    await fill(old, 1)
    assert stopped.lock(ROOT / "wal" / OLD / takeover.TURN, is_shared=False) is not None
    (state,) = (await new.take(OLD, [LedgerId(1)])).values()
    assert state.entries_end == 1
    await new.close()
    await old.close()


async def test_an_index_of_a_growing_log_reads_only_what_is_new() -> None:
    disk = Disk(1)
    files = Counting(disk)
    old, new = await started(disk.boot(), OLD), await started(files, "new")
    for ledger in range(1, 61):
        owner = Owner()
        writer = old.open_ledger(LedgerId(ledger), owner, "public/default")
        for i in range(10):
            writer.append(b"%d/%d " % (ledger, i) * 100, 1)
            await owner.until(i + 1)
        writer.close()
        end = (await old.release([LedgerId(ledger)]))[LedgerId(ledger)].entries_end
        before = files.mapped
        found: list[bytes] = []
        while len(found) < end:
            some = await new.read(LedgerId(ledger), OLD, len(found), end, 100, 1 << 20)
            found += [bytes(data) for _, _, data in some]
        assert found == [b"%d/%d " % (ledger, i) * 100 for i in range(10)]
        # The file being written, its spare, and one that was finished since; nothing of those before.
        assert files.mapped - before <= 4 * FILE
    # Entries of the files that were indexed first are found as well as ever.
    assert len(await new.read(LedgerId(1), OLD, 0, 10, 100, 1 << 20)) == 10
    await new.close()
    await old.close()


async def test_an_index_of_a_growing_log_has_few_parts() -> None:
    disk = Disk(1)
    files = disk.boot()
    old = await started(files, OLD)
    indexed = None
    for ledger in range(1, 301):
        await fill(old, ledger, entries=2)
        indexed = index_incarnation(files, ROOT / "wal" / OLD, OLD, indexed, is_thorough=False)
        parts = Counter(file.number for file in indexed.files)
        assert max(parts.values()) <= 8, parts
    assert indexed is not None
    assert len({file.number for file in indexed.files}) > 1
    found = Catalog()
    for file in indexed.files:
        found.add_indexed(file)
    for ledger in range(1, 301):
        assert found.locate(ledger, 0, 2) is not None
        assert found.locate(ledger, 1, 1) is not None
    await old.close()


async def test_entries_behind_damage_are_found_while_their_log_is_written() -> None:
    """Space that was never written looks the same as a commit that was lost."""
    disk = Disk(1)
    files = disk.boot()
    old, new = await started(files, OLD), await started(disk.boot(), "new")
    owner = Owner()
    writer = old.open_ledger(LedgerId(1), owner, "public/default")
    for number in range(5):
        writer.append(b"entry %d" % number, 1)
        await owner.until(number + 1)
    writer.close()
    assert (await old.release([LedgerId(1)]))[LedgerId(1)].entries_end == 5
    path = ROOT / "wal" / OLD / "00000001.wal"
    opened = open_stretch(files, path.parent, 1)
    assert opened is not None
    places = [at for at, _ in scan_headers(*opened, is_thorough=True)]
    lost = next(at for at in places if b"entry 2" in bytes(opened[0].view[at : at + 200]))
    after = places[places.index(lost) + 1]
    files.rewrite(path, [(lost, bytes(after - lost))])
    assert [bytes(data) for _, _, data in await new.read(LedgerId(1), OLD, 1, 2, 1, KB)] == [b"entry 1"]
    assert [bytes(data) for _, _, data in await new.read(LedgerId(1), OLD, 4, 5, 1, KB)] == [b"entry 4"]
    await new.close()
    await old.close()


class Late(FaultyFiles):
    """Meets the spare file of another log at the moment in which its writer removes it."""

    is_late = False

    def disk_bytes(self, path: Path) -> int:
        if self.is_late and path.name == "00000002.wal" and path.parent.name == OLD:
            self.disk.names.pop(path, None)
        return super().disk_bytes(path)


async def test_a_file_that_its_writer_removes_at_its_end_hides_no_other() -> None:
    disk = Disk(1)
    files = Late(disk)
    old, new = await started(disk.boot(), OLD), await started(files, "new")
    files.is_late = True
    writer = old.open_ledger(LedgerId(1), Owner(), "public/default")
    for _ in range(5):
        writer.append(b"x", 1)
    writer.close()
    assert (await old.release([LedgerId(1)]))[LedgerId(1)].entries_end == 5
    assert len(await new.read(LedgerId(1), OLD, 0, 5, 10, KB)) == 5
    await old.close()
    assert len(await new.read(LedgerId(1), OLD, 0, 5, 10, KB)) == 5
    await new.close()


async def test_a_ledger_fenced_by_a_broker_that_died_outlives_the_clean_end_of_its_writer() -> None:
    disk = Disk(1)
    files = disk.boot()
    old = await started(files, OLD)
    owner = await fill(old, 1, entries=3)
    await fill(old, 2)
    # The broker that takes the ledger dies before it stores what it has found.
    fences.raise_fence(files, ROOT / "wal" / OLD, [LedgerId(1)])
    await fill(old, 3)
    assert isinstance(owner.error, FencedError)
    await old.close()
    new = await started(disk.boot(), "new")
    states = await new.take(OLD, [LedgerId(1), LedgerId(2), LedgerId(3)])
    assert {int(ledger): state.entries_end for ledger, state in states.items()} == {1: 3, 2: 1, 3: 1}
    assert len(await new.read(LedgerId(1), OLD, 0, 3, 10, 64 * KB)) == 3
    await new.close()


class HeldFiles(FaultyFiles):
    """A broker's files: whoever stores an answer waits until it may."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.may_answer = threading.Event()
        self.is_answering = threading.Event()

    def link(self, source: Path, target: Path) -> None:
        if target.parent.name == fences.TAKEN:
            self.is_answering.set()
            assert self.may_answer.wait(30)
        super().link(source, target)


async def test_a_writer_that_ends_cleanly_while_its_ledger_is_read_says_nothing_about_it() -> None:
    disk = Disk(1)
    slow = HeldFiles(disk)
    old, new = await started(disk.boot(), OLD), await started(slow, "new")
    await fill(old, 1, entries=3)
    taking = asyncio.ensure_future(new.take(OLD, [LedgerId(1)]))
    await asyncio.to_thread(slow.is_answering.wait, 30)
    await fill(old, 2)
    await old.close()
    slow.may_answer.set()
    assert {int(ledger): state.entries_end for ledger, state in (await taking).items()} == {1: 3}
    await new.close()


def test_of_two_brokers_that_store_an_answer_the_first_counts_for_both() -> None:
    """Both have read the log before either stored what it found; what the second found may be more, or less."""
    files, folder = FaultyFiles(Disk(1)), ROOT / "wal" / OLD
    files.make_folder(TAKEN)
    ends = (5, 7)
    answers = [
        fences.FinalStates({LedgerId(1): LedgerState(end, None, (), 10 * end, end)}, is_final=True)
        for end in ends
    ]
    before = fences.load_taken(files, folder)
    assert fences.store_taken(files, folder, answers[0], before.results)
    assert not fences.store_taken(files, folder, answers[1], before.results)
    assert fences.load_taken(files, folder, before).states[LedgerId(1)].entries_end == ends[0]
