"""Any mix of appends, bad owners, failed syncs, kills and power cuts, over the log's writer and its heirs.

Entries of 1 byte to 1 MB, deltas, snapshots and owners that raise, in several ledgers, across every bound of a commit:
its size, that of a run, that of deltas before they are folded, and the end of a file. The writer ends by closing, by
being killed (what it wrote stays in memory), or with the power, and so does every heir of it, after a sync that failed
or not, before and after it has answered. Throughout: what was confirmed to anybody can be read, byte by byte, at its
number; an answer never changes; nothing but a fault of the disk ends a log; and what was appended is confirmed.

    ANABRANCH_LONG=1 ANABRANCH_CHANCE=1 pytest tests/unit/storage/test_log_machine.py    about 20 minutes, new examples
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import LedgerState, LogError
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import FoldingOwner

T = TypeVar("T")

KB = 1 << 10
ROOT = Path("/log")
LEDGERS_MAX = 3
NOTHING = LedgerState(0, None, (), 0)

# A run is cut at 256 KiB, and so are deltas.
SIZES = st.sampled_from((1, 700, 5 * KB, 90 * KB, 130 * KB, 256 * KB - 32, 256 * KB - 31, 1 << 20))
DELTAS = st.sampled_from((1, 20 * KB, 85 * KB, 140 * KB))
WHICH = st.integers(0, LEDGERS_MAX - 1)
ENDS = st.sampled_from(("closed", "killed", "power"))


class MachineOwner(FoldingOwner):
    """Can be made to raise when it is told, or asked."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_when = ""

    def confirmed(self, entries_end: int, state_end: int) -> None:
        super().confirmed(entries_end, state_end)
        if self.fails_when == "told":
            raise RuntimeError("this owner cannot be told")

    def snapshot(self) -> bytes:
        if self.fails_when == "asked":
            raise OverflowError("this owner's state cannot be said")
        return super().snapshot()


