"""One load of one Python client, as a process of its own: `python -m bench.clientload KIND URL TOPIC …`.

Prints its figures as JSON. Ours is the asynchronous client on uvloop, or the blocking one with a thread of its own; the
peer is Pulsar's wheel, whose core is C++.
Both run on the core they are given. A run begins with a warm-up that is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

KEYS = [f"key-{number:05d}" for number in range(1000)]
SUBSCRIPTION = "bench"
ROWS = 64 * 1024


class Meter:
    """Wall and CPU time between `start` and `stop`."""

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu()

    def stop(self, messages: int, size: int) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, _cpu() - self._cpu
        return {
            "msg_s": messages / wall,
            "mb_s": messages * size / wall / 1e6,
            "client_us": 1e6 * cpu / messages,
            "seconds": wall,
        }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# -- the wheel


def wheel_send(args: argparse.Namespace) -> dict[str, float]:
    import pulsar

    client = pulsar.Client(args.url, logger=_quiet())
    producer = client.create_producer(
        args.topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=1,
        max_pending_messages=20_000,
        block_if_queue_full=True,
    )
    payload = b"x" * args.size
    failures: list[Any] = []

    def stored(result: Any, message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    def post(count: int) -> None:
        for number in range(count):
            producer.send_async(payload, stored, partition_key=KEYS[number % len(KEYS)])
        producer.flush()

    post(args.count // 10)
    meter = Meter()
    meter.start()
    post(args.count)
    figures = meter.stop(args.count, args.size)
    client.close()
    if failures:
        raise RuntimeError(f"{len(failures)} messages were refused, the first with {failures[0]}")
    return figures


def wheel_receive(args: argparse.Namespace) -> dict[str, float]:
    import pulsar

    client = pulsar.Client(args.url, logger=_quiet())
    consumer = client.subscribe(
        args.topic,
        SUBSCRIPTION,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5000,
    )
    warm = args.count // 10
    for _ in range(warm):
        consumer.receive()
    meter = Meter()
    meter.start()
    message = None
    for number in range(args.count - warm):
        message = consumer.receive()
        message.data()
        if args.ack and number % args.ack == 0:
            consumer.acknowledge_cumulative(message)
    figures = meter.stop(args.count - warm, args.size)
    client.close()
    return figures


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("pulsar")
    logger.setLevel(logging.ERROR)
    return logger


# -- ours


async def our_send(args: argparse.Namespace) -> dict[str, float]:
    import anabranch

    payload = b"x" * args.size
    async with anabranch.connect(args.url) as client, client.producer(args.topic) as producer:

        async def post(count: int) -> None:
            for number in range(count):
                await producer.post(payload, key=KEYS[number % len(KEYS)])
            await producer.flush()

        await post(args.count // 10)
        meter = Meter()
        meter.start()
        await post(args.count)
        return meter.stop(args.count, args.size)


async def our_receive(args: argparse.Namespace) -> dict[str, float]:
    import anabranch

    async with (
        anabranch.connect(args.url) as client,
        client.stream_consumer(args.topic, f"{SUBSCRIPTION}-ours", start="earliest") as stream,
    ):
        warm = args.count // 10
        for _ in range(warm):
            await stream.receive()
        meter = Meter()
        meter.start()
        for number in range(args.count - warm):
            message = await stream.receive(30)
            message.payload  # noqa: B018 - as the peer's data()
            if args.ack and number % args.ack == 0:
                await stream.ack_cumulative(message)
        return meter.stop(args.count - warm, args.size)


def our_blocking_send(args: argparse.Namespace) -> dict[str, float]:
    from anabranch import blocking

    payload = b"x" * args.size
    with blocking.connect(args.url) as client, client.producer(args.topic) as producer:

        def post(count: int) -> None:
            for number in range(count):
                producer.post(payload, key=KEYS[number % len(KEYS)])
            producer.flush()

        post(args.count // 10)
        meter = Meter()
        meter.start()
        post(args.count)
        return meter.stop(args.count, args.size)


def our_blocking_receive(args: argparse.Namespace) -> dict[str, float]:
    from anabranch import blocking

    with (
        blocking.connect(args.url) as client,
        client.stream_consumer(args.topic, f"{SUBSCRIPTION}-blocking", start="earliest") as stream,
    ):
        warm = args.count // 10
        for _ in range(warm):
            stream.receive()
        meter = Meter()
        meter.start()
        for number in range(args.count - warm):
            message = stream.receive(30)
            message.payload  # noqa: B018 - as the peer's data()
            if args.ack and number % args.ack == 0:
                stream.ack_cumulative(message)
        return meter.stop(args.count - warm, args.size)


async def our_send_batch(args: argparse.Namespace) -> dict[str, float]:
    import pyarrow as pa

    import anabranch

    table = pa.table(
        {
            "key": pa.array([KEYS[number % len(KEYS)] for number in range(ROWS)]),
            "value": pa.array([b"x" * args.size] * ROWS, pa.binary()),
        }
    )
    async with anabranch.connect(args.url) as client, client.producer(args.topic) as producer:
        # Messages without a subscription are not kept for long.
        await (await client.stream_consumer(args.topic, f"{SUBSCRIPTION}-ours", start="earliest")).close()

        async def post(count: int) -> None:
            for _ in range(max(1, count // ROWS)):
                await producer.post_batch(table, key="key", value="value")
            await producer.flush()

        await post(args.count // 4)
        meter = Meter()
        meter.start()
        await post(args.count)
        return meter.stop(max(1, args.count // ROWS) * ROWS, args.size)


async def our_receive_arrow(args: argparse.Namespace) -> dict[str, float]:
    import anabranch

    async with (
        anabranch.connect(args.url) as client,
        client.stream_consumer(args.topic, f"{SUBSCRIPTION}-ours", start="earliest") as stream,
    ):

        async def take(count: int) -> int:
            rows = 0
            while rows < count:
                batch = await stream.receive_arrow(timeout_s=30)
                rows += batch.num_rows
                # Children of a segment that split meanwhile come once it is acknowledged to its end.
                await stream.ack_cumulative(batch)
            return rows

        warm = await take(args.count // 10)
        meter = Meter()
        meter.start()
        return meter.stop(await take(args.count - warm), args.size)


async def our_gap(args: argparse.Namespace) -> dict[str, float]:
    """The longest time between two receipts at 1,000 messages a second while segments split and merge."""
    import httpx

    import anabranch

    admin = f"{args.web}/admin/v2/scalable/{args.topic.removeprefix('topic://')}"
    gaps: list[float] = []
    async with (
        httpx.AsyncClient() as rest,
        anabranch.connect(args.url) as client,
        client.producer(args.topic) as producer,
    ):
        receipts: list[float] = []
        is_over = asyncio.Event()

        async def send() -> None:
            begun, number = time.perf_counter(), 0
            while not is_over.is_set():
                future = await producer.post(b"x" * args.size, key=KEYS[number % len(KEYS)])
                future.add_done_callback(lambda _: receipts.append(time.perf_counter()))
                number += 1
                await asyncio.sleep(max(0.0, begun + number / 1000 - time.perf_counter()))
            await producer.flush()

        sending = asyncio.create_task(send())
        await asyncio.sleep(1.0)
        for _ in range(args.count):
            segments = (await rest.get(admin)).json()["segments"]
            segment = min(int(n) for n, s in segments.items() if s["state"] == "ACTIVE")
            before = len(receipts)
            (await rest.post(f"{admin}/split/{segment}")).raise_for_status()
            await asyncio.sleep(0.5)
            took = [b - a for a, b in zip(receipts[before - 1 :], receipts[before:], strict=False)]
            gaps.append(1000 * max(took))
            segments = (await rest.get(admin)).json()["segments"]
            left, right = sorted(int(n) for n, s in segments.items() if s["state"] == "ACTIVE")[:2]
            (await rest.post(f"{admin}/merge/{left}/{right}")).raise_for_status()
            await asyncio.sleep(0.3)
        is_over.set()
        await sending
    gaps.sort()
    return {"gap_ms": gaps[len(gaps) // 2], "gap_max_ms": gaps[-1]}


LOADS: Mapping[str, Callable[[argparse.Namespace], dict[str, float] | Awaitable[dict[str, float]]]] = {
    "wheel-send": wheel_send,
    "wheel-receive": wheel_receive,
    "our-send": our_send,
    "our-receive": our_receive,
    "our-blocking-send": our_blocking_send,
    "our-blocking-receive": our_blocking_receive,
    "our-send-batch": our_send_batch,
    "our-receive-arrow": our_receive_arrow,
    "our-gap": our_gap,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.clientload", description=__doc__)
    parser.add_argument("kind", choices=LOADS)
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("--web", default="")
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--ack", type=int, default=0, help="acknowledge cumulatively every so many messages")
    parser.add_argument("--core", type=int, default=None)
    args = parser.parse_args(arguments)
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    threading.stack_size(0)
    found = LOADS[args.kind](args)
    if not isinstance(found, dict):
        import uvloop

        found = uvloop.run(found)  # type: ignore[arg-type]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
