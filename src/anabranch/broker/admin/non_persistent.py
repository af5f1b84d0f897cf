"""`/admin/v2/non-persistent`: topics that keep nothing. They are listed while they are open."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from anabranch.broker.admin import topic_settings
from anabranch.broker.admin.bundles import of_bundle
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, SubscriptionDep, body, decoded
from anabranch.broker.admin.partitions import merged, parts
from anabranch.broker.admin.topics import check_count, partitions_wanted
from anabranch.broker.broker import Broker
from anabranch.broker.errors import SubscriptionNotFoundError
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.policies import PartitionedTopic
from anabranch.model.names import Domain, NamespaceName, TopicName

_SETTINGS = frozenset(one.path for one in (*topic_settings.SETTINGS, *topic_settings.UNSERVED))

listing = APIRouter()
router = APIRouter()


async def _name(tenant: str, namespace: str, topic: str) -> TopicName:
    return TopicName(
        Domain.NON_PERSISTENT, NamespaceName(decoded(tenant), decoded(namespace)), decoded(topic)
    )


NameDep = Annotated[TopicName, Depends(_name)]


@listing.get("/non-persistent/{tenant}/{namespace}")
async def list_topics(broker: BrokerDep, namespace: NamespaceDep) -> list[str]:
    """Those that are open now."""
    await broker.resources.policies(namespace)
    return [str(name) for name in broker.non_persistent.names(namespace)]


@listing.get("/non-persistent/{tenant}/{namespace}/partitioned")
async def list_partitioned(broker: BrokerDep, namespace: NamespaceDep) -> list[str]:
    await broker.resources.policies(namespace)
    return [
        str(name) for name in await broker.resources.partitioned_names(namespace, (Domain.NON_PERSISTENT,))
    ]


@listing.get("/non-persistent/{tenant}/{namespace}/{bundle}")
@needs(Needs.TENANT_ADMIN)
async def list_of_bundle(broker: BrokerDep, namespace: NamespaceDep, bundle: str) -> list[str]:
    """Those of them whose names hash into the bundle."""
    return await of_bundle(broker, namespace, await list_topics(broker, namespace), bundle)


async def _open(broker: Broker, name: TopicName) -> list[NonPersistentTopic]:
    """The topic, or those of its partitions that are open; 404 if there is none."""
    found = [
        topic
        for part in await parts(broker, name)
        if (topic := broker.non_persistent.opened(part)) is not None
    ]
    if not found:
        raise RestError(404, f"Topic {name} not found")
    return found


@router.put("", status_code=204)
async def create_topic(broker: BrokerDep, name: NameDep) -> None:
    """Until the broker ends: nothing of it is stored."""
    if not await broker.non_persistent.create(name):
        raise RestError(409, "This topic already exists")


@router.delete("", status_code=204)
async def delete_topic(broker: BrokerDep, name: NameDep, force: bool = False) -> None:
    for topic in await _open(broker, name):
        if topic.is_used and not force:
            raise RestError(412, "Topic has active producers/subscriptions")
        topic.close()


@router.put("/unload", status_code=204)
async def unload(broker: BrokerDep, name: NameDep) -> None:
    """Its clients are closed and come back."""
    for topic in await _open(broker, name):
        topic.close()


@router.get("/stats")
@needs(Needs.LOOKUP)
async def stats(broker: BrokerDep, name: NameDep) -> dict[str, Any]:
    if not name.is_partition and await broker.resources.partitions(name):
        raise RestError(404, f"Topic {name} not found: it is partitioned, name one of its partitions")
    return (await _open(broker, name))[0].stats()


@router.get("/internalStats")
@needs(Needs.LOOKUP)
async def internal_stats(broker: BrokerDep, name: NameDep) -> dict[str, Any]:
    (topic, *_) = await _open(broker, name)
    return {
        "entriesAddedCounter": topic.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "ledgers": [],
        "cursors": {},
        "schemaLedgers": [],
    }


@router.get("/subscriptions")
@needs(Needs.CONSUME)
async def subscriptions(broker: BrokerDep, name: NameDep) -> list[str]:
    return sorted({one for topic in await _open(broker, name) for one in topic.subscriptions})


@router.delete("/subscription/{subscription}", status_code=204)
@needs(Needs.CONSUME)
async def delete_subscription(
    broker: BrokerDep, name: NameDep, subscription: SubscriptionDep, force: bool = False
) -> None:
    found = [topic for topic in await _open(broker, name) if subscription in topic.subscriptions]
    if not found:
        raise SubscriptionNotFoundError(f"Subscription {subscription} not found")
    for topic in found:
        if topic.subscriptions[subscription].consumers and not force:
            raise RestError(412, "Subscription has active connected consumers")
        topic.delete_subscription(subscription, force=force)


# -- partitioned topics


@router.put("/partitions", status_code=204)
async def create_partitioned(broker: BrokerDep, name: NameDep, request: Request) -> None:
    broker.non_persistent.check_enabled(name)
    count, properties = await partitions_wanted(broker, request)
    if broker.non_persistent.opened(name) is not None:
        raise RestError(409, "This topic already exists")
    await broker.resources.create_partitioned(name, count, properties)
    for part in await parts(broker, name):
        await broker.non_persistent.create(part)


@router.post("/partitions", status_code=204)
async def update_partitioned(broker: BrokerDep, name: NameDep, request: Request) -> None:
    count = await body(request, int)
    check_count(broker, count, 422)
    await broker.resources.update_partitioned(name, count)
    for part in await parts(broker, name):
        await broker.non_persistent.create(part)


@router.get("/partitions")
@needs(Needs.LOOKUP)
async def partitions(broker: BrokerDep, name: NameDep) -> dict[str, Any]:
    await broker.resources.policies(name.namespace)
    count = 0 if name.is_partition else await broker.resources.partitions(name)
    if not count and broker.non_persistent.opened(name) is None:
        raise RestError(404, f"Topic {name} not found")
    return PartitionedTopic(partitions=count).builtins()


@router.delete("/partitions", status_code=204)
async def delete_partitioned(broker: BrokerDep, name: NameDep, force: bool = False) -> None:
    if not await broker.resources.partitions(name):
        raise RestError(404, f"Partitioned topic {name} not found")
    opened = [topic for part in await parts(broker, name) if (topic := broker.non_persistent.opened(part))]
    if not force and any(topic.is_used for topic in opened):
        raise RestError(412, "Topic has active producers/subscriptions")
    await broker.resources.delete_partitioned(name)
    for topic in opened:
        topic.close()


@router.get("/partitioned-stats")
@needs(Needs.LOOKUP)
async def partitioned_stats(broker: BrokerDep, name: NameDep, perPartition: bool = True) -> dict[str, Any]:
    count = await broker.resources.partitions(name)
    if not count:
        raise RestError(404, f"Partitioned topic {name} not found")
    opened = {
        str(part): topic.stats()
        for part in await parts(broker, name)
        if (topic := broker.non_persistent.opened(part)) is not None
    }
    return {
        **merged(list(opened.values())),
        "metadata": PartitionedTopic(partitions=count).builtins(),
        "partitions": opened if perPartition else {},
    }


@router.api_route(
    "/{what:path}", methods=["GET", "PUT", "POST", "DELETE"], include_in_schema=False, response_model=None
)
async def nothing_kept(broker: BrokerDep, name: NameDep, what: str, request: Request) -> Response:
    """What is only possible where something is kept. Settings can be asked for: none is set here."""
    if what in _SETTINGS:
        await _open(broker, name)
        if request.method == "GET":
            return Response(status_code=204)
        raise RestError(405, f"{name} has the settings of its namespace: set {what} there")
    raise RestError(
        405, f"{what} is not possible on {name}: a non-persistent topic keeps no messages and no cursors"
    )
