"""Who owns a topic, and how brokers find each other."""

from __future__ import annotations

import json

from anabranch.broker.catalog.owners import BrokerAddress, BrokerRegistry, SoleOwner, broker_path
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName

ME = BrokerAddress("pulsar://me:6650", "http://me:8080")
OTHER = BrokerAddress("pulsar://other:6650", "http://other:8080", "pulsar+ssl://other:6651")


def test_a_broker_alone_owns_everything() -> None:
    owners = SoleOwner(ME)
    topic = TopicName.parse("segment://public/default/t/0000-ffff-0")
    assert owners.is_mine(topic)
    assert owners.owner(topic) == ME


async def test_brokers_find_each_others_addresses_by_one_of_them() -> None:
    store = MemoryMetadata(lambda: 1)
    mine, others = await store.connect(), await store.connect()
    me, other = BrokerRegistry(mine, ME, 5), BrokerRegistry(others, OTHER, 6)
    await me.start()
    await other.start()
    assert await me.find(OTHER.service_url) == OTHER
    assert await me.web_url(OTHER.service_url) == OTHER.http_url
    assert await me.web_url(ME.service_url) == ME.http_url
    assert await other.web_url("pulsar://nobody:6650") == ""
    found = await mine.get("/loadbalance/brokers/other:6650")
    assert found is not None
    assert found.is_ephemeral
    assert json.loads(found.value)["startTimestamp"] == 6
    await other.close()
    assert await me.find(OTHER.service_url) is None
    await me.close()


async def test_a_broker_registers_again_over_an_earlier_run_and_after_its_session_was_lost() -> None:
    store = MemoryMetadata(lambda: 1)
    earlier, mine = await store.connect(), await store.connect()
    await earlier.create(broker_path(ME.service_url), b"{}", ephemeral=True)
    registry = BrokerRegistry(mine, ME, 5)
    await registry.start()
    await earlier.close()
    found = await mine.get(broker_path(ME.service_url))
    assert found is not None
    assert found.owner == mine.session.id
    watch = mine.watch(broker_path(ME.service_url))
    await mine.expire_session()
    await mine.reconnect()
    async for _ in watch:
        found = await mine.get(broker_path(ME.service_url))
        if found is not None and found.owner == mine.session.id:
            break
    await registry.close()
    assert await mine.get(broker_path(ME.service_url)) is None
