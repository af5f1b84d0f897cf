"""`python -m bench.direct`: messages as Arrow from the log's files, beside `receive_arrow` from the broker.

One segment is filled, then read to its end by either way in turns, on one core, the broker on the other. Rates count
CPU time of the reader (a busy machine changes it less) and time by the clock; the broker's part is its CPU seconds for
each second of reading, and its idle consumption is shown too. All reads but the first find the files in memory. "Alone"
is one message an entry: what reading costs where nothing is batched.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import usage
from bench.__main__ import machine_to_ourselves
from bench.clientload import our_send_batch
from bench.systems import Anabranch, Settings

BROKER_CORE, READER_CORE = 0, 1
# Million rows a second at 100 B and gigabytes of values a second at 1 KB, with decoding, on one core.
AIMS = {100: 3.0, 1024: 0.85}
BROKER_AIM = 0.05
ROUND_S = 2.0


class Read(NamedTuple):
    rows: int
    cpu_s: float
    wall_s: float
    broker_s: float


class Broker(Anabranch):
    extra_arguments = (
        *("--set", "scalableTopicAutoScaleEnabled=false"),
        *("--set", "defaultRetentionTimeInMinutes=-1", "--set", "defaultRetentionSizeInMB=-1"),
    )


def measured(broker: Broker, read: Callable[[], int]) -> Read:
    before = usage.cpu_seconds(broker.pid)
    cpu, wall = time.process_time(), time.perf_counter()
    rows = read()
    return Read(
        rows,
        time.process_time() - cpu,
        time.perf_counter() - wall,
        usage.cpu_seconds(broker.pid) - before,
    )


def show(name: str, size: int, reads: list[Read], aim: str = "") -> None:
    best = min(reads, key=lambda one: one.cpu_s)
    rate, volume = best.rows / best.cpu_s / 1e6, best.rows * size / best.cpu_s / 1e9
    clock = max(one.rows / one.wall_s for one in reads) / 1e6
    share = sum(one.broker_s for one in reads) / sum(one.wall_s for one in reads)
    goal = ""
    if aim:
        reached = (volume if size == 1024 else rate) >= AIMS[size] and share < BROKER_AIM
        goal = f"   aim {AIMS[size]:g}, {BROKER_AIM:.0%}: {'reached' if reached else 'MISSED'}"
    print(
        f"{name:<34}{rate:7.2f} M rows/s {volume:6.2f} GB/s   by the clock {clock:6.2f} M/s"
        f"   broker {share:6.1%} of a core{goal}",
        flush=True,
    )


def direct(broker: Broker, topic: str, *, decoded: bool, segment: str = "0000-ffff-0") -> Callable[[], int]:
    from anabranch.client.reading.direct import entries, record_batches
    from anabranch.client.reading.plans import Planner
    from anabranch.columns import Pool

    name = topic.replace("topic://", "segment://") + f"/{segment}"
    planner = Planner(f"http://127.0.0.1:{broker.web_port}", name)
    pool = Pool()
    # Start and end of the readers are computed before: that is not part of their reading.
    whole = planner(bytes_max=1)

    def read() -> int:
        if decoded:
            return sum(
                piece.batch.num_rows
                for piece in record_batches(planner, whole.start, whole.log_end, pool=pool)
            )
        return sum(messages for _, messages, _ in entries(planner, whole.start, whole.log_end))

    return read


def case(broker: Broker, size: int, volume: int, rounds: int) -> None:
    topic = f"topic://public/default/direct-{size}"
    args = argparse.Namespace(url=broker.url, topic=topic, size=size, count=volume // size, ack=0)
    asyncio.run(our_send_batch(args))
    rows = compare(broker, topic, f"{size} B", size, rounds, "aim")
    taken = [measured(broker, lambda: received(broker, topic, rows)) for _ in range(min(2, rounds))]
    show(f"receive_arrow, {size} B", size, taken)


def compare(broker: Broker, topic: str, name: str, size: int, rounds: int, aim: str = "") -> int:
    """Reads decoded and raw in turns, each for a while: the clock of a process's CPU time is a coarse one."""
    read = direct(broker, topic, decoded=True)
    raw = direct(broker, topic, decoded=False)
    rows = read()
    decoded_reads, raw_reads = [], []
    for _ in range(rounds):
        decoded_reads.append(measured(broker, lambda: repeated(read)))
        raw_reads.append(measured(broker, lambda: repeated(raw)))
    show(f"direct, decoded, {name}", size, decoded_reads, aim)
    show(f"direct, entries as they are, {name}", size, raw_reads)
    return rows


