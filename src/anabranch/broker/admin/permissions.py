"""What is granted to which role: on namespaces, on topics, and on subscriptions, on Pulsar's paths.

    /admin/v2/namespaces/{tenant}/{ns}/permissions                            GET
    /admin/v2/namespaces/{tenant}/{ns}/permissions/{role}                     POST DELETE
    /admin/v2/namespaces/{tenant}/{ns}/permissions/subscription               GET
    /admin/v2/namespaces/{tenant}/{ns}/permissions/subscription/{sub}         POST
    /admin/v2/namespaces/{tenant}/{ns}/permissions/{sub}/{role}               DELETE
    /admin/v2/namespaces/grantPermissionsOnTopics, revokePermissionsOnTopics  POST
    /admin/v2/persistent/{tenant}/{ns}/{topic}/permissions                    GET
    /admin/v2/persistent/{tenant}/{ns}/{topic}/permissions/{role}             POST DELETE
    /admin/v2/non-persistent/…, /admin/v2/scalable/…                          the same

Grants may be made before `authorizationEnabled` is set: they count from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request

from anabranch.broker import permissions
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.non_persistent import NameDep as NonPersistentDep
from anabranch.broker.admin.params import (
    BrokerDep,
    NamespaceDep,
    RoleDep,
    SubscriptionDep,
    TopicDep,
    body_of,
    decoded_once,
)
from anabranch.broker.admin.scalable import TOPIC
from anabranch.broker.admin.scalable import TopicDep as ScalableDep
from anabranch.broker.broker import Broker
from anabranch.broker.policies import Policies
from anabranch.model.names import Domain, TopicName

namespaces = APIRouter()
topics = APIRouter()
scalable = APIRouter()
non_persistent = APIRouter()

PERMISSIONS = "/{tenant}/{namespace}/permissions"
TOPICS_MAX = 1000


async def _granted_role(role: str) -> str:
    return decoded_once(role)


GrantedRole = Annotated[str, Depends(_granted_role)]


# -- several topics at once


class _Grant(msgspec.Struct):
    topic: str
    role: str
    actions: list[str] = []


@namespaces.post("/grantPermissionsOnTopics", status_code=204)
@needs(Needs.ROUTE)
async def grant_on_topics(broker: BrokerDep, caller: RoleDep, request: Request) -> None:
    await _change_topics(broker, caller, request, is_grant=True)


@namespaces.post("/revokePermissionsOnTopics", status_code=204)
@needs(Needs.ROUTE)
async def revoke_on_topics(broker: BrokerDep, caller: RoleDep, request: Request) -> None:
    await _change_topics(broker, caller, request, is_grant=False)


async def _change_topics(broker: Broker, caller: str, request: Request, *, is_grant: bool) -> None:
    given: list[_Grant] = await body_of(request, list[_Grant])
    if len(given) > TOPICS_MAX:
        raise RestError(413, f"{len(given)} topics at once: {TOPICS_MAX} are possible")
    named = [(TopicName.parse(one.topic), one) for one in given]
    spaces = {topic.namespace for topic, _ in named}
    if len(spaces) != 1:
        raise RestError(400, "The namespace should be the same")
    namespace = spaces.pop()
    await broker.rights.administer(caller, namespace)
    for topic, _ in named:
        await _check_exists(broker, topic)

    def change(policies: Policies) -> Policies:
        for topic, one in named:
            policies = (
                permissions.grant(policies, one.role, one.actions, topic)
                if is_grant
                else permissions.revoke(policies, one.role, [topic])
            )
        return policies

    await broker.resources.update_policies(namespace, change)


# -- namespaces and subscriptions


@namespaces.get(PERMISSIONS)
async def on_namespace(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, list[str]]:
    return (await broker.resources.policies(namespace)).auth_policies.namespace_auth


@namespaces.get(PERMISSIONS + "/subscription")
async def on_subscriptions(broker: BrokerDep, namespace: NamespaceDep) -> dict[str, list[str]]:
    return (await broker.resources.policies(namespace)).auth_policies.subscription_auth_roles


@namespaces.post(PERMISSIONS + "/{role}", status_code=204)
async def grant_on_namespace(
    broker: BrokerDep, namespace: NamespaceDep, role: GrantedRole, request: Request
) -> None:
    actions = await _texts(request)
    await broker.resources.update_policies(namespace, lambda p: permissions.grant(p, role, actions))


@namespaces.delete(PERMISSIONS + "/{role}", status_code=204)
async def revoke_on_namespace(broker: BrokerDep, namespace: NamespaceDep, role: GrantedRole) -> None:
    await broker.resources.update_policies(namespace, lambda p: permissions.revoke(p, role))


@namespaces.post(PERMISSIONS + "/subscription/{subscription}", status_code=204)
async def grant_on_subscription(
    broker: BrokerDep, namespace: NamespaceDep, subscription: SubscriptionDep, request: Request
) -> None:
    """Only the roles of the body may use it from now on."""
    roles = await _texts(request)
    await broker.resources.update_policies(
        namespace, lambda p: permissions.grant_subscription(p, subscription, roles)
    )


@namespaces.delete(PERMISSIONS + "/{subscription}/{role}", status_code=204)
async def revoke_on_subscription(
    broker: BrokerDep, namespace: NamespaceDep, subscription: SubscriptionDep, role: GrantedRole
) -> None:
    def change(policies: Policies) -> Policies:
        try:
            return permissions.revoke_subscription(policies, subscription, role)
        except KeyError:
            raise RestError(404, f"Nothing is granted on subscription {subscription}") from None

    await broker.resources.update_policies(namespace, change)


# -- topics


@topics.get("/permissions")
async def on_topic(broker: BrokerDep, topic: TopicDep) -> dict[str, list[str]]:
    """Those of the namespace and, over them, those of the topic."""
    return await _shown(broker, topic)


@topics.post("/permissions/{role}", status_code=204)
async def grant_on_topic(broker: BrokerDep, topic: TopicDep, role: GrantedRole, request: Request) -> None:
    await _grant(broker, topic, role, await _texts(request))


@topics.delete("/permissions/{role}", status_code=204)
async def revoke_on_topic(broker: BrokerDep, topic: TopicDep, role: GrantedRole) -> None:
    await _revoke(broker, topic, role)


@non_persistent.get("/permissions")
async def on_non_persistent(broker: BrokerDep, topic: NonPersistentDep) -> dict[str, list[str]]:
    return await _shown(broker, topic)


@non_persistent.post("/permissions/{role}", status_code=204)
async def grant_on_non_persistent(
    broker: BrokerDep, topic: NonPersistentDep, role: GrantedRole, request: Request
) -> None:
    await _grant(broker, topic, role, await _texts(request))


@non_persistent.delete("/permissions/{role}", status_code=204)
async def revoke_on_non_persistent(broker: BrokerDep, topic: NonPersistentDep, role: GrantedRole) -> None:
    await _revoke(broker, topic, role)


@scalable.get(TOPIC + "/permissions")
async def on_scalable(broker: BrokerDep, topic: ScalableDep) -> dict[str, list[str]]:
    return await _shown(broker, topic)


@scalable.post(TOPIC + "/permissions/{role}", status_code=204)
async def grant_on_scalable(
    broker: BrokerDep, topic: ScalableDep, role: GrantedRole, request: Request
) -> None:
    await _grant(broker, topic, role, await _texts(request))


@scalable.delete(TOPIC + "/permissions/{role}", status_code=204)
async def revoke_on_scalable(broker: BrokerDep, topic: ScalableDep, role: GrantedRole) -> None:
    await _revoke(broker, topic, role)


async def _shown(broker: Broker, topic: TopicName) -> dict[str, list[str]]:
    await _check_exists(broker, topic)
    return permissions.granted_on((await broker.resources.policies(topic.namespace)).auth_policies, topic)


async def _grant(broker: Broker, topic: TopicName, role: str, actions: Sequence[str]) -> None:
    await _check_exists(broker, topic)
    await broker.resources.update_policies(
        topic.namespace, lambda p: permissions.grant(p, role, actions, topic)
    )


async def _revoke(broker: Broker, topic: TopicName, role: str) -> None:
    await _check_exists(broker, topic)
    count = await broker.resources.partitions(topic) if topic.is_classic and not topic.is_partition else 0
    # Under every name it may have been granted by.
    names = [topic, *(topic.partition(index) for index in range(count)), *_twins(topic)]
    await broker.resources.update_policies(topic.namespace, lambda p: permissions.revoke(p, role, names))


def _twins(topic: TopicName) -> list[TopicName]:
    """A classic topic that has become a scalable one has grants under its old name, too."""
    if topic.domain is Domain.TOPIC and "/" not in topic.local:
        return [TopicName(Domain.PERSISTENT, topic.namespace, topic.local)]
    if topic.domain is Domain.PERSISTENT:
        return [TopicName(Domain.TOPIC, topic.namespace, topic.local)]
    return []


async def _check_exists(broker: Broker, topic: TopicName) -> None:
    """RestError: what is granted on a name that is no topic yet would be a surprise to whoever makes it."""
    await broker.resources.policies(topic.namespace)
    if broker.config.allow_acl_changes_on_non_existent_topics:
        return
    found = topic.is_classic and (
        await broker.resources.topic_exists(topic) or await broker.resources.partitions(topic.base) > 0
    )
    if topic.domain is Domain.NON_PERSISTENT:
        # It is there while somebody uses it, and what may be granted must not depend on that.
        return
    if not found and not await broker.has_scalable(topic):
        raise RestError(404, f"Topic {topic} not found")


async def _texts(request: Request) -> list[str]:
    found: Any = await body_of(request, list[str])
    return list(found)
