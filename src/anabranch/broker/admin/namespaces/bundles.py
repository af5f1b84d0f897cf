"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/…`: the topics of one bundle, whose names hash into it."""

from __future__ import annotations

import contextlib
from typing import Any

from anabranch.broker.admin.across.owner_calls import at_owners, owner_call
from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import AskElsewhere, RestError
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import UsersSubscriptionName
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.namespaces import (
    clear,
    end_subscription,
    logged_topics,
)
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.resources import NamespaceNotFound
from anabranch.broker.errors import NotReadyError
from anabranch.model.bundles import BundleName, bundle_hash, is_range
from anabranch.model.names import NamespaceName, TopicName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

_PATH = "/{tenant}/{namespace}/{bundle}"


async def named_bundle(services: AdminServices, namespace: NamespaceName, text: str) -> BundleName:
    """The bundle of that range; refused if the namespace has no such bundle."""
    bundles = (await services.resources.policies(namespace)).bundles
    if not is_range(text):
        raise RestError(412, f"Invalid bundle range {text}: expected 0x00000000_0xffffffff")
    found = bundles.ranges.bundle(namespace, text)
    if found is None:
        raise RestError(412, f"{namespace} has no bundle {text}; see its bundles")
    return found


async def owned_bundle(services: AdminServices, namespace: NamespaceName, text: str) -> BundleName:
    """As `named_bundle`; AskElsewhere if another broker owns the bundle and has its topics."""
    found = await named_bundle(services, namespace, text)
    if services.shared is not None:
        if services.balancer is not None:
            # An idle bundle has no owner until a request needs one, as this does.
            await services.balancer.find_owner(found)
        owner = services.shared.owner_of(found)
        if owner is None:
            raise NotReadyError(f"{found}: its owner is not decided yet")
        if owner.id != services.registry.me.id:
            raise AskElsewhere(owner, "Ask the bundle's owner")
    return found


async def _topics(services: AdminServices, namespace: NamespaceName, text: str) -> list[TopicName]:
    bundle = await owned_bundle(services, namespace, text)
    return [name for name in await logged_topics(services, namespace) if bundle.holds(name)]


async def open_bundles(services: AdminServices) -> dict[TopicName, str]:
    """The bundle of each open topic. Topics of a namespace that is being deleted are left out."""
    found: dict[TopicName, str] = {}
    async for name in in_turns(services.loaded()):
        with contextlib.suppress(NamespaceNotFound):
            if name.is_classic:
                policies = await services.resources.policies(name.namespace)
                found[name] = policies.bundles.ranges.of(name).range
    return found


async def of_bundle(
    services: AdminServices, namespace: NamespaceName, names: list[str], bundle: str | None
) -> list[str]:
    """Those of the names that hash into the bundle; all names if no bundle is given."""
    if bundle is None:
        return names
    ranges = (await services.resources.policies(namespace)).bundles.ranges
    return [name async for name in in_turns(names) if ranges.of(TopicName.parse(name)).range == bundle]


@routes.delete(_PATH, status=204)
async def delete_bundle(
    services: AdminServices, namespace: NamespaceName, bundle: str, force: bool = False
) -> None:
    """With `force`, deletes the topics of the bundle even if they are in use; without, only an empty bundle is
    accepted. The hash range stays."""
    topics = await _topics(services, namespace, bundle)
    if topics and not force:
        raise RestError(409, "Cannot delete non empty bundle")
    await at_owners(services, topics, delete_forced)


@owner_call
async def delete_forced(services: AdminServices, name: TopicName) -> None:
    await services.delete_topic(name, force=True)


@routes.post(_PATH + "/clearBacklog", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog(services: AdminServices, namespace: NamespaceName, bundle: str) -> None:
    await at_owners(services, await _topics(services, namespace, bundle), clear, None)


@routes.post(_PATH + "/clearBacklog/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog_of(
    services: AdminServices, namespace: NamespaceName, bundle: str, subscription: UsersSubscriptionName
) -> None:
    await at_owners(services, await _topics(services, namespace, bundle), clear, subscription)


@routes.post(_PATH + "/unsubscribe/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def unsubscribe(
    services: AdminServices, namespace: NamespaceName, bundle: str, subscription: UsersSubscriptionName
) -> None:
    await at_owners(services, await _topics(services, namespace, bundle), end_subscription, subscription)


@routes.get(_PATH + "/topicHashPositions", answers=dict[str, Any])
async def hash_positions(
    services: AdminServices, namespace: NamespaceName, bundle: str, topics: str | None = None
) -> HttpAnswer:
    """The position in the hash space of each of the bundle's topics."""
    within = await named_bundle(services, namespace, bundle)
    wanted = set(topics.split(",")) if topics else None
    found = {
        str(name): bundle_hash(name)
        async for name in in_turns(await services.resources.topic_names(namespace))
        if within.holds(name) and (wanted is None or str(name) in wanted)
    }
    return json_answer({"namespace": str(namespace), "bundle": bundle, "topicHashPositions": found})
