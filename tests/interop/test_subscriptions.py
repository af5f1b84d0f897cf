"""Subscriptions of Pulsar's client: types, acknowledgements, redelivery, limits, delays, seeks."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from harness.broker_process import BrokerProcess, until
from harness.peer import C, Peer
from interop.conftest import Connect
from interop.receiving import (
    WAIT_MS,
    assert_silent,
    drain,
    numbered,
    payloads,
    receive,
    send_all,
)

pytestmark = pytest.mark.interop

EARLIEST = InitialPosition.Earliest


# -- types


def test_an_exclusive_subscription_has_one_consumer(
    broker: BrokerProcess, client: pulsar.Client, connect: Connect, topic: str
) -> None:
    first = client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        connect(broker).subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        connect(broker).subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    first.close()
    connect(broker).subscribe(topic, "s", consumer_type=ConsumerType.Shared)


def test_a_failover_subscription_moves_to_the_next_consumer_without_a_gap(
    client: pulsar.Client, topic: str
) -> None:
    first = client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="a")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    assert payloads(first, 5) == numbered(5)
    second = client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="b")
    first.close()
    got = payloads(second, 5)
    assert got == numbered(5, start=5)
    assert_silent(second)


def test_failover_consumers_share_the_partitions_of_a_topic(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    broker.put(f"persistent/public/default/{topic}/partitions", 4)
    consumers = [
        client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name=name) for name in "ab"
    ]
    producer = client.create_producer(topic)
    for n in range(40):
        producer.send(b"m%d" % n)
    got = [drain(consumer, quiet_ms=1000) for consumer in consumers]
    for messages in got:
        assert len({m.message_id().partition() for m in messages}) == 2
    assert sorted(m.data() for messages in got for m in messages) == sorted(numbered(40))


def test_a_shared_subscription_spreads_messages_over_its_consumers(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, receiver_queue_size=5)
        for _ in range(3)
    ]
    producer = client.create_producer(topic)
    for content in numbered(30):
        producer.send(content)
    got: list[bytes] = []
    shares = [0, 0, 0]
    while len(got) < 30:
        for n, consumer in enumerate(consumers):
            for message in drain(consumer, quiet_ms=20):
                consumer.acknowledge(message)
                got.append(message.data())
                shares[n] += 1
    assert sorted(got) == sorted(numbered(30))
    assert min(shares) >= 5


def test_a_leaving_shared_consumers_messages_go_to_the_others(client: pulsar.Client, topic: str) -> None:
    leaving = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer(topic)
    send_all(producer, numbered(20))
    receive(leaving, 20, acknowledge=False)
    staying = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    leaving.close()
    assert sorted(payloads(staying, 20)) == sorted(numbered(20))


def test_key_shared_keeps_each_key_with_one_consumer_and_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    for n in range(300):
        producer.send_async(b"%d" % n, None, partition_key=f"k{n % 30}")
    producer.flush()
    owners: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for n, consumer in enumerate(consumers):
        for message in drain(consumer):
            consumer.acknowledge(message)
            owners.setdefault(message.partition_key(), set()).add(n)
            order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert len(order) == 30
    assert all(len(owned) == 1 for owned in owners.values())
    assert len({next(iter(owned)) for owned in owners.values()}) == 3
    for key, numbers in order.items():
        assert numbers == list(range(int(key[1:]), 300, 30))


def test_a_key_waits_for_its_old_consumer_when_a_new_one_joins(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        producer.send(b"old", partition_key=key)
    pending = receive(first, 20, acknowledge=False)
    second = client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared)
    for key in keys:
        producer.send(b"new", partition_key=key)
    # Nothing of a moved key may reach the second consumer while the first still holds an older message of it.
    assert_silent(second)
    for message in pending:
        first.acknowledge(message)
    moved = {message.partition_key() for message in drain(second)}
    kept = {message.partition_key() for message in drain(first)}
    assert moved
    assert moved | kept == set(keys)
    assert not moved & kept


def test_a_key_does_not_wait_where_order_is_not_wanted(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared, key_shared_policy=policy)

    first = subscribe()
    producer = client.create_producer(topic)
    for n in range(20):
        producer.send(b"old", partition_key=f"k{n}")
    receive(first, 20, acknowledge=False)
    second = subscribe()
    for n in range(20):
        producer.send(b"new", partition_key=f"k{n}")
    assert second.receive(WAIT_MS).data() == b"new"


def test_sticky_key_ranges_are_kept_and_may_not_overlap(client: pulsar.Client, topic: str) -> None:
    def policy(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
        )

    def subscribe(*ranges: tuple[int, int]) -> pulsar.Consumer:
        return client.subscribe(
            topic, "s", consumer_type=ConsumerType.KeyShared, key_shared_policy=policy(*ranges)
        )

    low, high = subscribe((0, 32_767)), subscribe((32_768, 65_535))
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe((100, 200))
    producer = client.create_producer(topic)
    for n in range(50):
        producer.send(b"m", partition_key=f"k{n}")
    keys_low = {m.partition_key() for m in drain(low)}
    keys_high = {m.partition_key() for m in drain(high)}
    assert len(keys_low) + len(keys_high) == 50
    assert not keys_low & keys_high


# -- acknowledgements


def test_a_cumulative_ack_covers_everything_before_it(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic, batching_enabled=True), numbered(20))
    messages = receive(consumer, 20, acknowledge=False)
    consumer.acknowledge_cumulative(messages[11])
    consumer.close()
    # The batch of message 11 is acknowledged as a whole or not at all without batch-index acks.
    rest = [m.data() for m in drain(client.subscribe(topic, "s"))]
    assert rest == numbered(20)[20 - len(rest) :]
    assert len(rest) >= 8


def test_a_cumulative_ack_by_index_stops_inside_its_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_all(producer, numbered(10))
    send_all(producer, numbered(10, start=10))
    consumer.acknowledge_cumulative(receive(consumer, 20, acknowledge=False)[13])
    consumer.close()
    again = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert payloads(again, 6) == numbered(6, start=14)
    assert_silent(again)


def test_single_acks_leave_exactly_the_others(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    send_all(client.create_producer(topic), numbered(20))
    for n, message in enumerate(receive(consumer, 20, acknowledge=False)):
        if n % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    assert sorted(m.data() for m in drain(again)) == sorted(b"m%d" % n for n in range(0, 20, 3))


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_batch_can_be_acknowledged_by_index(client: pulsar.Client, topic: str, kind: Any) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)

    consumer = subscribe()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_all(producer, numbered(10))
    for n, message in enumerate(receive(consumer, 10, acknowledge=False)):
        if n not in (2, 5, 9):
            consumer.acknowledge(message)
    consumer.close()
    again = subscribe()
    assert payloads(again, 3) == [b"m2", b"m5", b"m9"]
    assert_silent(again)


def test_backlog_and_unacked_counts_show_in_the_stats(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10, acknowledge=False)

    def figures() -> tuple[int, int]:
        shown = broker.stats(topic)["subscriptions"]["s"]
        return shown["msgBacklog"], shown["unackedMessages"]

    until(lambda: figures() == (10, 10))
    for message in messages[:4]:
        consumer.acknowledge(message)
    until(lambda: figures() == (6, 6))


# -- redelivery


def test_negative_acks_redeliver_with_a_growing_count(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
    )
    client.create_producer(topic).send(b"again")
    for count in range(4):
        message = consumer.receive(WAIT_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    assert_silent(consumer)


def test_a_negative_ack_in_a_batch_does_not_bring_back_acknowledged_messages(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_all(producer, numbered(5))
    messages = receive(consumer, 5, acknowledge=False)
    for n in (0, 1, 3, 4):
        consumer.acknowledge(messages[n])
    consumer.negative_acknowledge(messages[2])
    again = consumer.receive(WAIT_MS)
    assert again.data() == b"m2"
    consumer.acknowledge(again)
    assert_silent(consumer)


def test_redeliver_all_on_an_exclusive_subscription_starts_over_in_order(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10, acknowledge=False)
    consumer.acknowledge_cumulative(messages[3])
    consumer.redeliver_unacknowledged_messages()
    assert payloads(consumer, 6) == numbered(6, start=4)


def test_a_message_refused_too_often_goes_to_the_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "init")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=policy,
    )
    send_all(client.create_producer(topic), [b"bad", b"good"])
    seen: list[bytes] = []
    for _ in range(4):
        message = consumer.receive(WAIT_MS)
        seen.append(message.data())
        if message.data() == b"good":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    assert sorted(seen) == [b"bad", b"bad", b"bad", b"good"]
    # The subscription named by the policy was made with the topic, so nothing is missed.
    dead = client.subscribe(f"{topic}-dead", "init", consumer_type=ConsumerType.Shared)
    assert payloads(dead, 1) == [b"bad"]


def test_unacknowledged_messages_come_back_after_the_clients_timeout(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    client.create_producer(topic).send(b"m")
    consumer.receive(WAIT_MS)
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(WAIT_MS).redelivery_count() == 1


# -- limits


def test_dispatch_stops_at_the_unacked_limit_and_goes_on_after_acks(tmp_path: Path, connect: Connect) -> None:
    settings = {"maxUnackedMessagesPerConsumer": 10, "maxUnackedMessagesPerSubscription": 15}
    with BrokerProcess(tmp_path, settings) as limited:
        client = connect(limited)
        one = client.subscribe("t", "s", consumer_type=ConsumerType.Shared)
        send_all(client.create_producer("t"), numbered(40))
        held = receive(one, 10, acknowledge=False)
        assert_silent(one)
        two = client.subscribe("t", "s", consumer_type=ConsumerType.Shared)
        assert len(drain(two)) == 5
        for message in held:
            one.acknowledge(message)
        assert len(receive(one, 5, acknowledge=False)) == 5


# -- delays


def test_a_delayed_message_comes_in_its_time_and_after_undelayed_ones(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    eager = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic)
    started = time.monotonic()
    producer.send(b"late", deliver_after=timedelta(milliseconds=800))
    producer.send(b"soon", deliver_at=int(time.time() * 1000) + 400)
    producer.send(b"now")
    assert payloads(consumer, 3) == [b"now", b"soon", b"late"]
    assert time.monotonic() - started > 0.7
    # Only shared types delay: order would be lost elsewhere.
    assert payloads(eager, 3) == [b"late", b"soon", b"now"]


# -- positions


def test_a_subscription_starts_where_asked_and_stays_where_it_was(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, numbered(3))
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=EARLIEST)
    send_all(producer, numbered(2, start=3))
    assert payloads(latest, 2) == numbered(2, start=3)
    assert payloads(earliest, 5) == numbered(5)
    earliest.close()
    assert_silent(client.subscribe(topic, "earliest", initial_position=EARLIEST))


def test_seek_by_id_and_by_time(client: pulsar.Client, topic: str) -> None:
    # Nothing is acknowledged: acknowledgements this client still holds back would follow the seek and win.
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for content in numbered(5):
        producer.send(content)
    last = receive(consumer, 5, acknowledge=False)[-1].publish_timestamp()
    until(lambda: time.time_ns() // 1_000_000 > last + 1, every_s=0.001)
    between = last + 1
    for content in numbered(5, start=5):
        producer.send(content)
    receive(consumer, 5, acknowledge=False)

    consumer.seek(pulsar.MessageId.earliest)
    messages = receive(consumer, 10, acknowledge=False)
    assert [message.data() for message in messages] == numbered(10)
    # A seek to an id continues behind it.
    consumer.seek(messages[1].message_id())
    assert payloads(consumer, 8, acknowledge=False) == numbered(8, start=2)
    consumer.seek(between)
    assert payloads(consumer, 5) == numbered(5, start=5)
    consumer.seek(pulsar.MessageId.latest)
    assert_silent(consumer)


def test_an_unsubscribed_subscription_is_gone(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"old")
    consumer.unsubscribe()
    assert "s" not in broker.stats(topic)["subscriptions"]
    again = client.subscribe(topic, "s")
    producer.send(b"new")
    assert payloads(again, 1) == [b"new"]


def test_a_shared_subscription_with_other_consumers_is_not_unsubscribed(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    one = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        one.unsubscribe()
    assert "s" in broker.stats(topic)["subscriptions"]


def test_a_consumer_without_a_queue_gets_one_message_at_a_time(client: pulsar.Client, topic: str) -> None:
    hoarder = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, receiver_queue_size=0)
    other = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    send_all(client.create_producer(topic), numbered(10))
    assert len(drain(other)) == 10
    hoarder.close()


def test_priority_goes_first_among_shared_consumers(broker: BrokerProcess, topic: str) -> None:
    with Peer(broker.port_for(topic)) as peer:
        peer.connect()
        for consumer_id, priority in ((1, 0), (2, 1)):
            answer = peer.subscribe_to(
                topic, "s", consumer_id, subType=1, priority_level=priority, consumer_name=f"c{consumer_id}"
            )
            assert answer.type == C.SUCCESS
            peer.flow(5, consumer_id)
        peer.produce_to(topic)
        for n in range(8):
            peer.send_message(b"m%d" % n, sequence_id=n)
        takers = [peer.receive_kind(C.MESSAGE)[0].message.consumer_id for _ in range(8)]
    assert takers == [1] * 5 + [2] * 3
