"""Links of whole brokers follow their registrations."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.methods import HELLO, Nothing
from unit.broker.peers.lab import ECHO, Asked, Told
from unit.broker.scalable.cluster import running


@pytest.mark.parametrize("caller", [0, 1], ids=["seen to register", "registered before"])
async def test_calls_to_a_broker_whose_registration_is_gone_end(caller: int) -> None:
    """As that of a process that is stopped, and keeps its connections."""
    async with running(2) as cluster:
        near, far = cluster.nodes[caller].broker, cluster.nodes[1 - caller].broker
        began = asyncio.Event()

        async def silent(peer: str, asked: Asked) -> Told:
            began.set()
            await asyncio.Event().wait()
            return Told()

        far.peers.handlers.add(ECHO, silent)
        waiting = asyncio.create_task(near.peers.call(far.service_url, ECHO, Asked(), answer_max_s=3600))
        await began.wait()
        await far.registry.close()
        with pytest.raises(PeerUnavailable):
            await waiting
        await far.registry.start()
        assert (await near.peers.call(far.service_url, HELLO, Nothing())).version
