"""The log in an object store: latency, throughput and requests, on MinIO beside it.

    PYTHONPATH=tests bin/minio .venv/bin/python -m bench.objects

Prints a line for each measure. On a machine that does other things, figures are worse; the load is printed with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from random import Random

from soak.link import Link, send_frame

from anabranch.model.position import LedgerId
from anabranch.storage.object.medium import Created
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import Buffer, LogError
from harness.broker_process import BrokerProcess
from harness.minio import bucket_url, endpoint

TOPIC = "persistent://public/default/measured"
ENTRY = os.urandom(64 << 10)
UNCONFIRMED_MAX = 64 << 20


class Owner:
    def __init__(self) -> None:
        self.end = 0
        self.changed = asyncio.Event()

    def confirmed(self, entries_end: int, state_end: int) -> None:
        self.end = entries_end
        self.changed.set()

    def lost(self, error: LogError) -> None:
        """The store is closed at the end of each measure."""


class SlowBucket(MemoryBucket):
    """Answers creations after a tenth of a second."""

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        await asyncio.sleep(0.1)
        # What is measured is the log, not how much memory there is.
        return self.create_now(key, b"".join(parts) if key.startswith("probe/") else b"")


class FarBucket(MemoryBucket):
    """Answers creations as S3 does: 40 ms for half of them, 300 ms for one in a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(1)
        self.times: list[float] = []

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        self.times.append(0.04 * math.exp(self.random.gauss(0, 0.866)))
        await asyncio.sleep(self.times[-1])
        return await super().create(key, parts)


def load() -> str:
    return f"(load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"


def quantiles(times: list[float]) -> str:
    times = sorted(times)
    return f"p50 {times[len(times) // 2] * 1e3:.1f} ms, p99 {times[len(times) * 99 // 100] * 1e3:.1f} ms"


def publish_far(seconds: float = 15.0) -> None:
    """The same through a proxy that answers as late as S3 does (`soak/s3_proxy.py`)."""
    command = [sys.executable, "-m", "soak.s3_proxy", "--store", endpoint()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        far = proxy.stdout.readline().strip()
        try:
            print("behind a proxy with latencies of S3:", flush=True)
            publish(0, seconds, store=far)
        finally:
            proxy.kill()


def publish(
    puts_per_second: float, seconds: float = 15.0, rate: int = 1000, store: str | None = None
) -> None:
    """Messages of 1 KB at an even pace on one connection, each sent on its own; from its sending to its receipt."""
    settings = {
        "logUrl": bucket_url(f"bench-{secrets.token_hex(6)}").replace(endpoint(), store or endpoint()),
        "logObjectPutsPerSecond": puts_per_second,
    }
    payload = os.urandom(1024)
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder), settings, brokers=1) as broker,
        Link(broker.port) as link,
    ):
        link.producer(TOPIC)
        for n in range(50):
            link.publish(payload, n)
        before = puts(broker)
        sent: list[float] = []
        times: list[float] = []
        began = time.perf_counter()
        count = int(seconds * rate)
        while len(times) < count:
            due = min(count, int((time.perf_counter() - began) * rate) + 1)
            while len(sent) < due:
                link.sock.sendall(send_frame([payload], 100 + len(sent)))
                sent.append(time.perf_counter())
            wait = began + len(sent) / rate - time.perf_counter()
            frame = link.receive(max(wait, 0.0002) if len(sent) < count else 5)
            if frame is not None and frame.command.HasField("send_receipt"):
                times.append(time.perf_counter() - sent[frame.command.send_receipt.sequence_id - 100])
        made = (puts(broker) - before) / (time.perf_counter() - began)
        limit = f"{puts_per_second:g} puts/s" if puts_per_second else "no limit on puts"
        print(
            f"publish, {rate}/s of 1 KB, {limit}: {quantiles(times)}, {made:.1f} puts/s {load()}", flush=True
        )


def puts(broker: BrokerProcess) -> float:
    return figure(broker, "anabranch_log_object_puts_total")


def figure(broker: BrokerProcess, *names: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=15) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] in names)


