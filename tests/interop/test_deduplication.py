"""Deduplication with Pulsar's own client, batched every way it can: all is stored, once, through kills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from crc32c import crc32c
from pulsar import BatchingType, CompressionType

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_message, encode_send
from harness.broker_process import BrokerProcess, until
from harness.peer import C, Peer
from interop.conftest import Connect
from interop.receiving import WAIT_MS, assert_silent, payloads

pytestmark = pytest.mark.interop

KEYS = 7
BATCHINGS = {
    "none": {"batching_enabled": False},
    "default": {"batching_enabled": True, "batching_type": BatchingType.Default},
    "by key": {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
    "by key, packed": {
        "batching_enabled": True,
        "batching_type": BatchingType.KeyBased,
        "compression_type": CompressionType.LZ4,
    },
}


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test's own, which deduplicates."""
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": True}) as process:
        yield process


def keep(client: pulsar.Client, topic: str) -> None:
    """Somebody has yet to read it all, so that nothing is given up however long the test takes."""
    client.subscribe(topic, "keeper").close()


def stored_entries(broker: BrokerProcess, topic: str) -> int:
    found: int = broker.get(f"persistent/public/default/{topic}/internalStats")["numberOfEntries"]
    return found


@pytest.mark.parametrize("batching", BATCHINGS.values(), ids=BATCHINGS)
def test_all_that_is_sent_is_stored_once_through_kills(
    mortal: BrokerProcess, connect: Connect, topic: str, batching: dict[str, Any]
) -> None:
    client = connect(mortal)
    keep(client, topic)
    producer = client.create_producer(
        topic,
        producer_name="sender",
        block_if_queue_full=True,
        send_timeout_millis=0,
        batching_max_publish_delay_ms=5,
        batching_max_messages=100,
        **batching,
    )
    count = 4000
    receipted: list[int] = []
    failed: list[object] = []

    def send() -> None:
        for n in range(count):

            def answered(result: object, _: object, n: int = n) -> None:
                receipted.append(n) if result == pulsar.Result.Ok else failed.append(result)

            producer.send_async(b"%d" % n, answered, partition_key=f"k{n % KEYS}")
        producer.flush()

    sending = threading.Thread(target=send)
    sending.start()
    for enough in (count // 4, count // 2):
        until(partial(lambda enough: len(receipted) >= enough or failed, enough), within_s=60)
        mortal.restart()
    sending.join(90)
    assert not sending.is_alive()
    assert failed == []
    assert sorted(receipted) == list(range(count))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = [int(reader.read_next(WAIT_MS).data()) for _ in range(count)]
    assert not reader.has_message_available()
    assert sorted(read) == list(range(count))
    for key in range(KEYS):
        assert [n for n in read if n % KEYS == key] == list(range(key, count, KEYS))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_the_next_life_of_a_producer_is_told_the_last_id_that_is_stored(
    mortal: BrokerProcess, connect: Connect, topic: str, compression: Any
) -> None:
    # The wheel names only the first id of a batch: told that one, it would send the rest of the batch again.
    def live(first: int, end: int) -> int:
        client = connect(mortal)
        producer = client.create_producer(
            topic,
            producer_name="sender",
            batching_enabled=True,
            batching_max_publish_delay_ms=1000,
            compression_type=compression,
        )
        told: int = producer.last_sequence_id()
        for n in range(first, end):
            producer.send_async(b"%d" % n, None, sequence_id=n)
        producer.flush()
        client.shutdown()
        return told

    keep(connect(mortal), topic)
    assert live(0, 40) == -1
    mortal.restart()
    assert live(40, 55) == 39
    assert live(55, 56) == 54
    assert live(56, 60) == 55
    reader = connect(mortal).create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(60)] == [b"%d" % n for n in range(60)]
    assert not reader.has_message_available()


def test_one_id_for_each_batch_is_no_duplicate(mortal: BrokerProcess, topic: str) -> None:
    # As the Go client counts: the next batch has the next id, however many messages were in the one before.
    with Peer(mortal.port_for(topic)) as peer:
        peer.connect()
        peer.produce_to(topic, producer_name="peer", user_provided_producer_name=True)
        for n in range(5):
            metadata = pb.MessageMetadata(producer_name="peer", sequence_id=n, publish_time=1)
            batch = build_batch(metadata, [(pb.SingleMessageMetadata(payload_size=0), b"x")] * 10)
            peer.send_bytes(encode_send(batch, producer_id=1, sequence_id=n, num_messages=10))
        for n in range(5):
            receipt = peer.receive_kind(C.SEND_RECEIPT)[0].send_receipt
            assert (receipt.sequence_id, receipt.message_id.entryId) == (n, n)


