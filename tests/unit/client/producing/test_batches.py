"""What a producer makes of messages: batches, single entries and chunks, and when they leave."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from anabranch.client import (
    BadArgument,
    Batching,
    Client,
    Encryption,
    MessageId,
    Producer,
    RequestRefused,
    Schema,
    TimedOut,
)
from anabranch.client.producing import entries
from anabranch.model.keyhash import segment_hash
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages, open_entry
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
ONE = SegmentLayout.initial(1, 0)
TWO = ONE.split(0, 0)
ROOT = "segment://public/default/t/0000-ffff-0"
LEFT = "segment://public/default/t/0000-7fff-1"
RIGHT = "segment://public/default/t/8000-ffff-2"
LOW = next(f"{n}" for n in range(99) if segment_hash(b"%d" % n) <= 0x7FFF)
HIGH = next(f"{n}" for n in range(99) if segment_hash(b"%d" % n) > 0x7FFF)


def payloads(script: ScriptedBroker) -> list[list[bytes]]:
    return [[bytes(payload) for _, payload in messages(entry)] for entry in script.entries]


async def test_messages_posted_in_one_turn_of_the_loop_are_one_batch(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC, name="p") as producer:
        receipts = [await producer.post(b"%d" % n, key=LOW) for n in range(3)]
        await producer.flush()
        assert [receipt.result() for receipt in receipts] == [MessageId(0, 1, 0, n) for n in range(3)]
    assert payloads(script) == [[b"0", b"1", b"2"]]
    metadata, _ = open_entry(script.entries[0])
    assert (metadata.producer_name, metadata.sequence_id, metadata.highest_sequence_id) == ("p", 0, 2)
    assert (metadata.num_messages_in_batch, metadata.publish_time) == (3, 1)


async def test_a_batch_leaves_when_it_is_full(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000, messages_max=2)) as producer:
        for number in range(5):
            await producer.post(b"%d" % number, key=LOW)
    assert payloads(script) == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


async def test_a_batch_leaves_before_it_is_too_large(script: ScriptedBroker, client: Client) -> None:
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000, bytes_max=150)) as producer:
        for size in (60, 60, 60, 200, 1):
            await producer.post(b"x" * size, key=LOW)
    assert [list(map(len, batch)) for batch in payloads(script)] == [[60, 60], [60], [200], [1]]


async def test_what_is_gathered_leaves_when_the_receipt_of_what_is_under_way_comes(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000)) as producer:
        await producer.post(b"0", key=LOW)
        await script.until(lambda: script.entries)
        later = [await producer.post(b"%d" % n, key=LOW) for n in (1, 2)]
        script.receipts = True
        script.receipt(ROOT, 0)
        await asyncio.gather(*later)
    assert payloads(script) == [[b"0"], [b"1", b"2"]]


async def test_what_is_gathered_leaves_after_the_delay_however_long_receipts_take(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    producer = await client.producer(TOPIC, batching=Batching(delay_ms=1))
    await producer.post(b"0", key=LOW)
    await script.until(lambda: script.entries)
    await producer.post(b"1", key=LOW)
    await script.until(lambda: len(script.entries) == 2)
    await producer.close(flush=False)


async def test_batches_grow_while_there_is_no_connection(script: ScriptedBroker, client: Client) -> None:
    script.refusals[ROOT] = [pb.ServiceNotReady] * 2
    async with client.producer(TOPIC, batching=Batching(delay_ms=1)) as producer:
        receipts = []
        while not script.entries:
            receipts.append(await producer.post(b"x", key=LOW))
            await asyncio.sleep(0)
        await asyncio.gather(*receipts)
        assert len(messages(script.entries[0])) > 10


async def test_a_broker_that_reads_slowly_holds_batches_back_and_loses_none(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC, batching=Batching(bytes_max=1 << 20)) as producer:
        await producer.send(b"first", key=LOW)
        for link in script.links:
            link.read(is_on=False)
        # More than the sockets' buffers and the connection's own take.
        receipts = [await producer.post(bytes(1 << 20), key=LOW) for _ in range(24)]
        receipts.append(await producer.post(b"last", key=LOW))
        for link in script.links:
            link.read(is_on=True)
        await asyncio.gather(*receipts)
    assert [sequence for _, sequence in script.sent] == list(range(26))


async def test_a_refused_batch_is_cut_by_the_new_layout(script: ScriptedBroker, client: Client) -> None:
    script.sealed.add(ROOT)
    async with client.producer(TOPIC) as producer:
        receipts = [await producer.post(b"%d" % n, key=(LOW, HIGH)[n % 2]) for n in range(6)]
        await script.until(lambda: script.refusals.get(ROOT) == [])
        script.publish(TWO)
        stored = await asyncio.gather(*receipts)
    assert [one.segment for one in stored] == [1, 2, 1, 2, 1, 2]
    assert sorted(script.sent) == [(LEFT, 0), (RIGHT, 1)]
    assert sorted(payloads(script)) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


async def test_batches_of_both_parents_are_put_together_by_number_for_a_merged_segment(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = TWO
    script.receipts = False
    async with client.producer(TOPIC, batching=Batching(delay_ms=60_000)) as producer:
        receipts = [await producer.post(b"%d" % n, key=(LOW, HIGH)[n % 2]) for n in range(4)]
        await script.until(lambda: len(script.entries) == 2)
        script.sealed |= {LEFT, RIGHT}
        receipts += [await producer.post(b"%d" % n, key=(LOW, HIGH)[n % 2]) for n in range(4, 6)]
        script.receipt(LEFT, 0)
        await script.until(lambda: len(script.refused) == 1)
        script.receipt(RIGHT, 1)
        await script.until(lambda: len(script.refused) == 2)
        script.receipts = True
        script.entries.clear()
        script.publish(TWO.merge(1, 2, 0))
        stored = await asyncio.gather(*receipts)
    assert [one.segment for one in stored] == [1, 2, 1, 2, 3, 3]
    assert payloads(script) == [[b"4", b"5"]]


async def test_a_batch_of_one_key_carries_it_and_one_of_several_keys_none(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        for keys in ((LOW, LOW), (LOW, HIGH), (None, None), (b"\xff", b"\xff")):
            for key in keys:
                await producer.post(b"x", key=key)
            await producer.flush()
    found = [open_entry(entry)[0] for entry in script.entries]
    assert [m.partition_key if m.HasField("partition_key") else None for m in found] == [
        LOW,
        None,
        None,
        "/w==",
    ]
    assert found[3].partition_key_b64_encoded


async def test_a_message_carries_what_it_was_posted_with(script: ScriptedBroker, client: Client) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x", key="k", properties={"a": "1", "b": "ü"}, event_time=moment)
        await producer.send(None, key=b"\x00\xff", event_time=7)
    (first, _), (second, payload) = (messages(entry)[0] for entry in script.entries)
    assert {item.key: item.value for item in first.properties} == {"a": "1", "b": "ü"}
    assert (first.partition_key, first.event_time) == ("k", int(moment.timestamp() * 1000))
    assert (second.partition_key, second.partition_key_b64_encoded, second.event_time) == ("AP8=", True, 7)
    assert second.null_value
    assert not payload


async def test_delayed_messages_and_those_with_an_ordering_key_have_entries_of_their_own(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.post(b"0", key=LOW)
        await producer.post(b"1", key=LOW, deliver_after=timedelta(seconds=3), properties={"a": "1"})
        await producer.post(b"2", key=LOW, deliver_after=1.5)
        await producer.post(b"3", key=LOW, deliver_at=77)
        await producer.post(b"4", key=LOW, ordering_key=b"o", event_time=3)
        await producer.post(b"5", key=LOW)
    assert payloads(script) == [[b"%d" % n] for n in range(6)]
    found = [open_entry(entry)[0] for entry in script.entries]
    assert [m.HasField("num_messages_in_batch") for m in found] == [True, False, False, False, False, True]
    assert [m.deliver_at_time for m in found] == [0, 3001, 1501, 77, 0, 0]
    assert (found[1].properties[0].key, found[4].ordering_key, found[4].event_time) == ("a", b"o", 3)


@pytest.mark.parametrize("name", ["lz4", "zstd", "zlib", "snappy"])
async def test_batches_and_single_messages_are_compressed(
    script: ScriptedBroker, client: Client, name: str
) -> None:
    async with client.producer(TOPIC, compression=name) as producer:  # type: ignore[call-overload]
        for _ in range(3):
            await producer.post(b"x" * 1000, key=LOW)
        await producer.post(b"y" * 1000, deliver_at=1)
    assert payloads(script) == [[b"x" * 1000] * 3, [b"y" * 1000]]
    assert all(len(entry) < 400 for entry in script.entries)
    assert open_entry(script.entries[0])[0].compression == pb.CompressionType.Value(name.upper())


async def test_a_message_larger_than_the_broker_takes_fails_alone(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(BadArgument, match="chunking=True"):
            await producer.send(bytes(6 << 20), key=LOW)
        await producer.send(b"x", key=LOW)


async def test_a_message_that_no_reader_would_unpack_fails_alone(
    script: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small it is packed. The limit is lowered here, as a quarter of a gigabyte takes its time."""
    monkeypatch.setattr(entries, "UNPACKED_BYTES_MAX", 10_000)
    async with client.producer(TOPIC, compression="zstd") as producer:
        with pytest.raises(BadArgument, match=r"10001 bytes: readers unpack 10000 at most"):
            await producer.send(bytes(10_001), key=LOW, deliver_at=1)
        await producer.send(bytes(10_000), key=LOW, deliver_at=1)
    assert payloads(script) == [[bytes(10_000)]]


