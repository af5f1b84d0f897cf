"""`python -m bench.coldread`: reading old entries of one topic among many, before and after files are rewritten.

A write-ahead log interleaves all topics, so an old topic's entries lie scattered over its files until rewriting gathers
them. Works on the log itself, with its files dropped from the page cache before each reading. The figure that must stay
flat once files are rewritten is the rate at which one topic is read, whatever the number of topics.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from anabranch.model.position import LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import LogError
from bench import report
from bench.__main__ import machine_to_ourselves
from bench.results import Results, describe_machine
from bench.systems import ROOT

ENTRY_BYTES = 1024
READ_BYTES_MAX = 4 << 20
UNCONFIRMED_BYTES_MAX = 16 << 20


class Owner:
    """Counts confirmed entries, and signals them."""

    def __init__(self, progress: asyncio.Event) -> None:
        self.end = 0
        self._progress = progress

    def confirmed(self, entries_end: int, state_end: int) -> None:
        self.end = entries_end
        self._progress.set()

    def lost(self, error: LogError) -> None:
        """Only closing ends the log here."""


async def fill(store: FileLogStore, topics: int, entries: int) -> None:
    """`entries` of 1 KB for each topic, one topic after the other, as many publishers at once would have them."""
    progress = asyncio.Event()
    owners = [Owner(progress) for _ in range(topics)]
    writers = [store.open_ledger(LedgerId(n + 1), owner, "bench/cold") for n, owner in enumerate(owners)]
    entry = os.urandom(ENTRY_BYTES)
    for _ in range(entries):
        for number, writer in enumerate(writers):
            writer.append(entry, 1)
            if number % 200 == 0:
                await asyncio.sleep(0)
            while store.unconfirmed_bytes > UNCONFIRMED_BYTES_MAX:
                progress.clear()
                await progress.wait()
    while any(owner.end < entries for owner in owners):
        progress.clear()
        await progress.wait()


def forget(root: Path) -> None:
    """Drops the log's files from the page cache."""
    os.sync()
    for path in [*root.rglob("*.wal"), *root.rglob("*.led")]:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def read(store: FileLogStore, root: Path, entries: int, ledgers: range) -> float:
    """MB/s over some of the topics, one after the other."""
    await asyncio.to_thread(forget, root)
    started = time.perf_counter()
    for ledger in ledgers:
        at = 0
        while at < entries:
            found = await store.read(LedgerId(ledger), store.incarnation, at, entries, 1000, READ_BYTES_MAX)
            at = found[-1][0] + 1
    return len(ledgers) * entries * ENTRY_BYTES / (time.perf_counter() - started) / 1e6


async def measure(root: Path, topics: int, megabytes: int) -> dict[str, Any]:
    entries = megabytes * 1_000_000 // ENTRY_BYTES // topics
    store = FileLogStore(root, clock_ms=lambda: time.time_ns() // 1_000_000, cache_bytes=1 << 20)
    await store.start()
    await fill(store, topics, entries)
    # The newest file is never rewritten: what lies in it is left out.
    kept = entries * 7 // 8
    sample = range(1, min(topics, 20) + 1)
    before = await read(store, root, kept, sample)
    store.retain([])
    started = time.perf_counter()
    await store.reclaim()
    seconds = time.perf_counter() - started
    after = await read(store, root, kept, sample)
    await store.close()
    return {
        "topics": topics,
        "before_mb_per_second": round(before),
        "after_mb_per_second": round(after),
        "rewriting_seconds": round(seconds, 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.coldread", description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 10, 100, 1_000])
    parser.add_argument("--megabytes", type=int, default=700)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args(arguments)
    found = []
    for topics in args.topics:
        root = Path(tempfile.mkdtemp(prefix="anabranch-coldread-"))
        try:
            with machine_to_ourselves():
                found.append(uvloop.run(measure(root, topics, args.megabytes)))
        finally:
            shutil.rmtree(root, ignore_errors=True)
        print(f"coldread: {found[-1]}", flush=True)
    saved = args.out / "results.json"
    results = Results.load(saved) if saved.exists() else Results(describe_machine())
    results.coldread = found
    results.save(saved)
    report.write(results, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