def test_ids_and_counts_that_nobody_sends_are_refused_and_poison_nothing(
    mortal: BrokerProcess, connect: Connect, topic: str
) -> None:
    keep(connect(mortal), topic)
    with Peer(mortal.port_for(topic)) as peer:
        peer.connect()
        peer.produce_to(topic, producer_name="peer", user_provided_producer_name=True)
        largest = 2**64 - 1
        for sequence_id, highest in ((largest, 0), (2**63, 0), (1, largest), (largest - 1, largest)):
            metadata = pb.MessageMetadata(producer_name="peer", sequence_id=sequence_id, publish_time=1)
            sent = encode_send(
                build_message(metadata, b"x"),
                producer_id=1,
                sequence_id=sequence_id,
                highest_sequence_id=highest,
                num_messages=2,
            )
            peer.send_bytes(sent)
            error = peer.receive_kind(C.SEND_ERROR)[0].send_error
            assert (error.sequence_id, error.error) == (sequence_id, pb.NotAllowedError)
        for count in (0, -1, 2_000_000_000):
            peer.send_message(b"x", sequence_id=1, num_messages_in_batch=count)
            assert peer.receive_kind(C.SEND_ERROR)[0].send_error.error == pb.NotAllowedError
        for said in (0, -1, 2_000_000_000):
            metadata = pb.MessageMetadata(producer_name="peer", sequence_id=said & 7, publish_time=1)
            sent = encode_send(
                build_message(metadata, b"%d" % said),
                producer_id=1,
                sequence_id=2**40 + said,
                num_messages=said,
            )
            peer.send_bytes(sent)
        # Which of those are new does not matter here: each has its answer, and nothing is out of step.
        for _ in range(3):
            peer.receive_kind(C.SEND_RECEIPT)
    mortal.restart()
    client = connect(mortal)
    producer = client.create_producer(topic, producer_name="peer")
    assert producer.last_sequence_id() < 2**63 - 1
    producer.send(b"after")
    mortal.stop()
    mortal.start()
    producer.send(b"and after")
    consumer = connect(mortal).subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert payloads(consumer, stored_entries(mortal, topic))[-2:] == [b"after", b"and after"]


def test_a_message_that_claims_many_costs_its_consumers_one_permit(
    mortal: BrokerProcess, connect: Connect, topic: str
) -> None:
    consumer = connect(mortal).subscribe(topic, "s", receiver_queue_size=5)
    with Peer(mortal.port_for(topic)) as peer:
        peer.connect()
        peer.produce_to(topic, producer_name="peer", user_provided_producer_name=True)
        for n in range(50):
            metadata = pb.MessageMetadata(producer_name="peer", sequence_id=n, publish_time=1)
            sent = encode_send(
                build_message(metadata, b"%d" % n),
                producer_id=1,
                sequence_id=n,
                num_messages=2_000_000_000 if n == 3 else 1,
            )
            peer.send_bytes(sent)
        # A connection that is closed before its answers are read is reset, and takes with it what was not read here.
        for _ in range(50):
            peer.receive_kind(C.SEND_RECEIPT)
    assert payloads(consumer, 50) == [b"%d" % n for n in range(50)]
    assert_silent(consumer)


def test_an_epoch_that_was_never_given_is_not_believed(mortal: BrokerProcess, topic: str) -> None:
    epochs = []
    for claimed in (2**64 - 1, 2**63, 5, None):
        with Peer(mortal.port_for(topic)) as peer:
            peer.connect()
            values = {} if claimed is None else {"topic_epoch": claimed}
            answer = peer.produce_to(topic, producer_access_mode=pb.Exclusive, **values)
            epochs.append(answer.producer_success.topic_epoch)
            peer.ask(C.CLOSE_PRODUCER, "close_producer", producer_id=1)
    assert epochs == [0, 1, 2, 3]
    mortal.restart()
    with Peer(mortal.port_for(topic)) as peer:
        peer.connect()
        answer = peer.produce_to(topic, producer_access_mode=pb.Exclusive, topic_epoch=3)
        assert answer.producer_success.topic_epoch == 3


def garbage(sequence_id: int) -> bytes:
    head = b"\xff" * 20
    body = len(head).to_bytes(4, "big") + head + b"payload"
    entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    return encode_send(entry, producer_id=1, sequence_id=sequence_id, num_messages=1)


def test_a_topic_with_an_entry_that_nobody_can_read_is_opened_after_a_crash(
    tmp_path: Path, connect: Connect, topic: str
) -> None:
    with BrokerProcess(tmp_path) as broker:
        keep(connect(broker), topic)
        with Peer(broker.port_for(topic)) as peer:
            peer.connect()
            peer.produce_to(topic, producer_name="peer", user_provided_producer_name=True)
            peer.send_message(b"0", sequence_id=0)
            peer.send_bytes(garbage(1))
            peer.send_message(b"2", sequence_id=2)
            for _ in range(3):
                peer.receive_kind(C.SEND_RECEIPT)
        broker.kill()
        broker.settings["brokerDeduplicationEnabled"] = True
        broker.start()
        producer = connect(broker).create_producer(topic, producer_name="peer")
        assert producer.last_sequence_id() == 2
        producer.send(b"3")
        with Peer(broker.port_for(topic)) as peer:
            # Where it decides what is stored, it is not taken.
            peer.connect()
            peer.produce_to(topic, producer_name="other", user_provided_producer_name=True)
            peer.send_bytes(garbage(1))
            assert peer.receive_kind(C.SEND_ERROR)[0].send_error.error == pb.NotAllowedError
        consumer = connect(broker).subscribe(topic, "s")
        consumer.seek(1)
        assert payloads(consumer, 1) == [b"0"]
