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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop
from soak.broker import BrokerProcess

from anabranch.client import Client
from bench import keyed, usage
from bench.javaclient import JavaClient
from bench.lab import GROUP, KEYS, Figures, Lab, Reader, have_all, post, total, until
from bench.systems import Pulsar, Settings
from bench.waiting import waiting

SETTINGS: Final = {"scalableTopicEntryBucketBudget": 4, "scalableTopicConsumerSessionGracePeriodSeconds": 1}
# How many consumers read a backlog together.
SHARERS: Final = (1, 2, 4)
DISPATCH_TURNS: Final = 5


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


async def many(lab: Lab) -> Figures:
    """200 consumers of 64 segments with four buckets each, opened one after the other: what each of them receives of
    10,000 messages a second."""
    path, consumers, segments = "public/default/many", 200, 64
    await lab.rest("PUT", f"scalable/{path}?numInitialSegments={segments}")
    await lab.rest("POST", f"scalable/{path}/autoScalePolicy", {"enabled": False})
    layout = await lab.rest("GET", f"scalable/{path}")
    for number in layout["segments"]:
        await lab.rest("POST", f"scalable/{path}/rebucket/{number}?buckets=4")
    began = time.perf_counter()
    # Some to a connection, as a process with several consumers has them.
    clients = [Client(lab.broker.url) for _ in range(10)]
    made = [
        Reader(
            clients[n % len(clients)],
            await clients[n % len(clients)].stream_consumer(
                f"topic://{path}", GROUP, consumer_name=f"m{n}", start="earliest"
            ),
        )
        for n in range(consumers)
    ]
    opened = time.perf_counter() - began
    ends = asyncio.Event()
    try:
        async with lab.producer(path) as producer:

            async def send() -> None:
                sent = 0
                while not ends.is_set():
                    for number in range(sent, sent + 100):
                        await producer.post(b"x" * 100, key=f"key-{number * 7919 % 1_000_003}")
                    sent += 100
                    await asyncio.sleep(0.01)

            sending = asyncio.create_task(send())
            began = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                await until(lambda: all(one.received for one in made), 60)
            took = time.perf_counter() - began
            before = [one.received for one in made]
            await asyncio.sleep(5)
            idle = sum(one.received == was for one, was in zip(made, before, strict=True))
            ends.set()
            await sending
    finally:
        for one in made:
            one.stop()
        await asyncio.gather(*(client.close() for client in clients))
    return {
        "opened one after the other, s": round(opened, 1),
        "received something": sum(one.received > 0 for one in made),
        "all of them after, s": round(took, 2),
        "idle for the 5 s after that": idle,
        "least and most messages": [min(one.received for one in made), max(one.received for one in made)],
        "aim": "200 receive, none idle for 5 s",
    }


CASES: Final[Mapping[str, Callable[[Lab], Awaitable[Figures]]]] = {
    "parallel": parallel,
    "backlog": backlog,
    "slow": slow,
    "join": join,
    "rebucket": rebucket,
    "dispatch": dispatch,
    "key_shared": keyed.key_shared,
    "cardinality": keyed.cardinality,
    "many": many,
    "middling": keyed.middling,
}


async def measure(lab: Lab, names: Sequence[str]) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for name in names:
        # The broker and the consumers are children of this process.
        busy, own = usage.machine_busy_seconds(), usage.cpu_seconds(os.getpid())
        began = time.monotonic()
        figures = await CASES[name](lab)
        took = time.monotonic() - began
        ours = usage.cpu_seconds(os.getpid()) - own
        others = max(0.0, usage.machine_busy_seconds() - busy - ours) / took
        found[name] = figures | {"cores that others used": round(others, 2)}
        print(f"{name}: {json.dumps(found[name], ensure_ascii=False)}", flush=True)
    return found


class PulsarBeside:
    """The real Pulsar, started when a case wants it."""

    def __init__(self, peers: Path, scratch: Path) -> None:
        self._settings = Settings(peers, scratch)
        self._pulsar: Pulsar | None = None

    def __call__(self) -> tuple[str, int]:
        if self._pulsar is None:
            self._pulsar = Pulsar(self._settings)
            self._pulsar.start(JavaClient())
        return self._pulsar.url, self._pulsar.pid

    def stop(self) -> None:
        if self._pulsar is not None:
            self._pulsar.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sharing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"some of {', '.join(CASES)}, with commas between them")
    parser.add_argument(
        "--service-ms",
        type=float,
        default=1.0,
        help="how long a consumer waits for each message, where it waits",
    )
    peers = os.environ.get("PEERS_DIR")
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path(peers) if peers else None,
        help="scripts that start Pulsar, to measure it too (PEERS_DIR)",
    )
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(CASES)
    if unknown := set(names) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="anabranch-sharing-") as folder:
        broker = BrokerProcess(Path(folder) / "data", SETTINGS)
        beside = None if args.peers is None else PulsarBeside(args.peers, Path(folder))
        broker.start()
        try:
            lab = Lab(broker, args.service_ms / 1000, beside)
            # Its timers are more exact: of asyncio's own, 1 ms lasts a sixth longer for four tasks than for one.
            found = uvloop.run(measure(lab, names))
        finally:
            broker.kill()
            if beside is not None:
                beside.stop()
    if args.out is not None:
        told = {"cores": os.cpu_count(), "service, ms": args.service_ms, "cases": found}
        args.out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
