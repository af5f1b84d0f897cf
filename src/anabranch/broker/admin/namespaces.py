"""`/admin/v2/namespaces`: making, listing, deleting namespaces, and what is done to all of a namespace's topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Request, Response

from anabranch.autoscale.policy import check
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.large import in_turns, json_answer
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, UsersSubscriptionDep, body
from anabranch.broker.admin.setting import shown_quotas
from anabranch.broker.broker import Broker
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.policies import Bundles, Policies
from anabranch.broker.resources import Conflict, NotFound
from anabranch.broker.scalable.auto_policy import applied
from anabranch.broker.topic import Topic
from anabranch.controller.errors import TopicMissing
from anabranch.model.names import Domain, NamespaceName, TopicName

router = APIRouter()

FORCED_DELETES_MAX = 3
# What Pulsar shows of every namespace, and nothing here can change.
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


@router.get("/{tenant}")
async def list_namespaces(broker: BrokerDep, tenant: str) -> list[str]:
    return [str(namespace) for namespace in await broker.resources.namespaces(unquote(tenant))]


@router.get("/{tenant}/{namespace}")
@router.get("/{tenant}/{namespace}/policies")
async def get_policies(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, Any]:
    policies = await broker.resources.policies(namespace)
    shown = {**_NEVER_SET, **policies.builtins()}
    return {**shown, "backlog_quota_map": shown_quotas(policies.backlog_quota_map)}


@router.put("/{tenant}/{namespace}", status_code=204, openapi_extra=takes(Policies))
async def create_namespace(broker: BrokerDep, namespace: NamespaceDep, request: Request) -> None:
    default = Policies(bundles=Bundles.even(broker.config.default_number_of_namespace_bundles))
    policies = await body(request, Policies, default)
    if policies.bundles == Bundles() or policies.bundles.count == 0:
        policies = msgspec.structs.replace(policies, bundles=default.bundles)
    if policies.scalable_topic_auto_scale_policy is not None:
        check(applied(broker.config, policies, None).policy)
    if unknown := set(policies.replication_clusters) - {broker.resources.cluster}:
        raise RestError(
            403,
            f"{', '.join(sorted(unknown))}: the only cluster of a namespace is {broker.resources.cluster}",
        )
    await broker.resources.create_namespace(namespace, msgspec.structs.replace(policies, deleted=False))


@router.delete("/{tenant}/{namespace}", status_code=204)
async def delete_namespace(broker: BrokerDep, namespace: NamespaceDep, force: bool = False) -> None:
    if force and not broker.config.force_delete_namespace_allowed:
        raise RestError(405, "Broker doesn't allow forced deletion of namespaces")
    await remove_namespace(broker, namespace, force=force)


async def remove_namespace(broker: Broker, namespace: NamespaceName, *, force: bool) -> None:
    """Deletes the namespace, by force with every topic in it."""
    if not force:
        await broker.resources.delete_namespace(namespace)
        return
    for attempt in range(FORCED_DELETES_MAX):
        await _empty_namespace(broker, namespace)
        try:
            await broker.resources.delete_namespace(namespace)
            return
        except Conflict:
            # A topic was closed between being opened and being deleted, or an earlier deletion was cut short by a
            # crash. Either way this refusal has opened the namespace again, and a second round finds all its topics.
            if attempt == FORCED_DELETES_MAX - 1:
                raise


async def _empty_namespace(broker: Broker, namespace: NamespaceName) -> None:
    # Opened while it still may be: once its deletion has begun, the namespace opens and creates no more topics, and
    # the clients of the deleted ones cannot bring them back.
    for topic in await broker.resources.topic_names(namespace):
        with contextlib.suppress(TopicNotFoundError, NotFound):
            await broker.topic(topic)
    left = await broker.resources.begin_delete_namespace(namespace, force=True)
    # Scalable topics first: if another broker leads one, the request goes there before anything else is gone.
    for topic in [topic for topic in left if topic.domain is Domain.TOPIC]:
        if broker.scalable is None:
            raise Conflict(f"{topic} cannot be deleted while scalable topics are disabled; enable them first")
        with contextlib.suppress(TopicMissing):
            await broker.scalable.delete(topic, force=True)
    for topic in [topic for topic in left if topic.domain is not Domain.TOPIC]:
        with contextlib.suppress(TopicNotFoundError, NotFound):
            if await broker.resources.partitions(topic):
                await broker.resources.delete_partitioned(topic)
                await broker.forget_topic(topic)
            else:
                await broker.delete_topic(topic, force=True)
    for segment in await broker.resources.segment_names(namespace):
        await broker.discard_topic(segment)


@router.get("/{tenant}/{namespace}/topics", response_model=list[str])
@needs(Needs.LISTING)
async def namespace_topics(
    broker: BrokerDep,
    namespace: NamespaceDep,
    mode: Literal["PERSISTENT", "NON_PERSISTENT", "ALL"] = "PERSISTENT",
    includeSystemTopic: bool = False,
) -> Response:
    """Topics by name, partitions one by one. Of the non-persistent ones those that are open."""
    topics = await broker.topics(namespace) if mode != "NON_PERSISTENT" else []
    if mode != "PERSISTENT":
        await broker.resources.policies(namespace)
        topics += map(str, broker.non_persistent.names(namespace))
    return json_answer(shown(topics, includeSystemTopic))


def shown(topics: list[str], include_system: bool) -> list[str]:
    return [t for t in topics if include_system or not t.rpartition("/")[2].startswith("__")]


@router.get("/{tenant}/{namespace}/bundles")
@needs(Needs.LISTING)
async def bundles(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, Any]:
    return (await broker.resources.policies(namespace)).bundles.builtins()


@router.put("/{tenant}/{namespace}/unload", status_code=204)
@needs(Needs.SUPER_USER)
async def unload(broker: BrokerDep, namespace: NamespaceDep) -> None:
    """Closes the namespace's open topics; clients come back and open them again.

    Controllers of scalable topics are given up before that: whoever serves the clients next may lead.
    """
    await broker.resources.policies(namespace)
    if broker.scalable is not None:
        for topic in [name for name in broker.scalable.controllers if name.namespace == namespace]:
            await broker.scalable.release(topic)
    await unload_topics(broker, [name for name in broker.loaded() if name.namespace == namespace])


async def unload_topics(broker: Broker, names: Iterable[TopicName]) -> None:
    for name in sorted(names):
        # One may have been deleted, or closed, since it was seen.
        if (topic := broker.opened(name)) is not None:
            await topic.close()


# -- backlogs and subscriptions of every topic


@router.post("/{tenant}/{namespace}/clearBacklog", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def clear_backlog(broker: BrokerDep, namespace: NamespaceDep) -> None:
    async for topic in in_turns(await existing(broker, namespace)):
        await clear(topic, None)


@router.post("/{tenant}/{namespace}/clearBacklog/{subscription}", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def clear_backlog_of(
    broker: BrokerDep, namespace: NamespaceDep, subscription: UsersSubscriptionDep
) -> None:
    async for topic in in_turns(await existing(broker, namespace)):
        await clear(topic, subscription)


@router.post("/{tenant}/{namespace}/unsubscribe/{subscription}", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def unsubscribe(broker: BrokerDep, namespace: NamespaceDep, subscription: UsersSubscriptionDep) -> None:
    async for topic in in_turns(await existing(broker, namespace)):
        if subscription in topic.subscriptions:
            await topic.delete_subscription(subscription, force=False)


async def existing(broker: Broker, namespace: NamespaceName) -> list[Topic]:
    """Every topic of the namespace that has a log, opened."""
    found = []
    async for name in in_turns(await broker.topics(namespace), 100):
        with contextlib.suppress(TopicNotFoundError):
            found.append(await broker.topic(TopicName.parse(name)))
    return found


async def clear(topic: Topic, subscription: str | None) -> None:
    """Gives up the backlog of that subscription, or of all."""
    for found in topic.subscribing.durable():
        if subscription in (None, found.name):
            await found.skip_all()
