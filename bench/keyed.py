"""Keyed messages produced and consumed by four, for `bench.sharing`: by keys, or by entry buckets.

By keys is a classic Key_Shared subscription of a producer that makes a batch for each key, since a batch goes to one
consumer. Python's wheel does that, on Anabranch and on Pulsar. By buckets is a segment of four, with our client, and
batches of many keys. The producer is this process, and each consumer a process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, Final

from anabranch.client import Producer
from bench import usage
from bench.lab import KB, KEYS, Figures, Lab, until
from bench.waiting import JOIN_MAX_S, waiting

# Of 7919 keys apart, which is prime: neighbours are never alike, and each key comes as often.
STRIDE: Final = 7919
DRAIN_MAX_S: Final = 300.0
MIDDLING_S: Final = 5


@dataclass(frozen=True, slots=True)
class Spent:
    """What producing and consuming took: the broker's processor time for each message, and messages a second."""

    broker_us: float
    per_second: float
    messages_an_entry: float = 0.0


SPENT_FIELDS: Final = tuple(attrgetter(one.name) for one in fields(Spent))


def names_of(keys: int) -> list[str]:
    return [f"key-{number:07d}" for number in range(keys)]


# -- by keys


def by_keys(url: str, pid: int, topic: str, messages: int, keys: int, *, warm_up: int) -> Spent:
    """A batch for each key of a millisecond, and acknowledgements one by one."""
    import pulsar

    names = names_of(keys)
    with _wheel_consumers(url, topic) as received:
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=1,
            max_pending_messages=20_000,
            block_if_queue_full=True,
        )

        def run(count: int) -> Spent:
            wanted = received() + count
            before, began = usage.cpu_seconds(pid), time.perf_counter()
            for number in range(count):
                producer.send_async(KB, lambda *_: None, partition_key=names[number * STRIDE % keys])
            producer.flush()
            _wait(lambda: received() >= wanted, DRAIN_MAX_S)
            took = time.perf_counter() - began
            return Spent(1e6 * (usage.cpu_seconds(pid) - before) / count, count / took)

        run(warm_up)
        found = run(messages)
        client.close()
        return found


@contextmanager
def _wheel_consumers(url: str, topic: str) -> Iterator[Callable[[], int]]:
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("l", -1, lock=False) for _ in range(4)]
    processes = [context.Process(target=_consume, args=(url, topic, count), daemon=True) for count in counts]
    for process in processes:
        process.start()
    try:
        _wait(lambda: all(count.value >= 0 for count in counts), JOIN_MAX_S)
        yield lambda: sum(count.value for count in counts)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _consume(url: str, topic: str, count: Any) -> None:
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "team", pulsar.ConsumerType.KeyShared)
    count.value = 0
    while True:
        consumer.acknowledge(consumer.receive())
        count.value += 1


def _wait(met: Callable[[], bool], within_s: float) -> None:
    until = time.monotonic() + within_s
    while not met():
        if time.monotonic() > until:
            raise TimeoutError("consumers did not receive everything")
        time.sleep(0.005)


# -- by buckets


async def by_buckets(
    producer: Producer, pid: int, received: Callable[[], int], messages: int, keys: int, *, warm_up: int
) -> Spent:
    """To consumers that have joined; `received` is how many messages they have."""
    names = names_of(keys)

    async def run(count: int) -> Spent:
        wanted = received() + count + 2
        first = (await producer.send(KB, key=names[0])).entry
        before, began = usage.cpu_seconds(pid), time.perf_counter()
        for number in range(count):
            await producer.post(KB, key=names[number * STRIDE % keys])
        await producer.flush()
        entries = (await producer.send(KB, key=names[0])).entry - first - 1
        async with asyncio.timeout(DRAIN_MAX_S):
            while received() < wanted:  # noqa: ASYNC110 - other processes have no event.
                await asyncio.sleep(0.005)
        took = time.perf_counter() - began
        return Spent(1e6 * (usage.cpu_seconds(pid) - before) / count, count / took, count / entries)

    await run(warm_up)
    return await run(messages)


# -- the cases


