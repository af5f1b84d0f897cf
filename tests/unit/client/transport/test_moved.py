"""Topics that move: a broker that closes a producer or consumer names the one that serves the topic now."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.client import Client, ConnectionLost
from anabranch.client.security import Security
from anabranch.client.transport.pool import Connections
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from unit.client.scripted import ScriptedBroker

C = pb.BaseCommand
TOPIC = "persistent://public/default/t"


class Counting(ScriptedBroker):
    """Counts the lookups of classic topics."""

    def __init__(self, layout: SegmentLayout) -> None:
        super().__init__(layout)
        self.owner_lookups = 0
        self.owner = ""

    def _act(self, link: Any, frame: tuple[Any, ...]) -> None:
        if frame[0] == C.LOOKUP:
            self.owner_lookups += 1
            link.send(
                C.LOOKUP_RESPONSE,
                "lookupTopicResponse",
                request_id=frame[1].lookupTopic.request_id,
                response=1,
                brokerServiceUrl=self.owner or self.url,
            )
            return
        super()._act(link, frame)


@pytest.fixture
async def brokers() -> AsyncIterator[list[Counting]]:
    found, servers = [], []
    for _ in range(2):
        script = Counting(SegmentLayout.synthetic([TOPIC], 0))
        servers.append(await asyncio.start_server(script.serve, "127.0.0.1", 0))
        script.url = f"pulsar://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"
        found.append(script)
    yield found
    for server in servers:
        server.close()


@pytest.fixture
async def client(brokers: list[Counting]) -> AsyncIterator[Client]:
    async with Client(brokers[0].url, chance=random.Random(1), now_ms=lambda: 1) as client:
        yield client


def close_producer(script: Counting, **named: str) -> None:
    link, number = script.producers.pop(TOPIC)
    link.send(C.CLOSE_PRODUCER, "close_producer", producer_id=number, request_id=0, **named)


def close_consumer(script: Counting, **named: str) -> None:
    link, number = script.consumers.pop(TOPIC)
    link.send(C.CLOSE_CONSUMER, "close_consumer", consumer_id=number, request_id=0, **named)


async def test_a_producer_goes_where_its_topic_has_gone_without_a_lookup(
    brokers: list[Counting], client: Client
) -> None:
    first, second = brokers
    async with await client.producer(TOPIC, batching=False) as producer:
        await producer.send(b"one")
        lookups = first.owner_lookups
        first.receipts = False
        sending = asyncio.ensure_future(producer.send(b"two"))
        await first.until(lambda: len(first.sent) == 2)
        close_producer(first, assignedBrokerServiceUrl=second.url)
        await asyncio.wait_for(sending, 10)
        assert second.sent == [(TOPIC, 1)]
        assert (first.owner_lookups, second.owner_lookups) == (lookups, 0)


async def test_a_producer_looks_its_topic_up_if_the_named_broker_does_not_have_it(
    brokers: list[Counting], client: Client
) -> None:
    first, second = brokers
    second.refusals[TOPIC] = [pb.ServiceNotReady]
    async with await client.producer(TOPIC, batching=False) as producer:
        await producer.send(b"one")
        lookups = first.owner_lookups
        first.receipts = False
        sending = asyncio.ensure_future(producer.send(b"two"))
        await first.until(lambda: len(first.sent) == 2)
        first.receipts = True
        close_producer(first, assignedBrokerServiceUrl=second.url)
        await asyncio.wait_for(sending, 10)
        assert first.owner_lookups == lookups + 1
        assert not second.refusals[TOPIC]


async def test_a_producer_looks_its_topic_up_if_the_named_broker_cannot_be_reached(
    brokers: list[Counting], client: Client
) -> None:
    first, _ = brokers
    async with await client.producer(TOPIC, batching=False) as producer:
        await producer.send(b"one")
        lookups = first.owner_lookups
        first.receipts = False
        sending = asyncio.ensure_future(producer.send(b"two"))
        await first.until(lambda: len(first.sent) == 2)
        first.receipts = True
        close_producer(first, assignedBrokerServiceUrl="pulsar://127.0.0.1:1")
        await asyncio.wait_for(sending, 10)
        assert first.owner_lookups == lookups + 1


async def test_a_consumer_goes_where_its_topic_has_gone_without_a_lookup(
    brokers: list[Counting], client: Client
) -> None:
    first, second = brokers
    async with await client.queue_consumer(TOPIC, "s") as consumer:
        await first.until(lambda: first.consumers)
        first.deliver(TOPIC, 0, b"one")
        assert (await asyncio.wait_for(consumer.receive(), 10)).payload == b"one"
        lookups = first.owner_lookups
        close_consumer(first, assignedBrokerServiceUrl=second.url)
        await second.until(lambda: second.consumers)
        second.deliver(TOPIC, 1, b"two")
        assert (await asyncio.wait_for(consumer.receive(), 10)).payload == b"two"
        assert (first.owner_lookups, second.owner_lookups) == (lookups, 0)


async def test_a_consumer_looks_its_topic_up_if_the_named_broker_does_not_have_it(
    brokers: list[Counting], client: Client
) -> None:
    first, second = brokers
    async with await client.queue_consumer(TOPIC, "s") as consumer:
        await first.until(lambda: first.consumers)
        lookups = first.owner_lookups
        second.refusals[TOPIC] = [pb.ServiceNotReady]
        close_consumer(first, assignedBrokerServiceUrl=second.url)
        await first.until(lambda: first.consumers)
        first.deliver(TOPIC, 0, b"back")
        assert (await asyncio.wait_for(consumer.receive(), 10)).payload == b"back"
        assert first.owner_lookups > lookups


async def test_acknowledgements_follow_a_topic_that_moves(brokers: list[Counting], client: Client) -> None:
    first, second = brokers
    first.answers_acks = False
    async with await client.queue_consumer(TOPIC, "s") as consumer:
        await first.until(lambda: first.consumers)
        first.deliver(TOPIC, 0, b"one")
        await consumer.ack(await asyncio.wait_for(consumer.receive(), 10))
        flushing = asyncio.ensure_future(consumer.flush())
        await first.until(lambda: first.acks)
        close_consumer(first, assignedBrokerServiceUrl=second.url)
        assert await asyncio.wait_for(flushing, 10)
        assert [ack[1:3] for ack in second.acks] == [(1, 0)]


def test_a_client_with_tls_is_not_sent_to_an_address_without() -> None:
    plain, tls = "pulsar://two:6650", "pulsar+ssl://two:6651"
    ours = {scheme: Connections(f"{scheme}://one:1", Security()) for scheme in ("pulsar", "pulsar+ssl")}
    both = pb.CommandCloseProducer(
        producer_id=1, request_id=1, assignedBrokerServiceUrl=plain, assignedBrokerServiceUrlTls=tls
    )
    assert ours["pulsar"].assigned(both) == plain
    assert ours["pulsar+ssl"].assigned(both) == tls
    only = pb.CommandCloseConsumer(consumer_id=1, request_id=1, assignedBrokerServiceUrl=plain)
    assert ours["pulsar+ssl"].assigned(only) == ""
    wrong = pb.CommandCloseConsumer(consumer_id=1, request_id=1, assignedBrokerServiceUrlTls=plain)
    assert ours["pulsar+ssl"].assigned(wrong) == ""
    none = pb.CommandCloseConsumer(consumer_id=1, request_id=1)
    assert ours["pulsar"].assigned(none) == ours["pulsar+ssl"].assigned(none) == ""


async def test_a_client_with_tls_connects_with_tls_only() -> None:
    connections = Connections("pulsar+ssl://one:6651", Security())
    with pytest.raises(ConnectionLost, match="TLS"):
        await connections.to("pulsar://two:6650")
    await connections.close()
