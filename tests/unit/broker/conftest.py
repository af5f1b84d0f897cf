"""Rigs and brokers that are closed behind the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from unit.broker.rig import Rig
from unit.broker.scalable.brokers import BrokerLab, Peer, broker_lab


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


@pytest.fixture
async def lab() -> AsyncIterator[BrokerLab]:
    async with broker_lab() as made:
        yield made


@pytest.fixture
async def broker(lab: BrokerLab) -> Broker:
    return await lab.broker()


@pytest.fixture
async def peer(lab: BrokerLab, broker: Broker) -> Peer:
    """Over a socket."""
    return await lab.peer(broker)
