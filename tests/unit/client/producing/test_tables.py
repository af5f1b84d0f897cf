"""Tables: every row a message like any other, through splits and merges too."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from anabranch.client import BadArgument, Batching, Client, MemoryFull, TimedOut
from anabranch.model.keyhash import segment_hash
from anabranch.model.layout import SegmentLayout
from anabranch.wire.batch import messages, open_entry
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
ONE = SegmentLayout.initial(1, 0)
TWO = ONE.split(0, 0)
ROOT = "segment://public/default/t/0000-ffff-0"
LEFT = "segment://public/default/t/0000-7fff-1"
RIGHT = "segment://public/default/t/8000-ffff-2"
MERGED = "segment://public/default/t/0000-ffff-3"


def table(rows: range) -> Any:
    return pa.table(
        {
            "who": [f"key-{n % 11}" for n in rows],
            "what": [b"%d" % n for n in rows],
            "when": pa.array([n + 1 for n in rows], pa.timestamp("ms")),
            "more": [{"n": f"{n}", "odd": "yes" if n % 2 else None} for n in rows],
        }
    )


def stored(script: ScriptedBroker) -> dict[str, list[tuple[int, int, str]]]:
    """Of each segment: sequence id, payload and key, in order."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for (topic, _), entry in zip(script.sent, script.entries, strict=True):
        rows = [(one.sequence_id, int(bytes(payload)), one.partition_key) for one, payload in messages(entry)]
        found.setdefault(topic, []).extend(rows)
    return found


def check(script: ScriptedBroker, numbers: range) -> None:
    """Each row once, keys where they belong, sequence ids rising."""
    found = stored(script)
    for rows in found.values():
        assert rows == sorted(rows)
    everything = sorted(row for rows in found.values() for row in rows)
    assert everything == [(n, n, f"key-{n % 11}") for n in numbers]
    for row in found.get(LEFT, []):
        assert segment_hash(row[2].encode()) <= 0x7FFF
    for row in found.get(RIGHT, []):
        assert segment_hash(row[2].encode()) > 0x7FFF


async def test_rows_become_messages_of_standard_batches(script: ScriptedBroker, client: Client) -> None:
    script.layout = TWO
    async with client.producer(TOPIC, name="p") as producer:
        receipt = await producer.send_batch(
            table(range(100)), key="who", value="what", event_time="when", properties="more"
        )
        assert receipt == (100, 0, 99)
        assert producer.last_sequence_id == 99
    check(script, range(100))
    assert len(script.entries) == 2
    metadata, _ = open_entry(script.entries[0])
    assert metadata.num_messages_in_batch == len(messages(script.entries[0]))
    assert metadata.producer_name == "p"
    one, _ = messages(script.entries[0])[0]
    assert one.event_time == one.sequence_id + 1
    assert {item.key for item in one.properties} >= {"n"}


async def test_batches_keep_to_their_limits(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC, batching=Batching(messages_max=7)) as producer:
        await producer.send_batch(table(range(20)), key="who", value="what")
    assert [len(messages(entry)) for entry in script.entries] == [7, 7, 6]


async def test_rows_without_a_key_are_spread(script: ScriptedBroker, client: Client) -> None:
    script.layout = TWO
    async with client.producer(TOPIC, batching=Batching(messages_max=10)) as producer:
        await producer.send_batch(table(range(40)).drop_columns("who"), value="what")
    assert {topic: len(rows) for topic, rows in stored(script).items()} == {LEFT: 20, RIGHT: 20}


async def test_messages_and_tables_keep_the_order_they_were_handed_in(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.post(b"0", key="key-0")
        await producer.post_batch(table(range(1, 30)).to_batches()[0], key="who", value="what")
        await producer.post(b"30", key="key-8", deliver_at=1)
        await producer.post_batch(table(range(31, 50)), key="who", value="what")
        await producer.post(b"50", key="key-6")
    plain = [entry for entry in script.entries if open_entry(entry)[0].HasField("num_messages_in_batch")]
    assert [len(messages(entry)) for entry in plain] == [1, 29, 19, 1]
    check_order = [int(bytes(payload)) for entry in script.entries for _, payload in messages(entry)]
    assert check_order == list(range(51))


async def test_a_refused_table_is_cut_again_for_the_children(script: ScriptedBroker, client: Client) -> None:
    script.sealed.add(ROOT)
    async with client.producer(TOPIC, batching=Batching(messages_max=20)) as producer:
        await producer.post(b"0", key="key-0")
        receipt = await producer.post_batch(table(range(1, 100)), key="who", value="what")
        await producer.post(b"100", key="key-1")
        await script.until(lambda: script.refusals.get(ROOT) == [])
        script.publish(TWO)
        assert (await receipt).messages == 99
    check(script, range(101))
    assert stored(script).keys() == {LEFT, RIGHT}


async def test_a_merged_segment_gets_the_rows_of_both_parents_in_the_order_of_their_numbers(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = TWO
    script.sealed |= {LEFT, RIGHT}
    async with client.producer(TOPIC, batching=Batching(messages_max=20)) as producer:
        receipts = [
            await producer.post_batch(table(rows), key="who", value="what")
            for rows in (range(50), range(50, 100))
        ]
        await script.until(lambda: script.refusals.get(LEFT) == script.refusals.get(RIGHT) == [])
        script.publish(TWO.merge(1, 2, 0))
        await asyncio.gather(*receipts)
    check(script, range(100))
    assert stored(script).keys() == {MERGED}


async def test_a_lost_connection_sends_the_same_batches_again(script: ScriptedBroker, client: Client) -> None:
    script.receipts = False
    async with client.producer(TOPIC, batching=Batching(messages_max=20)) as producer:
        receipt = await producer.post_batch(table(range(50)), key="who", value="what")
        await script.until(lambda: len(script.sent) == 3)
        script.receipts = True
        for link in script.links:
            link.cut()
        await receipt
    assert [first for _, first in script.sent] == [0, 20, 40] * 2


async def test_a_table_larger_than_the_memory_is_sent_in_pieces(script: ScriptedBroker) -> None:
    async with (
        Client(script.url, memory_bytes_max=20_000, when_full="refuse") as client,
        client.producer(TOPIC) as producer,
    ):
        receipt = await producer.post_batch(table(range(2000)), key="who", value="what")
        with pytest.raises(MemoryFull):
            await producer.post(bytes(30_000))
        await receipt
    check(script, range(2000))
    assert len(script.entries) > 5


async def test_a_table_without_a_receipt_in_time_fails(script: ScriptedBroker, client: Client) -> None:
    script.receipts = False
    async with client.producer(TOPIC, send_timeout_s=0.1) as producer:
        with pytest.raises(TimedOut):
            await producer.send_batch(table(range(50)), key="who", value="what")
        script.receipts = True
        await producer.flush()


async def test_tables_that_cannot_be_sent_are_refused(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(BadArgument, match="the table has who, what"):
            await producer.send_batch(table(range(3)), key="who", value="nothing")
        with pytest.raises(BadArgument, match="Arrow table"):
            await producer.send_batch([b"x"])
        with pytest.raises(BadArgument, match="cast it"):
            await producer.send_batch(pa.table({"value": [1.5]}))
        assert (await producer.send_batch(table(range(0)), value="what")).messages == 0
    assert not script.entries
