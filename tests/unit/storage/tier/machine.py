"""A disk, a bucket and the stores that use both, for tests of moved files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.tiered import TierDone, TierJob
from anabranch.storage.object.medium import Created, MediumError, ObjectMedium
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.moving import TierPolicy
from anabranch.storage.on_disk.rewrite import RewriteDone, RewriteJob, run_job
from anabranch.storage.port import Buffer, LiveLedger
from anabranch.storage.tier.copying import copy_files
from anabranch.storage.tier.object_tier import ObjectTier
from unit.storage.faulty_files import Disk, FaultyFiles
from unit.storage.owners import Owner

KB = 1 << 10
FILE = 64 * KB
ROOT = Path("/log")
NS = "public/default"
POLICY = ObjectLogPolicy(block_bytes=16 * KB, retry_seconds=0.0, retry_seconds_max=0.0)
HOUR = 3_600_000


def path_of(ledger: int) -> str:
    return f"/managed-ledgers/{NS}/persistent/t{ledger}"


def text(ledger: int, entry: int) -> bytes:
    return b"%d:%d:" % (ledger, entry) + b"x" * 1000


class Bucket(MemoryBucket):
    """A bucket that can be out of reach, and that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.gets = 0
        self.puts = 0

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self.puts += 1
        return Created.UNKNOWN if self.is_away else await super().create(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self.gets += 1
        self._check()
        return await super().get(key, start, length)

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        self._check()
        return await super().list(folder, after)

    async def delete(self, keys: Sequence[str]) -> None:
        self._check()
        await super().delete(keys)

    def _check(self) -> None:
        if self.is_away:
            raise MediumError("the store is away")


class TieredMachine:
    """`local_bytes`: what the log keeps on its disk; one file at most by default."""

    def __init__(
        self, *, seed: int = 1, capacity: int = 1 << 40, local_bytes: int = 0, bucket: Bucket | None = None
    ) -> None:
        self.disk = Disk(seed, capacity=capacity)
        self.bucket = bucket or Bucket()
        self.now = 1_000
        self.boots = 0
        self.local_bytes = local_bytes
        self.records: dict[str, list[LiveLedger]] = {}

    def clock(self) -> int:
        return self.now

    async def living(self, paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        return {path: list(self.records.get(path, ())) for path in paths}

    async def boot(
        self,
        files: FaultyFiles | None = None,
        *,
        is_shared: bool = False,
        has_tier: bool = True,
        medium: ObjectMedium | None = None,
    ) -> FileLogStore:
        files = files or self.disk.boot()

        async def rewriter(job: RewriteJob) -> RewriteDone:
            return await asyncio.get_running_loop().run_in_executor(None, run_job, files, job)

        async def mover(job: TierJob, lock: int | None) -> TierDone:
            return await copy_files(files, medium or self.bucket, job, pause_s=0)

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
            grace_ms=0,
            rewriter=rewriter,
            tier=ObjectTier(self.bucket, "s3://river/old", mover, POLICY) if has_tier else None,
            tier_policy=TierPolicy(self.local_bytes, small_bytes=0, retry_seconds=100.0),
        )
        await store.start()
        store.ask(self.living)
        store.retain([one for found in self.records.values() for one in found])
        return store

    async def write(self, store: FileLogStore, ledgers: Sequence[int], entries: int) -> None:
        """Entries of all ledgers, in turns, so that they lie scattered; their records name them."""
        owners = {one: Owner() for one in ledgers}
        writers = {}
        for one in ledgers:
            self.name(one, store.incarnation, 0, None)
            writers[one] = store.open_ledger(LedgerId(one), owners[one], NS, path_of(one))
        for entry in range(entries):
            for one in ledgers:
                writers[one].append(text(one, entry), 1)
            if entry % 10 == 9:
                await owners[ledgers[-1]].until(entry + 1)
        for one in ledgers:
            writers[one].append_snapshot(b"state of %d" % one)
            await owners[one].until(entries, 1)
            writers[one].close()

    def name(self, ledger: int, incarnation: Incarnation, first: int, end: int | None) -> None:
        path = path_of(ledger)
        self.records[path] = [LiveLedger(LedgerId(ledger), incarnation, first, end, NS, path)]

    def names(self, suffix: str) -> list[Path]:
        return sorted(one for one in self.disk.names if one.name.endswith(suffix))


async def check(store: FileLogStore, ledger: int, incarnation: Incarnation, first: int, end: int) -> None:
    while first < end:
        for number, _, data in await store.read(LedgerId(ledger), incarnation, first, end, 100, 1 << 20):
            assert (number, bytes(data)) == (first, text(ledger, first))
            first += 1