def repeated(read: Callable[[], int]) -> int:
    start = time.perf_counter()
    rows = 0
    while time.perf_counter() - start < ROUND_S:
        rows += read()
    return rows


def alone(broker: Broker, size: int, count: int, rounds: int) -> None:
    topic = f"topic://public/default/alone-{size}"

    async def fill() -> None:
        import anabranch

        async with anabranch.connect(broker.url) as client, client.producer(topic, batching=False) as sender:
            for number in range(count):
                await sender.post(b"x" * size, key=f"customer-{number % 1000}")
            await sender.flush()

    asyncio.run(fill())
    compare(broker, topic, f"{size} B alone", size, rounds)


def spread(broker: Broker, size: int, volume: int, rounds: int, segments: int = 16) -> None:
    """Segments that are written at the same time are interleaved: each is read by itself."""
    topic = f"topic://public/default/spread-{size}"
    admin = f"http://127.0.0.1:{broker.web_port}/admin/v2/scalable/public/default/spread-{size}"
    urllib.request.urlopen(
        urllib.request.Request(f"{admin}?numInitialSegments={segments}", method="PUT"), timeout=10
    ).close()
    asyncio.run(
        our_send_batch(
            argparse.Namespace(url=broker.url, topic=topic, size=size, count=volume // size, ack=0)
        )
    )
    width = (1 << 16) // segments
    names = [f"{i * width:04x}-{(i + 1) * width - 1:04x}-{i}" for i in range(segments)]
    reads = [direct(broker, topic, decoded=True, segment=name) for name in names]

    def read_all() -> int:
        return sum(read() for read in reads)

    read_all()
    taken = [measured(broker, lambda: repeated(read_all)) for _ in range(rounds)]
    show(f"direct, decoded, {size} B, of {segments} segments", size, taken)


def idle(broker: Broker) -> None:
    before = usage.cpu_seconds(broker.pid)
    time.sleep(2 * ROUND_S)
    print(
        f"broker, idle: {(usage.cpu_seconds(broker.pid) - before) / (2 * ROUND_S):.1%} of a core", flush=True
    )


def received(broker: Broker, topic: str, rows: int) -> int:
    async def take() -> int:
        import anabranch

        found = 0
        async with (
            anabranch.connect(broker.url) as client,
            client.checkpoint_consumer(topic, start="earliest") as reader,
        ):
            while found < rows:
                found += (await reader.receive_arrow(timeout_s=30)).num_rows
        return found

    return asyncio.run(take())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.direct", description=__doc__)
    parser.add_argument("--volume-mb", type=int, default=1000, help="of values, for each size")
    parser.add_argument(
        "--alone", type=int, default=200_000, help="messages with an entry each, for each size"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="bench-direct-"))
    broker = Broker(Settings(peers=scratch, scratch=scratch))
    try:
        with machine_to_ourselves():
            broker.start(None)  # type: ignore[arg-type]  # Ours needs no Java.
            os.sched_setaffinity(broker.pid, {BROKER_CORE})
            os.sched_setaffinity(0, {READER_CORE})
            for size in AIMS:
                case(broker, size, options.volume_mb << 20, options.rounds)
            spread(broker, 100, options.volume_mb << 20, options.rounds)
            spread(broker, 1024, options.volume_mb << 20, options.rounds)
            idle(broker)
            alone(broker, 100, options.alone, options.rounds)
            alone(broker, 1024, options.alone, options.rounds)
    finally:
        broker.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
