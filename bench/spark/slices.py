"""`python -m bench.spark.slices`: one segment of four entry buckets, read by one task and by slices of its buckets.

A topic has stamped entries, another one entries without stamps, as older clients write them: of those every slice
unpacks every entry, and keeps its own rows. The ways of reading take turns, so that a slow minute of the machine does
not fall on one of them alone, and each round gives a ratio of its own.

Beside that stands what each task alone takes of a processor, read in this process without Spark. Other work on the
machine hardly changes it: it tells how much faster two free cores would be.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from anabranch.client.producing.entries import Entries, Target
from anabranch.spark.options.source import parse
from anabranch.spark.source import BatchReader
from bench import usage
from bench.spark import data
from bench.spark.__main__ import Broker, running
from bench.spark.data import DataSet
from bench.spark.queries import noop
from bench.spark.session import session
from bench.systems import Settings

BUCKETS = 4
WAYS = {
    "one task": {},
    "2 slices": {"minPartitions": "2", "ordering": "key"},
    "4 slices": {"minPartitions": "4", "ordering": "key"},
}


class OneSegment(Broker):
    extra_arguments: tuple[str, ...] = (
        *Broker.extra_arguments,
        "--set",
        f"scalableTopicEntryBucketBudget={BUCKETS}",
    )


@contextmanager
def unstamped() -> Iterator[None]:
    """Within it, our client makes entries as clients do that know no entry buckets."""
    made = Entries.frames

    def frames(self: Entries, run: Any, target: Target) -> Any:
        return made(self, run, target._replace(is_stamped=False))

    Entries.frames = frames  # type: ignore[method-assign]
    try:
        yield
    finally:
        Entries.frames = made  # type: ignore[method-assign]


def load(broker: Broker, one: DataSet, root: Path, *, is_stamped: bool) -> str:
    name = f"{one.topic}-{'stamped' if is_stamped else 'unstamped'}"
    data.create_topic(broker.admin_url, name, segments=1)
    with nullcontext() if is_stamped else unstamped():
        asyncio.run(post(broker.url, name, one, root))
    return f"topic://public/default/{name}"


async def post(url: str, name: str, one: DataSet, root: Path) -> None:
    import anabranch

    async with (
        anabranch.connect(url) as client,
        client.producer(f"topic://public/default/{name}") as producer,
    ):
        for table in data.tables(one, root):
            await producer.post_batch(table, key="key")
        await producer.flush()


def read(spark: Any, broker: Broker, topic: str, more: dict[str, str]) -> float:
    options = {"serviceUrl": broker.url, "topic": topic, "columns": "key,value", **more}
    start = time.perf_counter()
    noop(spark.read.format("anabranch").options(**options).load())
    return time.perf_counter() - start


def measure(spark: Any, broker: Broker, one: DataSet, root: Path, rounds: int) -> None:
    topics = {
        stamps: load(broker, one, root, is_stamped=stamps == "stamped") for stamps in ("stamped", "unstamped")
    }
    cases = list(itertools.product(topics, WAYS))
    for stamps, way in cases:
        counted = spark.read.format("anabranch").options(
            serviceUrl=broker.url, topic=topics[stamps], columns="key", **WAYS[way]
        )
        assert counted.load().count() == one.rows
        read(spark, broker, topics[stamps], WAYS[way])
    taken: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    spent: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    loads = []
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        turn = number % len(cases)
        for stamps, way in cases[turn:] + cases[:turn]:
            before = usage.cpu_seconds(os.getpid())
            taken[stamps, way].append(read(spark, broker, topics[stamps], WAYS[way]))
            spent[stamps, way].append(usage.cpu_seconds(os.getpid()) - before)
    print(f"{one.name}: {one.rows} rows, {rounds} rounds, load average {min(loads):.1f} to {max(loads):.1f}")
    for stamps, way in cases:
        found, base = taken[stamps, way], taken[stamps, "one task"]
        ratios = [before / after for before, after in zip(base, found, strict=True)]
        print(
            f"  {stamps:<10} {way:<9} {one.rows / statistics.median(found) / 1000:7,.0f} k rows/s   "
            f"{statistics.median(ratios):.2f}x one task ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"{statistics.median(spent[stamps, way]) / one.rows * 1e9:,.0f} ns of CPU a row with Spark's",
            flush=True,
        )
    for stamps, topic in topics.items():
        print(f" {stamps}, the dearest task alone:")
        processor(broker, topic, one, rounds)
    for way in list(WAYS)[1:]:
        pairs = zip(taken["stamped", way], taken["unstamped", way], strict=True)
        ratios = [stamped / unstamped for stamped, unstamped in pairs]
        print(
            f"  unstamped {way}: {statistics.median(ratios):.2f}x stamped ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def processor(broker: Broker, topic: str, one: DataSet, rounds: int) -> None:
    """The CPU of one task against that of the dearest of its slices."""
    options = {"serviceUrl": broker.url, "topic": topic, "columns": "key,value"}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, more in WAYS.items():
            reader = BatchReader(parse({**options, **more}, "batch"), None)
            found = []
            for part in reader.partitions():
                start, rows = time.process_time(), 0
                for batch in reader.read(part):
                    rows += batch.num_rows
                found.append(time.process_time() - start)
            taken[way].append(max(found))
    for way, found in taken.items():
        base = statistics.median(taken["one task"][1:])
        dearest = statistics.median(found[1:])
        print(
            f"  CPU of {way:<9} {dearest / one.rows * 1e9:5,.0f} ns a row of the topic, {base / dearest:.2f}x",
            flush=True,
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.spark.slices", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=0.2, help="of the data sets of bench.spark")
    args = parser.parse_args(arguments)
    # A terminated run must stop its broker too; SystemExit unwinds through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-slices-bench-"))
    broker = OneSegment(Settings(scratch, scratch))
    try:
        with running(broker):
            spark = session([], scratch)
            try:
                for one in data.data_sets(args.scale):
                    data.make(one, scratch)
                    measure(spark, broker, one, scratch, args.rounds)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
