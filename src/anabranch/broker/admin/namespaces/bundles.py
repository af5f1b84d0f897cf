"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/…`: the topics of one bundle, whose names hash into it."""

from __future__ import annotations

import contextlib
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import UsersSubscriptionName
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.namespaces import clear, existing, unload_topics
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.resources import NamespaceNotFound
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import NamespaceName, TopicName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)

_PATH = "/{tenant}/{namespace}/{bundle}"
_RANGE = re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}")


async def _range(services: AdminServices, namespace: NamespaceName, bundle: str) -> tuple[int, int]:
    """The start and end of the bundle; refused if the namespace has no such bundle."""
    bundles = (await services.resources.policies(namespace)).bundles
    if _RANGE.fullmatch(bundle) is None:
        raise RestError(412, f"Invalid bundle range {bundle}: expected 0x00000000_0xffffffff")
    first, last = (int(edge, 16) for edge in bundle.split("_"))
    edges = [int(edge, 16) for edge in bundles.boundaries]
    if (first, last) not in pairwise(edges):
        raise RestError(412, f"{namespace} has no bundle {bundle}; see its bundles")
    return first, last


def _is_within(name: TopicName, edges: tuple[int, int]) -> bool:
    place = topic_hash(name)
    return edges[0] <= place < edges[1] or (place == edges[1] == 0xFFFFFFFF)


def topic_hash(name: TopicName) -> int:
    return zlib.crc32(str(name).encode())


async def _topics(services: AdminServices, namespace: NamespaceName, bundle: str) -> list[Topic]:
    edges = await _range(services, namespace, bundle)
    return [topic for topic in await existing(services, namespace) if _is_within(topic.name, edges)]


async def open_bundles(services: AdminServices) -> dict[TopicName, str]:
    """The bundle of each open topic. Topics of a namespace that is being deleted are left out."""
    found: dict[TopicName, str] = {}
    ranges: dict[NamespaceName, Callable[[int], str]] = {}
    async for name in in_turns(services.loaded()):
        with contextlib.suppress(NamespaceNotFound):
            if name.is_classic:
                if name.namespace not in ranges:
                    ranges[name.namespace] = _finder(
                        (await services.resources.policies(name.namespace)).bundles
                    )
                found[name] = ranges[name.namespace](topic_hash(name))
    return found


def _finder(bundles: Bundles) -> Callable[[int], str]:
    """`Bundles.range_of` for many topics: a namespace may have a thousand bundles."""
    edges = [int(text, 16) for text in bundles.boundaries]
    names = [f"{first}_{last}" for first, last in pairwise(bundles.boundaries)]
    return lambda place: names[min(bisect_right(edges, place), len(names)) - 1]


async def of_bundle(
    services: AdminServices, namespace: NamespaceName, names: list[str], bundle: str | None
) -> list[str]:
    """Those of the names that hash into the bundle; all names if no bundle is given."""
    if bundle is None:
        return names
    range_of = _finder((await services.resources.policies(namespace)).bundles)
    return [name async for name in in_turns(names) if range_of(topic_hash(TopicName.parse(name))) == bundle]


@routes.delete(_PATH, status=204)
async def delete_bundle(
    services: AdminServices, namespace: NamespaceName, bundle: str, force: bool = False
) -> None:
    """With `force`, deletes the topics of the bundle even if they are in use; without, only an empty bundle is
    accepted. The hash range stays."""
    topics = await _topics(services, namespace, bundle)
    if topics and not force:
        raise RestError(409, "Cannot delete non empty bundle")
    for topic in topics:
        await services.delete_topic(topic.name, force=True)


@routes.put(_PATH + "/unload", status=204, needs=Needs.SUPER_USER)
async def unload(services: AdminServices, namespace: NamespaceName, bundle: str) -> None:
    """Closes the bundle's open topics; clients reconnect and open them again."""
    edges = await _range(services, namespace, bundle)
    opened = [name for name in services.loaded() if name.namespace == namespace and _is_within(name, edges)]
    await unload_topics(services, opened)


@routes.post(_PATH + "/clearBacklog", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog(services: AdminServices, namespace: NamespaceName, bundle: str) -> None:
    for topic in await _topics(services, namespace, bundle):
        await clear(topic, None)


@routes.post(_PATH + "/clearBacklog/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def clear_backlog_of(
    services: AdminServices, namespace: NamespaceName, bundle: str, subscription: UsersSubscriptionName
) -> None:
    for topic in await _topics(services, namespace, bundle):
        await clear(topic, subscription)


@routes.post(_PATH + "/unsubscribe/{subscription}", status=204, needs=Needs.NAMESPACE_CONSUME)
async def unsubscribe(
    services: AdminServices, namespace: NamespaceName, bundle: str, subscription: UsersSubscriptionName
) -> None:
    for topic in await _topics(services, namespace, bundle):
        if subscription in topic.subscriptions:
            await topic.delete_subscription(subscription)


@routes.get(_PATH + "/topicHashPositions", answers=dict[str, Any])
async def hash_positions(
    services: AdminServices, namespace: NamespaceName, bundle: str, topics: str | None = None
) -> HttpAnswer:
    """The position in the hash space of each of the bundle's topics."""
    edges = await _range(services, namespace, bundle)
    wanted = set(topics.split(",")) if topics else None
    found = {
        str(name): topic_hash(name)
        async for name in in_turns(await services.resources.topic_names(namespace))
        if _is_within(name, edges) and (wanted is None or str(name) in wanted)
    }
    return json_answer({"namespace": str(namespace), "bundle": bundle, "topicHashPositions": found})


@routes.put(_PATH + "/split", status=204, needs=Needs.SUPER_USER)
async def split(services: AdminServices, namespace: NamespaceName, bundle: str) -> None:
    """Splits the bundle in the middle."""
    first, last = await _range(services, namespace, bundle)
    middle = f"0x{first + (last - first) // 2:08x}"

    def cut(policies: NamespacePolicies) -> NamespacePolicies:
        edges = sorted({*policies.bundles.boundaries, middle}, key=lambda edge: int(edge, 16))
        if not 2 <= len(edges) - 1 <= BUNDLES_MAX or last - first < 2:
            raise RestError(412, f"{bundle} cannot be split further")
        return msgspec.structs.replace(
            policies, bundles=Bundles(boundaries=tuple(edges), count=len(edges) - 1)
        )

    await services.resources.update_policies(namespace, cut)
