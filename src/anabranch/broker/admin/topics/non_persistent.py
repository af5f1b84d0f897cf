"""`/admin/v2/non-persistent`: topics that store nothing. They are listed while they are open."""

from __future__ import annotations

import contextlib
from typing import Any

from anabranch.broker.admin.http.answer import NO_CONTENT, HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import SubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes, topic_routes
from anabranch.broker.admin.namespaces.bundles import of_bundle
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.settings.routes import TOPIC_SETTINGS
from anabranch.broker.admin.settings.topic import UNSERVED
from anabranch.broker.admin.topics.partitions import merged, parts
from anabranch.broker.admin.topics.topics import check_count, partitions_wanted
from anabranch.broker.catalog.owners import ServedElsewhere, check_mine
from anabranch.broker.errors import SubscriptionNotFoundError
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.observe.non_persistent_stats import non_persistent_stats
from anabranch.broker.policy.namespace import PartitionedTopic
from anabranch.model.names import Domain, NamespaceName, TopicName

_SETTINGS = frozenset(one.path for one in TOPIC_SETTINGS) | {one.path for one in UNSERVED}

listing = Routes("/admin/v2", tag="non-persistent topics", needs=Needs.LISTING)
routes = topic_routes(Domain.NON_PERSISTENT)


@listing.get("/non-persistent/{tenant}/{namespace}")
async def list_topics(services: AdminServices, namespace: NamespaceName) -> list[str]:
    """The topics that are open now."""
    await services.resources.policies(namespace)
    return [str(name) for name in services.non_persistent.names(namespace)]


@listing.get("/non-persistent/{tenant}/{namespace}/partitioned")
async def list_partitioned(services: AdminServices, namespace: NamespaceName) -> list[str]:
    await services.resources.policies(namespace)
    return [
        str(name) for name in await services.resources.partitioned_names(namespace, (Domain.NON_PERSISTENT,))
    ]


@listing.get("/non-persistent/{tenant}/{namespace}/{bundle}", needs=Needs.TENANT_ADMIN)
async def list_of_bundle(services: AdminServices, namespace: NamespaceName, bundle: str) -> list[str]:
    """The open topics whose names hash into the bundle."""
    return await of_bundle(services, namespace, await list_topics(services, namespace), bundle)


async def _open(services: AdminServices, name: TopicName) -> list[NonPersistentTopic]:
    """The topic, or those of its partitions that are open; 404 if there is none."""
    known = await parts(services, name)
    if known == [name]:
        await check_mine(services.owners, name)
    found = [topic for part in known if (topic := services.non_persistent.opened(part)) is not None]
    if not found:
        raise RestError(404, f"Topic {name} not found")
    return found


@routes.put("", status=204)
async def create_topic(services: AdminServices, name: TopicName) -> None:
    """Creates the topic until the broker ends: nothing of it is stored."""
    if not await services.non_persistent.create(name):
        raise RestError(409, "This topic already exists")


@routes.delete("", status=204)
async def delete_topic(services: AdminServices, name: TopicName, force: bool = False) -> None:
    for topic in await _open(services, name):
        if topic.is_used and not force:
            raise RestError(412, "Topic has active producers/subscriptions")
        topic.close()


@routes.put("/unload", status=204)
async def unload(services: AdminServices, name: TopicName) -> None:
    """Closes the topic's clients, which reconnect."""
    for topic in await _open(services, name):
        topic.close()


@routes.get("/stats", needs=Needs.LOOKUP)
async def stats(services: AdminServices, name: TopicName) -> dict[str, Any]:
    if not name.is_partition and await services.resources.partitions(name):
        raise RestError(404, f"Topic {name} not found: it is partitioned, name one of its partitions")
    return non_persistent_stats((await _open(services, name))[0], services.http_url)


@routes.get("/internalStats", needs=Needs.LOOKUP)
async def internal_stats(services: AdminServices, name: TopicName) -> dict[str, Any]:
    (topic, *_) = await _open(services, name)
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