class Ledger:
    """A ledger as whoever writes it knows it."""

    def __init__(self, store: FileLogStore, number: int) -> None:
        self.id = LedgerId(number)
        self.incarnation = store.incarnation
        self.owner = MachineOwner()
        self.writer = store.open_ledger(self.id, self.owner, "public/default")
        self.entries: list[tuple[int, bytes]] = []
        # The whole state after each state record.
        self.states = [b""]
        self.is_closed = False
        # What somebody who took it was told, for ever.
        self.answer: LedgerState | None = None

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.owner.error is not None

    @property
    def has_good_owner(self) -> bool:
        return not self.owner.fails_when and self.owner.error is None

    def change(self, state: bytes) -> None:
        self.states.append(state)
        self.owner.state = state

    def check_answer(self, state: LedgerState) -> None:
        assert state.entries_end >= self.owner.entries_end, "a confirmed entry is not in the answer"
        assert state.entries_end <= len(self.entries)
        assert state.bytes == sum(len(data) for _, data in self.entries[: state.entries_end])
        found = (state.snapshot or b"") + b"".join(state.deltas)
        assert found in self.states[self.owner.state_end :], "a confirmed change of the state is gone"
        assert self.answer in (None, state), "an answer has changed"
        self.answer = state

    async def check_read(self, store: FileLogStore, end: int) -> None:
        at = 0
        while at < end:
            for number, messages, data in await store.read(self.id, self.incarnation, at, end, 500, 4 << 20):
                assert number == at
                assert (messages, bytes(data)) == self.entries[at], f"entry {at} is another one"
                at += 1
        if (cached := store.read_cached(self.id, 0, 1000, 64 << 20)) is not None:
            for number, messages, data in cached:
                assert (messages, bytes(data)) == self.entries[number]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.errors: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.opened = 0
        self.ledgers: list[Ledger] = []
        # Of this incarnation, closed or lost; and of those before it.
        self.done: list[Ledger] = []
        self.past: list[Ledger] = []
        self.boots = 0
        self.is_faulted = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    # -- life

    @initialize(
        seed=st.integers(0, 1 << 16),
        file_bytes=st.sampled_from((128 * KB, 512 * KB, 4 << 20)),
        commit_bytes_max=st.sampled_from((8 << 20, 8 << 20, 300 * KB, 4 * KB)),
        cache_bytes=st.sampled_from((0, 64 << 20)),
    )
    def begin(self, seed: int, file_bytes: int, commit_bytes_max: int, cache_bytes: int) -> None:
        self.disk = Disk(seed)
        self.chance = random.Random(seed)
        self.bounds = (file_bytes, commit_bytes_max, cache_bytes)
        self.boot()
        self.open_ledgers()

    def boot(self) -> None:
        self.files: FaultyFiles = self.disk.boot()
        file_bytes, commit_bytes_max, cache_bytes = self.bounds
        self.store = FileLogStore(
            ROOT,
            clock_ms=lambda: self.boots,
            files=self.files,
            incarnation=Incarnation(f"boot{self.boots:03}"),
            file_bytes=file_bytes,
            commit_bytes_max=commit_bytes_max,
            cache_bytes=cache_bytes,
            idle_seconds=0.001,
            disk_reserve_bytes=0,
            reclaim_seconds=1000.0,
        )
        self.boots += 1
        self.is_faulted = False
        self.run(self.store.start())

    def one(self, which: int) -> Ledger | None:
        return self.ledgers[which % len(self.ledgers)] if self.ledgers else None

    # No rule has a precondition: which thread is how far must not decide about what is drawn.

    def open_ledgers(self) -> None:
        """In the place of each that is closed or lost, another."""
        if self.store.ended is None:
            self.done += [one for one in self.ledgers if one.is_over]
            self.ledgers = [one for one in self.ledgers if not one.is_over]
            while len(self.ledgers) < LEDGERS_MAX:
                self.opened += 1
                self.ledgers.append(Ledger(self.store, self.opened))

    def refused(self, ledger: Ledger) -> None:
        """Only what has a reason is refused."""
        assert self.is_faulted or ledger.is_closed or not ledger.has_good_owner

    # -- appending

    @rule(
        burst=st.lists(
            st.tuples(WHICH, st.sampled_from(("entry", "entry", "delta", "delta", "snapshot")), SIZES),
            min_size=3,
            max_size=12,
        ),
        is_one=st.booleans(),
        turns=st.integers(0, 3),
    )
    def append(self, burst: list[tuple[int, str, int]], is_one: bool, turns: int) -> None:
        """All in one turn of the loop, often all to one ledger."""
        for which, what, size in burst:
            if (ledger := self.one(burst[0][0] if is_one else which)) is None:
                return
            data = self.chance.randbytes(size)
            try:
                if what == "entry":
                    assert ledger.writer.append(data, size & 3) == len(ledger.entries)
                elif what == "delta":
                    ledger.writer.append_state(data)
                else:
                    ledger.writer.append_snapshot(data[:5])
            except LogError:
                self.refused(ledger)
            else:
                if what == "entry":
                    ledger.entries.append((size & 3, data))
                else:
                    ledger.change(data[:5] if what == "snapshot" else ledger.states[-1] + data)
        self.turn(turns)

    @rule(which=WHICH, sizes=st.lists(SIZES, min_size=2, max_size=5), bad=st.integers(-1, 4))
    def append_many(self, which: int, sizes: list[int], bad: int) -> None:
        if (ledger := self.one(which)) is None:
            return
        entries = [self.chance.randbytes(size) for size in sizes]
        counts = [-1 if i == bad else 1 for i in range(len(entries))]
        try:
            assert ledger.writer.append_many(entries, counts) == len(ledger.entries)
        except LogError:
            self.refused(ledger)
            # A commit that overflows on the way is on its way to the disk.
        except ValueError:
            assert 0 <= bad < len(entries)
        # Whatever was appended has a number.
        done = ledger.writer.next_entry - len(ledger.entries)
        assert 0 <= done <= len(entries)
        ledger.entries += list(zip(counts, entries, strict=True))[:done]

    @rule(which=WHICH, size=DELTAS)
    def acknowledge(self, which: int, size: int) -> None:
        """A busy topic's life: changes of the state, again and again, in commits of their own."""
        if (ledger := self.one(which)) is not None:
            for _ in range(3):
                delta = self.chance.randbytes(size)
                try:
                    ledger.writer.append_state(delta)
                except LogError:
                    self.refused(ledger)
                    return
                ledger.change(ledger.states[-1] + delta)
                self.turn(2)

    # -- what goes wrong

    @rule(what=st.sampled_from(("close", "told", "asked", "pages")), which=WHICH)
    def mishap(self, what: str, which: int) -> None:
        ledger = self.one(which)
        if what == "pages":
            self.disk.forget_clean_pages()
        elif ledger is not None and what == "close":
            ledger.writer.close()
            ledger.is_closed = True
        elif ledger is not None:
            ledger.owner.fails_when = what

    @rule(after=st.integers(0, 3), sizes=st.lists(SIZES, min_size=1, max_size=4), how=ENDS)
    def fail_a_sync(self, after: int, sizes: list[int], how: str) -> None:
        """Somebody waits for each of these, and one of them fails. The heir may come in the same boot, or later."""
        self.is_faulted = True
        self.files.fail_sync_after = after
        for size in sizes:
            self.append([(0, "entry", size)], is_one=True, turns=3)
        self.end(how, [], is_forgetful=False)

    # -- time

    def turn(self, turns: int) -> None:
        async def spin() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(spin())

    @rule()
    def settle(self) -> None:
        """Everything appended is confirmed to every owner that can be told, or the disk has failed."""
        self.turn(1)
        self.run(self.store.take(self.store.incarnation, []))
        self.turn(3)
        assert self.is_faulted or self.store.ended is None, self.store.ended
        if self.store.ended is None:
            for ledger in self.ledgers:
                if ledger.has_good_owner:
                    assert ledger.owner.entries_end == len(ledger.entries)
                    assert ledger.owner.state_end == len(ledger.states) - 1
                self.run(ledger.check_read(self.store, ledger.owner.entries_end))
            self.open_ledgers()

    @rule(
        how=ENDS,
        faults=st.lists(st.integers(0, 3), max_size=2),
        is_forgetful=st.booleans(),
    )
    def end(self, how: str, faults: list[int], is_forgetful: bool) -> None:
        """The writer ends, and an heir takes everything, on a disk that may fail it a few times."""
        if how != "closed":
            self.files.power_off()
        self.run(self.store.close())
        if how == "power":
            self.disk.cut()
        self.disk.locks.clear()
        self.past += self.done + self.ledgers
        self.done, self.ledgers = [], []
        self.boot()
        for after in faults:
            self.files.fail_sync_after = after
            try:
                self.run(self.take_all())
            except LogError:
                self.is_faulted = True
            self.files.fail_sync_after = None
        if is_forgetful:
            self.disk.forget_clean_pages()
        if self.is_faulted:
            # The heir's own log may have failed too.
            self.files.power_off()
            self.run(self.store.close())
            self.disk.locks.clear()
            self.boot()
        self.run(self.check_past())
        self.open_ledgers()

    async def take_all(self) -> None:
        for incarnation in dict.fromkeys(ledger.incarnation for ledger in self.past):
            states = await self.store.take(incarnation, None)
            for ledger in self.past:
                if ledger.incarnation == incarnation:
                    ledger.check_answer(states.get(ledger.id, NOTHING))

    async def check_past(self) -> None:
        await self.take_all()
        for ledger in self.past:
            assert ledger.answer is not None
            await ledger.check_read(self.store, ledger.answer.entries_end)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.settle()
                # The heir is told; then the power goes, and the one after it reads what it was told.
                self.end("killed", [], is_forgetful=False)
                self.end("power", [], is_forgetful=False)
                assert self.errors == []
            finally:
                self.files.power_off()
                self.run(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


IS_LONG = bool(os.environ.get("ANABRANCH_LONG"))
# Shrinking takes minutes, and only what takes time to read is worth it.
SHORT = settings(max_examples=45, stateful_step_count=25, phases=(Phase.explicit, Phase.generate))
LONG = settings(max_examples=4000, stateful_step_count=60)


@pytest.mark.timeout(7200 if IS_LONG else 600)
def test_whatever_is_confirmed_is_there_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    # Owners fail by the thousand here, each with its traceback.
    caplog.set_level(logging.CRITICAL + 1)
    run_state_machine_as_test(LogMachine, settings=LONG if IS_LONG else SHORT)
