"""`/admin/v2/scalable`: scalable topics, their segments and subscriptions, as Pulsar's admin client asks for them.

Requests may come to any broker. What only the leader of the topic can do is answered with a redirect to it, see
`errors.py`.

Pulsar's admin client puts a topic's name into the path as it is, slashes included, so names here span path segments.
A name that ends like one of the routes (`a/stats`) must have its slashes encoded, and then means exactly itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body, decoded_once
from anabranch.broker.admin.scalable_stats import stats_json
from anabranch.broker.scalable.subscription_limits import check_new
from anabranch.controller.errors import TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic, SubscriptionKind

router = APIRouter()

LIST = "/{tenant}/{namespace}"
TOPIC = "/{tenant}/{namespace}/{topic:path}"
SUBSCRIPTION = TOPIC + "/subscriptions/{subscription:path}"

SEGMENT_ID_MAX = 2**63 - 1
TIMESTAMP_MS_MAX = 2**63 - 1


async def _service(broker: BrokerDep) -> ScalableTopics:
    if broker.scalable is None:
        raise RestError(405, "Scalable topics are disabled; set scalableTopicEnabled=true on the brokers")
    return broker.scalable


async def _topic(namespace: NamespaceDep, topic: str) -> TopicName:
    return TopicName(Domain.TOPIC, namespace, decoded_once(topic))


async def _subscription(subscription: str) -> str:
    return decoded_once(subscription)


def _segment(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(SEGMENT_ID_MAX))
    if not is_number or int(text) > SEGMENT_ID_MAX:
        raise RestError(
            400, f"{decoded_once(text)!r} is no segment id: expected a number, as in the topic's stats"
        )
    return int(text)


ServiceDep = Annotated[ScalableTopics, Depends(_service)]
TopicDep = Annotated[TopicName, Depends(_topic)]
SubscriptionDep = Annotated[str, Depends(_subscription)]


# -- subscriptions


@router.put(SUBSCRIPTION, status_code=204)
@needs(Needs.CONSUME)
async def create_subscription(
    broker: BrokerDep,
    topic: TopicDep,
    service: ServiceDep,
    subscription: SubscriptionDep,
    type: Literal["STREAM", "QUEUE"] = "STREAM",
) -> None:
    """On every segment, from its start. Nothing happens to one that exists."""
    await check_new(broker, topic, subscription, is_by_use=False)
    await service.create_subscription(topic, subscription, SubscriptionKind(type))


@router.delete(SUBSCRIPTION, status_code=204)
@needs(Needs.CONSUME)
async def delete_subscription(topic: TopicDep, service: ServiceDep, subscription: SubscriptionDep) -> None:
    """With its consumers, and from every segment, sealed ones too."""
    await service.delete_subscription(topic, subscription)


@router.post(SUBSCRIPTION + "/seek", status_code=204)
@needs(Needs.CONSUME)
async def seek(
    topic: TopicDep,
    service: ServiceDep,
    subscription: SubscriptionDep,
    timestamp: Annotated[int, Query(ge=0, le=TIMESTAMP_MS_MAX)],
) -> None:
    """To the first message published at or after that time, in milliseconds, on every segment."""
    await service.seek(topic, subscription, timestamp)


@router.post(SUBSCRIPTION + "/skip-all", status_code=204)
@needs(Needs.CONSUME)
async def skip_all(topic: TopicDep, service: ServiceDep, subscription: SubscriptionDep) -> None:
    await service.skip_all(topic, subscription)


# -- segments


@router.post(TOPIC + "/split/{segment}", status_code=204)
@needs(Needs.SUPER_USER)
async def split(topic: TopicDep, service: ServiceDep, segment: str) -> None:
    """Answered once the new layout is published."""
    await service.split(topic, _segment(segment))


@router.post(TOPIC + "/merge/{one}/{other}", status_code=204)
@needs(Needs.SUPER_USER)
async def merge(topic: TopicDep, service: ServiceDep, one: str, other: str) -> None:
    await service.merge(topic, _segment(one), _segment(other))


# -- topics


@router.post(TOPIC + "/migrate", status_code=204)
@needs(Needs.PRODUCE)
async def migrate(topic: TopicDep, service: ServiceDep, force: bool = False) -> None:
    """The classic topic of this name becomes a scalable one, with all its messages and subscriptions."""
    await service.migrate(topic, force=force)


@router.get(TOPIC + "/stats")
@needs(Needs.LOOKUP)
async def stats(topic: TopicDep, broker: BrokerDep, service: ServiceDep) -> dict[str, Any]:
    found = await service.stats(topic)
    scaling = await broker.autoscaler.explain(topic) if found.topic.generation else None
    return stats_json(topic, found, scaling)


@router.get(TOPIC + "/properties")
@needs(Needs.LOOKUP)
async def properties(topic: TopicDep, service: ServiceDep) -> dict[str, str]:
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist")
    return dict(record.properties)


@router.put(TOPIC + "/properties", status_code=204)
async def set_properties(topic: TopicDep, service: ServiceDep, request: Request) -> None:
    """Adds these to what the topic has, as for classic topics. Watches with filters follow."""
    added = await body(request, dict[str, str], {})
    await service.update(topic, lambda record: replace(record, properties={**record.properties, **added}))


@router.delete(TOPIC + "/properties", status_code=204)
async def remove_property(topic: TopicDep, service: ServiceDep, key: str) -> None:
    def without(record: ScalableTopic) -> ScalableTopic:
        return replace(record, properties={k: v for k, v in record.properties.items() if k != key})

    await service.update(topic, without)


@router.get(LIST)
@needs(Needs.LISTING)
async def list_topics(
    namespace: NamespaceDep,
    broker: BrokerDep,
    service: ServiceDep,
    property: Annotated[Sequence[str], Query()] = (),
) -> list[str]:
    """Those that have every property asked for."""
    await broker.resources.policies(namespace)
    return [str(topic) for topic in await service.topics(namespace, _filters(property))]


def _filters(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in filter(None, texts):
        name, _, value = text.partition("=")
        if not name or not value:
            raise RestError(412, f"property={text} is no filter: expected property=NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise RestError(412, f"no topic can have property {name} both {found[name]!r} and {value!r}")
    return found


@router.put(TOPIC, status_code=204)
async def create(
    topic: TopicDep, broker: BrokerDep, service: ServiceDep, request: Request, numInitialSegments: int = 1
) -> None:
    properties = await body(request, dict[str, str], {})
    await broker.resources.policies(topic.namespace)
    await service.create(topic, numInitialSegments, properties)


@router.get(TOPIC)
@needs(Needs.LOOKUP)
async def metadata(topic: TopicDep, service: ServiceDep) -> dict[str, Any]:
    """The stored record: the layout, every segment's place in it, properties."""
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist; PUT to the same path creates it")
    return record.metadata()


@router.delete(TOPIC, status_code=204)
async def delete(topic: TopicDep, broker: BrokerDep, service: ServiceDep, force: bool = False) -> None:
    """With all its segments and subscriptions; with `force` also while clients are connected."""
    await service.delete(topic, force=force)
    await broker.forget_grants(topic)