def idle(seconds: float = 60.0) -> None:
    settings = {"logUrl": bucket_url(f"bench-{secrets.token_hex(6)}")}
    names = [f"anabranch_log_object_{one}_total" for one in ("puts", "gets", "lists", "deletes")]
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder), settings, brokers=1) as broker,
        Link(broker.port) as link,
    ):
        link.producer(TOPIC)
        link.publish(b"x", 1)
        # Past its first checkpoint.
        time.sleep(65)
        before, began = figure(broker, *names), time.perf_counter()
        time.sleep(seconds)
        made = (figure(broker, *names) - before) / (time.perf_counter() - began)
        print(f"idle, one topic open: {made:.3f} requests/s {load()}", flush=True)


async def write(store: ObjectLogStore, ledger: LedgerId, count: int) -> float:
    """Appends as fast as the bound on unconfirmed bytes allows; seconds until all is confirmed."""
    owner = Owner()
    writer = store.open_ledger(ledger, owner, "public/default")
    began = time.perf_counter()
    most = 0
    while owner.end < count:
        while writer.next_entry < count and store.unconfirmed_bytes + len(ENTRY) < UNCONFIRMED_MAX:
            writer.append_many([ENTRY] * 8, [1] * 8)
            most = max(most, store.unconfirmed_bytes)
            await asyncio.sleep(0)
        owner.changed.clear()
        if owner.end < count:
            await owner.changed.wait()
    took = time.perf_counter() - began
    assert most <= UNCONFIRMED_MAX + 8 * len(ENTRY)
    return took


def new_store(medium: object) -> ObjectLogStore:
    policy = ObjectLogPolicy(cache_bytes=0)
    return ObjectLogStore(medium, clock_ms=lambda: time.time_ns() // 1_000_000, policy=policy)  # type: ignore[arg-type]


async def slow_puts(count: int = 24_000) -> None:
    store = new_store(SlowBucket())
    await store.start()
    took = await write(store, LedgerId(1), count)
    print(f"puts of 100 ms: {count * len(ENTRY) / took / 1e6:.0f} MB/s {load()}", flush=True)
    await store.close()


async def far_puts(seconds: float = 20.0, rate: int = 1000) -> None:
    bucket = FarBucket()
    policy = ObjectLogPolicy(puts_per_second=0)
    store = ObjectLogStore(bucket, clock_ms=lambda: time.time_ns() // 1_000_000, policy=policy)
    await store.start()
    owner = Owner()
    writer = store.open_ledger(LedgerId(1), owner, "public/default")
    bucket.times.clear()
    began = time.perf_counter()
    sent: list[float] = []
    times: list[float] = []
    count = int(seconds * rate)
    while len(times) < count:
        now = time.perf_counter()
        for _ in range(min(count, int((now - began) * rate) + 1) - len(sent)):
            writer.append(ENTRY[:1024], 1)
            sent.append(time.perf_counter())
        owner.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await owner.changed.wait()
        now = time.perf_counter()
        times += [now - one for one in sent[len(times) : owner.end]]
    hedges = store.stats()["object_hedges"]
    print(
        f"puts as of S3 ({quantiles(bucket.times)}), {rate}/s of 1 KB, no limit: {quantiles(times)},"
        f" {len(bucket.times) / seconds:.0f} puts/s, {hedges / len(bucket.times):.1%} of them hedges {load()}",
        flush=True,
    )
    await store.close()


async def catch_up(count: int = 8_000) -> None:
    url = bucket_url(f"bench-{secrets.token_hex(6)}")
    store = new_store(open_medium(url))
    await store.start()
    took = await write(store, LedgerId(1), count)
    print(f"write to MinIO: {count * len(ENTRY) / took / 1e6:.0f} MB/s {load()}", flush=True)
    await store.close()
    reader = new_store(open_medium(url))
    await reader.start()
    await reader.take(store.incarnation, None)
    began, at = time.perf_counter(), 0
    while at < count:
        at += len(await reader.read(LedgerId(1), store.incarnation, at, count, 1 << 20, 1 << 20))
    took = time.perf_counter() - began
    print(
        f"catch-up from MinIO, cold, one topic: {count * len(ENTRY) / took / 1e6:.0f} MB/s {load()}",
        flush=True,
    )
    await reader.close()


def main() -> None:
    asyncio.run(slow_puts())
    asyncio.run(far_puts())
    asyncio.run(catch_up())
    publish(0)
    publish(10)
    publish_far()
    idle()


if __name__ == "__main__":
    main()
