"""Power cuts at any moment: everything confirmed is there, in order, without gaps, and nothing else is served.

Each seed is a run of several boots on one disk that loses and reorders what was not synced and tears pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.rewrite import RewriteDone, RewriteJob, run_job
from anabranch.storage.port import (
    FencedError,
    LedgerState,
    LedgerWriter,
    LiveLedger,
    LogError,
    LogFailedError,
)
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import FoldingOwner

ROOT = Path("/log")


class Written:
    """A ledger as its writer knows it: every record appended, and the owner that says what was confirmed."""

    def __init__(self, store: FileLogStore, ledger: LedgerId) -> None:
        self.ledger = ledger
        self.incarnation = store.incarnation
        self.owner = FoldingOwner()
        self.entries: list[bytes] = []
        # The whole state after each state record; a delta adds a byte to it, a snapshot starts again.
        self.states: list[bytes] = [b""]
        self.writer: LedgerWriter = store.open_ledger(ledger, self.owner, "public/default")

    def append(self, chance: random.Random) -> None:
        what = chance.random()
        if what < 0.7:
            data = b"%d:%d:" % (self.ledger, len(self.entries)) + chance.randbytes(
                chance.choice((0, 10, 900, 5000))
            )
            self.writer.append(data, 1)
            self.entries.append(data)
        elif what < 0.95:
            delta = chance.randbytes(chance.choice((1, 40)))
            self.writer.append_state(delta)
            self.states.append(self.states[-1] + delta)
        else:
            self.writer.append_snapshot(b"fresh")
            self.states.append(b"fresh")
        self.owner.state = self.states[-1]

    async def check(self, heir: FileLogStore, state: LedgerState, first: int = 0) -> None:
        assert state.entries_end >= self.owner.entries_end
        assert state.bytes == sum(map(len, self.entries[: state.entries_end]))
        found = (state.snapshot or b"") + b"".join(state.deltas)
        assert found in self.states[self.owner.state_end :]
        while first < state.entries_end:
            for number, messages, data in await heir.read(
                self.ledger, self.incarnation, first, state.entries_end, 50, 1 << 20
            ):
                assert (number, messages, bytes(data)) == (first, 1, self.entries[first])
                first += 1


def store_on(files: FaultyFiles, boot: int) -> FileLogStore:
    async def rewriter(job: RewriteJob) -> RewriteDone:
        return await asyncio.get_running_loop().run_in_executor(None, run_job, files, job)

    return FileLogStore(
        ROOT,
        clock_ms=lambda: boot,
        files=files,
        incarnation=Incarnation(f"boot{boot}"),
        file_bytes=64 << 10,
        cache_bytes=32 << 10,
        # Small, so that several commits go out in one write and a cut can spare a later one.
        commit_bytes_max=4 << 10,
        idle_seconds=0.001,
        disk_reserve_bytes=0,
        rewriter=rewriter,
    )


async def write_on(written: list[Written], chance: random.Random) -> None:
    while True:
        one = chance.choice(written)
        one.append(chance)
        if chance.random() < 0.2:
            await one.owner.until(len(one.entries))


async def write_until_the_power_goes(store: FileLogStore, first: int, chance: random.Random) -> list[Written]:
    written = [Written(store, LedgerId(first + i)) for i in range(chance.randint(1, 4))]
    with pytest.raises((LogFailedError, FencedError)):
        await write_on(written, chance)
    return written


@pytest.mark.parametrize("seed", range(30))
async def test_everything_confirmed_survives_a_power_cut(seed: int) -> None:
    disk, chance = Disk(seed), random.Random(seed)
    past: list[tuple[Written, LedgerState]] = []
    fresh: list[Written] = []
    for boot in range(4):
        files = disk.boot()
        store = store_on(files, boot)
        await store.start()
        for one in fresh:
            state = (await store.take(one.incarnation, [one.ledger])).get(
                one.ledger, LedgerState(0, None, (), 0)
            )
            past.append((one, state))
        for one, state in past:
            # The answer never changes again, and neither does what it names.
            again = await store.take(one.incarnation, None)
            assert again.get(one.ledger, LedgerState(0, None, (), 0)) == state
            await one.check(store, state)
        files.cut_after = chance.randint(0, 300)
        fresh = await write_until_the_power_goes(store, boot * 10, chance)
        await store.close()
        disk.cut()


@pytest.mark.parametrize("seed", range(10))
async def test_a_failed_sync_ends_the_incarnation_and_is_never_tried_again(seed: int) -> None:
    disk, chance = Disk(seed), random.Random(seed)
    files = disk.boot()
    store = store_on(files, 0)
    await store.start()
    files.fail_sync_after = chance.randint(0, 30)
    written = await write_until_the_power_goes(store, 1, chance)
    assert all(isinstance(one.owner.error, LogFailedError) for one in written)
    with pytest.raises(LogFailedError):
        store.open_ledger(LedgerId(99), FoldingOwner(), "public/default")
    files.fail_sync_after = None
    await store.close()
    if chance.random() < 0.5:
        disk.cut()
    heir = store_on(disk.boot(), 1)
    await heir.start()
    states = await heir.take(store.incarnation, None)
    for one in written:
        await one.check(heir, states.get(one.ledger, LedgerState(0, None, (), 0)))
    await heir.close()


@pytest.mark.parametrize("seed", range(20))
async def test_what_an_heir_has_answered_outlives_its_own_power_cut_whatever_sync_failed_before(
    seed: int,
) -> None:
    """The heir comes in the same boot: pages that never reached the disk look as good as any."""
    disk, chance = Disk(seed), random.Random(seed)
    files = disk.boot()
    store = store_on(files, 0)
    await store.start()
    files.fail_sync_after = chance.randint(0, 30)
    written = await write_until_the_power_goes(store, 1, chance)
    await store.close()
    answers = None
    for boot in range(1, 4):
        files = disk.boot()
        heir = store_on(files, boot)
        await heir.start()
        # The disk may fail the heir as well.
        files.fail_sync_after = chance.choice((None, 0, 1, 2))
        try:
            found = dict(await heir.take(store.incarnation, None))
        except LogError:
            files.fail_sync_after = None
            found = dict(await heir.take(store.incarnation, None))
        files.fail_sync_after = None
        assert answers in (None, found)
        answers = found
        for one in written:
            await one.check(heir, found.get(one.ledger, LedgerState(0, None, (), 0)))
        await heir.close()
        if chance.random() < 0.5:
            disk.forget_clean_pages()
        else:
            disk.cut()


@pytest.mark.parametrize("seed", range(10))
async def test_a_cut_while_taking_over_leaves_work_that_the_next_one_finishes(seed: int) -> None:
    disk, chance = Disk(seed), random.Random(seed)
    files = disk.boot()
    store = store_on(files, 0)
    await store.start()
    files.cut_after = 200
    written = await write_until_the_power_goes(store, 1, chance)
    await store.close()
    for boot in range(1, 6):
        disk.cut()
        files = disk.boot()
        heir = store_on(files, boot)
        await heir.start()
        files.cut_after = boot * 3
        try:
            states = await heir.take(store.incarnation, None)
        except LogError:
            await heir.close()
            continue
        files.cut_after = None
        for one in written:
            await one.check(heir, states.get(one.ledger, LedgerState(0, None, (), 0)))
        await heir.close()


class Kept:
    """A past ledger as its topic's record knows it: final state, and what has been trimmed or deleted."""

    def __init__(self, written: Written, state: LedgerState) -> None:
        self.written = written
        self.state = state
        self.first = 0
        self.is_deleted = False

    def shrink(self, store: FileLogStore, chance: random.Random) -> None:
        # The record changes first, then the log is told: the power may go in between.
        if chance.random() < 0.2:
            self.is_deleted = True
            store.delete(self.written.ledger, self.written.incarnation)
        else:
            self.first = chance.randint(self.first, self.state.entries_end)
            store.trim(self.written.ledger, self.written.incarnation, self.first)


