"""Our client's producer on a topic whose segments have entry buckets, with deduplication on: nothing is lost, stored
twice or out of order."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pyarrow as pa
import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.client import Batching, Client
from unit.broker.scalable.cluster import Cluster, running

TOPIC = "topic://public/default/orders"
REST = "scalable/public/default/orders"
KEYS = [f"key-{n}" for n in range(23)]
COUNT = 600
SMALL = Batching(messages_max=5)


def settings(budget: int) -> BrokerConfig:
    return BrokerConfig(
        broker_deduplication_enabled=True,
        scalable_topic_entry_bucket_budget=budget,
        scalable_topic_entry_buckets_per_segment_max=budget,
    )


async def create(cluster: Cluster) -> None:
    answer = await cluster.first.rest("PUT", f"{REST}?numInitialSegments=1")
    assert answer.is_success, answer.text


async def read(client: Client) -> dict[str, list[int]]:
    """What a new subscription gets from the beginning, by key."""
    found: dict[str, list[int]] = defaultdict(list)
    async with client.stream_consumer(TOPIC, "reader", start="earliest") as stream:
        for _ in range(COUNT):
            message = await stream.receive(20)
            found[str(message.key)].append(int(message.payload))
            await stream.ack_cumulative(message)
    return found


def expected() -> dict[str, list[int]]:
    return {key: [n for n in range(COUNT) if KEYS[n % len(KEYS)] == key] for key in KEYS}


@pytest.mark.parametrize("budget", [1, 2, 4, 7])
async def test_messages_and_tables_through_splits_are_stored_once_and_in_order(budget: int) -> None:
    async with running(config=settings(budget), is_shared=True) as cluster:
        await create(cluster)
        async with Client(cluster.first.broker.service_url) as client:
            producer = await client.producer(TOPIC, name="p", batching=SMALL)
            for start in range(0, COUNT, 200):
                splitting = asyncio.create_task(cluster.first.rest("POST", f"{REST}/split/{start // 200}"))
                for n in range(start, start + 100):
                    await producer.post(b"%d" % n, key=KEYS[n % len(KEYS)])
                rows = range(start + 100, start + 200)
                table = pa.table(
                    {"key": [KEYS[n % len(KEYS)] for n in rows], "value": [f"{n}" for n in rows]}
                )
                await producer.post_batch(table, key="key")
                assert (await splitting).is_success
            await producer.close()
            assert await read(client) == expected()


@pytest.mark.parametrize("budget", [1, 4, 7])
async def test_a_producer_that_dies_and_sends_all_again_stores_each_message_once(budget: int) -> None:
    async with running(config=settings(budget), is_shared=True) as cluster:
        await create(cluster)
        url = cluster.first.broker.service_url
        async with Client(url) as client:
            first = await client.producer(TOPIC, name="p", batching=SMALL)
            posted = [await first.post(b"%d" % n, key=KEYS[n % len(KEYS)]) for n in range(400)]
            # Some buckets have stored more than others, and nothing is known of the rest.
            await posted[150]
            first.crash()
        assert (await cluster.first.rest("POST", f"{REST}/split/0")).is_success
        async with Client(url) as client:
            async with client.producer(TOPIC, name="p", batching=SMALL) as again:
                for n in range(COUNT):
                    await again.post(b"%d" % n, key=KEYS[n % len(KEYS)], sequence_id=n)
            assert await read(client) == expected()
