"""Readers and table views of Pulsar's client: start positions, availability, seeks."""

from __future__ import annotations

import time

import pulsar
import pytest

from harness.broker_process import BrokerProcess, rest_path, until
from interop.receiving import WAIT_MS, numbered, send_all

pytestmark = pytest.mark.interop


def read_all(reader: pulsar.Reader) -> list[bytes]:
    contents = []
    while reader.has_message_available():
        contents.append(reader.read_next(WAIT_MS).data())
    return contents


def test_a_reader_from_the_start_and_from_the_end(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    assert read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == numbered(10)
    tail = client.create_reader(topic, pulsar.MessageId.latest)
    assert not tail.has_message_available()
    producer.send(b"more")
    until(tail.has_message_available)
    assert tail.read_next(WAIT_MS).data() == b"more"


def test_a_reader_at_the_last_message_inclusive(client: pulsar.Client, topic: str) -> None:
    send_all(client.create_producer(topic), numbered(10))
    reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert read_all(reader) == [b"m9"]


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("is_inclusive", [False, True])
def test_a_reader_from_an_id(client: pulsar.Client, topic: str, is_batched: bool, is_inclusive: bool) -> None:
    producer = client.create_producer(
        topic, batching_enabled=is_batched, batching_max_publish_delay_ms=10_000
    )
    send_all(producer, numbered(10))
    first = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [first.read_next(WAIT_MS).message_id() for _ in range(10)]
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=is_inclusive)
    start = 4 if is_inclusive else 5
    assert read_all(reader) == numbered(10 - start, start=start)
    stored = pulsar.MessageId.deserialize(ids[4].serialize())
    again = client.create_reader(topic, stored, start_message_id_inclusive=is_inclusive)
    assert read_all(again) == numbered(10 - start, start=start)


def test_a_reader_seeks_by_id_and_time(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    sent = [producer.send(content) for content in numbered(10)]
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    reader.seek(sent[2])
    assert read_all(reader) == numbered(7, start=3)
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == numbered(10)
    reader.seek(int(time.time() * 1000) + 60_000)
    assert not reader.has_message_available()
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()


def test_a_reader_holds_nothing_back_and_leaves_nothing_behind(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    send_all(client.create_producer(topic), numbered(5))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read_all(reader) == numbered(5)
    reader.close()
    until(lambda: broker.stats(topic)["subscriptions"] == {})


def test_a_reader_on_an_empty_topic_waits_for_the_first_message(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    client.create_producer(topic).send(b"first")
    assert reader.read_next(WAIT_MS).data() == b"first"


def test_a_reader_reads_every_partition(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    broker.put(f"{rest_path(topic)}/partitions", 3)
    producer = client.create_producer(topic)
    for content in numbered(12):
        producer.send(content)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert sorted(read_all(reader)) == sorted(numbered(12))


def test_a_reader_reads_chunked_messages(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True)
    large = bytes(6 * 1024 * 1024)
    producer.send(large)
    producer.send(b"small")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [len(content) for content in read_all(reader)] == [len(large), 5]


def test_a_table_view_shows_the_latest_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for n in range(10):
        producer.send(b"%d" % n, partition_key=f"k{n % 3}")
    view = client.create_table_view(topic)
    assert len(view) == 3
    assert [view.get(f"k{n}") for n in range(3)] == [b"9", b"7", b"8"]
    producer.send(b"new", partition_key="k1")
    until(lambda: view.get("k1") == b"new")


def test_the_last_message_id_is_that_of_the_last_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    assert consumer.get_last_message_id().entry_id() == -1
    sent = [producer.send(content) for content in numbered(3)]
    assert consumer.get_last_message_id() == sent[-1]