async def test_a_large_message_is_sent_in_chunks_and_stored_with_the_last(
    script: ScriptedBroker, client: Client
) -> None:
    data = bytes(range(256)) * (48 << 10)  # 12 MB
    script.receipts = False
    async with client.producer(TOPIC, chunking=True) as producer:
        receipt = await producer.post(data, key=LOW, properties={"a": "1"})
        await script.until(lambda: len(script.entries) == 3)
        found = [open_entry(entry) for entry in script.entries]
        for _ in range(3):
            assert not receipt.done()
            script.receipt(ROOT, 0)
            await script.until(lambda: True)
        await receipt
    assert b"".join(payload for _, payload in found) == data
    assert [(m.chunk_id, m.num_chunks_from_msg, m.total_chunk_msg_size) for m, _ in found] == [
        (n, 3, len(data)) for n in range(3)
    ]
    assert len({m.uuid for m, _ in found}) == 1
    assert {m.sequence_id for m, _ in found} == {0}


async def test_chunks_are_sent_again_from_the_first_one_under_another_name(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    async with client.producer(TOPIC, chunking=True) as producer:
        receipt = await producer.post(bytes(6 << 20), key=LOW)
        await script.until(lambda: len(script.entries) == 2)
        script.receipts = True
        for link in script.links:
            link.cut()
        await receipt
    found = [open_entry(entry)[0] for entry in script.entries]
    assert [m.chunk_id for m in found] == [0, 1, 0, 1]
    assert found[0].uuid == found[1].uuid != found[2].uuid == found[3].uuid


async def test_a_connection_that_breaks_between_two_chunks_is_no_error_of_the_message(
    script: ScriptedBroker, client: Client
) -> None:
    """The socket refuses the first chunk, and the producer has not been told of the loss when it writes the second."""
    async with client.producer(TOPIC, chunking=True) as producer:
        await producer.send(b"x", key=LOW)
        for link in list(script.links):
            await link.reset()
        receipt = await producer.post(bytes(12 << 20), key=LOW)
        await receipt
    assert [open_entry(entry)[0].chunk_id for entry in script.entries[-3:]] == [0, 1, 2]


async def test_a_message_of_which_a_sealed_segment_holds_some_chunks_goes_to_its_children_in_full(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC, chunking=True) as producer:
        await producer.send(b"x", key=LOW)
        script.receipts = False
        receipt = await producer.post(bytes(6 << 20), key=LOW)
        await script.until(lambda: len(script.entries) == 3)
        script.receipt(ROOT, 1)
        script.sealed.add(ROOT)
        script.last_sequence[ROOT] = 0
        script.layout = TWO
        script.receipts = True
        for link in script.links:
            link.cut()
        assert (await receipt).segment == 1
    assert script.sent[3:] == [(LEFT, 1), (LEFT, 1)]


async def test_a_message_without_a_receipt_in_time_fails_and_so_do_those_behind_it(
    script: ScriptedBroker, client: Client
) -> None:
    script.receipts = False
    # With a name it is attached when it is opened.
    async with client.producer(TOPIC, name="p", send_timeout_s=0.3) as producer:
        receipts = [await producer.post(b"x", key=LOW) for _ in range(3)]
        with pytest.raises(TimedOut, match="send_timeout_s"):
            await producer.flush()
        assert all(isinstance(receipt.exception(), TimedOut) for receipt in receipts)
        # A receipt that comes late is of nobody, and the producer goes on.
        script.receipt(ROOT, 0)
        script.receipts = True
        assert (await producer.send(b"y", key=LOW)).entry == 3


async def test_flush_tells_of_a_message_that_failed_once_and_not_of_what_send_has_raised(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(BadArgument):
            await producer.send(bytes(6 << 20))
        await producer.flush()
        await producer.post(bytes(6 << 20))
        with pytest.raises(BadArgument):
            await producer.flush()
        await producer.flush()


async def test_a_cancelled_send_leaves_the_others_as_they_are(script: ScriptedBroker, client: Client) -> None:
    script.receipts = False
    async with client.producer(TOPIC) as producer:
        sends = [asyncio.create_task(producer.send(b"%d" % n, key=LOW)) for n in range(3)]
        await script.until(lambda: script.entries)
        sends[1].cancel()
        script.receipts = True
        script.receipt(ROOT, 0)
        assert (await sends[0], await sends[2]) == (MessageId(0, 1, 0, 0), MessageId(0, 1, 0, 2))
        with pytest.raises(asyncio.CancelledError):
            await sends[1]
    assert payloads(script) == [[b"0", b"1", b"2"]]


async def test_arguments_that_cannot_be_meant_are_refused(script: ScriptedBroker, client: Client) -> None:
    with pytest.raises(BadArgument, match="lz4"):
        client.producer(TOPIC, compression="lzma")  # type: ignore[call-overload]
    with pytest.raises(BadArgument, match="fencing"):
        client.producer(TOPIC, access="alone")  # type: ignore[call-overload]
    with pytest.raises(BadArgument):
        Batching(messages_max=0)
    async with client.producer(TOPIC) as producer:
        with pytest.raises(BadArgument, match="schema"):
            await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="one of them"):
            await producer.send(b"", deliver_at=1, deliver_after=1)
        with pytest.raises(BadArgument, match="no time"):
            await producer.send(b"", event_time=-1)
        for delay in (None, 1.0):
            with pytest.raises(BadArgument, match="must be text"):
                await producer.send(b"", properties={"a": 1}, deliver_after=delay)  # type: ignore[dict-item]
            with pytest.raises(BadArgument, match="text or bytes"):
                await producer.send(b"", key=7, deliver_after=delay)  # type: ignore[arg-type]
    assert not script.entries


async def test_a_producer_that_must_be_alone_attaches_everywhere_at_once_and_says_who_is_in_its_way(
    script: ScriptedBroker, client: Client
) -> None:
    script.layout = TWO
    async with client.producer(TOPIC, access="exclusive"):
        assert script.producers.keys() == {LEFT, RIGHT}
    script.refusals[RIGHT] = [pb.ProducerFenced]
    with pytest.raises(RequestRefused, match="access='wait'"):
        await client.producer(TOPIC, access="exclusive")


async def test_a_producer_that_waits_for_the_topic_is_open_when_its_turn_comes(
    script: ScriptedBroker, client: Client
) -> None:
    script.success = {"producer_ready": False}
    opening = asyncio.create_task(_opened(client))
    await script.until(lambda: script.asked)
    assert not opening.done()
    script.admit()
    producer = await opening
    await producer.send(b"x", key=LOW)
    await producer.close()


async def _opened(client: Client) -> Producer:
    return await client.producer(TOPIC, access="wait")


async def test_a_wait_for_the_topic_can_be_cancelled_and_tells_the_broker(
    script: ScriptedBroker, client: Client
) -> None:
    script.success = {"producer_ready": False}
    opening = asyncio.create_task(_opened(client))
    await script.until(lambda: script.asked)
    opening.cancel()
    await asyncio.wait([opening])
    await script.until(lambda: script.closed)


async def test_a_producer_that_held_the_topic_says_so_when_it_comes_back(
    script: ScriptedBroker, client: Client
) -> None:
    script.success = {"topic_epoch": 7}
    async with client.producer(TOPIC, access="fencing") as producer:
        for link in script.links:
            link.cut()
        await producer.send(b"x")
    assert [one.HasField("topic_epoch") and one.topic_epoch for one in script.asked] == [False, 7]
    assert {one.producer_access_mode for one in script.asked} == {pb.ExclusiveWithFencing}


class Upside(Schema[str]):
    """A schema of text, turned round."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def info(self) -> pb.Schema:
        return pb.Schema(name="upside", type=pb.Schema.String, schema_data=b"")


class Marking(Encryption):
    """Encryption of a kind: a mark before each payload, and a key in the metadata."""

    def check_can_encrypt(self) -> None:
        pass

    def encrypt(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        metadata.encryption_keys.add(key="k", value=b"secret")
        if payload == b"broken":
            raise OSError("no such key")
        return b"!" + payload


async def test_values_are_encoded_by_the_schema_and_entries_carry_its_version(
    script: ScriptedBroker, client: Client
) -> None:
    script.success = {"schema_version": b"v3"}
    async with client.producer(TOPIC, schema=Upside(), properties={"who": "me"}) as producer:
        await producer.send("abc")
        await producer.send("def", deliver_at=1)
        await producer.send(None)
    assert payloads(script) == [[b"cba"], [b"fed"], [b""]]
    assert {open_entry(entry)[0].schema_version for entry in script.entries} == {b"v3"}
    assert script.asked[0].schema.name == "upside"
    assert [(item.key, item.value) for item in script.asked[0].metadata] == [("who", "me")]


async def test_entries_and_chunks_are_encrypted_and_a_failure_is_of_one_message(
    script: ScriptedBroker, client: Client
) -> None:
    encryption = Marking(public_keys={"k": "PEM"})
    async with client.producer(TOPIC, encryption=encryption, chunking=True) as producer:
        await producer.post(b"a")
        with pytest.raises(OSError, match="no such key"):
            await producer.send(b"broken", deliver_at=1)
        await producer.post(b"b", deliver_at=1)
        await producer.post(bytes(6 << 20))
    found = [open_entry(entry) for entry in script.entries]
    assert all(bytes(payload[:1]) == b"!" and m.encryption_keys[0].value == b"secret" for m, payload in found)
    assert [m.chunk_id for m, _ in found] == [0, 0, 0, 1]
    assert bytes(found[1][1]) == b"!b"
    assert script.asked[0].encrypted
