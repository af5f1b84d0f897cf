"""Connections that wait for the disk are read on before their clients give up, but never without a bound."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import BrokerLab, Peer

C = pb.BaseCommand
LIMIT = 1 << 20


class HangingLog(MemoryLogStore):
    """Plays a disk that does not take what it is given."""

    waiting = 0

    @property
    def unconfirmed_bytes(self) -> int:
        return self.waiting


async def is_answered(peer: Peer, within_s: float = 30.0) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await peer.settle()
    except TimeoutError:
        return False
    return True


async def test_a_connection_is_read_on_where_the_disk_is_slow_and_not_where_it_hangs(
    lab: BrokerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.connection.connections.PAUSE_MAX_S", 0.02)
    disk = lab.log = HangingLog(incarnation=Incarnation("hanging"))
    broker = await lab.broker(max_pending_publish_bytes=LIMIT)
    peers = [await lab.peer(broker) for _ in range(3)]
    disk.waiting = LIMIT * 3 // 2
    for _ in range(3):
        for peer in peers:
            # Each read makes it wait, and then its turn comes again.
            assert await is_answered(peer)
    assert broker.paused_connections > 0
    disk.waiting = 2 * LIMIT
    for peer in peers:
        # One that was not waiting yet has one more read.
        await is_answered(peer, within_s=0.5)
    for peer in peers:
        assert not await is_answered(peer, within_s=0.5)
    assert broker.paused_connections == 3
    disk.waiting = 0
    broker.connections.progressed()
    assert broker.paused_connections == 0
    for peer in peers:
        assert await is_answered(peer)


async def test_connections_that_wait_for_the_disk_are_read_on_in_turn_as_far_as_there_is_room(
    lab: BrokerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.connection.connections.PAUSE_MAX_S", 0.02)
    disk = lab.log = HangingLog(incarnation=Incarnation("hanging"))
    broker = await lab.broker(max_pending_publish_bytes=LIMIT)
    peers = [await lab.peer(broker) for _ in range(8)]
    # Room for one read of one of them at a time.
    disk.waiting = 2 * LIMIT - 1
    for _ in range(3):
        for peer in reversed(peers):
            assert await is_answered(peer)
    disk.waiting = 0
    broker.connections.progressed()
