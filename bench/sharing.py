"""`python -m bench.sharing`: what consumers gain that share a segment by entry buckets, and what that costs the broker.

    python -m bench.sharing [--only parallel,join] [--service-ms 10] [--out docs/benchmarks/sharing.json]

One broker process, and this process as all of its clients, each consumer with a client of its own. Consumers wait for
each message where parallelism is measured, 1 ms by default: two cores show nothing of it with consumers that compute,
and on a busy machine 1 ms lasts several. What the
broker spends is its processor time, which other processes change less than rates. Only figures of one run are
compared, and each comes with how busy the machine was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop
from soak.broker import BrokerProcess

from anabranch.client import Client, Producer, StreamConsumer
from bench import usage
from bench.waiting import Waiting, waiting

SETTINGS: Final = {"scalableTopicEntryBucketBudget": 4, "scalableTopicConsumerSessionGracePeriodSeconds": 1}
KEYS: Final = [f"key-{n:05d}" for n in range(20_000)]
KB: Final = b"x" * 1000
# How many consumers read a backlog together.
SHARERS: Final = (1, 2, 4)
DISPATCH_TURNS: Final = 5
# How long one consumer waits in all, where consumers wait.
WAITS_S: Final = 10.0
GROUP: Final = "team"
Figures = dict[str, Any]


class Reader:
    """One sharer: its client, its consumer, and an application that handles one message after the other."""

    def __init__(
        self,
        client: Client,
        consumer: StreamConsumer,
        *,
        service_s: float = 0.0,
        ack_every: int = 1,
        stands: bool = False,
    ) -> None:
        self.client = client
        self.consumer = consumer
        self.received = 0
        self.first = asyncio.get_running_loop().create_future()
        # Cleared while the application stands.
        self.goes_on = asyncio.Event()
        if not stands:
            self.goes_on.set()
        self._service_s = service_s
        self._ack_every = ack_every
        self._work = asyncio.create_task(self._live())  # Ended by `close`.

    async def _live(self) -> None:
        while True:
            message = await self.consumer.receive()
            await self.goes_on.wait()
            if not self.first.done():
                self.first.set_result(time.perf_counter())
            if self._service_s:
                await asyncio.sleep(self._service_s)
            self.received += 1
            if self.received % self._ack_every == 0:
                await self.consumer.ack_cumulative(message)

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        await self.client.close()


class Lab:
    def __init__(self, broker: BrokerProcess, service_s: float) -> None:
        self.broker = broker
        self.service_s = service_s
        # As many messages as make one consumer wait that long.
        self.messages = round(WAITS_S / service_s)
        self._count = 0

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.broker.rest, method, path, body)

    async def topic(self) -> str:
        """A topic of one segment with four buckets, which changes only when told to."""
        self._count += 1
        path = f"public/default/shared-{self._count}"
        await self.rest("PUT", f"scalable/{path}?numInitialSegments=1")
        await self.rest("POST", f"scalable/{path}/autoScalePolicy", {"enabled": False})
        return path

    async def segment(self, path: str) -> int:
        layout = await self.rest("GET", f"scalable/{path}")
        [active] = [s["segmentId"] for s in layout["segments"].values() if s["state"] == "ACTIVE"]
        return int(active)

    async def subscribe(self, path: str, group: str = GROUP) -> None:
        await self.rest("PUT", f"scalable/{path}/subscriptions/{group}?type=STREAM")

    @contextlib.asynccontextmanager
    async def producer(self, path: str, **how: Any) -> AsyncIterator[Producer]:
        async with Client(self.broker.url) as client, await client.producer(f"topic://{path}", **how) as made:
            yield made

    def waiting(self, path: str, count: int) -> list[Waiting]:
        """Consumers that wait for each message, and acknowledge every twentieth."""
        return [
            Waiting(self.broker.url, path, GROUP, f"c{n}", self.service_s, 20, count) for n in range(count)
        ]

    async def read(self, path: str, name: str, *, group: str = GROUP, **how: Any) -> Reader:
        client = Client(self.broker.url)
        consumer = await client.stream_consumer(
            f"topic://{path}", group, consumer_name=name, start="earliest"
        )
        return Reader(client, consumer, **how)

    @contextlib.asynccontextmanager
    async def readers(self, path: str, count: int, **how: Any) -> AsyncIterator[list[Reader]]:
        """That many consumers, each with something of the segment."""
        made = [await self.read(path, f"c{n}", **how) for n in range(count)]
        try:
            if count > 1:
                await until(lambda: all("sharing" in repr(one.consumer) for one in made))
            await until(lambda: all(one.consumer.attached for one in made))
            yield made
        finally:
            for one in made:
                await one.close()


async def until(met: Callable[[], bool], within_s: float = 300.0) -> None:
    async with asyncio.timeout(within_s):
        while not met():  # noqa: ASYNC110 - what clients show has no event.
            await asyncio.sleep(0.002)


async def have_all(readers: Sequence[Reader], messages: int) -> None:
    await until(lambda: total(readers) >= messages)


def total(readers: Sequence[Reader]) -> int:
    return sum(one.received for one in readers)


async def post(producer: Producer, count: int, payload: bytes = KB, *, first: int = 0) -> None:
    for number in range(first, first + count):
        await producer.post(payload, key=KEYS[number * 7919 % len(KEYS)])
    await producer.flush()


# -- the cases


async def parallel(lab: Lab) -> Figures:
    """Consumers that wait for each message: one beside four. All have joined before it begins."""
    took = {}
    for count in (1, 4):
        path, messages = await lab.topic(), lab.messages
        await lab.subscribe(path)
        async with lab.producer(path) as producer:
            await post(producer, messages)
        async with waiting(lab.waiting(path, count), stands=True) as found:
            await asyncio.sleep(0.5)  # Until their queues are full.
            began = time.perf_counter()
            found.go()
            await until(lambda found=found, messages=messages: sum(found.received) >= messages)
            took[count] = time.perf_counter() - began
            shares = [round(one / messages, 3) for one in found.received]
    # Keys are not spread quite evenly: the consumer with most of the messages is the last to be done.
    return {
        "one, s": round(took[1], 2),
        "four, s": round(took[4], 2),
        "times as fast": round(took[1] / took[4], 2),
        "shares of the four": shares,
        "of what these shares allow": round(took[1] / took[4] * max(shares), 2),
        "aim": "≥ 3.8",
    }


async def backlog(lab: Lab) -> Figures:
    """The backlog of a sealed segment, read by consumers that wait for each message. One of them is there when it
    begins, and reads alone until the three others have joined."""
    took = {}
    for count in (1, 4):
        path, messages = await lab.topic(), 4 * lab.messages
        await lab.subscribe(path)
        async with lab.producer(path) as producer:
            await post(producer, messages)
        # Children are not read before this backlog, and have nothing to read.
        await lab.rest("POST", f"scalable/{path}/split/{await lab.segment(path)}")
        first, *others = lab.waiting(path, count)
        async with waiting([replace(first, among=1)], stands=True) as begun:
            began = time.perf_counter()
            begun.go()
            async with waiting(others) as joined:
                await until(
                    lambda begun=begun, joined=joined, messages=messages: (
                        sum(begun.received) + sum(joined.received) >= messages
                    )
                )
                took[count] = time.perf_counter() - began
    return {
        "one, s": round(took[1], 2),
        "four, with their joining, s": round(took[4], 2),
        "of the time": round(took[4] / took[1], 2),
        "aim": "≤ 0.28",
    }


async def slow(lab: Lab) -> Figures:
    """One of four stops and goes on, twice, with ever more entries behind it: the pace of the others, and the broker's
    memory."""
    path, seconds = await lab.topic(), 5.0
    async with (
        lab.producer(path, batching=False) as producer,
        lab.readers(path, 4, service_s=lab.service_s, ack_every=5) as found,
    ):
        ends = asyncio.Event()

        async def send() -> int:
            sent = 0
            while not ends.is_set():
                await post(producer, 50, b"x" * 100, first=sent)
                sent += 50
                await asyncio.sleep(0.02)
            return sent

        sending = asyncio.create_task(send())
        await until(lambda: all(one.received > 50 for one in found))
        paces: dict[bool, list[float]] = {False: [], True: []}
        memory = usage.memory(lab.broker.pid).rss_mb
        for stands in (False, True, False, True):
            if stands:
                found[3].goes_on.clear()
            else:
                found[3].goes_on.set()
            before, began = total(found[:3]), time.perf_counter()
            await asyncio.sleep(seconds)
            paces[stands].append((total(found[:3]) - before) / (time.perf_counter() - began))
        grown = usage.memory(lab.broker.pid).rss_mb - memory
        ends.set()
        behind = await sending - total(found)
    all_go, one_stands = median(paces[False]), median(paces[True])
    return {
        "three others, msg/s": round(all_go),
        "while the fourth stands": round(one_stands),
        "of their pace": round(one_stands / all_go, 2),
        "entries not read at the end": behind,
        "broker's memory, MB more": round(grown, 1),
        "aim": "≥ 0.95, ≤ 50 MB",
    }


async def join(lab: Lab) -> Figures:
    """From the call that opens a consumer until its first message, at 500 messages a second; applications acknowledge
    at once."""
    path, took = await lab.topic(), []
    async with lab.producer(path) as producer, lab.readers(path, 2):
        ends = asyncio.Event()

        async def send() -> None:
            sent = 0
            while not ends.is_set():
                await post(producer, 5, b"x" * 100, first=sent)
                sent += 5
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(send())
        for number in range(20):
            began = time.perf_counter()
            joined = await lab.read(path, f"joiner-{number}")
            took.append(1000 * (await asyncio.wait_for(joined.first, 60) - began))
            await joined.close()
            await asyncio.sleep(0.3)
        ends.set()
        await sending
    took.sort()
    return {"p50, ms": round(median(took), 1), "worst of 20, ms": round(took[-1], 1), "aim": "p50 ≤ 30"}


async def rebucket(lab: Lab) -> Figures:
    """The longest time without a receipt while a segment is replaced, beside a split: a message each millisecond."""
    path = await lab.topic()
    gaps: dict[str, list[float]] = {"rebucket": [], "split": [], "neither": []}
    async with lab.producer(path) as producer:
        for _ in range(5):
            for what in gaps:
                times: list[float] = []

                async def send(times: list[float] = times) -> None:
                    for number in range(600):
                        receipt = await producer.post(b"x" * 100, key=KEYS[number])
                        receipt.add_done_callback(partial(_note, times))
                        await asyncio.sleep(0.001)
                    await producer.flush()

                sending = asyncio.create_task(send())
                await asyncio.sleep(0.2)
                if what == "rebucket":
                    layout = await lab.rest("GET", f"scalable/{path}")
                    [active] = [one for one in layout["segments"].values() if one["state"] == "ACTIVE"]
                    buckets = 4 if len(active["entryBucketSplits"]) + 1 == 8 else 8
                    number = active["segmentId"]
                    await lab.rest("POST", f"scalable/{path}/rebucket/{number}?buckets={buckets}")
                elif what == "split":
                    await lab.rest("POST", f"scalable/{path}/split/{await lab.segment(path)}")
                await sending
                gaps[what].append(1000 * max(b - a for a, b in pairwise(times)))
                if what == "split":
                    layout = await lab.rest("GET", f"scalable/{path}")
                    one, two = sorted(
                        s["segmentId"] for s in layout["segments"].values() if s["state"] == "ACTIVE"
                    )
                    await lab.rest("POST", f"scalable/{path}/merge/{one}/{two}")
    found = {f"{what}, median of 5, ms": round(median(times), 1) for what, times in gaps.items()}
    return {**found, "rebucket, worst, ms": round(max(gaps["rebucket"]), 1), "aim": "≤ 30"}


def _note(times: list[float], _: object) -> None:
    times.append(time.perf_counter())


async def dispatch(lab: Lab) -> Figures:
    """The broker's processor time for each message of a backlog of 1 KB messages, and the rate: one consumer beside
    sharers, in turns. All have joined, and their queues are full, before it begins: joining is another case."""
    path, messages = await lab.topic(), 240_000
    spent: dict[int, list[float]] = {count: [] for count in SHARERS}
    rate: dict[int, list[float]] = {count: [] for count in SHARERS}
    turns = [(count, turn) for turn in range(DISPATCH_TURNS) for count in SHARERS]
    for count, turn in turns:
        await lab.subscribe(path, f"group-{count}-{turn}")
    async with lab.producer(path) as producer:
        await post(producer, messages)
    for count, turn in turns:
        how: dict[str, Any] = {"group": f"group-{count}-{turn}", "ack_every": 500, "stands": True}
        async with lab.readers(path, count, **how) as found:
            await asyncio.sleep(0.5)  # Until their queues are full.
            before, began = usage.cpu_seconds(lab.broker.pid), time.perf_counter()
            for one in found:
                one.goes_on.set()
            await have_all(found, messages)
            took = time.perf_counter() - began
            spent[count].append(1e6 * (usage.cpu_seconds(lab.broker.pid) - before) / messages)
            rate[count].append(messages / took)
    beside = [four / one for one, four in zip(spent[1], spent[4], strict=True)]
    faster = [four / one for one, four in zip(rate[1], rate[4], strict=True)]
    return {
        **{f"{count} consumers, µs": round(median(us), 2) for count, us in spent.items()},
        "four beside one": round(median(beside), 2),
        "in each turn": [round(one, 2) for one in beside],
        "four beside one, rate": round(median(faster), 2),
        "aim": "≤ 1.4, ≥ 0.85 of the rate",
    }


async def key_shared(lab: Lab) -> Figures:
    """20,000 keys, 1 KB, four consumers: a classic Key_Shared subscription with one batch a key, as it is done without
    buckets (Python's wheel, the only client here that has it), beside buckets with our client. The broker's processor
    time for each message, produced and consumed."""
    messages = 40_000
    classic, rate = await asyncio.to_thread(_classic, lab.broker, messages)
    path = await lab.topic()
    async with lab.producer(path) as producer, lab.readers(path, 4, ack_every=500) as found:
        before, began = usage.cpu_seconds(lab.broker.pid), time.perf_counter()
        await post(producer, messages)
        await have_all(found, messages)
        took = time.perf_counter() - began
        shared = 1e6 * (usage.cpu_seconds(lab.broker.pid) - before) / messages
    return {
        "Key_Shared, broker µs": round(classic, 1),
        "buckets, broker µs": round(shared, 1),
        "times the processor time": round(classic / shared, 1),
        "Key_Shared (wheel), msg/s": round(rate),
        "buckets (our client), msg/s": round(messages / took),
        "aim": "≥ 6 times",
    }


def _classic(broker: BrokerProcess, messages: int) -> tuple[float, float]:
    """Microseconds of the broker for each message, and messages a second."""
    import pulsar

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    clients = [pulsar.Client(broker.url, logger=quiet) for _ in range(5)]
    received = [0]

    def take(consumer: Any, message: Any) -> None:
        received[0] += 1
        consumer.acknowledge(message)

    topic = "persistent://public/default/classic"
    for client in clients[:4]:
        client.subscribe(topic, GROUP, pulsar.ConsumerType.KeyShared, message_listener=take)
    producer = clients[4].create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=1,
        max_pending_messages=20_000,
        block_if_queue_full=True,
    )
    before, began = usage.cpu_seconds(broker.pid), time.perf_counter()
    for number in range(messages):
        producer.send_async(KB, lambda *_: None, partition_key=KEYS[number * 7919 % len(KEYS)])
    producer.flush()
    while received[0] < messages:
        time.sleep(0.01)
    took = time.perf_counter() - began
    spent = usage.cpu_seconds(broker.pid) - before
    for client in clients:
        client.close()
    return 1e6 * spent / messages, messages / took


CASES: Final[Mapping[str, Callable[[Lab], Awaitable[Figures]]]] = {
    "parallel": parallel,
    "backlog": backlog,
    "slow": slow,
    "join": join,
    "rebucket": rebucket,
    "dispatch": dispatch,
    "key_shared": key_shared,
}


async def measure(broker: BrokerProcess, names: Sequence[str], service_ms: float) -> dict[str, Figures]:
    lab, found = Lab(broker, service_ms / 1000), {}
    for name in names:
        busy, own = usage.machine_busy_seconds(), time.process_time() + usage.cpu_seconds(broker.pid)
        began = time.monotonic()
        figures = await CASES[name](lab)
        took = time.monotonic() - began
        ours = time.process_time() + usage.cpu_seconds(broker.pid) - own
        others = max(0.0, usage.machine_busy_seconds() - busy - ours) / took
        found[name] = figures | {"cores that others used": round(others, 2)}
        print(f"{name}: {json.dumps(found[name], ensure_ascii=False)}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sharing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"some of {', '.join(CASES)}, with commas between them")
    parser.add_argument(
        "--service-ms",
        type=float,
        default=1.0,
        help="how long a consumer waits for each message, where it waits",
    )
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(CASES)
    if unknown := set(names) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="anabranch-sharing-") as folder:
        broker = BrokerProcess(Path(folder) / "data", SETTINGS)
        broker.start()
        try:
            # Its timers are more exact: of asyncio's own, 1 ms lasts a sixth longer for four tasks than for one.
            found = uvloop.run(measure(broker, names, args.service_ms))
        finally:
            broker.kill()
    if args.out is not None:
        told = {"cores": os.cpu_count(), "service, ms": args.service_ms, "cases": found}
        args.out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
