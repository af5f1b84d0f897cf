"""`/admin/v2/namespaces/{tenant}/{ns}/{bundle}/…`: the topics of one bundle: their names hash into it."""

from __future__ import annotations

import contextlib
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
from fastapi import APIRouter, Response

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.large import in_turns, json_answer
from anabranch.broker.admin.namespaces import clear, existing, unload_topics
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, UsersSubscriptionDep
from anabranch.broker.broker import Broker
from anabranch.broker.policies import BUNDLES_MAX, Bundles, Policies
from anabranch.broker.resources import NamespaceNotFound
from anabranch.broker.topic import Topic
from anabranch.model.names import NamespaceName, TopicName

router = APIRouter()

_PATH = "/{tenant}/{namespace}/{bundle}"
_RANGE = re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}")


async def _range(broker: Broker, namespace: NamespaceName, bundle: str) -> tuple[int, int]:
    """Where the bundle begins and ends; refused if the namespace is not cut there."""
    bundles = (await broker.resources.policies(namespace)).bundles
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


async def _topics(broker: Broker, namespace: NamespaceName, bundle: str) -> list[Topic]:
    edges = await _range(broker, namespace, bundle)
    return [topic for topic in await existing(broker, namespace) if _is_within(topic.name, edges)]


async def open_bundles(broker: Broker) -> dict[TopicName, str]:
    """The bundle of each open topic. Topics of a namespace that is being deleted are left out."""
    found: dict[TopicName, str] = {}
    ranges: dict[NamespaceName, Callable[[int], str]] = {}
    async for name in in_turns(broker.loaded()):
        with contextlib.suppress(NamespaceNotFound):
            if name.is_classic:
                if name.namespace not in ranges:
                    ranges[name.namespace] = _finder(
                        (await broker.resources.policies(name.namespace)).bundles
                    )
                found[name] = ranges[name.namespace](topic_hash(name))
    return found


def _finder(bundles: Bundles) -> Callable[[int], str]:
    """`Bundles.range_of` for many topics: a namespace may have a thousand bundles."""
    edges = [int(text, 16) for text in bundles.boundaries]
    names = [f"{first}_{last}" for first, last in pairwise(bundles.boundaries)]
    return lambda place: names[min(bisect_right(edges, place), len(names)) - 1]


async def of_bundle(
    broker: Broker, namespace: NamespaceName, names: list[str], bundle: str | None
) -> list[str]:
    """Those of the names that hash into the bundle; all of them if none is given."""
    if bundle is None:
        return names
    range_of = _finder((await broker.resources.policies(namespace)).bundles)
    return [name async for name in in_turns(names) if range_of(topic_hash(TopicName.parse(name))) == bundle]


@router.delete(_PATH, status_code=204)
async def delete_bundle(broker: BrokerDep, namespace: NamespaceDep, bundle: str, force: bool = False) -> None:
    """Deletes the topics of the bundle, by force whoever uses them; the hash range stays."""
    topics = await _topics(broker, namespace, bundle)
    if topics and not force:
        raise RestError(409, "Cannot delete non empty bundle")
    for topic in topics:
        await broker.delete_topic(topic.name, force=True)


@router.put(_PATH + "/unload", status_code=204)
@needs(Needs.SUPER_USER)
async def unload(broker: BrokerDep, namespace: NamespaceDep, bundle: str) -> None:
    """Closes the bundle's open topics; clients come back and open them again."""
    edges = await _range(broker, namespace, bundle)
    opened = [name for name in broker.loaded() if name.namespace == namespace and _is_within(name, edges)]
    await unload_topics(broker, opened)


@router.post(_PATH + "/clearBacklog", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def clear_backlog(broker: BrokerDep, namespace: NamespaceDep, bundle: str) -> None:
    for topic in await _topics(broker, namespace, bundle):
        await clear(topic, None)


@router.post(_PATH + "/clearBacklog/{subscription}", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def clear_backlog_of(
    broker: BrokerDep, namespace: NamespaceDep, bundle: str, subscription: UsersSubscriptionDep
) -> None:
    for topic in await _topics(broker, namespace, bundle):
        await clear(topic, subscription)


@router.post(_PATH + "/unsubscribe/{subscription}", status_code=204)
@needs(Needs.NAMESPACE_CONSUME)
async def unsubscribe(
    broker: BrokerDep, namespace: NamespaceDep, bundle: str, subscription: UsersSubscriptionDep
) -> None:
    for topic in await _topics(broker, namespace, bundle):
        if subscription in topic.subscriptions:
            await topic.delete_subscription(subscription)


@router.get(_PATH + "/topicHashPositions", response_model=dict[str, Any])
async def hash_positions(
    broker: BrokerDep, namespace: NamespaceDep, bundle: str, topics: str | None = None
) -> Response:
    """Where in the hash space each of the bundle's topics lies."""
    edges = await _range(broker, namespace, bundle)
    wanted = set(topics.split(",")) if topics else None
    found = {
        str(name): topic_hash(name)
        async for name in in_turns(await broker.resources.topic_names(namespace))
        if _is_within(name, edges) and (wanted is None or str(name) in wanted)
    }
    return json_answer({"namespace": str(namespace), "bundle": bundle, "topicHashPositions": found})


@router.put(_PATH + "/split", status_code=204)
@needs(Needs.SUPER_USER)
async def split(broker: BrokerDep, namespace: NamespaceDep, bundle: str) -> None:
    """Cuts the bundle in the middle."""
    first, last = await _range(broker, namespace, bundle)
    middle = f"0x{first + (last - first) // 2:08x}"

    def cut(policies: Policies) -> Policies:
        edges = sorted({*policies.bundles.boundaries, middle}, key=lambda edge: int(edge, 16))
        if not 2 <= len(edges) - 1 <= BUNDLES_MAX or last - first < 2:
            raise RestError(412, f"{bundle} cannot be split further")
        return msgspec.structs.replace(
            policies, bundles=Bundles(boundaries=tuple(edges), count=len(edges) - 1)
        )

    await broker.resources.update_policies(namespace, cut)
