"""`/admin/v2/persistent`: creating, listing, deleting and describing topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from anabranch.broker.admin.across.owner_calls import at_owners, owner_call, owner_read
from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Long
from anabranch.broker.admin.http.request import HttpRequest, body, body_of
from anabranch.broker.admin.http.routes import Routes, topic_routes
from anabranch.broker.admin.namespaces.bundles import of_bundle
from anabranch.broker.admin.namespaces.moved_bundles import move
from anabranch.broker.admin.namespaces.namespaces import shown
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import on_parts, parts, single
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.policy.namespace import PartitionedTopic
from anabranch.broker.policy.stored_json import Int32
from anabranch.broker.topic.topic import Topic
from anabranch.model.leaders_topics import is_leaders
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.position import Position

PARTITIONS_MAX = 100_000
CREATED_AT_ONCE = 100

listing = Routes("/admin/v2", tag="topics", needs=Needs.LISTING)
routes = topic_routes(Domain.PERSISTENT)


# -- lists


@listing.get("/persistent/{tenant}/{namespace}", answers=list[str])
async def list_topics(
    services: AdminServices,
    namespace: NamespaceName,
    bundle: str | None = None,
    includeSystemTopic: bool = False,
) -> HttpAnswer:
    found = shown(await services.topics(namespace), includeSystemTopic)
    return json_answer(await of_bundle(services, namespace, found, bundle))


@listing.get("/persistent/{tenant}/{namespace}/partitioned")
async def list_partitioned(
    services: AdminServices, namespace: NamespaceName, includeSystemTopic: bool = False
) -> list[str]:
    await services.resources.policies(namespace)
    names = await services.resources.partitioned_names(namespace, (Domain.PERSISTENT,))
    return shown([str(name) for name in names], includeSystemTopic)


# -- one topic


@routes.put("", status=204, body=dict[str, str])
async def create_topic(services: AdminServices, topic: TopicName, request: HttpRequest) -> None:
    properties = await body(request, dict[str, str], {})
    if topic.is_partition and topic.partition_index >= await services.resources.partitions(topic.base):
        raise RestError(
            412,
            f"Can't create topic {topic.local}: it is named as a partition, and {topic.base} has no such one",
        )
    if await services.resources.partitions(topic) or not await services.new_topics.create(topic, properties):
        raise RestError(409, "This topic already exists")


@routes.delete("", status=204)
async def delete_topic(services: AdminServices, topic: TopicName, force: bool = False) -> None:
    """Deletes the topic with its subscriptions; while clients use it, only with `force`."""
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(409, f"{topic} is a partitioned topic: delete it as one, at …/partitions")
    await _delete(services, await single(services, topic), force)


async def _delete(services: AdminServices, topic: Topic, force: bool) -> None:
    if not force:
        _check_unused(topic)
    await services.delete_topic(topic.name, force=force)


def _check_unused(topic: Topic) -> None:
    try:
        topic.check_deletable()
    except NotAllowedError as error:
        raise RestError(412, str(error)) from None


@owner_read
async def check_unused(services: AdminServices, name: TopicName) -> None:
    """412 while clients use the topic."""
    _check_unused(await services.topic(name))


@owner_call
async def delete_part(services: AdminServices, name: TopicName, force: bool) -> None:
    await _delete(services, await services.topic(name), force)


@routes.put("/unload", status=204)
async def unload(
    services: AdminServices, topic: TopicName, request: HttpRequest, destinationBroker: str = ""
) -> None:
    """Closes the topic; its clients open it again. With `destinationBroker`, which only super users may give, that
    broker owns the topic's bundle from now on, and opens all its topics."""
    if destinationBroker:
        await _move(services, topic, request, destinationBroker)
    else:
        await on_parts(services, topic, unload_part)


async def _move(services: AdminServices, topic: TopicName, request: HttpRequest, to: str) -> None:
    # What each broker has to serve concerns all tenants.
    await services.rights.super_user(request.role)
    if is_leaders(topic):
        raise RestError(412, f"{topic} is in no bundle, and cannot be moved: the leader serves it")
    if await services.resources.partitions(topic):
        raise RestError(
            412, f"{topic} is partitioned, and its partitions lie in several bundles: move each of them"
        )
    if not await services.resources.topic_exists(topic):
        raise RestError(404, f"Topic {topic} not found")
    ranges = (await services.resources.policies(topic.namespace)).bundles.ranges
    await move(services, ranges.of(topic), to)