async def key_shared(lab: Lab) -> Figures:
    """20,000 keys, 1 KB, four consumers, produced and consumed: Key_Shared with a batch for each key, here and on
    Pulsar if that is there, beside entry buckets."""
    keys, messages, warm_up = 20_000, 100_000, 60_000
    found = {"buckets": await _by_buckets(lab, messages, keys, warm_up)}
    broker = lab.broker
    topic = "persistent://public/default/classic"
    found["Key_Shared"] = await asyncio.to_thread(
        by_keys, broker.url, broker.pid, topic, messages, keys, warm_up=warm_up
    )
    if lab.pulsar is not None:
        url, pid = await asyncio.to_thread(lab.pulsar)
        found["Pulsar's Key_Shared"] = await asyncio.to_thread(
            by_keys, url, pid, topic, messages, keys, warm_up=warm_up
        )
    buckets = found["buckets"]
    beside = {
        f"{name}, beside buckets": f"{one.broker_us / buckets.broker_us:.1f} times the processor time, "
        f"{buckets.per_second / one.per_second:.1f} times as slow"
        for name, one in found.items()
        if one is not buckets
    }
    return {
        **{f"{name}, broker µs": round(one.broker_us, 1) for name, one in found.items()},
        **{f"{name}, msg/s": round(one.per_second) for name, one in found.items()},
        "messages an entry of buckets": round(buckets.messages_an_entry, 1),
        **beside,
        "aim": "Key_Shared ≥ 6 times the processor time; Pulsar's ≥ 8 times, ≥ 5 times as slow",
    }


async def cardinality(lab: Lab) -> Figures:
    """The same with few and with very many keys, and few keys by Key_Shared."""
    turns: dict[int, list[Spent]] = {100: [], 20_000: [], 1_000_000: []}
    for _ in range(3):
        for keys, spent in turns.items():
            spent.append(await _by_buckets(lab, 200_000, keys, 60_000))
    found = {
        keys: Spent(*(median(of(one) for one in spent) for of in SPENT_FIELDS))
        for keys, spent in turns.items()
    }
    few, many = found[100], found[1_000_000]
    classic = await asyncio.to_thread(
        by_keys,
        lab.broker.url,
        lab.broker.pid,
        "persistent://public/default/few-keys",
        100_000,
        100,
        warm_up=20_000,
    )
    return {
        **{f"{keys:,} keys, broker µs": round(one.broker_us, 2) for keys, one in found.items()},
        **{f"{keys:,} keys, msg/s": round(one.per_second) for keys, one in found.items()},
        **{f"{keys:,} keys, messages an entry": round(one.messages_an_entry) for keys, one in found.items()},
        "processor time, a million keys beside a hundred": round(many.broker_us / few.broker_us, 2),
        "rate": round(many.per_second / few.per_second, 2),
        "Key_Shared, 100 keys, broker µs": round(classic.broker_us, 1),
        "aim": "within 10 %",
    }


async def _by_buckets(lab: Lab, messages: int, keys: int, warm_up: int) -> Spent:
    path = await lab.topic()
    each = [replace(one, service_s=0.0, ack_every=1) for one in lab.waiting(path, 4)]
    async with lab.producer(path) as producer, waiting(each) as found:
        await until(lambda: found.joined == len(each))
        return await by_buckets(
            producer, lab.broker.pid, lambda: sum(found.received), messages, keys, warm_up=warm_up
        )


async def middling(lab: Lab) -> Figures:
    """Messages of 1 KB at rates that fill no batches, a segment of one bucket read by one consumer beside four buckets
    read by four: entries a second, and the broker's processor time for each message."""
    figures: Figures = {}
    for rate in (1_000, 10_000, 50_000):
        for buckets in (1, 4):
            path = await lab.topic()
            if buckets == 1:
                await lab.rest("POST", f"scalable/{path}/rebucket/0?buckets=1")
            each = [replace(one, service_s=0.0, ack_every=1) for one in lab.waiting(path, buckets)]
            async with lab.producer(path) as producer, waiting(each) as found:
                await until(lambda found=found, buckets=buckets: found.joined == buckets)
                delays: list[float] = []
                messages = rate * MIDDLING_S
                first = (await producer.send(KB, key="first")).entry
                before, began = usage.cpu_seconds(lab.broker.pid), time.perf_counter()
                for number in range(messages):
                    due = began + number / rate
                    while (now := time.perf_counter()) < due:  # noqa: ASYNC110 - the pace.
                        await asyncio.sleep(max(0.0, due - now))
                    receipt = await producer.post(KB, key=KEYS[number * 7919 % len(KEYS)])
                    if number % 100 == 0:
                        receipt.add_done_callback(partial(_delay, delays, now))
                await producer.flush()
                took = time.perf_counter() - began
                await until(lambda found=found, messages=messages: sum(found.received) > messages)
                spent = usage.cpu_seconds(lab.broker.pid) - before
                entries = (await producer.send(KB, key="last")).entry - first - 1
            name = f"{rate:,} msg/s, {'one bucket' if buckets == 1 else 'four buckets'}"
            figures[name] = {
                "sent, msg/s": round(messages / took),
                "messages an entry": round(messages / entries, 1),
                "broker µs": round(1e6 * spent / messages, 1),
                "receipt after, ms": round(1000 * median(delays), 2),
            }
    return figures


def _delay(delays: list[float], began: float, _: object) -> None:
    delays.append(time.perf_counter() - began)
