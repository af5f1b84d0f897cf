"""Producers of Pulsar's client: access modes, names, batches, chunks, compression, encryption."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import InitialPosition, ProducerAccessMode

from harness.broker_process import BrokerProcess, rest_path, until
from interop.conftest import Connect
from interop.receiving import WAIT_MS, assert_silent, numbered, payloads, receive, send_all

pytestmark = pytest.mark.interop

EARLIEST = InitialPosition.Earliest


# -- access modes


def test_an_exclusive_producer_keeps_others_out(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.send(b"still mine")
    first.close()
    client.create_producer(topic).send(b"free again")


def test_an_exclusive_producer_does_not_come_beside_shared_ones(client: pulsar.Client, topic: str) -> None:
    shared = client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    shared.close()
    client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive).send(b"alone")


def test_a_waiting_producer_starts_when_the_topic_is_free(
    broker: BrokerProcess, client: pulsar.Client, connect: Connect, topic: str
) -> None:
    first = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    made: list[pulsar.Producer] = []
    waiting = threading.Thread(
        target=lambda: made.append(
            connect(broker).create_producer(topic, access_mode=ProducerAccessMode.WaitForExclusive)
        )
    )
    waiting.start()
    first.send(b"first")
    assert waiting.is_alive()
    first.close()
    waiting.join(10)
    assert not waiting.is_alive()
    made[0].send(b"second")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]


def test_a_fencing_producer_takes_the_topic_from_any_other(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    first.send(b"before")
    second = client.create_producer(topic, access_mode=ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        first.send(b"never")
    second.send(b"after")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"before", b"after"]
    assert not reader.has_message_available()


# -- names


def test_a_name_belongs_to_one_producer_at_a_time(
    broker: BrokerProcess, client: pulsar.Client, connect: Connect, topic: str
) -> None:
    first = client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        connect(broker).create_producer(topic, producer_name="p")
    first.close()
    assert connect(broker).create_producer(topic, producer_name="p").producer_name() == "p"


def test_producers_without_a_name_get_different_ones(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("standalone-") for name in names)


# -- deduplication


def test_repeated_sequence_ids_are_stored_once(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.put("namespaces/public/dedup")
    broker.post("namespaces/public/dedup/deduplication", True)
    topic = "persistent://public/dedup/t"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p")
    assert producer.last_sequence_id() == -1
    for sequence_id in (10, 11, 11, 10, 12):
        producer.send(b"m%d" % sequence_id, sequence_id=sequence_id)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 12
    again.send(b"m12", sequence_id=12)
    again.send(b"m13", sequence_id=13)
    assert payloads(consumer, 4) == numbered(4, start=10)
    assert_silent(consumer)


def test_a_repeated_batch_is_stored_once(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.put("namespaces/public/dedup-batches")
    broker.post("namespaces/public/dedup-batches/deduplication", True)
    topic = "persistent://public/dedup-batches/t"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for _ in range(2):
        for n in range(5):
            # From 10 on: this client takes 0 for "not given".
            producer.send_async(b"m%d" % n, None, sequence_id=10 + n)
        producer.flush()
    assert payloads(consumer, 5) == numbered(5)
    assert_silent(consumer)


# -- what messages carry


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=lambda kind: kind.name,
)
def test_compressed_batches_arrive_as_sent(client: pulsar.Client, topic: str, compression: Any) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, compression_type=compression)
    sent = [b"%d " % n * 100 for n in range(50)]
    send_all(producer, sent)
    assert payloads(consumer, 50) == sent


def test_everything_a_message_carries_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, properties={"of": "producer"})
    sent_at = producer.send(
        b"x", properties={"a": "1", "é": "ü"}, partition_key="k", ordering_key="o", event_timestamp=7
    )
    message = consumer.receive(WAIT_MS)
    assert message.message_id() == sent_at
    assert message.properties() == {"a": "1", "é": "ü"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 7)
    assert message.topic_name() == f"persistent://public/default/{topic}"
    assert message.producer_name() == producer.producer_name()
    assert message.redelivery_count() == 0


def test_a_batch_keeps_its_order_and_its_ids(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000
    )
    send_all(producer, numbered(25))
    got = receive(consumer, 25)
    assert [message.data() for message in got] == numbered(25)
    places = [(m.message_id().entry_id(), m.message_id().batch_index()) for m in got]
    assert places == [(n // 10, n % 10) for n in range(25)]


@pytest.mark.parametrize("kind", [pulsar.BatchingType.KeyBased, pulsar.BatchingType.Default])
def test_keyed_batches_arrive_in_order_per_key(client: pulsar.Client, topic: str, kind: Any) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(topic, batching_enabled=True, batching_type=kind)
    for n in range(60):
        producer.send_async(b"%d" % n, None, partition_key=f"k{n % 3}")
    producer.flush()
    got = receive(consumer, 60)
    for key in range(3):
        numbers = [int(m.data()) for m in got if m.partition_key() == f"k{key}"]
        assert numbers == list(range(key, 60, 3))


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_a_message_larger_than_a_frame_arrives_from_its_chunks(
    client: pulsar.Client, topic: str, kind: Any
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, chunking_enabled=True)
    large = b"".join(b"%08d" % n for n in range(1_500_000))
    sent_at = producer.send(large)
    producer.send(b"small")
    message = consumer.receive(WAIT_MS)
    assert message.data() == large
    assert message.message_id() == sent_at
    consumer.acknowledge(message)
    assert payloads(consumer, 1) == [b"small"]
    consumer.close()
    assert_silent(client.subscribe(topic, "s", consumer_type=kind))


def test_a_message_over_the_limit_is_refused_by_the_client_that_was_told_it(
    client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * 1024 * 1024 + 1))
    producer.send(bytes(4 * 1024 * 1024))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its keys with openssl")
def test_encrypted_messages_pass_through(client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    for command in (f"genrsa -out {private} 2048", f"rsa -in {private} -pubout -out {public}"):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    blind = client.subscribe(topic, "blind", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    producer = client.create_producer(
        topic, encryption_key="k", crypto_key_reader=keys, batching_enabled=True
    )
    send_all(producer, numbered(10))
    assert payloads(consumer, 10) == numbered(10)
    context = blind.receive(WAIT_MS).encryption_context()
    assert context is not None
    assert context.is_decryption_failed()


# -- partitioned topics


def test_a_partitioned_topic_spreads_messages_and_keeps_keys_together(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    broker.put(f"{rest_path(topic)}/partitions", 4)
    assert len(client.get_topic_partitions(topic)) == 4
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for n in range(40):
        producer.send(b"%d" % n, partition_key=f"k{n % 8}")
    partitions: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for message in receive(consumer, 40):
        partitions.setdefault(message.partition_key(), set()).add(message.message_id().partition())
        order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(len(used) == 1 for used in partitions.values())
    assert len({partition for used in partitions.values() for partition in used}) > 1
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_a_partitioned_topic_that_grows_keeps_its_producers_and_consumers(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    broker.put(f"{rest_path(topic)}/partitions", 2)
    producer = client.create_producer(topic)
    producer.send(b"before")
    broker.post(f"{rest_path(topic)}/partitions", 4)
    until(lambda: len(client.get_topic_partitions(topic)) == 4)
    producer.send(b"after")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert sorted(payloads(consumer, 2)) == [b"after", b"before"]
