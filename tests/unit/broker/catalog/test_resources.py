"""Tenants, namespaces, policies and partitioned topics on the memory store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from anabranch.broker.catalog.resources import (
    NAMES_PER_TURN,
    NAMESPACES,
    Conflict,
    NamespaceNotFound,
    NotFound,
    Refused,
    ResourceError,
    Resources,
    topic_record_path,
)
from anabranch.broker.policy.namespace import (
    AuthPolicies,
    Bundles,
    ClusterRecord,
    NamespacePolicies,
    Retention,
    Tenant,
)
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.model.names import PUBLIC_DEFAULT, InvalidName, NamespaceName, TopicName

SALES = NamespaceName("acme", "sales")
ORDERS = SALES.topic("orders")


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    handle = await MemoryMetadata(lambda: 1).connect()
    yield handle
    await handle.close()


@pytest.fixture
async def resources(store: MemoryStore) -> AsyncIterator[Resources]:
    resources = Resources(store)
    await resources.start()
    await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
    await resources.create_tenant("acme")
    await resources.create_namespace(SALES)
    yield resources
    await resources.close()


async def eventually(resources: Resources, minutes: int) -> None:
    """Waits, turn by turn of the loop, until the cache has heard of a change made elsewhere."""
    for _ in range(100):
        policies = await resources.policies(SALES)
        if policies.retention_policies and policies.retention_policies.minutes == minutes:
            return
        await asyncio.sleep(0)
    pytest.fail("the cache never saw the change")


def keep(minutes: int) -> Retention:
    return Retention(minutes=minutes, megabytes=-1)


async def retain(resources: Resources, minutes: int) -> None:
    await resources.update_policies(
        SALES, lambda p: msgspec.structs.replace(p, retention_policies=keep(minutes))
    )


async def test_a_first_start_makes_the_names_that_clients_take_for_granted(store: MemoryStore) -> None:
    resources = Resources(store)
    await resources.bootstrap(ClusterRecord())
    assert await resources.clusters() == ["standalone"]
    assert await resources.tenants() == ["public", "pulsar"]
    assert await resources.namespaces("public") == [PUBLIC_DEFAULT]
    assert (await resources.policies(PUBLIC_DEFAULT)).replication_clusters == ("standalone",)


async def test_a_later_start_brings_nothing_back_and_tells_the_new_address(resources: Resources) -> None:
    await resources.delete_namespace(PUBLIC_DEFAULT)
    await resources.bootstrap(ClusterRecord(service_url="http://localhost:9090"))
    assert await resources.namespaces("public") == []
    assert (await resources.cluster_data("standalone")).service_url == "http://localhost:9090"


async def test_defaults_that_yield_are_made_once_more_by_whoever_is_first_unless_changed(
    store: MemoryStore,
) -> None:
    address = ClusterRecord(service_url="http://localhost:8080")
    resources = Resources(store, defaults_yield=True)
    await resources.bootstrap(address)
    guests = NamespacePolicies(auth_policies=AuthPolicies(namespace_auth={"guest": ["produce"]}))
    await resources.put_cluster("standalone", ClusterRecord(service_url="http://river:80"), create=True)
    await resources.create_tenant("public", Tenant(admin_roles=("guest",)))
    await resources.create_namespace(PUBLIC_DEFAULT, guests)
    assert (await resources.cluster_data("standalone")).service_url == "http://river:80"
    assert (await resources.tenant("public")).admin_roles == ("guest",)
    assert (await resources.policies(PUBLIC_DEFAULT)).auth_policies == guests.auth_policies
    later = Resources(store, defaults_yield=True)
    await later.bootstrap(address)
    for made in (resources, later):
        for again in (made.create_tenant("public"), made.create_namespace(PUBLIC_DEFAULT)):
            with pytest.raises(Conflict):
                await again


async def test_a_default_that_has_yielded_at_one_broker_does_not_yield_at_another() -> None:
    """Also if whoever was first has created it as it was."""
    metadata = MemoryMetadata(lambda: 1)
    one, other = [Resources(await metadata.connect(), defaults_yield=True) for _ in range(2)]
    for resources in (one, other):
        await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
    await one.create_tenant("public")
    await one.create_namespace(PUBLIC_DEFAULT)
    with pytest.raises(Conflict):
        await other.create_tenant("public", Tenant(admin_roles=("guest",)))
    with pytest.raises(Conflict):
        await other.create_namespace(PUBLIC_DEFAULT)
    assert (await one.tenant("public")).admin_roles == ()
    await one.delete_namespace(PUBLIC_DEFAULT)
    await one.create_namespace(PUBLIC_DEFAULT, NamespacePolicies(message_ttl_in_seconds=7))
    with pytest.raises(Conflict):
        await other.create_namespace(PUBLIC_DEFAULT)
    # What has not yielded yet may be created through either.
    await other.put_cluster("standalone", ClusterRecord(service_url="http://river:80"), create=True)
    with pytest.raises(Conflict):
        await one.put_cluster("standalone", ClusterRecord(), create=True)


async def test_defaults_do_not_yield_unless_asked_to(resources: Resources) -> None:
    for again in (resources.create_tenant("public"), resources.create_namespace(PUBLIC_DEFAULT)):
        with pytest.raises(Conflict):
            await again


async def test_tenants_are_made_once_changed_and_deleted_when_empty(resources: Resources) -> None:
    with pytest.raises(Conflict):
        await resources.create_tenant("acme")
    await resources.update_tenant("acme", Tenant(admin_roles=("boss",)))
    assert (await resources.tenant("acme")).admin_roles == ("boss",)
    with pytest.raises(Refused, match="mars"):
        await resources.update_tenant("acme", Tenant(allowed_clusters=("mars",)))
    with pytest.raises(Conflict, match="acme/sales"):
        await resources.delete_tenant("acme")
    await resources.delete_namespace(SALES)
    await resources.delete_tenant("acme")
    for attempt in (resources.tenant("acme"), resources.delete_tenant("acme"), resources.namespaces("acme")):
        with pytest.raises(NotFound):
            await attempt
    with pytest.raises(NotFound):
        await resources.update_tenant("acme", Tenant())


async def test_names_that_could_leave_their_folder_are_refused(resources: Resources) -> None:
    for name in ("..", "a/b", "", "a b"):
        with pytest.raises(InvalidName):
            await resources.create_tenant(name)
        with pytest.raises(InvalidName):
            await resources.cluster_data(name)


async def test_a_namespace_needs_its_tenant_and_is_made_once(resources: Resources) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await resources.create_namespace(NamespaceName("nobody", "ns"))
    with pytest.raises(Conflict):
        await resources.create_namespace(SALES)
    with pytest.raises(NamespaceNotFound):
        await resources.policies(NamespaceName("acme", "void"))


async def test_policies_changed_by_another_broker_are_seen(resources: Resources, store: MemoryStore) -> None:
    assert (await resources.policies(SALES)).retention_policies is None
    other = Resources(store)
    await retain(other, 7)
    await eventually(resources, 7)


async def test_listeners_hear_each_change_once_and_the_end(resources: Resources) -> None:
    heard: list[NamespacePolicies | None] = []
    stop = resources.on_policies_change(lambda _, policies: heard.append(policies))
    await resources.policies(SALES)
    for minutes in (1, 1, 2):
        await retain(resources, minutes)
    await eventually(resources, 2)
    await resources.delete_namespace(SALES)
    assert [p and p.retention_policies for p in heard] == [keep(1), keep(2), None]
    stop()


async def test_concurrent_changes_are_all_kept(resources: Resources) -> None:
    def add(key: str) -> asyncio.Task[NamespacePolicies]:
        return asyncio.create_task(
            resources.update_policies(
                SALES, lambda p: msgspec.structs.replace(p, properties={**p.properties, key: "1"})
            )
        )

    await asyncio.gather(*(add(f"k{i}") for i in range(10)))
    assert len((await resources.policies(SALES)).properties) == 10


async def test_fields_of_a_newer_release_survive_a_change(resources: Resources, store: MemoryStore) -> None:
    path = f"{NAMESPACES}/{SALES}"
    found = await store.get(path)
    assert found
    await store.put(path, json.dumps(json.loads(found.value) | {"from_the_future": [1]}).encode())
    await resources.update_policies(SALES, lambda p: msgspec.structs.replace(p, message_ttl_in_seconds=5))
    after = await store.get(path)
    assert after
    assert json.loads(after.value)["from_the_future"] == [1]
    assert json.loads(after.value)["message_ttl_in_seconds"] == 5


@pytest.mark.parametrize(
    "retention", [Retention(minutes=5), Retention(megabytes=5), Retention(minutes=-2, megabytes=-1)]
)
async def test_policies_that_contradict_themselves_are_refused(
    resources: Resources, retention: Retention
) -> None:
    with pytest.raises(Refused, match="retention"):
        await resources.update_policies(
            SALES, lambda p: msgspec.structs.replace(p, retention_policies=retention)
        )


async def test_a_namespace_with_topics_is_deleted_only_by_force(
    resources: Resources, store: MemoryStore
) -> None:
    await store.create(topic_record_path(ORDERS), b"{}")
    assert await resources.topics(SALES) == ["persistent://acme/sales/orders"]
    with pytest.raises(Conflict, match="non empty"):
        await resources.delete_namespace(SALES)
    assert (await resources.policies(SALES)).deleted is False
    assert await resources.begin_delete_namespace(SALES, force=True) == [ORDERS]
    # From here on nobody makes a topic in it, and only the deletion goes on.
    for attempt in (resources.policies(SALES), resources.create_partitioned(SALES.topic("new"), 2)):
        with pytest.raises(NamespaceNotFound):
            await attempt
    with pytest.raises(NamespaceNotFound):
        await resources.update_policies(SALES, lambda p: p)
    with pytest.raises(Conflict):
        await resources.create_namespace(SALES)
    await store.delete(topic_record_path(ORDERS))
    await resources.delete_namespace(SALES)
    assert await resources.namespaces("acme") == []
    assert await store.children("/managed-ledgers") == ["acme"]


async def test_partitioned_topics_grow_and_never_shrink(resources: Resources) -> None:
    assert await resources.partitions(ORDERS) == 0
    await resources.create_partitioned(ORDERS, 3, {"owner": "me"})
    assert await resources.partitions(ORDERS) == 3
    assert (await resources.partitioned_topic(ORDERS)).properties == {"owner": "me"}
    assert await resources.partitioned_names(SALES) == [ORDERS]
    with pytest.raises(Conflict):
        await resources.create_partitioned(ORDERS, 3)
    assert await resources.update_partitioned(ORDERS, 5) == 3
    with pytest.raises(ResourceError) as refused:
        await resources.update_partitioned(ORDERS, 4)
    assert refused.value.status == 422
    await resources.delete_partitioned(ORDERS)
    assert await resources.partitions(ORDERS) == 0
    with pytest.raises(NotFound):
        await resources.delete_partitioned(ORDERS)
    with pytest.raises(Conflict):
        await resources.update_partitioned(ORDERS, 5)


async def test_a_name_is_either_partitioned_or_not(resources: Resources, store: MemoryStore) -> None:
    await store.create(topic_record_path(ORDERS), b"{}")
    with pytest.raises(Conflict):
        await resources.create_partitioned(ORDERS, 2)
    with pytest.raises(Refused):
        await resources.create_partitioned(TopicName.parse("acme/sales/x-partition-0"), 2)
    with pytest.raises(ResourceError) as refused:
        await resources.create_partitioned(SALES.topic("x"), 0)
    assert refused.value.status == 406


async def test_listed_names_are_the_ones_given(resources: Resources, store: MemoryStore) -> None:
    odd = [SALES.topic(local) for local in ("a b", "x%2Fy", "..", "ü?#")]
    for name in odd:
        await store.create(topic_record_path(name), b"{}")
    assert set(await resources.topic_names(SALES)) == set(odd)


async def test_this_brokers_own_cluster_stays(resources: Resources) -> None:
    await resources.put_cluster("other", ClusterRecord(), create=True)
    with pytest.raises(Conflict):
        await resources.put_cluster("other", ClusterRecord(), create=True)
    await resources.delete_cluster("other")
    with pytest.raises(Refused):
        await resources.delete_cluster("standalone")


@pytest.mark.parametrize("count", [1, 3, 4, 16])
def test_bundles_cover_the_hash_space_once(count: int) -> None:
    bundles = Bundles.even(count).checked()
    assert len(bundles.boundaries) == count + 1
    assert bundles.ranges.at(0).startswith("0x00000000_")
    assert bundles.ranges.at(0xFFFFFFFF).endswith("_0xffffffff")


def test_bundles_with_only_a_count_get_even_boundaries() -> None:
    assert Bundles(count=4).checked() == Bundles.even(4)
    for wrong in (
        Bundles(boundaries=("0x0", "0x1"), count=1),
        Bundles(boundaries=("zero", "0xffffffff"), count=1),
        Bundles(boundaries=("0x00000000", "0x1", "0xffffffff"), count=5),
        Bundles(count=0),
    ):
        with pytest.raises(InvalidValue):
            wrong.checked()


def test_policies_are_served_under_pulsars_names() -> None:
    shown = NamespacePolicies(
        retention_policies=Retention(minutes=1, megabytes=2), deduplication_enabled=True
    ).builtins()
    assert shown["retention_policies"] == {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}
    assert shown["deduplicationEnabled"] is True
    assert "message_ttl_in_seconds" not in shown
    assert NamespacePolicies.decode(msgspec.json.encode(shown)).retention_policies == Retention(
        minutes=1, megabytes=2
    )


async def test_others_run_while_the_names_of_many_topics_are_read(
    resources: Resources, store: MemoryStore
) -> None:
    count = 4000
    for n in range(count):
        await store.create(topic_record_path(SALES.topic(f"t{n}")), b"")
    turns = 0

    async def run() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(run())
    await asyncio.sleep(0)
    turns = 0
    assert len(await resources.topic_names(SALES)) == count
    others.cancel()
    assert turns >= count // NAMES_PER_TURN
