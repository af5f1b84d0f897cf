"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/…`: the topics of one bundle, whose names hash into it."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

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
    unload_topics,
)
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.resources import NamespaceNotFound
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.model.bundles import BundleName, bundle_hash, is_range
from anabranch.model.names import NamespaceName, TopicName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

_PATH = "/{tenant}/{namespace}/{bundle}"


async def _bundle(services: AdminServices, namespace: NamespaceName, text: str) -> BundleName:
    """The bundle of that range; refused if the namespace has no such bundle."""
    bundles = (await services.resources.policies(namespace)).bundles
    if not is_range(text):
        raise RestError(412, f"Invalid bundle range {text}: expected 0x00000000_0xffffffff")
    found = bundles.ranges.bundle(namespace, text)
    if found is None:
        raise RestError(412, f"{namespace} has no bundle {text}; see its bundles")
    return found


async def _owned(services: AdminServices, namespace: NamespaceName, text: str) -> BundleName:
    """As `_bundle`; AskElsewhere if another broker owns the bundle and has its topics."""
    found = await _bundle(services, namespace, text)
    if services.shared is not None:
        owner = services.shared.owner_of(found)
        if owner is None:
            raise NotReadyError(f"{found}: its owner is not decided yet")
        if owner.id != services.registry.me.id:
            raise AskElsewhere(owner, "Ask the bundle's owner")
    return found


async def _topics(services: AdminServices, namespace: NamespaceName, text: str) -> list[TopicName]:
    bundle = await _owned(services, namespace, text)
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


@routes.put(_PATH + "/unload", status=204, needs=Needs.SUPER_USER)
async def unload(
    services: AdminServices, namespace: NamespaceName, bundle: str, destinationBroker: str = ""
) -> None:
    """Closes the bundle's open topics; clients reconnect and open them again. With `destinationBroker`, that broker
    owns the bundle from now on, and its topics are opened there."""
    if destinationBroker:
        await _move(services, await _bundle(services, namespace, bundle), destinationBroker)
        return
    found = await _owned(services, namespace, bundle)
    await unload_topics(services, found.holds)


async def _move(services: AdminServices, bundle: BundleName, text: str) -> None:
    target = services.registry.named(text)
    if target is None:
        raise RestError(
            412, f"Cannot move {bundle}: there is no living broker {text}; see the list of brokers"
        )
    if target.is_draining:
        raise RestError(412, f"Cannot move {bundle}: broker {text} is about to end")
    if services.shared is None:
        await unload_topics(services, bundle.holds)
        return
    try:
        # Each broker hears of it and closes the topics that it has.
        await services.shared.assign(bundle, target.id)
    except NotAllowedError as error:
        raise RestError(412, f"Cannot move {bundle}: {error}") from None


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
    within = await _bundle(services, namespace, bundle)
    wanted = set(topics.split(",")) if topics else None
    found = {
        str(name): bundle_hash(name)
        async for name in in_turns(await services.resources.topic_names(namespace))
        if within.holds(name) and (wanted is None or str(name) in wanted)
    }
    return json_answer({"namespace": str(namespace), "bundle": bundle, "topicHashPositions": found})


@routes.put(_PATH + "/split", status=204, needs=Needs.SUPER_USER)
async def split(services: AdminServices, namespace: NamespaceName, bundle: str) -> None:
    """Splits the bundle in the middle. Both halves stay with its owner."""
    whole = await _bundle(services, namespace, bundle)
    first, last = whole.edges
    middle = f"0x{first + (last - first) // 2:08x}"

    def cut(policies: NamespacePolicies) -> NamespacePolicies:
        edges = sorted({*policies.bundles.boundaries, middle}, key=lambda edge: int(edge, 16))
        if not 2 <= len(edges) - 1 <= BUNDLES_MAX or last - first < 2:
            raise RestError(412, f"{bundle} cannot be split further")
        return msgspec.structs.replace(
            policies, bundles=Bundles(boundaries=tuple(edges), count=len(edges) - 1)
        )

    owner = None if services.shared is None else services.shared.owner_of(whole)
    if owner is not None and services.shared is not None and last - first >= 2:
        # Before the split: afterwards the hash would give each half to any broker.
        for half in (f"0x{first:08x}_{middle}", f"{middle}_0x{last:08x}"):
            await services.shared.assign(BundleName(namespace, half), owner.id)
    await services.resources.update_policies(namespace, cut)
