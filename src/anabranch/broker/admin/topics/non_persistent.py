"""`/admin/v2/non-persistent`: topics that store nothing. They are listed while they are open."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.across.owner_calls import at_owners, owner_call, owner_read
from anabranch.broker.admin.across.unstored import all_unstored
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
from anabranch.broker.admin.topics.partitions import merged, on_parts, parts
from anabranch.broker.admin.topics.topics import check_count, partitions_wanted
from anabranch.broker.catalog.owners import check_mine
from anabranch.broker.errors import SubscriptionNotFoundError, TopicNotFoundError
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
    return await all_unstored(services, namespace)


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


def _here(services: AdminServices, name: TopicName) -> NonPersistentTopic:
    """The topic, which this broker owns."""
    found = services.non_persistent.opened(name)
    if found is None:
        raise TopicNotFoundError(f"{name} does not exist")
    return found


@owner_read
async def is_used(services: AdminServices, name: TopicName) -> bool:
    """Whether the open topic has clients."""
    return _here(services, name).is_used


@owner_call
async def make(services: AdminServices, name: TopicName) -> bool:
    """False if the topic exists."""
    return await services.non_persistent.create(name)


@owner_call
async def close(services: AdminServices, name: TopicName) -> None:
    _here(services, name).close()


@routes.put("", status=204)
async def create_topic(services: AdminServices, name: TopicName) -> None:
    """Creates the topic until the broker ends: nothing of it is stored."""
    await check_mine(services.owners, name)
    if not all(is_new for _, is_new in await at_owners(services, [name], make)):
        raise RestError(409, "This topic already exists")


@routes.delete("", status=204)
async def delete_topic(services: AdminServices, name: TopicName, force: bool = False) -> None:
    await on_parts(services, name, delete_open, force)


@owner_call
async def delete_open(services: AdminServices, name: TopicName, force: bool) -> None:
    topic = _here(services, name)
    if topic.is_used and not force:
        raise RestError(412, "Topic has active producers/subscriptions")
    topic.close()


@routes.put("/unload", status=204)
async def unload(services: AdminServices, name: TopicName) -> None:
    """Closes the topic's clients, which reconnect."""
    await on_parts(services, name, close)


@routes.get("/stats", needs=Needs.LOOKUP)
async def stats(services: AdminServices, name: TopicName) -> dict[str, Any]:
    if not name.is_partition and await services.resources.partitions(name):
        raise RestError(404, f"Topic {name} not found: it is partitioned, name one of its partitions")
    return (await on_parts(services, name, figures))[0][1]


@owner_read
async def figures(services: AdminServices, name: TopicName) -> dict[str, Any]:
    return non_persistent_stats(_here(services, name), services.http_url)


@routes.get("/internalStats", needs=Needs.LOOKUP)
async def internal_stats(services: AdminServices, name: TopicName) -> dict[str, Any]:
    _, entries_in = (await on_parts(services, name, entries_added))[0]
    return {
        "entriesAddedCounter": entries_in,
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


@owner_read
async def entries_added(services: AdminServices, name: TopicName) -> int:
    return _here(services, name).entries_in


@routes.get("/subscriptions", needs=Needs.CONSUME)
async def subscriptions(services: AdminServices, name: TopicName) -> list[str]:
    return sorted({one for _, held in await on_parts(services, name, consumer_counts) for one in held})


@owner_read
async def consumer_counts(services: AdminServices, name: TopicName) -> dict[str, int]:
    """The subscriptions, each with its number of consumers."""
    return {one: len(found.consumers) for one, found in _here(services, name).subscriptions.items()}


@routes.delete("/subscription/{subscription}", status=204, needs=Needs.CONSUME)
async def delete_subscription(
    services: AdminServices, name: TopicName, subscription: SubscriptionName, force: bool = False
) -> None:
    asked = await on_parts(services, name, consumer_counts)
    holders = [part for part, held in asked if subscription in held]
    if not holders:
        raise SubscriptionNotFoundError(f"Subscription {subscription} not found")
    await at_owners(services, holders, drop_subscription, subscription, force)


@owner_call
async def drop_subscription(services: AdminServices, name: TopicName, subscription: str, force: bool) -> None:
    topic = _here(services, name)
    found = topic.subscriptions.get(subscription)
    if found is None:
        return
    if found.consumers and not force:
        raise RestError(412, "Subscription has active connected consumers")
    topic.delete_subscription(subscription, force=force)


# -- partitioned topics


@routes.put("/partitions", status=204)
async def create_partitioned(services: AdminServices, name: TopicName, request: HttpRequest) -> None:
    services.non_persistent.check_enabled(name)
    count, properties = await partitions_wanted(services, request)
    if await at_owners(services, [name], is_used):
        raise RestError(409, "This topic already exists")
    await services.resources.create_partitioned(name, count, properties)
    await at_owners(services, await parts(services, name), make)


@routes.post("/partitions", status=204)
async def update_partitioned(services: AdminServices, name: TopicName, request: HttpRequest) -> None:
    count = await body(request, int)
    check_count(services, count, 422)
    await services.resources.update_partitioned(name, count)
    await at_owners(services, await parts(services, name), make)


@routes.get("/partitions", needs=Needs.LOOKUP)
async def partitions(services: AdminServices, name: TopicName) -> dict[str, Any]:
    await services.resources.policies(name.namespace)
    count = 0 if name.is_partition else await services.resources.partitions(name)
    if not count and not await at_owners(services, [name], is_used):
        raise RestError(404, f"Topic {name} not found")
    return PartitionedTopic(partitions=count).builtins()


@routes.delete("/partitions", status=204)
async def delete_partitioned(services: AdminServices, name: TopicName, force: bool = False) -> None:
    if not await services.resources.partitions(name):
        raise RestError(404, f"Partitioned topic {name} not found")
    opened = await at_owners(services, await parts(services, name), is_used)
    if not force and any(has_clients for _, has_clients in opened):
        raise RestError(412, "Topic has active producers/subscriptions")
    await services.resources.delete_partitioned(name)
    await at_owners(services, [part for part, _ in opened], close)


@routes.get("/partitioned-stats", needs=Needs.LOOKUP)
async def partitioned_stats(
    services: AdminServices, name: TopicName, perPartition: bool = True
) -> dict[str, Any]:
    count = await services.resources.partitions(name)
    if not count:
        raise RestError(404, f"Partitioned topic {name} not found")
    asked = await at_owners(services, await parts(services, name), figures)
    opened = {str(part): told for part, told in asked}
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
        await on_parts(services, name, is_used)
        if request.method == "GET":
            return NO_CONTENT
        raise RestError(405, f"{name} has the settings of its namespace: set {what} there")
    raise RestError(
        405, f"{what} is not possible on {name}: a non-persistent topic keeps no messages and no cursors"
    )


for _method in ("GET", "PUT", "POST", "DELETE"):
    routes.add(_method, "/{what:path}", nothing_kept, is_described=False)