@owner_call
async def unload_part(services: AdminServices, name: TopicName) -> None:
    await services.topic(name)
    if services.scalable is not None:
        await services.scalable.release(name.base)
    await services.unload_topic(name)


@routes.post("/terminate")
async def terminate(services: AdminServices, topic: TopicName) -> dict[str, int]:
    """Seals the topic: it accepts no more messages, permanently. Answers the id of the last one."""
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(405, "Termination of a partitioned topic is not allowed; use terminate/partitions")
    await single(services, topic)
    return message_id(topic, await services.terminate_topic(topic))


@routes.post("/terminate/partitions")
async def terminate_partitions(services: AdminServices, topic: TopicName) -> dict[str, dict[str, int]]:
    if not await services.resources.partitions(topic):
        raise RestError(
            405, "Termination of a non-partitioned topic is not allowed using partitioned-terminate"
        )
    # A partition that was never used must be sealed too, so it is created first.
    for part in await parts(services, topic):
        await services.new_topics.create(part)
    ended = await at_owners(services, await parts(services, topic), terminate_part)
    return {str(part.partition_index): message_id(part, at) for part, at in ended}


@owner_call
async def terminate_part(services: AdminServices, name: TopicName) -> Position:
    return await services.terminate_topic(name)


@routes.post("/skip-damage")
async def skip_damage(services: AdminServices, topic: TopicName) -> dict[str, int]:
    """Skips the damaged entries that readers have met, so that they can continue behind them."""
    return {"skippedEntries": sum(count for _, count in await on_parts(services, topic, skip_part_damage))}


@owner_call
async def skip_part_damage(services: AdminServices, name: TopicName) -> int:
    return await services.skip_damage(name)


@routes.get("/properties", needs=Needs.LOOKUP)
async def properties(services: AdminServices, topic: TopicName) -> dict[str, str]:
    if await services.resources.partitions(topic):
        return (await services.resources.partitioned_topic(topic)).properties
    return dict((await single(services, topic)).log.topic_record.properties)


@routes.put("/properties", status=204, body=dict[str, str])
async def add_properties(services: AdminServices, topic: TopicName, request: HttpRequest) -> None:
    """Sets the properties in the body; others stay."""
    sent = await body(request, dict[str, str], {})
    await _change_properties(services, topic, lambda known: {**known, **sent})


@routes.delete("/properties", status=204)
async def remove_property(services: AdminServices, topic: TopicName, key: str) -> None:
    await _change_properties(services, topic, lambda known: {k: v for k, v in known.items() if k != key})


async def _change_properties(
    services: AdminServices, topic: TopicName, change: Callable[[Mapping[str, str]], dict[str, str]]
) -> None:
    if not topic.is_partition and await services.resources.partitions(topic):
        await services.resources.change_partitioned(
            topic, lambda record: msgspec.structs.replace(record, properties=change(record.properties))
        )
        return
    await (await single(services, topic)).log.change_record(
        lambda record: msgspec.structs.replace(record, properties=change(record.properties))
    )


# -- partitioned topics


class Partitioned(msgspec.Struct):
    partitions: Int32
    properties: dict[str, str] = {}


@routes.put("/partitions", status=204, body=Int32 | Partitioned)
async def create_partitioned(services: AdminServices, topic: TopicName, request: HttpRequest) -> None:
    """The body is a number, or an object with `partitions` and `properties`."""
    count, properties = await partitions_wanted(services, request)
    await services.new_topics.check_count(topic, count)
    await services.new_topics.create_partitioned(topic, count, properties)
    await _create_partitions(services, topic, range(count))


async def partitions_wanted(services: AdminServices, request: HttpRequest) -> tuple[int, dict[str, str]]:
    asked: int | Partitioned = await body_of(request, Int32 | Partitioned)
    wanted = asked if isinstance(asked, Partitioned) else Partitioned(asked)
    check_count(services, wanted.partitions, 406)
    return wanted.partitions, wanted.properties


async def _create_partitions(services: AdminServices, topic: TopicName, indexes: range) -> None:
    """Creates some at a time: the store commits concurrent writes together."""
    for start in range(indexes.start, indexes.stop, CREATED_AT_ONCE):
        some = range(start, min(start + CREATED_AT_ONCE, indexes.stop))
        await asyncio.gather(*(services.new_topics.create(topic.partition(index)) for index in some))


