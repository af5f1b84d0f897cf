"""How brokers register, and find each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import (
    BadRegistration,
    BrokerRegistration,
    BrokerRegistry,
    broker_path,
    writers_in,
)
from anabranch.broker.config.listeners import Addresses
from anabranch.metadata.memory import MemoryMetadata

ME = BrokerRegistration(
    BrokerAddress("pulsar://me:6650", "http://me:8080"), run_id="run-1", incarnation="log-1"
)
OTHER = BrokerRegistration(
    BrokerAddress(
        "pulsar://other:6650",
        "http://other:8080",
        "pulsar+ssl://other:6651",
        "https://other:8443",
        {"outside": Addresses("pulsar://river:7650", http_url_tls="https://river:9443")},
    ),
    run_id="run-2",
    incarnation="log-2",
    version="Anabranch 1",
    started_ms=6,
)


async def until(registry: BrokerRegistry, claim: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    stop = registry.on_change(changed.set)
    async with asyncio.timeout(10):
        while not claim():
            changed.clear()
            await changed.wait()
    stop()


async def test_brokers_find_each_others_addresses_by_one_of_them() -> None:
    store = MemoryMetadata(lambda: 1)
    mine, others = await store.connect(), await store.connect()
    me, other = BrokerRegistry(mine, ME), BrokerRegistry(others, OTHER)
    await me.start()
    assert dict(me.living()) == {"me:6650": ME}
    await other.start()
    assert await me.find("pulsar://other:6650") == OTHER.address
    assert await me.web_url("pulsar://other:6650") == "http://other:8080"
    assert await me.web_url("pulsar://me:6650") == "http://me:8080"
    assert await other.web_url("pulsar://nobody:6650") == ""
    found = await mine.get("/loadbalance/brokers/other:6650")
    assert found is not None
    assert found.is_ephemeral
    assert json.loads(found.value)["startTimestamp"] == 6
    await until(me, lambda: dict(me.living()) == {"me:6650": ME, "other:6650": OTHER})
    assert me.by_incarnation("log-2") == OTHER
    assert me.by_incarnation("log-3") is None
    for name in ("other:6650", "other:8080", "other:8443"):
        assert me.named(name) == OTHER
    assert me.named("") is me.named("other") is None
    await other.close()
    await until(me, lambda: dict(me.living()) == {"me:6650": ME})
    assert await me.find("pulsar://other:6650") is None
    await me.close()


def test_a_registration_has_pulsars_names_and_reads_back_whole() -> None:
    value = json.loads(OTHER.encode())
    assert value["advertisedListeners"]["outside"] == {
        "brokerServiceUrl": "pulsar://river:7650",
        "brokerServiceUrlTls": "",
        "brokerHttpUrl": "",
        "brokerHttpsUrl": "https://river:9443",
    }
    assert value["webServiceUrlTls"] == "https://other:8443"
    assert BrokerRegistration.decode(OTHER.encode()) == OTHER


def test_a_registration_of_an_older_release_is_understood_and_a_senseless_one_is_not() -> None:
    old = b'{"pulsarServiceUrl":"pulsar://a:1","webServiceUrl":"http://a:2","pulsarServiceUrlTls":null}'
    assert BrokerRegistration.decode(old).address == BrokerAddress("pulsar://a:1", "http://a:2")
    for wrong in (b"", b"[]", b"{}", b'{"pulsarServiceUrl":"pulsar://a:1"}', b"\xff"):
        with pytest.raises(BadRegistration):
            BrokerRegistration.decode(wrong)


async def test_a_registration_that_cannot_be_read_hides_no_other() -> None:
    store = MemoryMetadata(lambda: 1)
    mine, others = await store.connect(), await store.connect()
    await others.create("/loadbalance/brokers/bad:1", b"[]", ephemeral=True)
    await others.create("/loadbalance/brokers/false:1", OTHER.encode(), ephemeral=True)
    me, other = BrokerRegistry(mine, ME), BrokerRegistry(others, OTHER)
    await me.start()
    await other.start()
    await until(me, lambda: list(me.living()) == ["me:6650", "other:6650"])
    await other.close()
    await me.close()


async def test_a_broker_registers_again_over_an_earlier_run_and_after_its_session_was_lost() -> None:
    store = MemoryMetadata(lambda: 1)
    earlier, mine = await store.connect(), await store.connect()
    path = broker_path(ME.address.service_url)
    await earlier.create(path, b"{}", ephemeral=True)
    registry = BrokerRegistry(mine, ME)
    await registry.start()
    await earlier.close()
    found = await mine.get(path)
    assert found is not None
    assert found.owner == mine.session.id
    assert registry.is_registered
    await mine.expire_session()
    await mine.reconnect()
    watch = mine.watch(path)
    async for _ in watch:
        found = await mine.get(path)
        if found is not None and found.owner == mine.session.id:
            break
    await until(registry, lambda: registry.is_registered)
    await registry.close()
    assert await mine.get(path) is None


async def test_a_broker_that_is_about_to_end_says_so_and_stays_registered_until_it_has_ended() -> None:
    store = MemoryMetadata(lambda: 1)
    mine, others = await store.connect(), await store.connect()
    me, other = BrokerRegistry(mine, ME), BrokerRegistry(others, OTHER)
    await me.start()
    await other.start()
    await other.drain()
    await until(me, lambda: "other:6650" in me.living() and me.living()["other:6650"].is_draining)
    assert me.by_incarnation("log-2") is not None
    found = await mine.get("/loadbalance/brokers/other:6650")
    assert found is not None
    assert found.is_ephemeral
    await other.close()
    await until(me, lambda: "other:6650" not in me.living())
    await me.close()


async def test_draining_without_a_session_leaves_no_registration_behind() -> None:
    store = MemoryMetadata(lambda: 1)
    mine, watcher = await store.connect(), await store.connect()
    me = BrokerRegistry(mine, ME)
    await me.start()
    await watcher.delete("/loadbalance/brokers/me:6650")
    await me.drain()
    assert await watcher.get("/loadbalance/brokers/me:6650") is None
    await me.close()


async def test_writers_are_those_that_are_registered_and_unknown_while_one_does_not_tell() -> None:
    shared = MemoryMetadata(lambda: 0)
    mine, theirs = await shared.connect(), await shared.connect()
    writers = writers_in(mine)
    assert await writers() == frozenset()
    await mine.create(broker_path("pulsar://me:6650"), ME.encode(), ephemeral=True)
    await theirs.create(broker_path("pulsar://other:6650"), OTHER.encode(), ephemeral=True)
    assert await writers() == {"log-1", "log-2"}
    await theirs.expire_session()
    assert await writers() == {"log-1"}
    older = replace(OTHER, incarnation="")
    await mine.create(broker_path("pulsar://other:6650"), older.encode(), ephemeral=True)
    assert await writers() is None, "it writes some log"
    mine.disconnect()
    assert await writers() is None
