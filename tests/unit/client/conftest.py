"""A scripted broker of a scalable topic with one segment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from anabranch.client import Client
from anabranch.model.layout import SegmentLayout
from unit.client.scripted import ScriptedBroker


@pytest.fixture
async def script() -> AsyncIterator[ScriptedBroker]:
    script = ScriptedBroker(SegmentLayout.initial(1, 0))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield script
    server.close()


@pytest.fixture
async def client(script: ScriptedBroker) -> AsyncIterator[Client]:
    async with Client(script.url, chance=random.Random(1), now_ms=lambda: 1) as client:
        yield client
