"""How many connections there may be, and what one too many is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.errors import NotAllowedError
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import C, guarded, token


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
