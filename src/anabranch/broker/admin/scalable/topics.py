"""`/admin/v2/scalable`: scalable topics, their segments and subscriptions, for Pulsar's admin client.

Requests may be sent to any broker. Those that only the leader of the topic can perform are redirected to it, see
`errors.py`.

Pulsar's admin client puts a topic's name into the path as it is, slashes included, so names here span path segments. A
name that ends like one of the routes (`a/stats`) must have its slashes encoded, and then means exactly itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import From
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import SCALABLE_TOPIC, Routes
from anabranch.broker.admin.scalable.stats import stats_json
from anabranch.broker.admin.services import AdminServices
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, NamespaceName, TopicName, check_given
from anabranch.model.scalable import ScalableTopic, SubscriptionKind

routes = Routes("/admin/v2/scalable", tag="scalable topics", needs=Needs.TENANT_ADMIN, domain=Domain.TOPIC)

LIST = "/{tenant}/{namespace}"
TOPIC = SCALABLE_TOPIC
SUBSCRIPTION = TOPIC + "/subscriptions/{subscription:path}"

SEGMENT_ID_MAX = 2**63 - 1
TIMESTAMP_MS_MAX = 2**63 - 1


def _service(request: HttpRequest) -> ScalableTopics:
    if request.services.scalable is None:
        raise RestError(405, "Scalable topics are disabled; set scalableTopicEnabled=true on the brokers")
    return request.services.scalable


def _segment(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(SEGMENT_ID_MAX))
    if not is_number or int(text) > SEGMENT_ID_MAX:
        raise RestError(
            400, f"{decoded_once(text)!r} is no segment id: expected a number, as in the topic's stats"
        )
    return int(text)


Service = Annotated[ScalableTopics, From(_service)]


def _subscription(request: HttpRequest) -> str:
    check_given("subscription", request.names.subscription)
    return request.names.subscription


ScalableSubscription = Annotated[str, From(_subscription)]


# -- subscriptions


@routes.put(SUBSCRIPTION, status=204, needs=Needs.CONSUME)
async def create_subscription(
    services: AdminServices,
    topic: TopicName,
    service: Service,
    subscription: ScalableSubscription,
    type: Literal["STREAM", "QUEUE"] = "STREAM",
) -> None:
    """Creates the subscription on every segment, from its start. Does nothing if it exists."""
    await services.check_new_subscription(topic, subscription)
    await service.create_subscription(topic, subscription, SubscriptionKind(type))


@routes.delete(SUBSCRIPTION, status=204, needs=Needs.CONSUME)
async def delete_subscription(topic: TopicName, service: Service, subscription: ScalableSubscription) -> None:
    """Deletes the subscription with its consumers, from every segment, including sealed ones."""
    await service.delete_subscription(topic, subscription)


@routes.post(SUBSCRIPTION + "/seek", status=204, needs=Needs.CONSUME)
async def seek(
    topic: TopicName,
    service: Service,
    subscription: ScalableSubscription,
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)],
) -> None:
    """Moves the subscription to the first message published at or after that time, in milliseconds, on every
    segment."""
    await service.seek(topic, subscription, timestamp)


@routes.post(SUBSCRIPTION + "/skip-all", status=204, needs=Needs.CONSUME)
async def skip_all(topic: TopicName, service: Service, subscription: ScalableSubscription) -> None:
    await service.skip_all(topic, subscription)


# -- segments


@routes.post(TOPIC + "/split/{segment}", status=204, needs=Needs.SUPER_USER)
async def split(topic: TopicName, service: Service, segment: str) -> None:
    """Answers once the new layout is published."""
    await service.split(topic, _segment(segment))


@routes.post(TOPIC + "/merge/{one}/{other}", status=204, needs=Needs.SUPER_USER)
async def merge(topic: TopicName, service: Service, one: str, other: str) -> None:
    await service.merge(topic, _segment(one), _segment(other))


@routes.post(TOPIC + "/rebucket/{segment}", status=204, needs=Needs.SUPER_USER)
async def rebucket(topic: TopicName, service: Service, segment: str, buckets: int) -> None:
    """Seals the segment in favour of one with the same range and so many entry buckets. Answers once the new layout is
    published."""
    await service.rebucket(topic, _segment(segment), buckets)


# -- topics


@routes.post(TOPIC + "/migrate", status=204, needs=Needs.PRODUCE)
async def migrate(topic: TopicName, service: Service, force: bool = False) -> None:
    """Turns the classic topic of this name into a scalable one, with all its messages and subscriptions."""
    await service.migrate(topic, force=force)


@routes.get(TOPIC + "/stats", needs=Needs.LOOKUP)
async def stats(topic: TopicName, services: AdminServices, service: Service) -> dict[str, Any]:
    found = await service.stats(topic)
    scaling = await services.autoscaler.explain(topic) if found.topic.generation else None
    return stats_json(topic, found, scaling)


@routes.get(TOPIC + "/properties", needs=Needs.LOOKUP)
async def properties(topic: TopicName, service: Service) -> dict[str, str]:
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist")
    return dict(record.properties)


@routes.put(TOPIC + "/properties", status=204)
async def set_properties(topic: TopicName, service: Service, request: HttpRequest) -> None:
    """Adds these properties to those of the topic, as for classic topics. Watches with filters follow."""
    added = await body(request, dict[str, str], {})
    await service.update(topic, lambda record: replace(record, properties={**record.properties, **added}))


@routes.delete(TOPIC + "/properties", status=204)
async def remove_property(topic: TopicName, service: Service, key: str) -> None:
    def without(record: ScalableTopic) -> ScalableTopic:
        return replace(record, properties={k: v for k, v in record.properties.items() if k != key})

    await service.update(topic, without)


@routes.get(LIST, needs=Needs.LISTING)
async def list_topics(
    namespace: NamespaceName,
    services: AdminServices,
    service: Service,
    property: Sequence[str] = (),
) -> list[str]:
    """The topics that have all given properties."""
    await services.resources.policies(namespace)
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


@routes.put(TOPIC, status=204)
async def create(
    topic: TopicName,
    services: AdminServices,
    service: Service,
    request: HttpRequest,
    numInitialSegments: int = 1,
) -> None:
    properties = await body(request, dict[str, str], {})
    await services.resources.policies(topic.namespace)
    await service.create(topic, numInitialSegments, properties)


@routes.get(TOPIC, needs=Needs.LOOKUP)
async def metadata(topic: TopicName, service: Service) -> dict[str, Any]:
    """The stored record: the layout, every segment's place in it, properties."""
    record = await service.get(topic)
    if record is None:
        raise TopicMissing(f"{topic} does not exist; PUT to the same path creates it")
    return record.metadata()


@routes.delete(TOPIC, status=204)
async def delete(topic: TopicName, services: AdminServices, service: Service, force: bool = False) -> None:
    """Deletes the topic with all its segments and subscriptions; with `force` also while clients are connected."""
    await service.delete(topic, force=force)
    await services.topic_policies.forget(topic)
    await services.forget_grants(topic)
