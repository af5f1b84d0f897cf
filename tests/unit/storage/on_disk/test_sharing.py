"""Several stores over one root give back each other's disk, and lose nothing that a record names."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.judging import Judge
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.names import LedgerName, NameWriter, decode_names, encode_names, load_names
from anabranch.storage.on_disk.rewrite import RewriteDone, RewriteJob, run_job
from anabranch.storage.on_disk.sharing import TURN
from anabranch.storage.port import LedgerWriter, LiveLedger, LogError, LogMissingError
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import Owner

KB = 1 << 10
FILE = 64 * KB
ROOT = Path("/log")
NS = "public/default"
GRACE = 10_000
ASK = 60_000


def path_of(ledger: int) -> str:
    return f"/managed-ledgers/{NS}/persistent/t{ledger}"


def text(ledger: int, entry: int) -> bytes:
    return b"%d:%d:" % (ledger, entry) + b"x" * 1000


class Machine:
    """One disk, the brokers' stores on it, and the topics' records."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.now = 1_000
        self.records: dict[str, list[LiveLedger]] = {}
        self.is_reachable = True
        self.asked: list[str] = []
        self.stores: list[FileLogStore] = []
        self.rewrites = 0
        self.boots = 0
        # By ledger: its store, its owner and its writer.
        self.writing: dict[int, tuple[FileLogStore, Owner, LedgerWriter]] = {}

    def clock(self) -> int:
        return self.now

    async def living(self, paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        self.asked += paths
        if not self.is_reachable:
            return {}
        await asyncio.sleep(0)
        return {path: list(self.records.get(path, ())) for path in paths}

    async def boot(self, *, is_shared: bool = True) -> FileLogStore:
        files = self.disk.boot()

        async def rewriter(job: RewriteJob) -> RewriteDone:
            self.rewrites += 1
            return await asyncio.get_running_loop().run_in_executor(None, run_job, files, job)

        self.boots += 1
        store = FileLogStore(
            ROOT,
            clock_ms=self.clock,
            files=files,
            incarnation=Incarnation(f"boot{self.boots}"),
            is_shared=is_shared,
            file_bytes=FILE,
            cache_bytes=16 * KB,
            plan_ms=500,
            reclaim_seconds=100.0,
            disk_reserve_bytes=4 * FILE,
            ask_ms=ASK,
            grace_ms=GRACE,
            rewriter=rewriter,
        )
        await store.start()
        store.ask(self.living)
        store.retain([one for found in self.records.values() for one in found])
        self.stores.append(store)
        return store

    def name(self, ledger: int, store: FileLogStore, first: int = 0, end: int | None = None) -> None:
        path = path_of(ledger)
        self.records[path] = [LiveLedger(LedgerId(ledger), store.incarnation, first, end, NS, path)]

    def forget(self, ledger: int) -> None:
        del self.records[path_of(ledger)]

    async def write(
        self, store: FileLogStore, ledgers: Sequence[int], entries: int, *, is_named: bool = True
    ) -> list[LedgerWriter]:
        """New ledgers, which their records name first. Entries of all of them in turns, so that they lie scattered."""
        owners = {one: Owner() for one in ledgers}
        writers = {}
        for one in ledgers:
            if is_named:
                self.name(one, store)
            writers[one] = store.open_ledger(LedgerId(one), owners[one], NS, path_of(one), is_named=is_named)
            writers[one].append_snapshot(b"state of %d" % one)
            self.writing[one] = (store, owners[one], writers[one])
        for entry in range(entries):
            for one in ledgers:
                writers[one].append(text(one, entry), 1)
            if entry % 10 == 9:
                await owners[ledgers[-1]].until(entry + 1)
        for one in ledgers:
            await owners[one].until(entries, 1)
        return list(writers.values())

    async def move(self, ledger: int, to: FileLogStore) -> int:
        """Another broker opens the topic: it takes the ledger, and the record has its end."""
        (old,) = self.records[path_of(ledger)]
        state = (await to.take(old.incarnation, [old.ledger]))[old.ledger]
        new = old._replace(end=state.entries_end)
        self.records[path_of(ledger)] = [new]
        to.know([new])
        await self._meet_fence(ledger)
        return state.entries_end

    async def _meet_fence(self, ledger: int) -> None:
        """A broker looks for fences from time to time."""
        store, owner, writer = self.writing[ledger]
        with contextlib.suppress(LogError):
            writer.append_snapshot(b"late")
            store.look_for_fences()
            await owner.until_lost()

    async def settle(self, *stores: FileLogStore) -> None:
        """Both reads that it takes to find a ledger dead."""
        for _ in range(2):
            for store in stores or self.stores:
                await store.reclaim()
            self.now += max(GRACE, ASK)

    def files(self, ending: str = ".wal", of: FileLogStore | None = None) -> list[Path]:
        found = [path for path in self.disk.names if path.name.endswith(ending)]
        return [path for path in found if of is None or path.parent.name == of.incarnation]

    async def die(self, store: FileLogStore) -> None:
        """The process ends at once: its locks are free."""
        self.stores.remove(store)
        await store.close()


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    found = Machine()
    yield found
    for store in found.stores:
        await store.close()


async def check(store: FileLogStore, ledger: int, incarnation: Incarnation, first: int, end: int) -> None:
    while first < end:
        for number, _, data in await store.read(LedgerId(ledger), incarnation, first, end, 100, 1 << 20):
            assert (number, bytes(data)) == (first, text(ledger, first))
            first += 1


# -- a broker's own log


async def test_a_broker_whose_topic_moved_away_and_was_trimmed_there_gives_the_disk_back(
    machine: Machine,
) -> None:
    old, new = await machine.boot(), await machine.boot()
    await machine.write(old, [1], 300)
    await machine.write(old, [2], 1)
    await machine.move(1, new)
    await machine.settle(old)
    assert len(machine.files(of=old)) > 4
    machine.forget(1)
    await machine.settle(old)
    # The file being written, the next one, and the one with the last checkpoint.
    assert len(machine.files(of=old)) <= 3
    await check(old, 2, old.incarnation, 0, 1)


async def test_what_is_left_of_a_topic_that_moved_away_is_rewritten_and_read_where_it_is_now(
    machine: Machine,
) -> None:
    old, new = await machine.boot(), await machine.boot()
    await machine.write(old, [1, 2, 3], 150)
    end = await machine.move(1, new)
    for ledger in (2, 3):
        await machine.move(ledger, new)
        machine.forget(ledger)
    await check(new, 1, old.incarnation, 0, end)
    machine.name(1, old, first=10, end=end)
    await machine.settle(old)
    assert machine.rewrites
    assert len(machine.files(of=old)) <= 3
    # Its files are not where they were when it last looked.
    await check(new, 1, old.incarnation, 10, end)


async def test_a_record_that_cannot_be_read_costs_no_ledger(machine: Machine) -> None:
    store = await machine.boot()
    (writer,) = await machine.write(store, [1], 200)
    writer.close()
    machine.forget(1)
    machine.is_reachable = False
    await machine.settle()
    await machine.settle()
    await check(store, 1, store.incarnation, 0, 200)
    machine.is_reachable = True
    await machine.settle()
    with pytest.raises(LogMissingError):
        await check(store, 1, store.incarnation, 0, 200)


async def test_a_ledger_that_is_being_written_is_not_asked_after(machine: Machine) -> None:
    store = await machine.boot()
    await machine.write(store, [1], 200)
    machine.forget(1)
    await machine.settle()
    assert machine.asked == []
    await check(store, 1, store.incarnation, 0, 200)


async def test_a_ledger_is_dead_only_if_two_reads_say_so(machine: Machine) -> None:
    store = await machine.boot()
    (writer,) = await machine.write(store, [1], 200)
    writer.close()
    kept = machine.records.pop(path_of(1))
    await store.reclaim()
    machine.now += GRACE - 1
    await store.reclaim()
    await check(store, 1, store.incarnation, 0, 200)
    # A change that was on its way arrives.
    machine.records[path_of(1)] = kept
    machine.now += ASK
    await machine.settle()
    await check(store, 1, store.incarnation, 0, 200)


async def test_what_compaction_writes_is_protected_by_its_process_until_a_record_names_it(
    machine: Machine,
) -> None:
    store, other = await machine.boot(), await machine.boot()
    writers = await machine.write(store, [1], 200, is_named=False)
    await machine.write(store, [2], 200)
    writers[0].close()
    machine.name(2, store, first=199)
    await machine.move(2, other)
    machine.name(2, store, first=199, end=200)
    await machine.settle()
    # Part of it is in rewritten files now, which any broker may look after.
    assert machine.files(".led")
    await machine.settle()
    await check(store, 1, store.incarnation, 0, 200)
    machine.name(1, store, end=200)
    store.know(machine.records[path_of(1)])
    await machine.settle()
    await check(store, 1, store.incarnation, 0, 200)
    machine.forget(1)
    await machine.settle()
    assert store.stats()["live_bytes"] < 100 * KB


# -- logs without a writer


async def test_the_log_of_a_dead_broker_goes_when_no_record_names_its_ledgers(machine: Machine) -> None:
    dead, heir = await machine.boot(), await machine.boot()
    await machine.write(dead, [1, 2], 150)
    await machine.die(dead)
    await machine.settle()
    await machine.move(1, heir)
    await check(heir, 1, dead.incarnation, 0, 150)
    machine.forget(2)
    await machine.settle()
    await check(heir, 1, dead.incarnation, 0, 150)
    machine.forget(1)
    await machine.settle()
    assert machine.files(of=dead) == []
    assert ROOT / "wal" / dead.incarnation not in machine.disk.folders


async def test_a_dead_brokers_state_stays_until_its_topic_is_opened(machine: Machine) -> None:
    dead, heir = await machine.boot(), await machine.boot()
    await machine.write(dead, [1], 0)
    await machine.write(dead, [2], 150)
    machine.forget(2)
    await machine.die(dead)
    await machine.settle()
    assert machine.files(of=dead) == []
    state = (await heir.take(dead.incarnation, [LedgerId(1)]))[LedgerId(1)]
    assert state.snapshot == b"state of 1"


async def test_what_a_dead_broker_left_of_a_compaction_goes(machine: Machine) -> None:
    dead, _ = await machine.boot(), await machine.boot()
    await machine.write(dead, [1], 200, is_named=False)
    await machine.die(dead)
    await machine.settle()
    await machine.settle()
    assert machine.files(of=dead) == []


async def test_mostly_dead_files_of_dead_brokers_are_rewritten_and_read_by_all(machine: Machine) -> None:
    dead, first, second = await machine.boot(), await machine.boot(), await machine.boot()
    await machine.write(dead, [1, 2, 3], 100)
    await machine.die(dead)
    for ledger in (1, 2, 3):
        await machine.move(ledger, second)
        await check(second, ledger, dead.incarnation, 0, 100)
        machine.name(ledger, dead, first=90, end=100)
    await machine.settle(first)
    assert machine.files(of=dead) == []
    for ledger in (1, 2, 3):
        await check(second, ledger, dead.incarnation, 90, 100)
    # The names of its ledgers are in the rewritten files.
    for ledger in (1, 2, 3):
        machine.forget(ledger)
    await machine.settle(second)
    assert machine.files(".led") == []
    third = await machine.boot()
    await machine.settle(third)
    assert ROOT / "wal" / dead.incarnation not in machine.disk.folders


class Unlucky(FaultyFiles):
    """Does not find a file, and then something happens right after it has looked at the rewritten ones."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.missed = 0
        self.meanwhile: Callable[[], None] | None = None

    def open(self, path: Path) -> int:
        if self.missed and path.name.endswith(".wal"):
            self.missed -= 1
            raise FileNotFoundError(str(path))
        return super().open(path)

    def list(self, path: Path) -> list[str]:
        found = super().list(path)
        if self.meanwhile is not None and path == ROOT / "ledgers":
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return found


async def test_a_file_that_is_rewritten_while_its_copy_is_looked_for_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, first = await machine.boot(), await machine.boot()
    files = Unlucky(machine.disk)
    monkeypatch.setattr(machine.disk, "boot", lambda: files)
    second = await machine.boot()
    monkeypatch.undo()
    await machine.write(dead, [1, 2, 3], 100)
    await machine.die(dead)
    for ledger in (1, 2, 3):
        await machine.move(ledger, second)
        await check(second, ledger, dead.incarnation, 0, 100)
        machine.name(ledger, dead, first=90, end=100)
    loop = asyncio.get_running_loop()
    files.missed = 3
    files.meanwhile = lambda: asyncio.run_coroutine_threadsafe(machine.settle(first), loop).result(30)
    await check(second, 1, dead.incarnation, 90, 100)
    assert files.meanwhile is None
    assert machine.files(of=dead) == []


async def test_only_the_broker_that_has_the_turn_rewrites(machine: Machine) -> None:
    store = await machine.boot()
    files = machine.disk.boot()
    turn = files.lock(ROOT / TURN, is_shared=False)
    assert turn is not None
    await machine.write(store, [1, 2, 3], 150)
    store.delete(LedgerId(2), store.incarnation)
    store.delete(LedgerId(3), store.incarnation)
    reclaiming = asyncio.create_task(store.reclaim())
    for _ in range(20):
        await asyncio.sleep(0)
    assert machine.rewrites == 0
    files.close(turn)
    await reclaiming
    assert machine.rewrites
    await check(store, 1, store.incarnation, 0, 150)


async def test_a_broker_that_is_starting_is_not_taken_for_a_dead_one(machine: Machine) -> None:
    store = await machine.boot()
    files = machine.disk.boot()
    files.make_folder(ROOT / "wal" / "newborn" / "fences")
    files.make_folder(ROOT / "wal" / "newborn" / "taken")
    await machine.settle(store)
    assert files.list(ROOT / "wal" / "newborn" / "fences") == []


async def test_logs_of_one_broker_alone_are_taken_care_of_when_several_share_the_folder(
    machine: Machine,
) -> None:
    alone = await machine.boot(is_shared=False)
    await machine.write(alone, [1, 2, 3], 100)
    alone.trim(LedgerId(1), alone.incarnation, 95)
    alone.trim(LedgerId(2), alone.incarnation, 95)
    machine.name(1, alone, first=95)
    machine.name(2, alone, first=95)
    machine.forget(3)
    alone.delete(LedgerId(3), alone.incarnation)
    await alone.reclaim()
    await machine.die(alone)
    one, two = await machine.boot(), await machine.boot()
    await machine.settle()
    await machine.move(1, two)
    await check(two, 1, alone.incarnation, 95, 100)
    machine.forget(1)
    await machine.settle()
    await machine.move(2, one)
    await check(one, 2, alone.incarnation, 95, 100)
    machine.forget(2)
    await machine.settle()
    assert (machine.files(of=alone), machine.files(".led")) == ([], [])


# -- plans


async def test_a_file_named_by_a_plan_of_another_broker_stays_until_the_plan_expires(
    machine: Machine,
) -> None:
    old, new = await machine.boot(), await machine.boot()
    await machine.write(old, [1], 200)
    end = await machine.move(1, new)
    plan = await new.plan(LedgerId(1), old.incarnation, 0, end)
    machine.forget(1)
    (writer,) = await machine.write(old, [2], 100)
    writer.close()
    for _ in range(2):
        await old.reclaim()
        machine.now += GRACE
        # The plan is renewed meanwhile, for what is still there.
        with contextlib.suppress(LogMissingError):
            plan = await new.plan(LedgerId(1), old.incarnation, 0, end)
    await old.reclaim()
    assert all(Path(run.path) in machine.disk.names for run in plan.runs)
    machine.now += 501
    await new.reclaim()
    await old.reclaim()
    # The last one has other entries, too.
    assert not any(Path(run.path) in machine.disk.names for run in plan.runs[:-1])
    assert machine.files(".gone") == []


async def test_a_file_that_is_about_to_go_is_in_no_new_plan(machine: Machine) -> None:
    old, new = await machine.boot(), await machine.boot()
    await machine.write(old, [1, 2, 3], 150)
    end = await machine.move(1, new)
    before = await new.plan(LedgerId(1), old.incarnation, 0, end)
    old.delete(LedgerId(2), old.incarnation)
    old.delete(LedgerId(3), old.incarnation)
    await old.reclaim()
    going = {str(path)[: -len(".gone")] for path in machine.files(".gone")}
    assert going & {run.path for run in before.runs}
    after = await new.plan(LedgerId(1), old.incarnation, 0, end)
    assert not going & {run.path for run in after.runs}
    await check(new, 1, old.incarnation, 0, end)


async def test_a_folder_stays_as_long_as_a_plan_of_another_broker_names_a_file_in_it(
    machine: Machine,
) -> None:
    dead, reader, sweeper = await machine.boot(), await machine.boot(), await machine.boot()
    await machine.write(dead, [1], 200)
    await machine.die(dead)
    end = await machine.move(1, reader)
    machine.forget(1)
    await sweeper.reclaim()
    machine.now += GRACE
    first = await machine.boot()
    last = await reader.plan(LedgerId(1), dead.incarnation, 0, end)
    await sweeper.reclaim()
    assert all(Path(run.path) in machine.disk.names for run in last.runs)
    # The one that was about to remove them dies; another finishes it.
    await machine.die(sweeper)
    machine.now += 501
    await reader.reclaim()
    await machine.settle(first)
    assert machine.files(of=dead) == []
    assert ROOT / "wal" / dead.incarnation not in machine.disk.folders


# -- space


async def test_a_bound_on_the_logs_size_counts_what_all_brokers_wrote(machine: Machine) -> None:
    one, two = await machine.boot(), await machine.boot()
    before = two.stats()["disk_bytes"]
    await machine.write(one, [1], 300)
    third = await machine.boot()
    assert third.stats()["disk_bytes"] >= before + 300_000


async def test_a_brokers_part_of_the_capacity_is_that_of_its_files_in_the_log(machine: Machine) -> None:
    """With the whole for each of them, what is deleted beyond a share of the disk would be deleted far too late."""
    one = await machine.boot()
    await machine.write(one, [1], 300)
    two = await machine.boot()
    figures = two.stats()
    whole = figures["disk_bytes"] + figures["disk_free_bytes"]
    assert two.capacity_bytes is not None
    assert 0 < two.capacity_bytes < whole / 2
    await machine.die(two)
    assert one.capacity_bytes is not None
    assert one.capacity_bytes >= whole / 2


# -- anything in any order


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_brokers_do_every_entry_that_a_record_names_is_read_and_all_else_goes(
    seed: int,
) -> None:
    chance, machine = random.Random(seed), Machine(seed)
    next_ledger = 1
    homes: dict[int, tuple[FileLogStore, LedgerWriter]] = {}
    ends: dict[int, int] = {}
    for _ in range(3):
        await machine.boot()
    for _ in range(40):
        store = chance.choice(machine.stores)
        match chance.choice(("write", "write", "move", "trim", "forget", "die", "reclaim", "check", "time")):
            case "write":
                some = [next_ledger, next_ledger + 1]
                next_ledger += 2
                count = chance.choice((1, 30, 90))
                for ledger, writer in zip(some, await machine.write(store, some, count), strict=True):
                    homes[ledger], ends[ledger] = (store, writer), count
                    if chance.random() < 0.5:
                        writer.close()
            case "move" if homes:
                ledger = chance.choice(sorted(homes))
                home, _ = homes[ledger]
                if home is not store:
                    assert await machine.move(ledger, store) == ends[ledger]
            case "trim" if homes:
                ledger = chance.choice(sorted(homes))
                (old,) = machine.records[path_of(ledger)]
                machine.records[path_of(ledger)] = [
                    old._replace(first=chance.randint(old.first, ends[ledger]))
                ]
            case "forget" if homes:
                ledger = chance.choice(sorted(homes))
                homes.pop(ledger)[1].close()
                machine.forget(ledger)
            case "die":
                await machine.die(store)
                await machine.boot()
            case "reclaim":
                await asyncio.gather(*(one.reclaim() for one in machine.stores))
            case "time":
                machine.now += chance.choice((100, GRACE, ASK))
            case "check" if homes:
                ledger = chance.choice(sorted(homes))
                (named,) = machine.records[path_of(ledger)]
                if named.end is None and homes[ledger][0] is not store:
                    await machine.move(ledger, store)
                    (named,) = machine.records[path_of(ledger)]
                store.know([named])
                await check(store, ledger, named.incarnation, named.first, ends[ledger])
    reader = await machine.boot()
    for ledger in sorted(homes):
        (named,) = machine.records[path_of(ledger)]
        if named.end is None:
            await machine.move(ledger, reader)
        await check(reader, ledger, named.incarnation, named.first, ends[ledger])
        machine.forget(ledger)
    for _, writer in homes.values():
        writer.close()
    for _ in range(3):
        await machine.settle()
    living = {store.incarnation for store in machine.stores}
    assert machine.files(".led") == []
    assert {path.parent.name for path in machine.files()} <= living
    assert len(machine.files()) <= 3 * len(machine.stores)
    for store in machine.stores:
        await store.close()


# -- parts


def test_names_come_back_from_a_rewritten_file() -> None:
    names = {7: LedgerName(Incarnation("a"), "/x/ü"), 3: LedgerName(Incarnation("b"), "/y", is_named=False)}
    block = encode_names(names)
    assert decode_names(memoryview(block)) == names
    assert decode_names(memoryview(block + b"\0" * 7)) == names
    assert decode_names(memoryview(b"\0" * 7)) == {}
    spoiled = bytearray(block)
    spoiled[40] ^= 1
    assert decode_names(memoryview(bytes(spoiled))) == {}


def test_names_that_a_writer_was_cut_off_in_are_not_read_by_halves() -> None:
    files = Disk(1).boot()
    folder = ROOT / "wal" / "a"
    files.make_folder(folder)
    with ThreadPoolExecutor(1) as helper:
        writer = NameWriter(files, folder, helper)
        for ledger in (1, 2, 3):
            writer.add(ledger, LedgerName(Incarnation("a"), path_of(ledger), is_named=ledger != 2))
        writer.add(2, LedgerName(Incarnation("a"), path_of(2)))
        writer.close()
    found = {one: LedgerName(Incarnation("a"), path_of(one)) for one in (1, 2, 3)}
    assert load_names(files, folder) == found
    (path,) = (one for one in files.disk.names if one.parent == folder)
    del files.disk.names[path].data[-3:]
    assert load_names(files, folder) == found | {2: LedgerName(Incarnation("a"), path_of(2), is_named=False)}


def test_names_of_ledgers_that_are_gone_do_not_pile_up() -> None:
    files = Disk(1).boot()
    folder = ROOT / "wal" / "a"
    files.make_folder(folder)
    with ThreadPoolExecutor(1) as helper:
        writer = NameWriter(files, folder, helper)
        for ledger in range(10_001):
            writer.add(ledger, LedgerName(Incarnation("a"), path_of(ledger)))
        assert writer.wants_rewriting(5)
        assert not writer.wants_rewriting(9_000)
        kept = {one: LedgerName(Incarnation("a"), path_of(one)) for one in (5, 6)}
        writer.rewrite(kept.items())
        writer.add(7, LedgerName(Incarnation("a"), path_of(7)))
        writer.close()
    assert load_names(files, folder) == kept | {7: LedgerName(Incarnation("a"), path_of(7))}
    assert len([one for one in files.disk.names if one.parent == folder]) == 1


def test_records_are_asked_seldom_and_again_when_in_doubt() -> None:
    judge = Judge(ask_ms=ASK, grace_ms=GRACE)
    questions = {1: "a", 2: "a", 3: "b"}
    assert judge.due(questions, 0, is_thorough=False) == ["a", "b"]
    named = [LiveLedger(LedgerId(1), Incarnation("x"), 0, 5, NS, "a")]
    verdict = judge.judge(questions, {"a": named}, 0)
    assert (verdict.dead, verdict.live) == ((), tuple(named))
    assert judge.due(questions, 1, is_thorough=False) == ["b"]
    assert judge.due(questions, GRACE, is_thorough=False) == ["a", "b"]
    assert judge.judge(questions, {"a": named, "b": named}, GRACE).dead == (2,)
    assert judge.due({1: "a"}, GRACE + 1, is_thorough=False) == []
    assert judge.due({1: "a"}, GRACE + ASK, is_thorough=False) == ["a"]