@routes.get("/subscriptions", needs=Needs.CONSUME)
async def subscriptions(services: AdminServices, name: TopicName) -> list[str]:
    return sorted({one for topic in await _open(services, name) for one in topic.subscriptions})


@routes.delete("/subscription/{subscription}", status=204, needs=Needs.CONSUME)
async def delete_subscription(
    services: AdminServices, name: TopicName, subscription: SubscriptionName, force: bool = False
) -> None:
    found = [topic for topic in await _open(services, name) if subscription in topic.subscriptions]
    if not found:
        raise SubscriptionNotFoundError(f"Subscription {subscription} not found")
    for topic in found:
        if topic.subscriptions[subscription].consumers and not force:
            raise RestError(412, "Subscription has active connected consumers")
        topic.delete_subscription(subscription, force=force)


# -- partitioned topics


@routes.put("/partitions", status=204)
async def create_partitioned(services: AdminServices, name: TopicName, request: HttpRequest) -> None:
    services.non_persistent.check_enabled(name)
    count, properties = await partitions_wanted(services, request)
    if services.non_persistent.opened(name) is not None:
        raise RestError(409, "This topic already exists")
    await services.resources.create_partitioned(name, count, properties)
    await _create_parts(services, name)


@routes.post("/partitions", status=204)
async def update_partitioned(services: AdminServices, name: TopicName, request: HttpRequest) -> None:
    count = await body(request, int)
    check_count(services, count, 422)
    await services.resources.update_partitioned(name, count)
    await _create_parts(services, name)


async def _create_parts(services: AdminServices, name: TopicName) -> None:
    """Partitions that other brokers own are created there at their first use."""
    for part in await parts(services, name):
        with contextlib.suppress(ServedElsewhere):
            await services.non_persistent.create(part)


@routes.get("/partitions", needs=Needs.LOOKUP)
async def partitions(services: AdminServices, name: TopicName) -> dict[str, Any]:
    await services.resources.policies(name.namespace)
    count = 0 if name.is_partition else await services.resources.partitions(name)
    if not count:
        await check_mine(services.owners, name)
    if not count and services.non_persistent.opened(name) is None:
        raise RestError(404, f"Topic {name} not found")
    return PartitionedTopic(partitions=count).builtins()


@routes.delete("/partitions", status=204)
async def delete_partitioned(services: AdminServices, name: TopicName, force: bool = False) -> None:
    if not await services.resources.partitions(name):
        raise RestError(404, f"Partitioned topic {name} not found")
    opened = [
        topic for part in await parts(services, name) if (topic := services.non_persistent.opened(part))
    ]
    if not force and any(topic.is_used for topic in opened):
        raise RestError(412, "Topic has active producers/subscriptions")
    await services.resources.delete_partitioned(name)
    for topic in opened:
        topic.close()


@routes.get("/partitioned-stats", needs=Needs.LOOKUP)
async def partitioned_stats(
    services: AdminServices, name: TopicName, perPartition: bool = True
) -> dict[str, Any]:
    count = await services.resources.partitions(name)
    if not count:
        raise RestError(404, f"Partitioned topic {name} not found")
    opened = {
        str(part): non_persistent_stats(topic, services.http_url)
        for part in await parts(services, name)
        if (topic := services.non_persistent.opened(part)) is not None
    }
    return {
        **merged(list(opened.values())),
        "metadata": PartitionedTopic(partitions=count).builtins(),
        "partitions": opened if perPartition else {},
    }


async def nothing_kept(
    services: AdminServices, name: TopicName, what: str, request: HttpRequest
) -> HttpAnswer:
    """Operations that need stored messages are refused. Settings can be read: none is set here."""
    if what in _SETTINGS:
        await _open(services, name)
        if request.method == "GET":
            return NO_CONTENT
        raise RestError(405, f"{name} has the settings of its namespace: set {what} there")
    raise RestError(
        405, f"{what} is not possible on {name}: a non-persistent topic keeps no messages and no cursors"
    )


for _method in ("GET", "PUT", "POST", "DELETE"):
    routes.add(_method, "/{what:path}", nothing_kept, is_described=False)
