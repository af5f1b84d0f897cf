"""`/admin/v2/persistent/…/stats` and similar routes: figures of a topic and its partitions, in Pulsar's forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import merged, single
from anabranch.broker.admin.topics.topics import each_existing, partition_count
from anabranch.broker.observe.topic_stats import (
    add_earliest,
    full_topic_stats,
    internal_stats,
    ledger_info,
)
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import Domain, TopicName

routes = topic_routes(Domain.PERSISTENT, Needs.LOOKUP)


@dataclass(frozen=True, slots=True)
class WantedFigures:
    """Which of a topic's figures are requested, under Pulsar's names."""

    getEarliestTimeInBacklog: bool = False
    excludePublishers: bool = False
    excludeConsumers: bool = False

    async def of(self, topic: Topic) -> dict[str, Any]:
        found = await full_topic_stats(topic)
        if self.getEarliestTimeInBacklog:
            await add_earliest(topic, found)
        if self.excludePublishers:
            found["publishers"] = []
        if self.excludeConsumers:
            for subscription in found["subscriptions"].values():
                subscription["consumers"] = []
        return found


@routes.get("/stats")
async def stats(
    services: AdminServices,
    topic: TopicName,
    getEarliestTimeInBacklog: bool = False,
    excludePublishers: bool = False,
    excludeConsumers: bool = False,
) -> dict[str, Any]:
    wanted = WantedFigures(getEarliestTimeInBacklog, excludePublishers, excludeConsumers)
    return await wanted.of(await single(services, topic))


@routes.get("/internalStats")
async def internal(services: AdminServices, role: Role, topic: TopicName) -> dict[str, Any]:
    found = await single(services, topic)
    return internal_stats(found, for_producer=await services.rights.may_produce(role, topic))


@routes.get("/internal-info")
async def info(services: AdminServices, topic: TopicName) -> dict[str, Any]:
    """What is stored about the topic's ledgers and cursors."""
    count = 0 if topic.is_partition else await services.resources.partitions(topic)
    if not count:
        return ledger_info(await single(services, topic))
    found = await each_existing(services, topic, count)
    return {"version": 0, "partitions": {str(part.name): ledger_info(part) for part in found}}


@routes.get("/partitioned-stats")
async def partitioned_stats(
    services: AdminServices,
    topic: TopicName,
    getEarliestTimeInBacklog: bool = False,
    excludePublishers: bool = False,
    excludeConsumers: bool = False,
    perPartition: bool = True,
) -> dict[str, Any]:
    wanted = WantedFigures(getEarliestTimeInBacklog, excludePublishers, excludeConsumers)
    count = await partition_count(services, topic)
    existing = await each_existing(services, topic, count)
    found = {str(part.name): await wanted.of(part) async for part in in_turns(existing, 100)}
    metadata = (await services.resources.partitioned_topic(topic)).builtins()
    all_of_it = merged(list(found.values()))
    return {**all_of_it, "metadata": metadata, "partitions": found if perPartition else {}}


@routes.get("/partitioned-internalStats")
async def partitioned_internal_stats(services: AdminServices, role: Role, topic: TopicName) -> dict[str, Any]:
    count = await partition_count(services, topic)
    for_producer = await services.rights.may_produce(role, topic)
    found = {
        str(part.name): internal_stats(part, for_producer=for_producer)
        for part in await each_existing(services, topic, count)
    }
    return {"metadata": (await services.resources.partitioned_topic(topic)).builtins(), "partitions": found}
