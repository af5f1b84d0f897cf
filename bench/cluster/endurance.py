"""Thousands of hand-overs of topics, to and fro: what they leave behind.

Some of the topics have a backlog, which stays; the others are published to, consumed and trimmed all the time. Figures
are read before, once the first hand-overs have been, and after, once what can be removed has been. Files are small, so
that they fill up and are rewritten.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import usage
from bench.cluster.findings import Finding
from bench.cluster.running import Cluster, running
from bench.cluster.swarm import Swarm

BROKERS = 3
BUNDLES = 4
KEPT_TOPICS, BUSY_TOPICS = 20, 80
KEPT_MESSAGES = 8_000
# Until caches are full, and as much is on its way as hand-overs at this rate leave for the next round of upkeep, which
# is a minute later: on a fast machine that takes more than twice as many.
FIRST_MOVES = 3_000
FIRST_S = 75.0
PACE_S = 0.5
MEMORY_MAX, DISK_MAX, BASE_MAX = 1.10, 2.0, 1.05
# A broker asks after the ledgers that it has given away every 60 s, and once more 10 s later.
STABLE_S, SETTLE_S_MAX = 90.0, 240.0
FOLLOW_S_MAX = 60.0
SETTINGS = {
    "logFileBytes": 8 << 20,
    "logCacheBytes": 8 << 20,
    "logLingerSeconds": 0,
    "logLingerBytes": 0,
    "defaultRetentionTimeInMinutes": 0,
    "retentionCheckIntervalInSeconds": 1,
    "logTrimSeconds": 5,
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    memory_mb: dict[str, float]
    disk_mb: float
    live_mb: float
    records: int
    record_kb: float
    files: int
    fences: int


def _records(cluster: Cluster) -> tuple[int, float]:
    """The number of records of the metadata, and their KB."""
    with tempfile.TemporaryDirectory() as folder:
        for path in cluster.data.glob("metadata.sqlite*"):
            shutil.copy(path, folder)
        with sqlite3.connect(Path(folder) / "metadata.sqlite") as store:
            count, size = store.execute("SELECT count(*), sum(length(value)) FROM node").fetchone()
    return int(count), float(size) / 1024


def _snapshot(cluster: Cluster) -> Snapshot:
    log = cluster.data / "log"
    sizes = 0
    for number in range(KEPT_TOPICS):
        sizes += cluster.rest("GET", f"persistent/public/endured/kept-{number}/stats")["storageSize"]
    names = [path.relative_to(log) for path in log.rglob("*") if path.is_file()]
    records, size = _records(cluster)
    return Snapshot(
        memory_mb={name: usage.memory(pid).anon_mb for name, pid in cluster.broker_pids.items()},
        disk_mb=usage.tree_bytes(log) / 2**20,
        live_mb=sizes / 2**20,
        records=records,
        record_kb=size,
        files=len(names),
        fences=sum("fences" in name.parts for name in names),
    )


def _settled(cluster: Cluster, stable_s: float) -> Snapshot:
    """Once disk and records do not shrink any more."""
    best, since = _snapshot(cluster), time.monotonic()
    ends = time.monotonic() + SETTLE_S_MAX
    while time.monotonic() < min(ends, since + stable_s):
        time.sleep(3)
        now = _snapshot(cluster)
        if (now.disk_mb, now.record_kb) < (best.disk_mb * 0.99, best.record_kb) or now.files < best.files:
            since = time.monotonic()
        best = now
    return best


async def _fill(cluster: Cluster, topics: list[str]) -> None:
    """Messages that a subscription without consumers keeps."""
    for topic in topics:
        path = topic.replace("://", "/")
        cluster.rest("PUT", path)
        cluster.rest("PUT", f"{path}/subscription/kept", "earliest")
    async with Swarm(cluster.port) as swarm:
        await swarm.open(topics, pace_s=0.0, window=100, consumers=False)
        for publisher in swarm.publishers.values():
            publisher.begin()
        await swarm.until(
            lambda: all(one.receipts >= KEPT_MESSAGES for one in swarm.publishers.values()),
            FOLLOW_S_MAX,
            "receipts",
        )
        await swarm.quiet()


class Moves:
    def __init__(self, cluster: Cluster, swarm: Swarm) -> None:
        self._cluster, self._swarm = cluster, swarm
        self._targets = cluster.addresses()
        self._bundles = cluster.bundles("endured")
        self._within: dict[str, list[int]] = {bundle: [] for bundle in self._bundles}
        for number, publisher in swarm.publishers.items():
            self._within[cluster.bundle_of(publisher.topic.partition("://")[2])].append(number)
        self._turn = 0
        self.count = 0

    async def until(self, count: int, seconds: float = 0.0) -> None:
        """Moves bundles until so many topics have moved, and for so long; each goes round the brokers."""
        ends = time.monotonic() + seconds
        while self.count < count or time.monotonic() < ends:
            bundle = self._bundles[self._turn % len(self._bundles)]
            target = self._targets[(self._turn // len(self._bundles) + self._turn) % len(self._targets)]
            self._turn += 1
            numbers = self._within[bundle]
            port = self._cluster.port_of(target)
            moved = [n for n in numbers if (link := self._swarm.publishers[n].link) and link.port != port]
            await asyncio.to_thread(self._cluster.move, "endured", bundle, target)
            await self._swarm.at_port(numbers, port, FOLLOW_S_MAX)
            self.count += len(moved)


async def _endure(cluster: Cluster, count: int, stable_s: float) -> tuple[Snapshot, Snapshot, float]:
    kept = [f"persistent://public/endured/kept-{number}" for number in range(KEPT_TOPICS)]
    busy = [f"persistent://public/endured/busy-{number}" for number in range(BUSY_TOPICS)]
    await _fill(cluster, kept)
    async with Swarm(cluster.port) as swarm:
        await swarm.open(busy, pace_s=PACE_S)
        for publisher in swarm.publishers.values():
            publisher.begin()
        await swarm.open(kept, pace_s=PACE_S, window=0, consumers=False)
        moves = Moves(cluster, swarm)
        await moves.until(min(count, FIRST_MOVES), FIRST_S if count > FIRST_MOVES else 0.0)
        before = await asyncio.to_thread(_settled, cluster, stable_s)
        began, first = time.monotonic(), moves.count
        await moves.until(first + count)
        took = (time.monotonic() - began) / (moves.count - first)
        after = await asyncio.to_thread(_settled, cluster, stable_s)
        if swarm.errors:
            raise RuntimeError(swarm.errors[0])
        return before, after, took


def measure(is_quick: bool, count: int | None = None) -> list[Finding]:
    hand_overs = count or (500 if is_quick else 10_000)
    with running(BROKERS, SETTINGS) as cluster:
        cluster.namespace("endured", BUNDLES)
        before, after, took = asyncio.run(_endure(cluster, hand_overs, 15.0 if is_quick else STABLE_S))
    growth = {name: after.memory_mb[name] / mb for name, mb in before.memory_mb.items()}
    note = ", ".join(
        f"{name} {before.memory_mb[name]:.0f} to {after.memory_mb[name]:.0f} MB" for name in growth
    )
    return [
        Finding("hand-overs of topics", hand_overs, note=f"{took * 1000:.1f} ms each"),
        Finding("memory of the broker that grew most", max(growth.values()), "x", MEMORY_MAX, note),
        Finding(
            "disk to live messages",
            after.disk_mb / after.live_mb,
            "x",
            DISK_MAX,
            f"{after.disk_mb:.0f} MB for {after.live_mb:.0f} MB; before {before.disk_mb:.0f} MB",
        ),
        Finding(
            "records of the metadata",
            after.records / before.records,
            "x",
            BASE_MAX,
            f"{before.records} to {after.records}",
        ),
        Finding(
            "bytes of the records",
            after.record_kb / before.record_kb,
            "x",
            None,
            f"{before.record_kb:.0f} to {after.record_kb:.0f} KB",
        ),
        Finding("files of the log", after.files, "", before.files + 3, f"before {before.files}"),
        Finding("fences", after.fences, "", before.fences, f"before {before.fences}"),
    ]
