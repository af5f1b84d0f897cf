"""Brokers whose metadata are behind: what they do not find, they read afresh before they say that it is not there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.catalog.hashed_owners import HashedOwners
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import NAMESPACES
from anabranch.broker.peers.directory import RegisteredPeers
from anabranch.broker.policy.namespace import NamespacePolicies, encode_policies
from anabranch.model.names import NamespaceName
from anabranch.simulation.machine.loop import SimLoop
from simulation.behind import stores

LAG_S = 0.4
SALES = NamespaceName("acme", "sales")


def registration(name: str) -> BrokerRegistration:
    return BrokerRegistration(BrokerAddress(f"pulsar://{name}:6650", f"http://{name}:8080"), f"run of {name}")


async def a_broker_that_calls() -> None:
    writer, reader = await stores(LAG_S)
    other = BrokerRegistry(writer, registration("other"))
    await other.start()
    found = await RegisteredPeers(reader).find("other:6650")
    assert found is not None
    assert found.identity.run == "run of other"
    await other.close()
    assert await RegisteredPeers(reader).find("other:6650") is None


async def a_broker_that_is_looked_for() -> None:
    writer, reader = await stores(LAG_S)
    me, other = BrokerRegistry(reader, registration("me")), BrokerRegistry(writer, registration("other"))
    await me.start()
    await other.start()
    assert "other:6650" not in me.living()
    assert await me.find("pulsar://other:6650") == other.me.address


async def a_namespace() -> None:
    writer, reader = await stores(LAG_S)
    registry = BrokerRegistry(reader, registration("me"))
    await registry.start()
    owners = HashedOwners(reader, registry)
    await owners.start()
    await writer.put(f"{NAMESPACES}/{SALES}", encode_policies(NamespacePolicies()))
    assert owners.owner(SALES.topic("t")) is None
    assert (await owners.resolve(SALES.topic("t"))).id == "me:6650"
    assert owners.is_mine(SALES.topic("t"))


@pytest.mark.parametrize("scenario", [a_broker_that_calls, a_broker_that_is_looked_for, a_namespace])
def test_what_was_stored_a_moment_ago_is_found(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    loop.run_until_complete(scenario())
    loop.close()
