"""Hidden writes of a real broker that is killed between any two of their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess, RestFailed, until
from harness.simple_client import Client, Consumer, Hidden

TOPIC = "persistent://public/default/t"
PLACE = "persistent/public/default/t"
WON, LOST = "a" * 32, "b" * 32
STEPS = ["admitted", "written", "recorded", "revealed", "revealed again"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {"logFileBytes": 1 << 20}) as process:
        yield process


def url(broker: BrokerProcess) -> str:
    return f"pulsar://127.0.0.1:{broker.port}"


async def write(broker: BrokerProcess, attempt: str | None, *payloads: bytes) -> None:
    async with Client(url(broker)) as client:
        hidden = None if attempt is None else Hidden("job", 7, attempt)
        producer = await client.producer(TOPIC, hidden=hidden)
        for payload in payloads:
            await producer.send(payload)
        await producer.close()


async def seen(broker: BrokerProcess, subscription: str, count: int) -> list[bytes]:
    """The next messages, and that there are no more of them."""
    async with Client(url(broker)) as client, asyncio.timeout(20):
        consumer = await client.consumer(TOPIC, subscription, earliest=True)
        found = [await _take(consumer) for _ in range(count)]
        await consumer.close()
    assert broker.stats("t")["subscriptions"][subscription]["msgBacklog"] == 0
    return found


async def _take(consumer: Consumer) -> bytes:
    message = await consumer.receive()
    await consumer.ack(message)
    return message.payload


@pytest.mark.parametrize("killed_after", STEPS)
async def test_kill_9_after_any_step_shows_the_winner_once_and_the_loser_never(
    broker: BrokerProcess, killed_after: str
) -> None:
    def step(name: str) -> None:
        if name == killed_after:
            broker.restart()

    async with Client(url(broker)) as client:
        await (await client.consumer(TOPIC, "s", earliest=True)).close()
        await client.producer(TOPIC, hidden=Hidden("job", 7, WON))
        step("admitted")
    await write(broker, None, b"before")
    await write(broker, LOST, b"lost 1", b"lost 2")
    await write(broker, WON, b"won 1")
    await write(broker, LOST, b"lost 3")
    await write(broker, WON, b"won 2")
    await write(broker, None, b"after")
    step("written")
    assert await seen(broker, "early", 1) == [b"before"]
    with pytest.raises(RestFailed) as failed:
        broker.post(f"anabranch/reveal/{PLACE}?write=job&batch=7")
    assert failed.value.status == 409
    broker.put("anabranch/writes/job/7", {"winners": [WON], "topics": [TOPIC]})
    step("recorded")
    broker.post(f"anabranch/reveal/{PLACE}?write=job&batch=7")
    step("revealed")
    broker.post(f"anabranch/reveal/{PLACE}?write=job&batch=7")
    step("revealed again")
    expected = [b"before", b"won 1", b"won 2", b"after"]
    assert await seen(broker, "s", 4) == expected
    assert await seen(broker, "early", 3) == expected[1:]
    broker.restart()
    assert await seen(broker, "new", 4) == expected
    assert broker.stats("t")["subscriptions"]["s"]["msgBacklog"] == 0


async def test_an_attempt_dropped_while_the_broker_was_down_is_dropped_when_it_is_back(
    broker: BrokerProcess,
) -> None:
    await write(broker, LOST, b"lost")
    await write(broker, None, b"after")
    broker.post("anabranch/writes/job/7/drop", {"attempts": [LOST]})
    broker.restart()
    assert await seen(broker, "s", 1) == [b"after"]


async def test_a_decision_reaches_an_owner_that_nobody_told(tmp_path: Path) -> None:
    settings = {"hiddenWritesCheckIntervalSeconds": 0.1}
    with BrokerProcess(tmp_path, settings) as broker:
        await write(broker, WON, b"won")
        broker.put("anabranch/writes/job/7", {"winners": [WON], "topics": [TOPIC]})
        assert await seen(broker, "s", 1) == [b"won"]


async def test_an_attempt_that_nobody_finishes_is_dropped_and_cannot_win_any_more(tmp_path: Path) -> None:
    settings = {"hiddenWritesCheckIntervalSeconds": 0.1, "hiddenWritesTimeoutSeconds": 1}
    with BrokerProcess(tmp_path, settings) as broker:
        await write(broker, LOST, b"lost")
        await write(broker, None, b"after")
        broker.restart()
        assert await seen(broker, "s", 1) == [b"after"]
        record = until(lambda: broker.get("anabranch/writes/job/7"))
        assert record == {"winners": None, "topics": [], "dropped": [LOST]}
        with pytest.raises(RestFailed) as failed:
            broker.put("anabranch/writes/job/7", {"winners": [LOST], "topics": [TOPIC]})
        assert failed.value.status == 409


async def test_what_is_hidden_in_many_files_of_the_log_is_known_after_kill_9(broker: BrokerProcess) -> None:
    """With checkpoints of the state between them: some of it is in the state, the rest is found behind it."""
    filling = bytes(30_000)
    async with Client(url(broker)) as client:
        won = await client.producer(TOPIC, hidden=Hidden("job", 7, WON))
        lost = await client.producer(TOPIC, hidden=Hidden("job", 7, LOST))
        plain = await client.producer(TOPIC)
        for number in range(60):
            await won.send(b"won %d" % number + filling)
            await lost.send(b"lost %d" % number + filling)
            await plain.send(b"plain %d" % number + filling)
        for producer in (won, lost, plain):
            await producer.flush()
    broker.restart()
    assert await seen(broker, "early", 0) == []
    broker.put("anabranch/writes/job/7", {"winners": [WON], "topics": [TOPIC]})
    broker.post(f"anabranch/reveal/{PLACE}?write=job&batch=7")
    broker.restart()
    found = [payload.rstrip(b"\0") for payload in await seen(broker, "s", 120)]
    assert found == [b"%s %d" % (who, n) for n in range(60) for who in (b"won", b"plain")]


async def test_a_segment_that_is_split_and_killed_while_it_hides_loses_nothing(broker: BrokerProcess) -> None:
    broker.put("scalable/public/default/orders?numInitialSegments=1")
    broker.put("scalable/public/default/orders/subscriptions/s")
    parent = "segment://public/default/orders/0000-ffff-0"

    async def read(count: int) -> list[bytes]:
        async with Client(url(broker)) as client, asyncio.timeout(20):
            consumer = await client.consumer(parent, "s")
            found = [await _take(consumer) for _ in range(count)]
            await consumer.close()
            return found

    def drained() -> bool:
        stats = broker.get("scalable/public/default/orders/stats")
        return bool(stats["segments"]["0"]["subscriptions"]["s"]["drained"])

    async with Client(url(broker)) as client:
        await (await (await client.producer(parent)).send(b"seen"))
        await (await (await client.producer(parent, hidden=Hidden("job", 7, LOST))).send(b"lost"))
        await (await (await client.producer(parent, hidden=Hidden("job", 7, WON))).send(b"won"))
    broker.post("scalable/public/default/orders/split/0")
    assert await read(1) == [b"seen"]
    broker.restart()
    assert not drained()
    broker.put("anabranch/writes/job/7", {"winners": [WON], "topics": [parent]})
    broker.restart()
    assert not drained()
    assert await read(1) == [b"won"]
    assert until(drained)
