"""Messages as Arrow record batches: what is in them, how they are acknowledged, what is told of damaged ones."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from anabranch.client import (
    BadArgument,
    Client,
    CryptoFailed,
    NackDelay,
    StreamConsumer,
    TimedOut,
    Unsupported,
)
from anabranch.client.consuming.inbox import MESSAGES_MAX, UNPACKED_BYTES_MAX, Inbox
from anabranch.client.message import EntryOrigin, ReceivedEntry
from anabranch.errors import ChecksumMismatch, MalformedFrame
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, build_message, compress
from anabranch.wire.entry import metadata_span, parse_metadata
from unit.client.scripted import ScriptedBroker, segment_topic

pytest.importorskip("numba")
pa = pytest.importorskip("pyarrow")

from anabranch.client.consuming.arrow_reader import COLUMNS, ArrowReader  # noqa: E402  # Only with its packages.

TOPIC = "topic://public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"


async def open_stream(script: ScriptedBroker, client: Client, segments: list[int]) -> StreamConsumer:
    script.assigned = (0, segments)
    consumer = await client.stream_consumer(TOPIC, "s", consumer_name="one")
    await script.until(lambda: len(script.consumers) == len(segments))
    return consumer


async def values(consumer: Any, rows: int) -> tuple[list[bytes], Any]:
    """So many values, and the last batch."""
    found: list[bytes] = []
    while len(found) < rows:
        batch = await consumer.receive_arrow(timeout_s=10)
        found += batch["value"].to_pylist()
    return found, batch


async def test_a_batch_has_a_row_for_each_message_and_says_where_it_comes_from(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        script.deliver_batch(segment_topic(1), 7, 3)
        script.deliver(segment_topic(1), 8, b"alone")
        batch = await consumer.receive_arrow(timeout_s=10)
        while batch.num_rows < 4:
            batch = pa.Table.from_batches(
                [batch, (await consumer.receive_arrow(timeout_s=10)).cast(batch.schema)]
            ).combine_chunks()
        assert batch.schema.equals(COLUMNS)
        rows = batch.to_pylist()
        assert [row["value"] for row in rows] == [b"7.0", b"7.1", b"7.2", b"alone"]
        assert [(row["entry_id"], row["batch_index"]) for row in rows] == [(7, 0), (7, 1), (7, 2), (8, -1)]
        assert {(row["key"], row["segment_id"], row["topic"], row["ledger_id"]) for row in rows} == {
            (b"k", 1, TOPIC, 1)
        }


async def test_acknowledging_a_batch_acknowledges_a_position_in_each_segment(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1, 2]) as consumer:
        for segment, entry in ((1, 0), (2, 0), (1, 1), (2, 1)):
            script.deliver_batch(segment_topic(segment), entry, 2)
        _, batch = await values(consumer, 8)
        await consumer.ack_cumulative(batch)
        assert await consumer.flush()
        assert sorted(script.acks) == [(segment_topic(1), 1, 1, True), (segment_topic(2), 1, 1, True)]
        # A slice is of the same batch, and there is nothing left of it.
        await consumer.ack_cumulative(batch.slice(0, 1))
        assert await consumer.flush()
        assert len(script.acks) == 2


async def test_a_batch_from_before_a_lost_connection_is_not_stored(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        script.deliver_batch(segment_topic(1), 0, 2)
        _, batch = await values(consumer, 2)
        script.consumers.clear()
        for link in script.links:
            link.cut()
        await script.until(lambda: script.consumers)
        await consumer.ack_cumulative(batch)
        assert not await consumer.flush()


async def test_what_was_received_one_by_one_is_not_in_the_batch(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        script.deliver_batch(segment_topic(1), 0, 3)
        assert (await consumer.receive(timeout_s=10)).payload == b"0.0"
        found, batch = await values(consumer, 2)
        assert found == [b"0.1", b"0.2"]
        await consumer.ack_cumulative(batch)
        assert await consumer.flush()
        assert script.acks == [(segment_topic(1), 1, 0, True)]


async def test_a_queues_batch_is_acknowledged_or_handed_back_whole(
    script: ScriptedBroker, client: Client
) -> None:
    soon = NackDelay(first_s=0.0, max_s=0.0)
    async with client.queue_consumer(TOPIC, "q", negative_ack=soon) as consumer:
        await script.until(lambda: script.consumers)
        script.deliver_batch(ROOT, 0, 3, unacked=0b101)
        found, batch = await values(consumer, 2)
        assert found == [b"0.0", b"0.2"]
        await consumer.ack(batch)
        assert await consumer.flush()
        assert script.acks == [(ROOT, 1, 0, False)]
        script.deliver_batch(ROOT, 1, 3)
        _, batch = await values(consumer, 3)
        await consumer.nack(batch)
        await script.until(lambda: script.redelivered)
        assert script.redelivered == [(ROOT, 1)]


async def test_a_queues_batch_that_is_not_settled_in_time_comes_again(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.queue_consumer(TOPIC, "q", processing_timeout_s=0.02) as consumer:
        await script.until(lambda: script.consumers)
        script.deliver_batch(ROOT, 0, 3)
        await values(consumer, 3)
        await script.until(lambda: script.redelivered)
        assert script.redelivered == [(ROOT, 0)]


async def test_a_receive_of_columns_times_out_and_says_what_it_cannot_mean(
    script: ScriptedBroker, client: Client
) -> None:
    async with await open_stream(script, client, [1]) as consumer:
        with pytest.raises(TimedOut):
            await consumer.receive_arrow(timeout_s=0.01)
        with pytest.raises(BadArgument, match="rows_max"):
            await consumer.receive_arrow(rows_max=0)
        with pytest.raises(BadArgument, match="as receive_arrow gave it"):
            await consumer.ack_cumulative(pa.record_batch({"value": [b"x"]}))


async def test_an_installation_without_the_packages_says_which(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anabranch.client.consuming.arrow_reader", None)
    async with await open_stream(script, client, [1]) as consumer:
        with pytest.raises(Unsupported, match=r"pip install anabranch\[arrow\]"):
            await consumer.receive_arrow()


class Segment:
    """Takes what an inbox tells it."""

    topic = "segment"

    def __init__(self) -> None:
        self.acked: list[int] = []

    def taken(self, entry: ReceivedEntry, messages: int) -> None:
        return

    def ack_entry(self, entry: ReceivedEntry) -> None:
        self.acked.append(entry.entry)


class Keys:
    """Knows no key."""

    def __init__(self, on_failure: str) -> None:
        self.on_failure = on_failure

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        raise CryptoFailed("no key")


def put(
    inbox: Inbox, number: int, count: int = 2, *, owner: Any = None, keys: Keys | None = None
) -> ReceivedEntry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if keys is not None:
        metadata.encryption_keys.add(key="theirs", value=b"")
    singles = [(pb.SingleMessageMetadata(payload_size=0), b"%d.%d" % (number, n)) for n in range(count)]
    return put_raw(inbox, number, build_batch(metadata, singles), owner=owner, keys=keys)


def put_raw(
    inbox: Inbox, number: int, raw: bytes, *, owner: Any = None, keys: Keys | None = None
) -> ReceivedEntry:
    entry = ReceivedEntry(
        EntryOrigin("t", segment=0, decryption=keys),
        1,
        number,
        parse_metadata(raw),
        raw,
        owner=owner or Segment(),
        start=metadata_span(raw)[1],
    )
    inbox.put(entry)
    return entry


async def test_a_damaged_entry_is_told_after_what_lies_before_and_with_what_lies_behind_kept() -> None:
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    put(inbox, 0)
    put(inbox, 1).fault = ChecksumMismatch("damaged")
    put(inbox, 2)
    batch, _ = await reader.read(100, 1)
    assert batch["value"].to_pylist() == [b"0.0", b"0.1", b"2.0", b"2.1"]
    assert batch["entry_id"].to_pylist() == [0, 0, 2, 2]
    with pytest.raises(ChecksumMismatch):
        await reader.read(100, 1)


async def test_a_damaged_entry_beside_one_without_rows_costs_the_others_nothing() -> None:
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    put(inbox, 0)
    head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    put_raw(
        inbox, 1, build_batch(head, [(pb.SingleMessageMetadata(payload_size=0, compacted_out=True), b"")])
    )
    head.num_messages_in_batch = 3
    put_raw(inbox, 2, build_entry(head, b"this is no batch of three"))
    put(inbox, 3)
    batch, _ = await reader.read(100, 1)
    assert batch["entry_id"].to_pylist() == [0, 0, 3, 3]
    with pytest.raises(MalformedFrame):
        await reader.read(100, 1)


async def test_what_unpacks_to_much_comes_in_several_batches() -> None:
    """Of 3 MB each, from a few hundred bytes: what is packed says nothing of what all of them take at once."""
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    size = 3 << 20
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZSTD, uncompressed_size=size
    )
    packed = build_entry(head, compress(pb.ZSTD, bytes(size)))
    for number in range(50):
        put_raw(inbox, number, packed)
    first, _ = await reader.read(1000, 1)
    assert 1 < first.num_rows <= UNPACKED_BYTES_MAX // size
    rest, _ = await reader.read(1000, 1)
    assert [*first["entry_id"].to_pylist(), *rest["entry_id"].to_pylist()] == list(range(50))


async def test_an_entry_that_unpacks_to_more_than_brokers_store_is_received() -> None:
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZSTD)
    put_raw(inbox, 0, build_message(head, bytes(20 << 20)))
    batch, _ = await reader.read(100, 1)
    assert [len(value) for value in batch["value"].to_pylist()] == [20 << 20]


@pytest.mark.parametrize("on_failure", ["fail", "skip", "deliver"])
async def test_an_entry_that_cannot_be_decrypted_is_told_passed_over_or_delivered(on_failure: str) -> None:
    inbox, segment = Inbox(), Segment()
    reader = ArrowReader(inbox, keeps=False)
    entry = put(inbox, 0, owner=segment, keys=Keys(on_failure))
    put(inbox, 1)
    raw = entry.raw[entry.start :]
    batch, _ = await reader.read(100, 1)
    assert batch["value"].to_pylist() == [*([raw] if on_failure == "deliver" else []), b"1.0", b"1.1"]
    assert segment.acked == ([0] if on_failure == "skip" else [])
    if on_failure == "fail":
        with pytest.raises(CryptoFailed):
            await reader.read(100, 1)


async def test_a_batch_as_it_was_sent_is_not_cut() -> None:
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    for number in range(3):
        put(inbox, number, 4)
    assert [(await reader.read(rows, 1))[0].num_rows for rows in (1, 9)] == [4, 8]


async def test_a_cancelled_receive_of_columns_swallows_nothing() -> None:
    inbox = Inbox()
    reader = ArrowReader(inbox, keeps=False)
    reading = asyncio.create_task(reader.read(100, 1))
    await asyncio.sleep(0)
    put(inbox, 0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await reader.read(100, 1))[0].num_rows == 2


async def test_there_is_more_room_for_columns_unless_the_application_says_otherwise() -> None:
    inbox, small = Inbox(), Inbox(messages_max=10)
    ArrowReader(inbox, keeps=False)
    ArrowReader(small, keeps=False)
    assert inbox.messages_max > MESSAGES_MAX
    assert small.messages_max == 10