@routes.post("/partitions", status=204, body=Int32)
async def update_partitioned(services: AdminServices, topic: TopicName, request: HttpRequest) -> None:
    count: int = await body_of(request, Int32)
    check_count(services, count, 422)
    before = await services.resources.update_partitioned(topic, count)
    # Subscriptions of the topic are created on its new partitions too, at their start: they miss no message there.
    names: dict[str, None] = {}
    for _, held in await at_owners(services, partitions_of(topic, range(before)), durable_subscriptions):
        names |= dict.fromkeys(held)
    added = range(before, count)
    await _create_partitions(services, topic, added)
    if names:
        await at_owners(services, partitions_of(topic, added), subscribe_from_start, list(names))


@owner_read
async def durable_subscriptions(services: AdminServices, name: TopicName) -> list[str]:
    return [one.name for one in (await services.topic(name)).subscribing.durable()]


@owner_call
async def subscribe_from_start(services: AdminServices, name: TopicName, subscriptions: list[str]) -> None:
    topic = await services.topic(name)
    for subscription in subscriptions:
        await topic.create_subscription(subscription, "earliest", {})


def partitions_of(topic: TopicName, indexes: range) -> list[TopicName]:
    return [topic.partition(index) for index in indexes]


async def partition_count(services: AdminServices, topic: TopicName) -> int:
    count = await services.resources.partitions(topic)
    if not count:
        raise RestError(404, f"Partitioned topic {topic} not found")
    return count


def check_count(services: AdminServices, count: int, status: int) -> None:
    most = services.config.max_num_partitions_per_partitioned_topic or PARTITIONS_MAX
    if count > most:
        raise RestError(status, f"Number of partitions should be less than or equal to {most}")


@routes.get("/partitions", needs=Needs.LOOKUP)
async def get_partitions(
    services: AdminServices, topic: TopicName, checkAllowAutoCreation: bool = False
) -> dict[str, Any]:
    """0 for a topic that is not partitioned. Clients that look up over HTTP set `checkAllowAutoCreation`."""
    if checkAllowAutoCreation:
        return PartitionedTopic(
            partitions=await services.new_topics.partitions(topic, create=True)
        ).builtins()
    count = await services.resources.partitions(topic)
    if count:
        return (await services.resources.partitioned_topic(topic)).builtins()
    await services.resources.policies(topic.namespace)
    if not await services.resources.topic_exists(topic):
        raise RestError(404, f"Topic {topic} not found")
    return PartitionedTopic(partitions=0).builtins()


@routes.delete("/partitions", status=204)
async def delete_partitioned(services: AdminServices, topic: TopicName, force: bool = False) -> None:
    count = await services.resources.partitions(topic)
    if not count:
        raise RestError(404, f"Partitioned topic {topic} does not exist")
    # All partitions or none: without `force`, clients of any partition are found before the first one is deleted.
    names = partitions_of(topic, range(count))
    if not force:
        await at_owners(services, names, check_unused)
    await at_owners(services, names, delete_part, force)
    await services.resources.delete_partitioned(topic)
    await services.forget_topic(topic)


@routes.post("/createMissedPartitions", status=204)
async def create_missed_partitions(services: AdminServices, topic: TopicName) -> None:
    await partition_count(services, topic)
    for part in await parts(services, topic):
        await services.new_topics.create(part)


# -- message ids


@routes.get("/lastMessageId", needs=Needs.CONSUME)
async def last_message_id(services: AdminServices, topic: TopicName) -> dict[str, int]:
    return message_id(topic, (await single(services, topic)).log.last)


@routes.get("/messageid/{timestamp}", needs=Needs.CONSUME)
async def message_id_at(services: AdminServices, topic: TopicName, timestamp: Long) -> dict[str, int]:
    """The first message published at or after the time, in milliseconds since 1970."""
    log = (await single(services, topic, partitioned=405)).log
    return message_id(topic, await log.find_by_publish_time(timestamp))


def message_id(topic: TopicName, at: Position) -> dict[str, int]:
    return {
        "ledgerId": at[0],
        "entryId": at[1],
        "partitionIndex": topic.partition_index,
        "batchIndex": -1,
        "batchSize": 0,
    }
