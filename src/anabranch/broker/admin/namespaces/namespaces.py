"""`/admin/v2/namespaces`: creating, listing and deleting namespaces, and operations on all topics of a namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec

from anabranch.autoscale.policy import check
from anabranch.broker.admin.across.all_brokers import from_others, same_request
from anabranch.broker.admin.across.owner_calls import at_owners, owner_call
from anabranch.broker.admin.across.unstored import all_unstored
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role, UsersSubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.settings.routes import shown_quotas
from anabranch.broker.catalog.resources import Conflict, NotFound
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.broker.scalable.load.auto_policy import applied
from anabranch.controller.core.errors import NotLeader, TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import SYSTEM_NAMESPACE, Domain, NamespaceName, TopicName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

FORCED_DELETES_MAX = 3
# Fields that Pulsar shows for every namespace, and that cannot be changed here.
_NEVER_SET: dict[str, Any] = {
    "allowed_clusters": [],
    "clusterDispatchRate": {},
    "clusterSubscribeRate": {},
    "is_allow_auto_update_schema": True,
    "is_allow_auto_update_schema_with_replicator": True,
    "latency_stats_sample_rate": {},
    "migrated": False,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "replicatorDispatchRate": {},
}


@routes.get("/{tenant}")
async def list_namespaces(services: AdminServices, tenant: str) -> list[str]:
    return [str(namespace) for namespace in await services.resources.namespaces(unquote(tenant))]


@routes.get("/{tenant}/{namespace}")
@routes.get("/{tenant}/{namespace}/policies")
async def get_policies(services: AdminServices, namespace: NamespaceName) -> dict[str, Any]:
    policies = await services.resources.policies(namespace)
    shown = {**_NEVER_SET, **msgspec.structs.replace(policies, anti_affinity_group=None).builtins()}
    return {**shown, "backlog_quota_map": shown_quotas(policies.backlog_quota_map)}


@routes.put("/{tenant}/{namespace}", status=204, body=NamespacePolicies)
async def create_namespace(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
    default = NamespacePolicies(bundles=Bundles.even(services.config.default_number_of_namespace_bundles))
    policies = await body(request, NamespacePolicies, default)
    if policies.bundles == Bundles() or policies.bundles.count == 0:
        policies = msgspec.structs.replace(policies, bundles=default.bundles)
    if policies.scalable_topic_auto_scale_policy is not None:
        check(applied(services.config, policies, None).policy)
    if unknown := set(policies.replication_clusters) - {services.resources.cluster}:
        raise RestError(
            403,
            f"{', '.join(sorted(unknown))}: the only cluster of a namespace is {services.resources.cluster}",
        )
    await services.resources.create_namespace(
        namespace, msgspec.structs.replace(policies, deleted=False, anti_affinity_group=None)
    )


@routes.delete("/{tenant}/{namespace}", status=204)
async def delete_namespace(
    services: AdminServices, role: Role, namespace: NamespaceName, force: bool = False
) -> None:
    if force and not services.config.force_delete_namespace_allowed:
        raise RestError(405, "Broker doesn't allow forced deletion of namespaces")
    await remove_namespace(services, role, namespace, force=force)


async def remove_namespace(
    services: AdminServices, role: str, namespace: NamespaceName, *, force: bool
) -> None:
    """Deletes the namespace, with `force` including every topic in it."""
    if namespace == SYSTEM_NAMESPACE and services.balancer is not None:
        raise RestError(
            412, f"{namespace} has the topics by which brokers share bundles: it cannot be deleted"
        )
    if not force:
        await services.resources.delete_namespace(namespace)
        return
    for attempt in range(FORCED_DELETES_MAX):
        await _empty_namespace(services, role, namespace)
        try:
            await services.resources.delete_namespace(namespace)
            return
        except Conflict:
            # A topic was closed between being opened and being deleted, or an earlier deletion was interrupted by a
            # crash. Either way this refusal has opened the namespace again, and a second round finds all its topics.
            if attempt == FORCED_DELETES_MAX - 1:
                raise


async def _empty_namespace(services: AdminServices, role: str, namespace: NamespaceName) -> None:
    # Opened while that is possible: once its deletion has begun, the namespace opens and creates no more topics, and
    # clients of the deleted ones cannot create them again.
    await at_owners(services, await services.resources.topic_names(namespace), open_for_deletion)
    left = await services.resources.begin_delete_namespace(namespace, force=True)
    # Scalable topics first: if one cannot be deleted, nothing is.
    for topic in [topic for topic in left if topic.domain is Domain.TOPIC]:
        if services.scalable is None:
            raise Conflict(f"{topic} cannot be deleted while scalable topics are disabled; enable them first")
        await _delete_scalable(services, services.scalable, role, topic)
    partitioned = {name for name in left if name.is_classic and await services.resources.partitions(name)}
    for topic in [name for name in left if name in partitioned]:
        with contextlib.suppress(NotFound):
            await services.resources.delete_partitioned(topic)
            await services.forget_topic(topic)
    logged = [name for name in left if name.domain is not Domain.TOPIC and name not in partitioned]
    await at_owners(services, logged, delete_opened)
    await at_owners(services, await services.resources.segment_names(namespace), discard)


@owner_call
async def open_for_deletion(services: AdminServices, name: TopicName) -> None:
    with contextlib.suppress(NotFound):
        await services.topic(name)


@owner_call
async def delete_opened(services: AdminServices, name: TopicName) -> None:
    """Deletes a topic of a namespace that is being deleted."""
    # It may have been closed since; the next round finds it again.
    with contextlib.suppress(NotFound):
        await services.delete_topic(name, force=True)


@owner_call
async def discard(services: AdminServices, name: TopicName) -> None:
    await services.discard_topic(name)


async def _delete_scalable(
    services: AdminServices, scalable: ScalableTopics, role: str, topic: TopicName
) -> None:
    """Deletes the topic by whichever broker leads it."""
    try:
        with contextlib.suppress(TopicMissing):
            await scalable.delete(topic, force=True)
    except NotLeader as elsewhere:
        leader = await services.registry.find(elsewhere.leader) if elsewhere.leader else None
        if leader is None or not services.has_others:
            raise
        path = f"/admin/v2/scalable/{topic.namespace}/{quote(topic.local, safe='')}"
        answer = await services.elsewhere.ask(leader, InnerRequest("DELETE", path, "force=true", role=role))
        if answer.status == 307:
            raise
        if not answer.is_success and answer.status != 404:
            raise RestError(answer.status, answer.reason) from None


@routes.get("/{tenant}/{namespace}/topics", answers=list[str], needs=Needs.LISTING)
async def namespace_topics(
    services: AdminServices,
    namespace: NamespaceName,
    mode: Literal["PERSISTENT", "NON_PERSISTENT", "ALL"] = "PERSISTENT",
    includeSystemTopic: bool = False,
) -> HttpAnswer:
    """Topics by name, partitions one by one. Non-persistent topics are listed if they are open."""
    topics = await services.topics(namespace) if mode != "NON_PERSISTENT" else []
    if mode != "PERSISTENT":
        await services.resources.policies(namespace)
        topics += await all_unstored(services, namespace)
    return json_answer(shown(topics, includeSystemTopic))


def shown(topics: list[str], include_system: bool) -> list[str]:
    return [t for t in topics if include_system or not t.rpartition("/")[2].startswith("__")]


@routes.get("/{tenant}/{namespace}/bundles", needs=Needs.LISTING)
async def bundles(services: AdminServices, namespace: NamespaceName) -> dict[str, Any]:
    return (await services.resources.policies(namespace)).bundles.builtins()


@routes.put("/{tenant}/{namespace}/unload", status=204, needs=Needs.SUPER_USER)
async def unload(services: AdminServices, request: HttpRequest, namespace: NamespaceName) -> None:
    """Closes the namespace's open topics, at every broker; clients reconnect and open them again.

    Controllers of scalable topics resign before that: the broker that serves the clients next may lead.
    """
    await services.resources.policies(namespace)
    if services.scalable is not None:
        for topic in [name for name in services.scalable.controllers if name.namespace == namespace]:
            await services.scalable.release(topic)
    await unload_topics(services, lambda name: name.namespace == namespace)
    await from_others(services.elsewhere, same_request(request))


async def unload_topics(services: AdminServices, is_meant: Callable[[TopicName], bool]) -> None:
    """Closes the topics that are open here and meant, non-persistent ones too."""
    for name in sorted(name for name in services.loaded() if is_meant(name)):
        # The topic may have been deleted or closed since.
        if (topic := services.opened(name)) is not None:
            await topic.close()
    for unstored in services.non_persistent.loaded():
        if is_meant(unstored.name):
            unstored.close()


# -- backlogs and subscriptions of every topic


@routes.post("/{tenant}/{namespace}/clearBacklog", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog(services: AdminServices, namespace: NamespaceName) -> None:
    await at_owners(services, await logged_topics(services, namespace), clear, None)


@routes.post("/{tenant}/{namespace}/clearBacklog/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog_of(
    services: AdminServices, namespace: NamespaceName, subscription: UsersSubscriptionName
) -> None:
    await at_owners(services, await logged_topics(services, namespace), clear, subscription)


@routes.post("/{tenant}/{namespace}/unsubscribe/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def unsubscribe(
    services: AdminServices, namespace: NamespaceName, subscription: UsersSubscriptionName
) -> None:
    await at_owners(services, await logged_topics(services, namespace), end_subscription, subscription)


async def logged_topics(services: AdminServices, namespace: NamespaceName) -> list[TopicName]:
    """Every topic of the namespace that has a log."""
    return [TopicName.parse(name) async for name in in_turns(await services.topics(namespace))]


@owner_call
async def end_subscription(services: AdminServices, name: TopicName, subscription: str) -> None:
    topic = await services.topic(name)
    if subscription in topic.subscriptions:
        await topic.delete_subscription(subscription, force=False)


@owner_call
async def clear(services: AdminServices, name: TopicName, subscription: str | None) -> None:
    """Skips the backlog of that subscription, or of all."""
    for found in (await services.topic(name)).subscribing.durable():
        if subscription in (None, found.name):
            await found.skip_all()
