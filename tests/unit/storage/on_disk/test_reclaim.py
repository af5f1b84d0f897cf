"""Disk is given back: what is dead goes, what is mostly dead is rewritten, and nothing live is lost on the way."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import IndexedFile, Liveness, LiveRow
from anabranch.storage.on_disk.catalog import Catalog, LogFile, OpenIndex
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.reclaim import FileFacts, Reclaimer, ReclaimPolicy, choose, count_stretches
from anabranch.storage.on_disk.rewrite import Piece, RewriteDone, RewriteJob, plan_outputs, run_job
from anabranch.storage.port import LiveLedger, LogMissingError, ReadPlan
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import Owner

KB = 1 << 10
FILE = 64 * KB
ROOT = Path("/log")
NS = "public/default"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


Rewriter = Callable[[RewriteJob], Awaitable[RewriteDone]]


def on_disk(
    files: FaultyFiles, clock: Clock, boot: int = 0, other_rewriter: Rewriter | None = None
) -> FileLogStore:
    async def rewriter(job: RewriteJob) -> RewriteDone:
        return await asyncio.get_running_loop().run_in_executor(None, run_job, files, job)

    return FileLogStore(
        ROOT,
        clock_ms=clock,
        files=files,
        incarnation=Incarnation(f"boot{boot}"),
        file_bytes=FILE,
        cache_bytes=16 * KB,
        plan_ms=500,
        reclaim_seconds=100.0,
        rewriter=other_rewriter or rewriter,
        disk_reserve_bytes=4 * FILE,
    )


def text(ledger: int, entry: int) -> bytes:
    return b"%d:%d:" % (ledger, entry) + b"x" * 1000


async def write(store: FileLogStore, ledgers: list[int], entries: int, namespace: str = NS) -> None:
    """Entries of all the ledgers, in turns, so that they lie scattered."""
    owners = {one: Owner() for one in ledgers}
    writers = {one: store.open_ledger(LedgerId(one), owners[one], namespace) for one in ledgers}
    for entry in range(entries):
        for one in ledgers:
            writers[one].append(text(one, entry), 1)
        if entry % 10 == 9:
            await owners[ledgers[-1]].until(entry + 1)
    for one in ledgers:
        writers[one].append_snapshot(b"state of %d" % one)
        await owners[one].until(entries, 1)


async def check(store: FileLogStore, ledger: int, incarnation: Incarnation, first: int, end: int) -> None:
    while first < end:
        for number, _, data in await store.read(LedgerId(ledger), incarnation, first, end, 100, 1 << 20):
            assert (number, bytes(data)) == (first, text(ledger, first))
            first += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_files_in_which_nothing_is_live_are_removed(clock: Clock) -> None:
    store = on_disk(Disk(1).boot(), clock)
    await store.start()
    await write(store, [1], 400)
    before = store.stats()
    store.retain([])
    store.trim(LedgerId(1), store.incarnation, 400)
    await store.reclaim()
    after = store.stats()
    assert before["files"] > 6
    # The file being written and the one with the last checkpoint stay.
    assert after["files"] == 2
    assert after["live_bytes"] == 0
    await store.close()


async def test_nothing_is_removed_before_the_records_were_read(clock: Clock) -> None:
    store = on_disk(Disk(1).boot(), clock)
    await store.start()
    await write(store, [1], 300)
    files = store.stats()["files"]
    store.trim(LedgerId(1), store.incarnation, 300)
    await store.reclaim()
    assert store.stats()["files"] == files
    await store.close()


async def test_what_was_trimmed_while_the_records_were_read_stays_trimmed(clock: Clock) -> None:
    store = on_disk(Disk(1).boot(), clock)
    await store.start()
    await write(store, [1, 2], 150)
    store.trim(LedgerId(1), store.incarnation, 150)
    store.delete(LedgerId(2), store.incarnation)
    store.retain([LiveLedger(LedgerId(one), store.incarnation, 0, None, NS) for one in (1, 2)])
    await store.reclaim()
    assert store.stats()["live_bytes"] == 0
    assert store.stats()["files"] == 2
    await store.close()


class SlowFiles(FaultyFiles):
    """Full files are not finished before they may be."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.may_finish = threading.Event()

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        assert self.may_finish.wait(10)
        return super().map(path, offset, size)


