"""Entries of a scalable topic tell which entry buckets their messages are in, and lie in one bucket each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from anabranch.client import Batching, Client, Encryption, MemoryFull, MessageId, Routing
from anabranch.model.buckets import BucketBudget, bucket_of
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages, open_entry
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
CLASSIC = "persistent://public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"
LEFT = "segment://public/default/t/0000-7fff-1"
RIGHT = "segment://public/default/t/8000-ffff-2"
KEYS = [f"key-{n}" for n in range(40)]
# A batch of two messages "x" with the keys "a" and "b", as the wire format says.
BATCH = (
    "0e01 a02aca20 00000016"
    # Producer "p", sequence ids 0 to 1, published at 1, two messages.
    "0a0170 1000 1801 5802 c00101"
    # Fields 33 and 34: the low halves of both hashes, 0x69b2 and 0x7e03.
    "8802b2d301 900283fc01"
    "00000007 120161 1801 4000 78"
    "00000007 120162 1801 4001 78"
)


def of(*counts: int) -> SegmentLayout:
    """One segment for each count, of so many buckets of equal width."""
    layout = SegmentLayout.initial(len(counts), 0)
    made = {
        number: replace(segment, bucket_splits=tuple(n * 65536 // count for n in range(1, count)))
        for (number, segment), count in zip(layout.segments.items(), counts, strict=True)
    }
    return replace(layout, segments=made)


def uneven(*splits: int) -> SegmentLayout:
    layout = SegmentLayout.initial(1, 0)
    return replace(layout, segments={n: replace(s, bucket_splits=splits) for n, s in layout.segments.items()})


def in_bucket(bucket: int, buckets: int = 4, *, at: int = 0) -> str:
    """A key of that bucket among so many."""
    found = [f"{n}" for n in range(999) if bucket_hash(b"%d" % n) * buckets // 65536 == bucket]
    return found[at]


def spans(script: ScriptedBroker) -> list[tuple[int, int] | None]:
    """What the entries tell, None for nothing."""
    told: list[tuple[int, int] | None] = []
    for entry in script.entries:
        metadata, _ = open_entry(entry)
        assert metadata.HasField("entry_hash_min") == metadata.HasField("entry_hash_max")
        is_told = metadata.HasField("entry_hash_min")
        told.append((metadata.entry_hash_min, metadata.entry_hash_max) if is_told else None)
    return told


def check_entries(script: ScriptedBroker, splits: tuple[int, ...]) -> None:
    """Each entry tells the least and the greatest hash of its keys, which are of one bucket."""
    for entry, span in zip(script.entries, spans(script), strict=True):
        low = [bucket_hash(one.partition_key.encode()) for one, _ in messages(entry)]
        assert span == (min(low), max(low))
        assert len({bucket_of(splits, one) for one in low}) == 1


async def done(receipts: list[asyncio.Future[MessageId]]) -> list[MessageId]:
    async with asyncio.timeout(10):
        return [await receipt for receipt in receipts]


# -- what an entry tells


async def test_the_bytes_of_a_batch(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC, name="p") as producer:
        for key in ("a", "b"):
            await producer.post(b"x", key=key)
    assert script.entries[0] == bytes.fromhex(BATCH)
    assert (bucket_hash(b"a"), bucket_hash(b"b")) == (0x69B2, 0x7E03)


async def test_a_batch_tells_the_least_and_the_greatest_hash_of_its_keys(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        for key in KEYS:
            await producer.post(b"x", key=key)
    assert len(script.entries) == 1
    check_entries(script, ())


async def test_classic_topics_get_entries_that_tell_nothing(script: ScriptedBroker, client: Client) -> None:
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    async with client.producer(CLASSIC) as producer:
        await producer.post(b"x", key="a")
        await producer.post(b"x", key="a", deliver_at=1)
        await producer.flush()
        assert spans(script) == [None, None]


async def test_a_run_that_a_classic_topic_refused_tells_it_on_the_scalable_one(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    async with client.producer(CLASSIC) as producer:
        await producer.send(b"x", key="a")
        script.sealed.add(CLASSIC)
        refused = [await producer.post(b"x", key="a"), await producer.post(b"x", key="a", deliver_at=1)]
        await script.until(lambda: script.refused)
        script.publish(SegmentLayout.migrated([CLASSIC], 0))
        await done(refused)
    low = bucket_hash(b"a")
    assert spans(script) == [None, (low, low), (low, low)]


async def test_messages_on_their_own_and_all_chunks_tell_it(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC, chunking=True) as producer:
        await producer.send(b"x", key="a", deliver_at=1)
        await producer.send(bytes(11 << 20), key="a")
    low = bucket_hash(b"a")
    assert spans(script) == [(low, low)] * 4
    assert [open_entry(entry)[0].chunk_id for entry in script.entries] == [0, 0, 1, 2]


async def test_an_ordering_key_chooses_the_bucket_and_the_key_the_segment(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = of(2, 2)
    async with client.producer(TOPIC) as producer:
        stored = [await producer.send(b"x", key=key, ordering_key=b"order") for key in KEYS[:8]]
    low = bucket_hash(b"order")
    assert spans(script) == [(low, low)] * 8
    assert [one.segment for one in stored] == [segment_hash(key.encode()) >> 15 for key in KEYS[:8]]
    assert len({one.segment for one in stored}) == 2


async def test_bytes_as_a_key_count_as_they_are_and_not_as_they_are_sent(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x", key=b"\x00\xff")
        await producer.send(b"x", key=b"\x00\xff", deliver_at=1)
    low = bucket_hash(b"\x00\xff")
    assert spans(script) == [(low, low)] * 2


@pytest.mark.parametrize("routing", list(Routing))
async def test_messages_without_a_key_are_in_one_bucket_of_their_producer_in_order(
    script: ScriptedBroker, client: Client, routing: Routing
) -> None:
    import pyarrow as pa

    script.layout = of(4)
    async with client.producer(TOPIC, name="p", routing=routing) as producer:
        for number in range(10):
            await producer.post(b"%d" % number)
        await producer.send(b"10", deliver_at=1)
        await producer.send_batch(pa.table({"value": ["11", "12"]}))
    low = bucket_hash(b"p")
    assert {*spans(script)} == {(low, low)}
    assert [bytes(one) for entry in script.entries for _, one in messages(entry)] == [
        b"%d" % number for number in range(13)
    ]


# -- several buckets


@pytest.mark.parametrize("layout", [of(2), of(4), of(7), uneven(5, 0x1000, 0xF000)])
async def test_each_entry_lies_in_one_bucket_however_messages_are_handed_in(
    script: ScriptedBroker, client: Client, layout: SegmentLayout
) -> None:
    import pyarrow as pa

    script.layout = layout
    splits = layout.active[0].bucket_splits
    async with client.producer(TOPIC) as producer:
        for key in KEYS:
            await producer.post(b"x", key=key)
        await producer.flush()
        singly = sorted(sorted(one.partition_key for one, _ in messages(entry)) for entry in script.entries)
        check_entries(script, splits)
        assert len(singly) == len({bucket_of(splits, bucket_hash(key.encode())) for key in KEYS}) > 1
        script.entries.clear()
        await producer.send_batch(pa.table({"key": KEYS, "value": KEYS}), key="key")
        check_entries(script, splits)
        as_table = sorted(sorted(one.partition_key for one, _ in messages(entry)) for entry in script.entries)
        assert as_table == singly


async def test_segments_with_and_without_several_buckets_stand_side_by_side(
    script: ScriptedBroker, client: Client
) -> None:
    import pyarrow as pa

    script.layout = of(1, 4, 2)
    found: list[dict[str, list[list[str]]]] = []
    async with client.producer(TOPIC) as producer:
        for is_table in (False, True):
            script.sent.clear()
            script.entries.clear()
            if is_table:
                await producer.send_batch(pa.table({"key": KEYS, "value": KEYS}), key="key")
            else:
                for key in KEYS:
                    await producer.post(b"x", key=key)
                await producer.flush()
            by_segment = defaultdict(list)
            for (topic, _), entry in zip(script.sent, script.entries, strict=True):
                by_segment[topic].append(sorted(one.partition_key for one, _ in messages(entry)))
            found.append({topic: sorted(entries) for topic, entries in by_segment.items()})
    assert found[0] == found[1]
    assert sorted(len(entries) for entries in found[0].values()) == [1, 2, 4]


async def test_each_bucket_has_the_limits_of_a_batch_to_itself(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = of(2)
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000, messages_max=2)) as producer:
        for number in (0, 1, 0, 0, 1):
            await producer.post(b"x", key=in_bucket(number, 2))
    sizes: dict[int, list[int]] = defaultdict(list)
    for entry in script.entries:
        metadata, _ = open_entry(entry)
        sizes[metadata.entry_hash_min >> 15].append(metadata.num_messages_in_batch)
    assert sizes == {0: [2, 1], 1: [2]}


@pytest.mark.parametrize("buckets", [1, 2])
async def test_order_across_keys_is_kept_with_one_bucket_and_each_keys_order_with_any_number(
    script: ScriptedBroker, client: Client, buckets: int
) -> None:
    script.layout = of(buckets)
    keys = [in_bucket(number, 2) for number in (0, 1)] * 4
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000, messages_max=2)) as producer:
        for key in keys:
            await producer.post(b"x", key=key)
    stored = [(one.partition_key, one.sequence_id) for entry in script.entries for one, _ in messages(entry)]
    order = [number for _, number in stored]
    assert (order == sorted(order)) is (buckets == 1)
    for wanted in keys[:2]:
        assert [number for key, number in stored if key == wanted] == [
            n for n, key in enumerate(keys) if key == wanted
        ]


async def test_the_batches_of_all_buckets_share_the_memory_of_the_client(script: ScriptedBroker) -> None:
    script.layout = of(4)
    batching = Batching(delay_ms=60_000)
    async with (
        Client(script.url, memory_bytes_max=5000, when_full="refuse") as client,
        client.producer(TOPIC, batching=batching) as producer,
    ):
        receipts = [await producer.post(bytes(900), key=in_bucket(bucket)) for bucket in range(4)]
        with pytest.raises(MemoryFull):
            await producer.post(bytes(900), key=in_bucket(0))
        await producer.flush()
        assert all(receipt.done() for receipt in receipts)
        assert len(script.entries) == 4
        await producer.post(bytes(900), key=in_bucket(0))


async def test_boundaries_cost_no_request(script: ScriptedBroker) -> None:
    asked: list[tuple[int, int, int]] = []
    for layout in (of(1), of(4)):
        script.layout = layout
        script.lookups.clear()
        script.questions.clear()
        script.producers.clear()
        async with Client(script.url) as client, client.producer(TOPIC, name=f"p{len(asked)}") as producer:
            for key in KEYS:
                await producer.post(b"x", key=key)
        asked.append((len(script.lookups), len(script.questions), len(script.producers)))
    assert asked[0] == asked[1] == (1, 0, 1)


async def test_the_receipt_of_a_bucket_settles_nothing_of_another(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = of(4)
    script.receipts = False
    async with client.producer(TOPIC, batching=False) as producer:
        receipts = [await producer.post(b"x", key=in_bucket(bucket)) for bucket in (0, 1, 0, 1)]
        await script.until(lambda: len(script.sent) == 4)
        script.receipt(ROOT, 0)
        await done(receipts[:1])
        script.receipts = True
        for link in script.links:
            link.cut()
        await done(receipts)
        assert script.sent[4:] == [(ROOT, 1), (ROOT, 2), (ROOT, 3)]


async def test_a_sealed_segment_is_believed_bucket_by_bucket(script: ScriptedBroker, client: Client) -> None:
    script.layout = of(4)
    script.receipts = False
    async with client.producer(TOPIC, batching=False) as producer:
        keys = [in_bucket(bucket) for bucket in (0, 1, 0, 1, 2)]
        receipts = [await producer.post(b"x", key=key) for key in keys]
        await script.until(lambda: len(script.sent) == 5)
        script.sealed.add(ROOT)
        # The highest of all is above numbers that the segment does not hold.
        script.last_in_buckets[ROOT], script.last_sequence[ROOT] = {0: 2, 1: 1}, 2
        script.layout = script.layout.split(0, 0)
        script.receipts = True
        for link in script.links:
            link.cut()
        stored = await done(receipts)
    assert [one.segment == 0 for one in stored] == [True, True, True, False, False]
    assert sorted(number for topic, number in script.sent[5:]) == [3, 4]
    assert script.questions == [ROOT]


async def test_what_a_seal_refuses_is_cut_by_the_buckets_of_the_successors(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = of(2)
    script.sealed.add(ROOT)
    async with client.producer(TOPIC) as producer:
        receipts = [await producer.post(b"x", key=key) for key in KEYS]
        await script.until(lambda: script.refusals.get(ROOT) == [])
        script.publish(script.layout.rebucket(0, 7, 0))
        await done(receipts)
    check_entries(script, tuple(n * 65536 // 7 for n in range(1, 7)))
    assert sorted(one.sequence_id for entry in script.entries for one, _ in messages(entry)) == list(
        range(40)
    )


async def test_a_named_producer_asks_sealed_segments_by_bucket(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = of(4).split(0, 0)
    script.last_in_buckets[ROOT], script.last_sequence[ROOT] = {0: 5, 1: 2}, 5
    low = in_bucket(0)
    async with client.producer(TOPIC, name="p") as producer:
        assert producer.last_sequence_id == 5
        assert (await producer.send(b"x", key=low, sequence_id=3)).segment == 0
        assert (await producer.send(b"x", key=in_bucket(1), sequence_id=4)).segment > 0
    assert [number for _, number in script.sent] == [4]


async def test_a_broker_that_knows_no_buckets_gets_rising_numbers_each_the_last_of_its_entry(
    script: ScriptedBroker, client: Client
) -> None:
    import pyarrow as pa

    script.knows_buckets = False
    script.layout = of(4)
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000, messages_max=3)) as producer:
        receipts = [await producer.post(b"x", key=key) for key in KEYS]
        await producer.send(b"x", key=KEYS[0], deliver_at=1)
        await producer.send_batch(pa.table({"key": KEYS, "value": KEYS}), key="key")
        await done(receipts)
    sent = [number for _, number in script.sent]
    assert sent == sorted(set(sent))
    for entry, number in zip(script.entries, sent, strict=True):
        metadata, _ = open_entry(entry)
        assert metadata.sequence_id == number
        if metadata.num_messages_in_batch > 1:
            assert messages(entry)[-1][0].sequence_id == number == metadata.highest_sequence_id
    found = [one.partition_key for entry in script.entries for one, _ in messages(entry)]
    assert sorted(found) == sorted([*KEYS, KEYS[0], *KEYS])


async def test_a_broker_that_knows_no_buckets_is_asked_and_not_believed(
    script: ScriptedBroker, client: Client
) -> None:
    script.knows_buckets = False
    script.layout = of(4)
    script.receipts = False
    async with client.producer(TOPIC, batching=False) as producer:
        receipts = [await producer.post(b"x", key=in_bucket(bucket)) for bucket in (0, 1)]
        await script.until(lambda: len(script.sent) == 2)
        script.sealed.add(ROOT)
        script.last_sequence[ROOT] = 1
        script.layout = script.layout.split(0, 0)
        script.receipts = True
        for link in script.links:
            link.cut()
        assert all(one.segment > 0 for one in await done(receipts))


# -- encryption


class Marking(Encryption):
    """Encryption of a kind: a mark before each payload."""

    def check_can_encrypt(self) -> None:
        pass

    def encrypt(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        metadata.encryption_keys.add(key="k", value=b"secret")
        return b"!" + payload


async def test_encrypted_messages_of_a_scalable_topic_are_not_joined_and_tell_their_hash(
    script: ScriptedBroker, client: Client
) -> None:
    import pyarrow as pa

    async with client.producer(TOPIC, encryption=Marking(public_keys={"k": "PEM"})) as producer:
        for key in KEYS:
            await producer.post(b"x", key=key)
        await producer.send_batch(pa.table({"key": KEYS, "value": KEYS}), key="key")
    low = [bucket_hash(key.encode()) for key in KEYS]
    assert spans(script) == [(one, one) for one in low * 2]


async def test_encrypted_messages_of_a_classic_topic_are_joined(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    async with client.producer(CLASSIC, encryption=Marking(public_keys={"k": "PEM"})) as producer:
        for key in KEYS:
            await producer.post(b"x", key=key)
        await producer.flush()
        assert len(script.entries) == 1


async def test_encrypted_messages_are_joined_no_longer_once_the_topic_is_scalable(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = SegmentLayout.synthetic([CLASSIC], 0)
    async with client.producer(CLASSIC, encryption=Marking(public_keys={"k": "PEM"})) as producer:
        await producer.send(b"x", key="a")
        script.sealed.add(CLASSIC)
        receipts: list[Any] = [await producer.post(b"x", key=key) for key in KEYS]
        await script.until(lambda: script.refused)
        script.publish(SegmentLayout.migrated([CLASSIC], 0, budget=BucketBudget()))
        await done(receipts)
        await done([await producer.post(b"x", key=key) for key in KEYS])
    assert all(span is not None and span[0] == span[1] for span in spans(script)[1:])
    assert len(script.entries) == 1 + 2 * len(KEYS)
