"""Real processes on a real disk: killed at any moment, or stopped, fenced and continued."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.files import OsFiles, mount_type
from anabranch.storage.port import LedgerState, LiveLedger, LogInUseError

SCRIPT = str(Path(__file__).with_name("writer_process.py"))
SOURCE = str(Path(__file__).resolve().parents[4] / "src")


def path_of(ledger: int) -> str:
    return f"/managed-ledgers/public/default/persistent/t{ledger}"


class Writer:
    """The process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.entries: dict[int, int] = defaultdict(int)
        self.states: dict[int, int] = defaultdict(int)
        self.lost: set[int] = set()

    @staticmethod
    async def start(root: Path, name: str, seed: int) -> Writer:
        env = {**os.environ, "PYTHONPATH": SOURCE}
        arguments = (SCRIPT, str(root), name, str(seed))
        pipe = asyncio.subprocess.PIPE
        return Writer(await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, env=env))

    async def listen(self, until: int | None = None) -> None:
        """Reads what it says, to the end or until so many entries of the first ledger are confirmed."""
        assert self.process.stdout is not None
        while until is None or self.entries[1] < until:
            line = await self.process.stdout.readline()
            if not line.endswith(b"\n"):
                return
            what, ledger, *numbers = line.split()
            if what == b"lost":
                self.lost.add(int(ledger))
            else:
                self.entries[int(ledger)], self.states[int(ledger)] = map(int, numbers)

    async def kill(self) -> None:
        self.process.kill()
        await self.listen()
        await self.process.wait()


async def check(store: FileLogStore, name: str, states: dict[LedgerId, LedgerState]) -> None:
    for ledger, state in states.items():
        first = 0
        while first < state.entries_end:
            for number, _, data in await store.read(
                ledger, Incarnation(name), first, state.entries_end, 500, 1 << 20
            ):
                assert number == first
                assert bytes(data).startswith(b"%d:%d:" % (ledger, number))
                first += 1


@pytest.mark.parametrize("seed", range(3))
async def test_a_killed_writer_loses_nothing_it_confirmed(tmp_path: Path, seed: int) -> None:
    writer = await Writer.start(tmp_path, "victim", seed)
    await writer.listen(until=200 + 900 * seed)
    await writer.kill()
    heir = FileLogStore(tmp_path, clock_ms=lambda: 1)
    await heir.start()
    states = dict(await heir.take(Incarnation("victim"), None))
    for ledger, confirmed in writer.entries.items():
        state = states[LedgerId(ledger)]
        assert state.entries_end >= confirmed
        assert len(state.deltas) >= writer.states[ledger]
    await check(heir, "victim", states)
    await heir.close()


async def test_a_writer_stopped_fenced_and_continued_confirms_nothing(tmp_path: Path) -> None:
    writer = await Writer.start(tmp_path, "victim", 7)
    await writer.listen(until=100)
    writer.process.send_signal(signal.SIGSTOP)
    heir = FileLogStore(tmp_path, clock_ms=lambda: 1, is_shared=True)
    await heir.start()
    states = dict(await heir.take(Incarnation("victim"), None))
    writer.process.send_signal(signal.SIGCONT)
    await writer.listen()
    assert writer.lost == {1, 2, 3}
    for ledger, confirmed in writer.entries.items():
        assert confirmed <= states[LedgerId(ledger)].entries_end
        assert writer.states[ledger] <= len(states[LedgerId(ledger)].deltas)
    await check(heir, "victim", states)
    assert await writer.process.wait() == 0
    # The answer stays what it was, whatever the writer wrote before it met the fence.
    assert await heir.take(Incarnation("victim"), None) == states
    await heir.close()


async def test_a_folder_in_use_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    first = FileLogStore(tmp_path, clock_ms=lambda: 1)
    await first.start()
    second = FileLogStore(tmp_path, clock_ms=lambda: 1)
    with pytest.raises(LogInUseError, match=r"in use by another process$"):
        await second.start()
    await second.close()
    await first.close()
    third = FileLogStore(tmp_path, clock_ms=lambda: 1)
    await third.start()
    await third.close()


def test_the_end_of_what_was_written_is_found_in_an_allocated_file(tmp_path: Path) -> None:
    files = OsFiles()
    path = tmp_path / "file"
    fd = files.create(path, 1 << 20)
    assert files.data_end(path) <= 1 << 20
    files.write(fd, [b"x" * 100], 0)
    files.write(fd, [b"y" * 100], 300_000)
    # Dirty pages count as written; a file system that cannot say gives the whole size.
    assert 300_100 <= files.data_end(path) <= 1 << 20
    files.sync(fd)
    assert 300_100 <= files.data_end(path) <= 1 << 20
    files.close(fd)


def test_the_type_of_a_mount_is_that_of_the_innermost_one(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/root / ext4 rw 0 0\n"
        "server:/x /data nfs4 rw 0 0\n"
        "/dev/b /data/local\\040disk xfs rw 0 0\n"
        "overlay /datafile overlay rw 0 0\n"
    )
    assert mount_type(Path("/var/log"), mounts) == "ext4"
    assert mount_type(Path("/data/topics"), mounts) == "nfs4"
    assert mount_type(Path("/data/local disk/topics"), mounts) == "xfs"
    assert mount_type(Path("/data"), mounts) == "nfs4"
    assert mount_type(Path("/anywhere"), tmp_path / "absent") == ""


async def test_the_log_of_a_killed_process_is_rewritten_and_removed_by_others(tmp_path: Path) -> None:
    now_ms = 1_000
    named: dict[str, list[LiveLedger]] = {}
    victim = Incarnation("victim")

    def name(first: int, end: int | None) -> None:
        path = path_of(1)
        named[path] = [LiveLedger(LedgerId(1), victim, first, end, "public/default", path)]

    async def living(paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        return {path: named.get(path, []) for path in paths}

    def store() -> FileLogStore:
        return FileLogStore(
            tmp_path,
            clock_ms=lambda: now_ms,
            is_shared=True,
            file_bytes=1 << 20,
            plan_ms=500,
            grace_ms=0,
            reclaim_seconds=100.0,
        )

    # As topics do: named before anything is written. Stores look for what is dead by themselves, too.
    name(0, None)
    writer = await Writer.start(tmp_path, victim, 1)
    await writer.listen(until=1_000)
    reader, sweeper = store(), store()
    for one in (reader, sweeper):
        await one.start()
        one.ask(living)
        one.retain([])
    await sweeper.reclaim()
    await writer.kill()
    end = (await reader.take(victim, [LedgerId(1)]))[LedgerId(1)].entries_end
    assert end >= 1_000

    name(0, end)
    reader.know(named[path_of(1)])
    plan = await reader.plan(LedgerId(1), victim, 0, end)
    await sweeper.reclaim()
    # Two of three ledgers are dead: what is left was rewritten, and read where it is now.
    assert list((tmp_path / "ledgers").rglob("*.led"))
    kept = set(map(str, (tmp_path / "wal" / "victim").iterdir()))
    assert all(run.path in kept for run in plan.runs)
    await check(reader, "victim", {LedgerId(1): LedgerState(end, None, (), 0)})
    now_ms += 501
    await reader.reclaim()
    await sweeper.reclaim()
    assert not list((tmp_path / "wal" / "victim").glob("*.wal*"))
    await check(reader, "victim", {LedgerId(1): LedgerState(end, None, (), 0)})
    del named[path_of(1)]
    await sweeper.reclaim()
    assert not list((tmp_path / "ledgers").rglob("*.led"))
    assert not (tmp_path / "wal" / "victim").exists()
    await reader.close()
    await sweeper.close()