async def test_files_that_are_full_but_not_finished_yet_are_waited_for(clock: Clock) -> None:
    files = SlowFiles(Disk(1))
    store = on_disk(files, clock)
    await store.start()
    # Two full files and some: the next one is made before the first is finished.
    await write(store, [1], 140)
    store.retain([])
    store.trim(LedgerId(1), store.incarnation, 140)
    reclaiming = asyncio.create_task(store.reclaim())
    await asyncio.wait((reclaiming,), timeout=0.2)
    files.may_finish.set()
    await reclaiming
    assert store.stats()["files"] == 2
    await store.close()


async def test_disk_in_use_stays_under_twice_what_is_live_plus_a_few_files(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    ledgers = list(range(1, 11))
    await write(store, ledgers, 100)
    # One ledger in ten survives, spread over every file.
    for one in ledgers[1:]:
        store.delete(LedgerId(one), store.incarnation)
    await store.reclaim()
    stats = store.stats()
    live = 100 * len(text(1, 0))
    assert live <= stats["live_bytes"] <= live * 1.1
    assert stats["disk_bytes"] <= 2 * live + 4 * FILE
    assert disk.used <= 2 * live + 4 * FILE
    await check(store, 1, store.incarnation, 0, 100)
    with pytest.raises(LogMissingError):
        await store.read(LedgerId(2), store.incarnation, 0, 100, 1, KB)
    await store.close()


async def test_a_trimmed_ledger_keeps_the_rest_through_rewriting_and_restart(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    await write(store, [1, 2, 3], 120)
    for one in (1, 2, 3):
        store.trim(LedgerId(one), store.incarnation, 100)
    await store.reclaim()
    for one in (1, 2, 3):
        await check(store, one, store.incarnation, 100, 120)
    await store.close()
    heir = on_disk(disk.boot(), clock, boot=1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    assert {ledger: state.entries_end for ledger, state in states.items()} == {1: 120, 2: 120, 3: 120}
    heir.retain([LiveLedger(LedgerId(one), store.incarnation, 100, 120, NS) for one in (1, 2, 3)])
    await heir.reclaim()
    for one in (1, 2, 3):
        await check(heir, one, store.incarnation, 100, 120)
    assert heir.stats()["disk_bytes"] <= 2 * 60 * 1100 + 4 * FILE
    await heir.close()


async def test_rewritten_files_lie_under_their_namespace(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    await write(store, [1, 2], 60, "tenant/one")
    await write(store, [3, 4], 60, "tenant/t.w%o")
    await write(store, [5], 200, "tenant/one")
    for one in (1, 3, 5):
        store.delete(LedgerId(one), store.incarnation)
    await store.reclaim()
    folders = {path.parent for path in disk.names if path.suffix == ".led"}
    assert folders == {ROOT / "ledgers/tenant/one", ROOT / "ledgers/tenant/t%2Ew%25o"}
    await check(store, 2, store.incarnation, 0, 60)
    await check(store, 4, store.incarnation, 0, 60)
    await store.close()


async def test_rewritten_files_that_die_go_too(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    await write(store, [1, 2, 3], 100)
    await write(store, [4], 150)
    store.delete(LedgerId(1), store.incarnation)
    store.delete(LedgerId(2), store.incarnation)
    await store.reclaim()
    assert any(path.suffix == ".led" for path in disk.names)
    store.delete(LedgerId(3), store.incarnation)
    store.delete(LedgerId(4), store.incarnation)
    await store.reclaim()
    assert not any(path.suffix == ".led" for path in disk.names)
    await store.close()


async def test_a_file_named_by_a_plan_stays_until_the_plan_expires(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    await write(store, [1], 300)
    plan = await store.plan(LedgerId(1), store.incarnation, 0, 100)
    store.trim(LedgerId(1), store.incarnation, 300)
    await store.reclaim()
    assert all(Path(run.path) in disk.names for run in plan.runs)
    assert read_plan(disk, plan) == [text(1, i) for i in range(100)]
    clock.now = plan.expires_at_ms
    await store.reclaim()
    assert not any(Path(run.path) in disk.names for run in plan.runs)
    await store.close()


def read_plan(disk: Disk, plan: ReadPlan) -> list[bytes]:
    return [
        bytes(disk.names[Path(run.path)].data[offset + 32 : offset + length])
        for run in plan.runs
        for offset, length in zip(run.offsets, run.lengths, strict=True)
    ]


async def test_what_an_ended_incarnation_left_goes_once_no_record_names_it(clock: Clock) -> None:
    disk = Disk(1)
    old = on_disk(disk.boot(), clock)
    await old.start()
    await write(old, [1, 2], 150)
    await old.close()
    new = on_disk(disk.boot(), clock, boot=1)
    await new.start()
    new.retain([LiveLedger(LedgerId(1), old.incarnation, 0, 150, NS)])
    await new.reclaim()
    await check(new, 1, old.incarnation, 0, 150)
    assert new.stats()["disk_bytes"] <= 2 * 150 * 1100 + 4 * FILE
    new.delete(LedgerId(1), old.incarnation)
    await new.reclaim()
    assert not any("boot0" in path.parts for path in disk.names)
    assert await new.take(old.incarnation, None) == {}
    await new.close()


async def test_the_state_of_a_ledger_without_entries_outlives_its_files(clock: Clock) -> None:
    disk = Disk(1)
    old = on_disk(disk.boot(), clock)
    await old.start()
    await write(old, [1], 150)
    await old.close()
    for boot in (1, 2):
        new = on_disk(disk.boot(), clock, boot)
        await new.start()
        new.retain([LiveLedger(LedgerId(1), old.incarnation, 150, 150, NS)])
        await new.reclaim()
        state = (await new.take(old.incarnation, [LedgerId(1)]))[LedgerId(1)]
        assert (state.entries_end, state.snapshot) == (150, b"state of 1")
        assert not any(path.suffix == ".wal" and "boot0" in path.parts for path in disk.names)
        await new.close()


@pytest.mark.parametrize("cut_after", [0, 1, 2, 3, 5, 7, 9, 12, 15, 20])
async def test_a_power_cut_while_rewriting_loses_nothing(clock: Clock, cut_after: int) -> None:
    disk = Disk(cut_after)
    files = disk.boot()
    store = on_disk(files, clock)
    await store.start()
    store.retain([])
    await write(store, [1, 2, 3], 120)
    store.delete(LedgerId(1), store.incarnation)
    store.delete(LedgerId(3), store.incarnation)
    files.cut_after = cut_after
    try:
        await store.reclaim()
    except OSError:
        assert files.is_off
    await store.close()
    disk.cut()
    heir = on_disk(disk.boot(), clock, boot=1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    assert states[LedgerId(2)].entries_end == 120
    heir.retain([LiveLedger(LedgerId(2), store.incarnation, 0, 120, NS)])
    await check(heir, 2, store.incarnation, 0, 120)
    await heir.reclaim()
    await check(heir, 2, store.incarnation, 0, 120)
    assert heir.stats()["disk_bytes"] <= 2 * 120 * 1100 + 4 * FILE
    await heir.close()


async def test_a_source_with_a_damaged_record_is_kept_as_it_is(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    store.retain([])
    await write(store, [1, 2, 3], 60)
    plan = await store.plan(LedgerId(2), store.incarnation, 5, 6)
    damaged = Path(plan.runs[0].path)
    disk.names[damaged].data[plan.runs[0].offsets[0] + 40] ^= 1
    clock.now = plan.expires_at_ms
    store.delete(LedgerId(1), store.incarnation)
    store.delete(LedgerId(3), store.incarnation)
    await store.reclaim()
    assert damaged in disk.names
    await check(store, 2, store.incarnation, 6, 60)
    await store.close()


def rewritten_files(root: Path) -> list[Path]:
    return list(root.glob("ledgers/public/default/*.led"))


async def test_a_real_process_rewrites_real_files(tmp_path: Path, clock: Clock) -> None:
    store = FileLogStore(
        tmp_path, clock_ms=clock, file_bytes=FILE, cache_bytes=16 * KB, reclaim_seconds=100.0
    )
    await store.start()
    store.retain([])
    await write(store, [1, 2, 3], 100)
    store.delete(LedgerId(1), store.incarnation)
    store.delete(LedgerId(3), store.incarnation)
    await store.reclaim()
    assert rewritten_files(tmp_path)
    await check(store, 2, store.incarnation, 0, 100)
    await store.close()


def deleted_but_held(root: Path) -> list[str]:
    """Files under `root` whose names are gone while this process still holds their blocks."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [line for line in maps + links if str(root) in line and line.endswith("(deleted)")]


async def test_removed_files_give_their_blocks_back_at_once(tmp_path: Path, clock: Clock) -> None:
    old = FileLogStore(tmp_path, clock_ms=clock, file_bytes=FILE, reclaim_seconds=100.0)
    await old.start()
    await write(old, [1], 200)
    await old.close()
    new = FileLogStore(tmp_path, clock_ms=clock, file_bytes=FILE, reclaim_seconds=100.0)
    await new.start()
    await write(new, [2], 200)
    new.retain(
        [
            LiveLedger(LedgerId(1), old.incarnation, 0, 200, NS),
            LiveLedger(LedgerId(2), new.incarnation, 0, None, NS),
        ]
    )
    await check(new, 1, old.incarnation, 0, 200)
    new.delete(LedgerId(1), old.incarnation)
    new.trim(LedgerId(2), new.incarnation, 200)
    await new.reclaim()
    assert new.stats()["files"] == 2
    assert deleted_but_held(tmp_path) == []
    await new.close()


# -- the decision

POLICY = ReclaimPolicy(file_bytes=100, wal_bytes_max=1000, stretch_bytes_min=10)


def test_a_file_mostly_dead_is_rewritten_and_one_mostly_live_is_not() -> None:
    files = [FileFacts(1, 100, 49, 1, False), FileFacts(2, 100, 51, 1, False), FileFacts(3, 100, 0, 0, False)]
    assert choose(files, POLICY, is_thorough=True).rewrite == (1,)
    assert choose(files, POLICY, is_thorough=True).remove == (3,)


def test_a_little_waste_is_not_worth_a_process() -> None:
    assert choose([FileFacts(1, 100, 10, 1, False)], POLICY, is_thorough=False).rewrite == ()
    twice = [FileFacts(1, 100, 40, 1, False), FileFacts(2, 100, 40, 1, True, record_bytes=90)]
    assert choose(twice, POLICY, is_thorough=False).rewrite == (1, 2)


def test_a_small_rewritten_file_that_is_all_alive_is_left_alone() -> None:
    assert choose([FileFacts(1, 100, 5, 1, True, record_bytes=5)], POLICY, is_thorough=True).rewrite == ()


def test_a_crowd_of_small_files_of_one_namespace_becomes_one() -> None:
    crowd = [FileFacts(i, 10, 5, 1, True, folder="a", record_bytes=5) for i in range(8)]
    others = [FileFacts(10 + i, 10, 5, 1, True, folder=f"b{i}", record_bytes=5) for i in range(8)]
    assert choose(crowd + others, POLICY, is_thorough=False).rewrite == tuple(range(8))


async def test_many_restarts_leave_few_files(clock: Clock) -> None:
    disk = Disk(1)
    past: list[tuple[LedgerId, Incarnation]] = []
    for boot in range(20):
        store = on_disk(disk.boot(), clock, boot)
        await store.start()
        store.retain([LiveLedger(ledger, incarnation, 0, 3, NS) for ledger, incarnation in past])
        await write(store, [boot], 3)
        await store.reclaim()
        past.append((LedgerId(boot), store.incarnation))
        for ledger, incarnation in past:
            await check(store, ledger, incarnation, 0, 3)
        assert len([path for path in disk.names if path.suffix in (".led", ".wal")]) <= 12
        await store.close()


def test_a_file_recovery_needs_stays() -> None:
    assert choose([FileFacts(1, 100, 0, 0, False, is_needed=True)], POLICY, is_thorough=True).remove == ()


async def test_ledgers_written_in_turns_are_gathered_however_much_each_has(clock: Clock) -> None:
    store = on_disk(Disk(1).boot(), clock)
    await store.start()
    # Three ledgers with a third of each file, in stretches of ten entries.
    await write(store, [1, 2, 3], 300)
    store.retain([])
    await store.reclaim()
    assert store.stats()["rewritten_bytes"] > 0
    for ledger in (1, 2, 3):
        await check(store, ledger, store.incarnation, 0, 300)
    await store.close()


def test_stretches_are_counted_where_entries_of_a_ledger_do_not_touch() -> None:
    index = OpenIndex()
    index.add(1, 0, 0, array("I", [0, 10, 30, 40]), array("I", [10, 10, 10, 5]))
    index.add(2, 0, 0, array("I", [20]), array("I", [10]))
    rows = [LiveRow(1, 0, 4, 35), LiveRow(2, 0, 1, 10)]
    assert count_stretches(index, rows) == 3
    assert count_stretches(index, rows[:1]) == 1


def test_young_files_are_not_gathered_unless_asked() -> None:
    young = [FileFacts(i, 100, 90, 30, False, is_settled=False) for i in range(8)]
    assert choose(young, POLICY, is_thorough=False).rewrite == ()
    assert len(choose(young, POLICY, is_thorough=True).rewrite) == 8


def test_scattered_files_are_rewritten_once_a_jobs_worth_has_gathered() -> None:
    scattered = [FileFacts(i, 100, 90, 30, False) for i in range(8)]
    assert choose(scattered[:7], POLICY, is_thorough=True).rewrite == ()
    assert len(choose(scattered, POLICY, is_thorough=False).rewrite) == 8
    assert (
        choose(
            [FileFacts(i, 100, 90, 30, True, record_bytes=90) for i in range(9)], POLICY, is_thorough=True
        ).rewrite
        == ()
    )


def test_a_log_beyond_its_bound_is_rewritten_oldest_first() -> None:
    files = [FileFacts(i, 100, 100, 1, False) for i in range(13)]
    assert choose(files, POLICY, is_thorough=False).rewrite == (0, 1, 2)


@given(
    st.lists(st.tuples(st.sampled_from(["a/b", "a/c"]), st.integers(0, 5), st.integers(1, 90)), max_size=20)
)
def test_outputs_hold_each_piece_once_sorted_by_ledger(given_pieces: list[tuple[str, int, int]]) -> None:
    pieces = []
    ends: dict[int, int] = {}
    for namespace, ledger, size in given_pieces:
        ledger += 100 if namespace == "a/c" else 0
        first = ends.get(ledger, 0)
        ends[ledger] = first + size
        pieces.append((namespace, Piece(0, ledger, first, first + size, size)))
    outputs = plan_outputs(reversed(pieces), 3, ROOT, file_bytes=100)
    written = [piece for output in outputs for piece in output.pieces]
    assert sorted(written, key=lambda p: (p.ledger, p.first)) == sorted(
        [piece for _, piece in pieces], key=lambda p: (p.ledger, p.first)
    )
    for output in outputs:
        keys = [(piece.ledger, piece.first) for piece in output.pieces]
        assert keys == sorted(keys)
        assert len({piece.ledger >= 100 for piece in output.pieces}) == 1


def test_planning_a_job_of_very_many_small_ledgers_takes_time_in_proportion() -> None:
    pieces = [(NS, Piece(0, ledger, 0, 3, 3000)) for ledger in range(40_000)]
    began = time.thread_time()
    outputs = plan_outputs(pieces, 1, ROOT, file_bytes=64 << 20)
    # A third of a second here; summing up what was chosen so far for each of them took 40.
    assert time.thread_time() - began < 8
    assert sum(len(output.pieces) for output in outputs) == 40_000
    # A ledger in very many pieces, too.
    pieces = [(NS, Piece(0, 1, n, n + 1, 10_000)) for n in range(40_000)]
    began = time.thread_time()
    assert len(plan_outputs(pieces, 1, ROOT, file_bytes=1 << 30)) == 1
    assert time.thread_time() - began < 8


def test_what_is_deleted_is_forgotten_once_the_records_have_been_read() -> None:
    live = Liveness(Incarnation("own"))
    live.delete(LedgerId(1))
    # The records were read before it was deleted.
    live.retain(
        [
            LiveLedger(LedgerId(1), Incarnation("old"), 0, 5, NS),
            LiveLedger(LedgerId(2), Incarnation("old"), 0, 5, NS),
        ]
    )
    assert live.is_gone(1, 0)
    assert not live.is_gone(2, 0)
    with live.taking():
        live.delete(LedgerId(2))
        live.want(LedgerId(2), Incarnation("old"))
    assert live.is_gone(2, 0)
    for number in range(10, 2_000):
        live.open(LedgerId(number), NS)
        live.delete(LedgerId(number))
        assert live.is_gone(number, 0)
    assert live.remembered == 0


class ChangingLiveness(Liveness):
    """Something changes right after it was looked at."""

    change: Callable[[], None] | None = None

    def rows(self, file: IndexedFile) -> list[LiveRow]:
        found = super().rows(file)
        change, self.change = self.change, None
        if change is not None:
            change()
        return found


async def test_a_ledger_deleted_while_its_file_is_looked_at_is_noticed_the_next_time(clock: Clock) -> None:
    disk = Disk(1)
    files = disk.boot()
    files.make_folder(ROOT)
    old, catalog = Incarnation("old"), Catalog()
    live = ChangingLiveness(Incarnation("own"))
    live.retain([LiveLedger(LedgerId(1), old, 0, 1, NS)])
    path = ROOT / "00000001.wal"
    files.close(files.create(path, 1000))
    file = LogFile(path, 1, old)
    file.index = index = OpenIndex()
    index.add(1, 0, 0, array("I", [64]), array("I", [900]))
    file.is_finished, file.disk_bytes = True, 1000
    catalog.add_indexed(file)

    async def refuse(job: RewriteJob) -> RewriteDone:
        raise OSError("nothing is to be rewritten here")

    with ThreadPoolExecutor(1) as executor:
        reclaimer = Reclaimer(
            ROOT, Incarnation("own"), files, executor, catalog, live, refuse, clock, lambda: POLICY
        )

        def delete() -> None:
            live.delete(LedgerId(1))
            reclaimer.touched(1)

        live.change = delete
        await reclaimer.run(is_thorough=True)
        assert path in disk.names
        await reclaimer.run(is_thorough=True)
        assert path not in disk.names


async def test_a_rewriting_process_killed_half_way_leaves_no_second_copy(clock: Clock) -> None:
    disk = Disk(1)
    files = disk.boot()
    is_killed = True

    async def rewriter(job: RewriteJob) -> RewriteDone:
        done = run_job(files, RewriteJob(job.sources, job.outputs[:1] if is_killed else job.outputs))
        if is_killed:
            assert Path(done.paths[0]) in disk.names
            raise OSError("the rewriting process ended with -9")
        return done

    store = on_disk(files, clock, other_rewriter=rewriter)
    await store.start()
    store.retain([])
    owners = [Owner(), Owner()]
    writers = [
        store.open_ledger(LedgerId(one), owner, f"public/{one}")
        for one, owner in zip((1, 2), owners, strict=True)
    ]
    dying = store.open_ledger(LedgerId(3), Owner(), NS)
    for entry in range(100):
        for one, writer in enumerate(writers, start=1):
            writer.append(text(one, entry), 1)
        dying.append(bytes(4000), 1)
        await owners[1].until(entry + 1)
    store.delete(LedgerId(3), store.incarnation)
    await store.reclaim()
    assert not any(path.suffix == ".led" for path in disk.names)
    is_killed = False
    await store.reclaim()
    rewritten = [path for path in disk.names if path.suffix == ".led"]
    assert len(rewritten) >= 2
    for one in (1, 2):
        await check(store, one, store.incarnation, 0, 100)
    await store.close()


async def test_the_folder_of_files_that_a_plan_names_stays_as_long_as_they_do(clock: Clock) -> None:
    disk = Disk(1)
    store = on_disk(disk.boot(), clock)
    await store.start()
    await write(store, [1], 100)
    await store.close()
    heir = on_disk(disk.boot(), clock, boot=1)
    await heir.start()
    await heir.take(store.incarnation, None)
    heir.retain([LiveLedger(LedgerId(1), store.incarnation, 0, 100, NS)])
    plan = await heir.plan(LedgerId(1), store.incarnation, 0, 100)
    heir.delete(LedgerId(1), store.incarnation)
    await heir.reclaim()
    assert read_plan(disk, plan) == [text(1, i) for i in range(100)]
    clock.now = plan.expires_at_ms
    await heir.reclaim()
    await heir.reclaim()
    assert not any("boot0" in path.parts for path in disk.names)
    await heir.close()


async def test_looking_after_the_disk_goes_on_whatever_goes_wrong_once() -> None:
    class Surprising(FaultyFiles):
        looks = 0

        def free_bytes(self, path: Path) -> int:
            self.looks += 1
            if self.looks == 2:
                raise RuntimeError("nobody thought of this")
            return 1 << 40 if self.looks == 1 else 0

    store = FileLogStore(
        ROOT,
        clock_ms=lambda: 0,
        files=Surprising(Disk(1)),
        file_bytes=FILE,
        reclaim_seconds=0.01,
        disk_reserve_bytes=FILE,
    )
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    store.on_accepting_change(told.set_result)
    await store.start()
    assert await asyncio.wait_for(told, 30) is False
    await store.close()
