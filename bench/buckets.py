"""What entry buckets cost a producer: posting to one segment with several of them, beside one with a single one.

    python -m bench.buckets [--rounds 8] [--buckets 4 16] [--size 100]

One broker process, and this process as its client, which writes to a topic of one segment for each number of buckets.
The topics take turns, a round of each, in an order that changes, and only ratios within a round are compared: so that
what else the machine does, and how warm the processes are, counts for all of them alike. The ratio is that of the
client's processor time, which other processes change less than the rate; both are shown. There are two cases: messages
one by one (`post`), and Arrow tables (`post_batch`).
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import anabranch
from bench import usage
from bench.javaclient import JavaClient
from bench.systems import Anabranch, Settings

KEYS: Final = [f"key-{number:05d}" for number in range(1000)]
TABLE_ROWS: Final = 64 * 1024
# Of each turn: long enough that its last batches, which are not full, count for little.
POSTS: Final = 120_000
TABLES: Final = 8


@dataclass(slots=True)
class Turns:
    """What the turns of one topic took: microseconds of processor time and of wall time for each message, and how many
    messages an entry had."""

    client_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)
    broker_us: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer to a topic of one segment with that many buckets."""

    buckets: int
    producer: Any

    async def entry(self) -> int:
        """The number of a new entry, which has one message."""
        return int((await self.producer.send(b"")).entry)


Turn = Callable[[Any], Awaitable[int]]


async def rounds(turn: Turn, writers: list[Writer], count: int, broker: int) -> dict[int, Turns]:
    """`turn` writes to a producer, waits for all receipts, and returns the number of messages."""
    found = {writer.buckets: Turns() for writer in writers}
    for writer in writers:
        await turn(writer.producer)
    order = random.Random(1)
    for _ in range(count):
        for writer in order.sample(writers, len(writers)):
            before, broker_s = await writer.entry(), usage.cpu_seconds(broker)
            gc.collect()
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            messages = await turn(writer.producer)
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            turns = found[writer.buckets]
            turns.client_us.append(1e6 * cpu_s / messages)
            turns.wall_us.append(1e6 * wall_s / messages)
            turns.broker_us.append(1e6 * (usage.cpu_seconds(broker) - broker_s) / messages)
            turns.batch.append(messages / (await writer.entry() - before - 1))
    return found


def posts(size: int) -> Turn:
    payload = b"x" * size

    async def turn(producer: Any) -> int:
        for number in range(POSTS):
            await producer.post(payload, key=KEYS[number % len(KEYS)])
        await producer.flush()
        return POSTS

    return turn


def tables(size: int) -> Turn:
    import pyarrow as pa

    table = pa.table(
        {
            "key": pa.array([KEYS[number % len(KEYS)] for number in range(TABLE_ROWS)]),
            "value": pa.array([b"x" * size] * TABLE_ROWS, pa.binary()),
        }
    )

    async def turn(producer: Any) -> int:
        for _ in range(TABLES):
            await producer.post_batch(table, key="key", value="value")
        await producer.flush()
        return TABLES * TABLE_ROWS

    return turn


def shown(name: str, found: dict[int, Turns]) -> list[str]:
    """The lines of one case: each number of buckets beside one bucket, in the median of the rounds."""
    one = found[1]
    lines = []
    for buckets, turns in found.items():
        rates = [alone / several for alone, several in zip(one.client_us, turns.client_us, strict=True)]
        low, _, high = quantiles(rates, n=4)
        walls = [alone / several for alone, several in zip(one.wall_us, turns.wall_us, strict=True)]
        batches = [several / alone for alone, several in zip(one.batch, turns.batch, strict=True)]
        lines.append(
            f"{name}, {buckets} bucket{'s' if buckets > 1 else ''}: {median(turns.client_us):.2f} µs of the client a "
            f"message, {median(rates):.2f}x (quartiles {low:.2f} to {high:.2f}) of the speed with one; "
            f"by the wall clock {median(walls):.2f}x; {median(turns.batch):.0f} messages an entry, "
            f"{median(batches):.2f}x; {median(turns.broker_us):.2f} µs of the broker"
        )
    return lines


async def writers(client: Any, rest: Any, numbers: list[int]) -> list[Writer]:
    """Makes a topic of one segment for each number of buckets, and opens a producer to it."""
    found = []
    for buckets in numbers:
        topic = f"public/default/buckets-{buckets}"
        (await rest.put(f"/scalable/{topic}", json={})).raise_for_status()
        if buckets > 1:
            (await rest.post(f"/scalable/{topic}/rebucket/0?buckets={buckets}")).raise_for_status()
        found.append(Writer(buckets, await client.producer(f"topic://{topic}")))
    return found


async def run(system: Anabranch, args: argparse.Namespace) -> list[str]:
    import httpx

    web = f"http://127.0.0.1:{system.web_port}/admin/v2"
    lines: list[str] = []
    async with anabranch.connect(system.url) as client, httpx.AsyncClient(base_url=web, timeout=60) as rest:
        found = await writers(client, rest, [1, *args.buckets])
        for name, case in (("post", posts(args.size)), ("tables", tables(args.size))):
            if args.only in (None, name):
                timed = await rounds(case, found, args.rounds, system.pid)
                lines += shown(f"{name}, {args.size} B", timed)
        for writer in found:
            await writer.producer.close()
    return lines


def main(arguments: list[str]) -> int:
    import uvloop

    parser = argparse.ArgumentParser(prog="bench.buckets", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--buckets", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--only", choices=("post", "tables"))
    args = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-buckets-"))
    system = Anabranch(Settings(scratch, scratch))
    # Each topic is given its buckets by hand, and keeps its one segment.
    system.extra_arguments += ("--set", "scalableTopicEntryBucketBudget=1")
    system.extra_arguments += ("--set", "scalableTopicAutoScaleEnabled=false")
    try:
        system.start(JavaClient())
        for line in uvloop.run(run(system, args)):
            print(f"buckets: {line}", flush=True)
    finally:
        system.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
