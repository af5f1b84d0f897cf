"""How many connections there may be, and what one too many is told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.connection import connections
from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.peers.handshake import METHOD
from anabranch.broker.peers.methods import HELLO, Nothing
from anabranch.client import ClientConnection
from anabranch.client.errors import RequestRefused
from anabranch.model.names import TopicName
from anabranch.model.position import LedgerId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from harness.guarded import C, guarded, token
from unit.broker.scalable.cluster import Cluster, running


def test_both_limits_count_for_themselves_and_what_is_closed_counts_no_more() -> None:
    limits = ConnectionLimits(3, 2)
    limits.opened("a")
    limits.opened("a")
    with pytest.raises(NotAllowedError, match="brokerMaxConnectionsPerIp"):
        limits.opened("a")
    limits.closed("a")
    limits.opened("b")
    with pytest.raises(NotAllowedError, match="brokerMaxConnections\\)"):
        limits.opened("b")
    limits.closed("b")
    limits.closed("a")
    limits.opened("c")


def test_without_limits_and_without_an_address_nothing_is_refused() -> None:
    for limits, host in ((ConnectionLimits(), "a"), (ConnectionLimits(0, 1), "")):
        for _ in range(100):
            limits.opened(host)


@pytest.mark.parametrize("limit", ["broker_max_connections", "broker_max_connections_per_ip"])
async def test_one_connection_too_many_is_told_why_and_closed(limit: str) -> None:
    settings: dict[str, Any] = {limit: 2}
    async with guarded(**settings) as made:
        async with made.as_role("root"), made.as_role("root"):
            wire = await made.open()
            refusal = await wire.receive()
            assert refusal is not None
            assert refusal.error.error == pb.NotAllowedError
            assert "maximum of 2 connections" in refusal.error.message
            assert await wire.receive() is None
            await wire.close()
        async with asyncio.timeout(10):
            while len(made.broker.sessions) > 1:  # noqa: ASYNC110  # Connections that are closing.
                await asyncio.sleep(0.01)
        async with made.wire(token("root")) as (_, answer):
            assert answer is not None
            assert answer.type == C.CONNECTED


# -- links of other brokers

BOTH = BrokerConfig(broker_max_connections=2, broker_max_connections_per_ip=2)
NAME = TopicName.parse("persistent://public/default/t")


async def fill(cluster: Cluster, number: int = 0) -> None:
    """As many connections of clients as the broker may have."""
    for _ in range(2):
        cluster.connections.append(await ClientConnection.open(cluster.nodes[number].broker.service_url))


async def refuses_clients(cluster: Cluster, number: int = 0) -> None:
    with pytest.raises(RequestRefused, match="maximum of 2 connections"):
        await ClientConnection.open(cluster.nodes[number].broker.service_url)


async def test_a_broker_that_is_full_of_clients_is_linked_with_and_hands_over() -> None:
    async with running(2, BOTH) as cluster:
        former, new = cluster.nodes
        topic = await former.broker.topic(NAME, create=True)
        cluster.connections.append(await ClientConnection.open(former.broker.service_url))
        await former.publish(NAME, b"one")
        await refuses_clients(cluster)
        cluster.move(NAME, 1)
        assert await new.read(NAME, "s", 1) == [b"one"]
        # It was released over the link, and not fenced.
        former.broker.log.look_for_fences()
        assert list(await former.broker.log.release([LedgerId(topic.log.ledger)])) == [topic.log.ledger]
        assert new.broker.peers.is_linked(former.broker.service_url)
        await refuses_clients(cluster)


async def test_links_take_no_place_of_a_client() -> None:
    async with running(2, BOTH) as cluster:
        first, second = (node.broker for node in cluster.nodes)
        await second.peers.call(first.service_url, HELLO, Nothing())
        await fill(cluster)
        await refuses_clients(cluster)
        await second.peers.close()
        async with asyncio.timeout(10):
            while len(first.sessions) > 2:  # noqa: ASYNC110  # Connections that are closing.
                await asyncio.sleep(0.01)
        # A link that has ended leaves no place, either.
        await refuses_clients(cluster)


async def test_a_connection_that_only_says_it_is_a_broker_has_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "UNPROVEN_MAX_S", 0.01)
    monkeypatch.setattr(connections, "UNPROVEN_MAX", 3)
    async with running(2, BOTH) as cluster:
        await fill(cluster)
        broker = cluster.first.broker
        host, port = broker.service_url.removeprefix("pulsar://").split(":")
        pretenders = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        for _, writer in pretenders[:2]:
            connect = pb.CommandConnect(client_version="x", protocol_version=21, auth_method_name=METHOD)
            writer.write(encode_command(C(type=C.CONNECT, connect=connect)))
        for reader, writer in pretenders:
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(10):
                    await reader.read()  # Until the broker has closed the connection.
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        async with asyncio.timeout(10):
            while len(broker.sessions) > 2:  # noqa: ASYNC110  # Connections that are closing.
                await asyncio.sleep(0.01)
        await refuses_clients(cluster)
