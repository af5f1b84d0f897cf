from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from unit.broker.peers.lab import PeerLab, peer_lab


@pytest.fixture
async def peers() -> AsyncIterator[PeerLab]:
    async with peer_lab() as made:
        yield made
