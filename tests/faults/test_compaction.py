"""A real broker that is killed during compactions: what is read is what was there before, or all of the new."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess, until
from harness.simple_client import Client

TOPIC = "persistent://public/default/t"
PLACE = "persistent/public/default/t/compaction"
KEYS = 40

# Where a message lies, its key and its value.
Found = tuple[tuple[int, int], str, bytes]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "logFileBytes": 1 << 20,
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "retentionCheckIntervalInSeconds": 1,
    }
    with BrokerProcess(tmp_path, settings) as process:
        yield process


def url(broker: BrokerProcess) -> str:
    return f"pulsar://127.0.0.1:{broker.port}"


async def publish(broker: BrokerProcess, round_: int) -> list[Found]:
    """Of every key two values, the second of the last one empty: it is deleted."""
    async with Client(url(broker)) as client:
        producer = await client.producer(TOPIC)
        sent = []
        for n in range(2 * KEYS):
            key, value = f"k{n % KEYS}", b"" if n == 2 * KEYS - 1 else b"%d-%d" % (round_, n) + bytes(5000)
            sent.append((await producer.send(value, key=key), key, value))
        await producer.close()
    return [(await receipt, key, value) for receipt, key, value in sent]


def latest(messages: list[Found]) -> list[Found]:
    by_key: dict[str, Found] = {}
    for one in messages:
        by_key[one[1]] = one
    return sorted(one for one in by_key.values() if one[2])


async def read(broker: BrokerProcess) -> list[Found]:
    """All that a compacted reader finds."""
    async with Client(url(broker)) as client, asyncio.timeout(20):
        reader = await client.consumer(TOPIC, "reader", earliest=True, read_compacted=True, durable=False)
        last, _ = await reader.last_message()
        found: list[Found] = []
        while not found or found[-1][0] != last:
            one = await reader.receive()
            found.append(((one.ledger, one.entry), one.key or "", one.payload))
        await reader.close()
    return found


def status(broker: BrokerProcess) -> str:
    return str(broker.get(PLACE)["status"])


async def test_kill_9_during_a_compaction_leaves_the_old_or_all_of_the_new(broker: BrokerProcess) -> None:
    old = latest(await publish(broker, 0))
    broker.put(PLACE)
    until(lambda: status(broker) == "SUCCESS", within_s=60)
    assert await read(broker) == old
    for polls in (0, 6):
        tail = await publish(broker, polls + 1)
        broker.put(PLACE)
        for _ in range(polls):
            status(broker)
        broker.restart()
        found = await read(broker)
        old, new = old + tail, latest(old + tail)
        assert found in (old, new), f"{len(found)} messages, neither the old nor the new"
        # Nothing is in the way of the next one, and nothing is left of the one that was cut short.
        broker.put(PLACE)
        until(lambda: status(broker) == "SUCCESS", within_s=60)
        assert await read(broker) == new
        old = new
    broker.restart()
    assert await read(broker) == old
