"""Keyed compaction as Pulsar's client sees it: compacted readers, consumers and table views."""

from __future__ import annotations

import pulsar
import pytest

from harness.broker_process import BrokerProcess, rest_path, until
from interop.receiving import WAIT_MS

pytestmark = pytest.mark.interop


def compact(broker: BrokerProcess, topic: str) -> None:
    place = f"{rest_path(topic)}/compaction"
    broker.put(place)
    until(lambda: broker.get(place)["status"] != "RUNNING", within_s=60)
    assert broker.get(place) == {"status": "SUCCESS", "lastError": ""}


def read_all(reader: pulsar.Reader) -> list[tuple[str, bytes]]:
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((message.partition_key(), message.data()))
    return found


def compacted(client: pulsar.Client, topic: str) -> pulsar.Reader:
    return client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)


def send_batch(producer: pulsar.Producer, *pairs: tuple[str, bytes]) -> None:
    """One entry."""
    for key, value in pairs:
        producer.send_async(value, None, partition_key=key)
    producer.flush()


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=lambda kind: kind.name,
)
def test_batches_keep_the_latest_of_each_key_at_the_ids_they_had(
    client: pulsar.Client, broker: BrokerProcess, topic: str, compression: pulsar.CompressionType
) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=10_000,
        compression_type=compression,
    )
    send_batch(producer, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1"))
    send_batch(producer, ("a", b"2"), ("c", b""), ("e", b"1"), ("b", b"2"), ("b", b""))
    everything = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [everything.read_next(WAIT_MS).message_id() for _ in range(9)]
    compact(broker, topic)
    # The last message of the last batch is gone, and the reader does not wait for it.
    reader = compacted(client, topic)
    assert read_all(reader) == [("d", b"1"), ("a", b"2"), ("e", b"1")]
    send_batch(producer, ("a", b"3"))
    assert read_all(reader) == [("a", b"3")]
    # Ids from before the compaction are good: one that is there, and one that is not.
    for start, rest in ((ids[3], [("a", b"2"), ("e", b"1")]), (ids[7], [])):
        again = client.create_reader(topic, start, is_read_compacted=True)
        assert read_all(again) == [*rest, ("a", b"3")]
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == [("d", b"1"), ("a", b"2"), ("e", b"1"), ("a", b"3")]
    reader.seek(ids[4])
    assert ("a", b"3") in read_all(reader)
    everything.seek(pulsar.MessageId.earliest)
    assert len(read_all(everything)) == 10


def test_a_compacted_consumer_goes_on_where_it_acknowledged(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(20):
        producer.send(b"%d" % n, partition_key=f"k{n % 5}")
    compact(broker, topic)

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            is_read_compacted=True,
        )

    consumer = subscribe()
    first = [consumer.receive(WAIT_MS) for _ in range(5)]
    assert [message.data() for message in first] == [b"%d" % n for n in range(15, 20)]
    for message in first[:3]:
        consumer.acknowledge(message)
    consumer.close()
    again = subscribe()
    assert [again.receive(WAIT_MS).data() for _ in range(2)] == [b"18", b"19"]
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "other", consumer_type=pulsar.ConsumerType.Shared, is_read_compacted=True)


def test_a_table_view_is_filled_from_what_compaction_has_left(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    producer = client.create_producer(topic)
    for n in range(30):
        producer.send(b"%d" % n, partition_key=f"k{n % 10}")
    producer.send(b"", partition_key="k3")
    compact(broker, topic)
    assert broker.get(f"{rest_path(topic)}/internalStats")["compactedLedger"]["entries"] == 9
    view = client.create_table_view(topic)
    assert len(view) == 9
    assert view.get("k9") == b"29"
    assert view.get("k3") is None
    producer.send(b"new", partition_key="k1")
    until(lambda: view.get("k1") == b"new")