@pytest.mark.parametrize("seed", range(20))
async def test_rewriting_and_removing_through_power_cuts_loses_nothing_live(seed: int) -> None:
    disk, chance = Disk(seed), random.Random(seed)
    kept: list[Kept] = []
    fresh: list[Written] = []
    for boot in range(6):
        files = disk.boot()
        store = store_on(files, boot)
        await store.start()
        for new in fresh:
            state = (await store.take(new.incarnation, [new.ledger])).get(
                new.ledger, LedgerState(0, None, (), 0)
            )
            kept.append(Kept(new, state))
        kept = [one for one in kept if not one.is_deleted]
        store.retain(
            LiveLedger(
                one.written.ledger,
                one.written.incarnation,
                one.first,
                one.state.entries_end,
                f"public/{seed % 2}",
            )
            for one in kept
        )
        for one in kept:
            await one.written.check(store, one.state, one.first)
        files.cut_after = chance.randint(20, 200)
        writing = asyncio.ensure_future(write_until_the_power_goes(store, boot * 10, chance))
        with contextlib.suppress(OSError, LogError):
            while not writing.done():
                for one in chance.sample(kept, min(len(kept), 2)):
                    one.shrink(store, chance)
                await store.reclaim()
                await asyncio.sleep(0)
        fresh = await writing
        await store.close()
        disk.cut()
