"""`/admin/v2/persistent`: making, listing, deleting and describing topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from anabranch.broker.admin.bundles import of_bundle
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.large import json_answer
from anabranch.broker.admin.namespaces import shown
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, TopicDep, body, body_of
from anabranch.broker.admin.partitions import each, parts, single
from anabranch.broker.broker import Broker
from anabranch.broker.errors import NotAllowedError, TopicNotFoundError
from anabranch.broker.policies import PartitionedTopic
from anabranch.broker.policy_json import Int32
from anabranch.broker.topic import Topic
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position

PARTITIONS_MAX = 100_000
CREATED_AT_ONCE = 100

listing = APIRouter()
router = APIRouter()


# -- lists


@listing.get("/persistent/{tenant}/{namespace}", response_model=list[str])
async def list_topics(
    broker: BrokerDep, namespace: NamespaceDep, bundle: str | None = None, includeSystemTopic: bool = False
) -> Response:
    found = shown(await broker.topics(namespace), includeSystemTopic)
    return json_answer(await of_bundle(broker, namespace, found, bundle))


@listing.get("/persistent/{tenant}/{namespace}/partitioned")
async def list_partitioned(
    broker: BrokerDep, namespace: NamespaceDep, includeSystemTopic: bool = False
) -> list[str]:
    await broker.resources.policies(namespace)
    names = await broker.resources.partitioned_names(namespace, (Domain.PERSISTENT,))
    return shown([str(name) for name in names], includeSystemTopic)


# -- one topic


@router.put("", status_code=204, openapi_extra=takes(dict[str, str]))
async def create_topic(broker: BrokerDep, topic: TopicDep, request: Request) -> None:
    properties = await body(request, dict[str, str], {})
    if topic.is_partition and topic.partition_index >= await broker.resources.partitions(topic.base):
        raise RestError(
            412,
            f"Can't create topic {topic.local}: it is named as a partition, and {topic.base} has no such one",
        )
    if await broker.resources.partitions(topic) or not await broker.new_topics.create(topic, properties):
        raise RestError(409, "This topic already exists")


@router.delete("", status_code=204)
async def delete_topic(broker: BrokerDep, topic: TopicDep, force: bool = False) -> None:
    """With its subscriptions, unless clients use it: that takes force."""
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(409, f"{topic} is a partitioned topic: delete it as one, at …/partitions")
    await _delete(broker, await single(broker, topic), force)


async def _delete(broker: Broker, topic: Topic, force: bool) -> None:
    _check_unused(topic, force)
    await broker.delete_topic(topic.name, force=force)


def _check_unused(topic: Topic, force: bool) -> None:
    if not force:
        try:
            topic.check_deletable()
        except NotAllowedError as error:
            raise RestError(412, str(error)) from None


@router.put("/unload", status_code=204)
async def unload(broker: BrokerDep, topic: TopicDep) -> None:
    parts = await each(broker, topic)
    if broker.scalable is not None:
        await broker.scalable.release(topic.base)
    for part in parts:
        await broker.unload_topic(part.name)


@router.post("/terminate")
async def terminate(broker: BrokerDep, topic: TopicDep) -> dict[str, int]:
    """No more messages, for good. The id of the last one."""
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(405, "Termination of a partitioned topic is not allowed; use terminate/partitions")
    await single(broker, topic)
    return message_id(topic, await broker.terminate_topic(topic))


@router.post("/terminate/partitions")
async def terminate_partitions(broker: BrokerDep, topic: TopicDep) -> dict[str, dict[str, int]]:
    if not await broker.resources.partitions(topic):
        raise RestError(
            405, "Termination of a non-partitioned topic is not allowed using partitioned-terminate"
        )
    # A partition that was never used must be sealed too, so it is made first.
    for part in await parts(broker, topic):
        await broker.new_topics.create(part)
    return {
        str(part.partition_index): message_id(part, await broker.terminate_topic(part))
        for part in await parts(broker, topic)
    }


@router.post("/skip-damage")
async def skip_damage(broker: BrokerDep, topic: TopicDep) -> dict[str, int]:
    """Gives up the damaged entries that readers have met, so that they can go on behind them."""
    return {
        "skippedEntries": sum([await broker.skip_damage(part.name) for part in await each(broker, topic)])
    }


@router.get("/properties")
@needs(Needs.LOOKUP)
async def properties(broker: BrokerDep, topic: TopicDep) -> dict[str, str]:
    if await broker.resources.partitions(topic):
        return (await broker.resources.partitioned_topic(topic)).properties
    return dict((await single(broker, topic)).log.topic_record.properties)


@router.put("/properties", status_code=204, openapi_extra=takes(dict[str, str]))
async def add_properties(broker: BrokerDep, topic: TopicDep, request: Request) -> None:
    """Those sent are set; others stay."""
    sent = await body(request, dict[str, str], {})
    await _change_properties(broker, topic, lambda known: {**known, **sent})


@router.delete("/properties", status_code=204)
async def remove_property(broker: BrokerDep, topic: TopicDep, key: str) -> None:
    await _change_properties(broker, topic, lambda known: {k: v for k, v in known.items() if k != key})


async def _change_properties(
    broker: Broker, topic: TopicName, change: Callable[[Mapping[str, str]], dict[str, str]]
) -> None:
    if not topic.is_partition and await broker.resources.partitions(topic):
        await broker.resources.change_partitioned(
            topic, lambda record: msgspec.structs.replace(record, properties=change(record.properties))
        )
        return
    await (await single(broker, topic)).log.change_record(
        lambda record: msgspec.structs.replace(record, properties=change(record.properties))
    )


# -- partitioned topics


class Partitioned(msgspec.Struct):
    partitions: Int32
    properties: dict[str, str] = {}


@router.put("/partitions", status_code=204, openapi_extra=takes(Int32 | Partitioned))
async def create_partitioned(broker: BrokerDep, topic: TopicDep, request: Request) -> None:
    """The body is a number, or an object with `partitions` and `properties`."""
    count, properties = await partitions_wanted(broker, request)
    await broker.new_topics.check_count(topic, count)
    await broker.resources.create_partitioned(topic, count, properties)
    await _create_partitions(broker, topic, range(count))


async def partitions_wanted(broker: Broker, request: Request) -> tuple[int, dict[str, str]]:
    asked: int | Partitioned = await body_of(request, Int32 | Partitioned)
    wanted = asked if isinstance(asked, Partitioned) else Partitioned(asked)
    check_count(broker, wanted.partitions, 406)
    return wanted.partitions, wanted.properties


async def _create_partitions(broker: Broker, topic: TopicName, indexes: range) -> None:
    """Some at a time: the store writes down together what comes together."""
    for start in range(indexes.start, indexes.stop, CREATED_AT_ONCE):
        some = range(start, min(start + CREATED_AT_ONCE, indexes.stop))
        await asyncio.gather(*(broker.new_topics.create(topic.partition(index)) for index in some))


@router.post("/partitions", status_code=204, openapi_extra=takes(Int32))
async def update_partitioned(broker: BrokerDep, topic: TopicDep, request: Request) -> None:
    count: int = await body_of(request, Int32)
    check_count(broker, count, 422)
    before = await broker.resources.update_partitioned(topic, count)
    # Subscriptions of the topic exist on its new partitions too, from their start: nothing published there is missed.
    names: dict[str, None] = {}
    for part in await each_existing(broker, topic, before):
        names |= dict.fromkeys(one.name for one in part.subscribing.durable())
    await _create_partitions(broker, topic, range(before, count))
    for index in range(before, count if names else before):
        part = await broker.topic(topic.partition(index))
        for name in names:
            await part.create_subscription(name, "earliest", {})


async def each_existing(broker: Broker, topic: TopicName, count: int) -> list[Topic]:
    found = []
    for index in range(count):
        try:
            found.append(await broker.topic(topic.partition(index)))
        except TopicNotFoundError:
            continue
    return found


async def partition_count(broker: Broker, topic: TopicName) -> int:
    count = await broker.resources.partitions(topic)
    if not count:
        raise RestError(404, f"Partitioned topic {topic} not found")
    return count


def check_count(broker: Broker, count: int, status: int) -> None:
    most = broker.config.max_num_partitions_per_partitioned_topic or PARTITIONS_MAX
    if count > most:
        raise RestError(status, f"Number of partitions should be less than or equal to {most}")


@router.get("/partitions")
@needs(Needs.LOOKUP)
async def get_partitions(
    broker: BrokerDep, topic: TopicDep, checkAllowAutoCreation: bool = False
) -> dict[str, Any]:
    """0 for a topic that is not partitioned. Clients that look up over HTTP set `checkAllowAutoCreation`."""
    if checkAllowAutoCreation:
        return PartitionedTopic(partitions=await broker.new_topics.partitions(topic, create=True)).builtins()
    count = await broker.resources.partitions(topic)
    if count:
        return (await broker.resources.partitioned_topic(topic)).builtins()
    await broker.resources.policies(topic.namespace)
    if not await broker.resources.topic_exists(topic):
        raise RestError(404, f"Topic {topic} not found")
    return PartitionedTopic(partitions=0).builtins()


@router.delete("/partitions", status_code=204)
async def delete_partitioned(broker: BrokerDep, topic: TopicDep, force: bool = False) -> None:
    count = await broker.resources.partitions(topic)
    if not count:
        raise RestError(404, f"Partitioned topic {topic} does not exist")
    # By force or not at all: a partition with clients is found before the first one is deleted.
    found = await each_existing(broker, topic, count)
    for part in found:
        _check_unused(part, force)
    for part in found:
        await _delete(broker, part, force)
    await broker.resources.delete_partitioned(topic)
    await broker.forget_topic(topic)


@router.post("/createMissedPartitions", status_code=204)
async def create_missed_partitions(broker: BrokerDep, topic: TopicDep) -> None:
    await partition_count(broker, topic)
    for part in await parts(broker, topic):
        await broker.new_topics.create(part)


# -- message ids


@router.get("/lastMessageId")
@needs(Needs.CONSUME)
async def last_message_id(broker: BrokerDep, topic: TopicDep) -> dict[str, int]:
    return message_id(topic, (await single(broker, topic)).log.last)


@router.get("/messageid/{timestamp}")
@needs(Needs.CONSUME)
async def message_id_at(broker: BrokerDep, topic: TopicDep, timestamp: int) -> dict[str, int]:
    """The first message published at or after the time, in milliseconds since 1970."""
    log = (await single(broker, topic, partitioned=405)).log
    return message_id(topic, await log.find_by_publish_time(timestamp))


def message_id(topic: TopicName, at: Position) -> dict[str, int]:
    return {
        "ledgerId": at[0],
        "entryId": at[1],
        "partitionIndex": topic.partition_index,
        "batchIndex": -1,
        "batchSize": 0,
    }
