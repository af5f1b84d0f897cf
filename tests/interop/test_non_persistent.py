"""Non-persistent topics as Pulsar's client sees them."""

from __future__ import annotations

import re

import pulsar
import pytest

from harness.broker_process import BrokerProcess, until
from interop.receiving import WAIT_MS, assert_silent, numbered, payloads, send_all

pytestmark = pytest.mark.interop

KINDS = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
def test_consumers_of_every_type_get_what_is_published_while_they_are_there(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, is_batched: bool
) -> None:
    name = f"non-persistent://public/default/{topic}"
    producer = client.create_producer(name, batching_enabled=is_batched, batching_max_publish_delay_ms=10_000)
    send_all(producer, [b"too early"])
    consumer = client.subscribe(name, "s", consumer_type=kind)
    send_all(producer, numbered(20))
    got = [consumer.receive(WAIT_MS) for _ in range(20)]
    assert [message.data() for message in got] == numbered(20)
    for message in got:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert_silent(consumer)


def test_a_partitioned_topic_and_a_reader(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    broker.put(f"non-persistent/public/default/{topic}/partitions", 3)
    consumer = client.subscribe(name, "s")
    reader = client.create_reader(f"{name}-partition-1", pulsar.MessageId.latest)
    send_all(client.create_producer(name), numbered(30))
    assert sorted(payloads(consumer, 30)) == sorted(numbered(30))
    assert reader.read_next(WAIT_MS).data() in numbered(30)
    stats = broker.get(f"non-persistent/public/default/{topic}/partitioned-stats")
    assert stats["msgInCounter"] == 30
    assert stats["metadata"]["partitions"] == 3


def test_patterns_find_them_in_their_mode(client: pulsar.Client, broker: BrokerProcess) -> None:
    broker.put("namespaces/public/fleeting")
    producers = {
        domain: client.create_producer(f"{domain}://public/fleeting/a")
        for domain in ("persistent", "non-persistent")
    }
    for mode, expected in (
        (pulsar.RegexSubscriptionMode.PersistentOnly, [b"persistent"]),
        (pulsar.RegexSubscriptionMode.NonPersistentOnly, [b"non-persistent"]),
        (pulsar.RegexSubscriptionMode.AllTopics, [b"non-persistent", b"persistent"]),
    ):
        prefix = "non-persistent://" if mode is pulsar.RegexSubscriptionMode.NonPersistentOnly else ""
        consumer = client.subscribe(
            re.compile(f"{prefix}public/fleeting/.*"), f"s-{mode.name}", regex_subscription_mode=mode
        )
        for domain, producer in producers.items():
            producer.send(domain.encode())
        assert sorted(payloads(consumer, len(expected))) == expected
        assert_silent(consumer)
        consumer.close()


def test_clients_come_back_when_a_topic_is_unloaded(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    name = f"non-persistent://public/default/{topic}"
    place = f"non-persistent/public/default/{topic}"
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "s")
    broker.put(f"{place}/unload")
    until(lambda: place_has_consumer(broker, place))
    producer.send(b"after")
    assert payloads(consumer, 1) == [b"after"]


def place_has_consumer(broker: BrokerProcess, place: str) -> bool:
    names = broker.get("non-persistent/public/default")
    return f"non-persistent://public/default/{place.rpartition('/')[2]}" in names and bool(
        broker.get(f"{place}/stats")["subscriptions"].get("s", {}).get("consumers")
    )
