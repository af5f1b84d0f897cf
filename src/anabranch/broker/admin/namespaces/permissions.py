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

from typing import Annotated, Any

import msgspec

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import From, Role, SubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body_of
from anabranch.broker.admin.http.routes import SCALABLE_TOPIC, Routes, topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.security import grants
from anabranch.model.names import Domain, NamespaceName, TopicName

namespaces = Routes("/admin/v2/namespaces", tag="permissions", needs=Needs.TENANT_ADMIN)
topics = topic_routes(Domain.PERSISTENT)
scalable = Routes("/admin/v2/scalable", tag="permissions", needs=Needs.TENANT_ADMIN, domain=Domain.TOPIC)
non_persistent = topic_routes(Domain.NON_PERSISTENT)

PERMISSIONS = "/{tenant}/{namespace}/permissions"
TOPICS_MAX = 1000


GrantedRole = Annotated[str, From(lambda request: decoded_once(request.names.words["role"]))]


# -- several topics at once


class _Grant(msgspec.Struct):
    topic: str
    role: str
    actions: list[str] = []


@namespaces.post("/grantPermissionsOnTopics", status=204, needs=Needs.ROUTE)
async def grant_on_topics(services: AdminServices, caller: Role, request: HttpRequest) -> None:
    await _change_topics(services, caller, request, is_grant=True)


@namespaces.post("/revokePermissionsOnTopics", status=204, needs=Needs.ROUTE)
async def revoke_on_topics(services: AdminServices, caller: Role, request: HttpRequest) -> None:
    await _change_topics(services, caller, request, is_grant=False)


async def _change_topics(
    services: AdminServices, caller: str, request: HttpRequest, *, is_grant: bool
) -> None:
    given: list[_Grant] = await body_of(request, list[_Grant])
    if len(given) > TOPICS_MAX:
        raise RestError(413, f"{len(given)} topics at once: at most {TOPICS_MAX} are allowed")
    named = [(TopicName.parse(one.topic), one) for one in given]
    spaces = {topic.namespace for topic, _ in named}
    if len(spaces) != 1:
        raise RestError(400, "The namespace should be the same")
    namespace = spaces.pop()
    await services.rights.administer(caller, namespace)
    for topic, _ in named:
        await _check_exists(services, topic)

    def change(policies: NamespacePolicies) -> NamespacePolicies:
        for topic, one in named:
            policies = (
                grants.grant(policies, one.role, one.actions, topic)
                if is_grant
                else grants.revoke(policies, one.role, [topic])
            )
        return policies

    await services.resources.update_policies(namespace, change)


# -- namespaces and subscriptions


@namespaces.get(PERMISSIONS)
async def on_namespace(services: AdminServices, namespace: NamespaceName) -> dict[str, list[str]]:
    return (await services.resources.policies(namespace)).auth_policies.namespace_auth


@namespaces.get(PERMISSIONS + "/subscription")
async def on_subscriptions(services: AdminServices, namespace: NamespaceName) -> dict[str, list[str]]:
    return (await services.resources.policies(namespace)).auth_policies.subscription_auth_roles


@namespaces.post(PERMISSIONS + "/{role}", status=204)
async def grant_on_namespace(
    services: AdminServices, namespace: NamespaceName, role: GrantedRole, request: HttpRequest
) -> None:
    actions = await _texts(request)
    await services.resources.update_policies(namespace, lambda p: grants.grant(p, role, actions))


@namespaces.delete(PERMISSIONS + "/{role}", status=204)
async def revoke_on_namespace(services: AdminServices, namespace: NamespaceName, role: GrantedRole) -> None:
    await services.resources.update_policies(namespace, lambda p: grants.revoke(p, role))


@namespaces.post(PERMISSIONS + "/subscription/{subscription}", status=204)
async def grant_on_subscription(
    services: AdminServices, namespace: NamespaceName, subscription: SubscriptionName, request: HttpRequest
) -> None:
    """From now on only the roles in the body may use the subscription."""
    roles = await _texts(request)
    await services.resources.update_policies(
        namespace, lambda p: grants.grant_subscription(p, subscription, roles)
    )


@namespaces.delete(PERMISSIONS + "/{subscription}/{role}", status=204)
async def revoke_on_subscription(
    services: AdminServices, namespace: NamespaceName, subscription: SubscriptionName, role: GrantedRole
) -> None:
    def change(policies: NamespacePolicies) -> NamespacePolicies:
        try:
            return grants.revoke_subscription(policies, subscription, role)
        except KeyError:
            raise RestError(404, f"Nothing is granted on subscription {subscription}") from None

    await services.resources.update_policies(namespace, change)


# -- topics


async def on_topic(services: AdminServices, topic: TopicName) -> dict[str, list[str]]:
    """The grants on the namespace and, added to them, those on the topic."""
    await _check_exists(services, topic)
    return grants.granted_on((await services.resources.policies(topic.namespace)).auth_policies, topic)


async def grant_on_topic(
    services: AdminServices, topic: TopicName, role: GrantedRole, request: HttpRequest
) -> None:
    actions = await _texts(request)
    await _check_exists(services, topic)
    await services.resources.update_policies(topic.namespace, lambda p: grants.grant(p, role, actions, topic))


async def revoke_on_topic(services: AdminServices, topic: TopicName, role: GrantedRole) -> None:
    await _check_exists(services, topic)
    count = await services.resources.partitions(topic) if topic.is_classic and not topic.is_partition else 0
    # Under every name by which it may have been granted.
    names = [topic, *(topic.partition(index) for index in range(count)), *_twins(topic)]
    await services.resources.update_policies(topic.namespace, lambda p: grants.revoke(p, role, names))


for _table, _path, _kind in (
    (topics, "", "topic"),
    (non_persistent, "", "non_persistent"),
    (scalable, SCALABLE_TOPIC, "scalable"),
):
    _table.add("GET", _path + "/permissions", on_topic, name=f"on_{_kind}")
    _of_role = _path + "/permissions/{role}"
    _table.add("POST", _of_role, grant_on_topic, status=204, name=f"grant_on_{_kind}")
    _table.add("DELETE", _of_role, revoke_on_topic, status=204, name=f"revoke_on_{_kind}")


def _twins(topic: TopicName) -> list[TopicName]:
    """A classic topic that was migrated to a scalable one has grants under its old name, too."""
    if topic.domain is Domain.TOPIC and "/" not in topic.local:
        return [TopicName(Domain.PERSISTENT, topic.namespace, topic.local)]
    if topic.domain is Domain.PERSISTENT:
        return [TopicName(Domain.TOPIC, topic.namespace, topic.local)]
    return []


async def _check_exists(services: AdminServices, topic: TopicName) -> None:
    """RestError unless the topic exists: grants on a name would surprise the user that later creates the topic."""
    await services.resources.policies(topic.namespace)
    if services.config.allow_acl_changes_on_non_existent_topics:
        return
    found = topic.is_classic and (
        await services.resources.topic_exists(topic) or await services.resources.partitions(topic.base) > 0
    )
    if topic.domain is Domain.NON_PERSISTENT:
        # Such a topic exists while it is in use, and what may be granted must not depend on that.
        return
    if not found and not await services.has_scalable(topic):
        raise RestError(404, f"Topic {topic} not found")


async def _texts(request: HttpRequest) -> list[str]:
    found: Any = await body_of(request, list[str])
    return list(found)
