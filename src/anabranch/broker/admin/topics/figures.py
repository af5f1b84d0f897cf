"""`/admin/v2/persistent/…/stats` and similar routes: figures of a topic and its partitions, in Pulsar's forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.broker.admin.across.owner_calls import at_owners, owner_read
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import merged, single
from anabranch.broker.admin.topics.topics import partition_count, partitions_of
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
    found = await at_owners(services, partitions_of(topic, range(count)), part_info)
    return {"version": 0, "partitions": {str(part): told for part, told in found}}


@owner_read
async def part_info(services: AdminServices, name: TopicName) -> dict[str, Any]:
    return ledger_info(await services.topic(name))


@routes.get("/partitioned-stats")
async def partitioned_stats(
    services: AdminServices,
    topic: TopicName,
    getEarliestTimeInBacklog: bool = False,
    excludePublishers: bool = False,
    excludeConsumers: bool = False,
    perPartition: bool = True,
) -> dict[str, Any]:
    names = partitions_of(topic, range(await partition_count(services, topic)))
    wanted = (getEarliestTimeInBacklog, excludePublishers, excludeConsumers)
    found = {str(part): told for part, told in await at_owners(services, names, part_stats, *wanted)}
    metadata = (await services.resources.partitioned_topic(topic)).builtins()
    all_of_it = merged(list(found.values()))
    return {**all_of_it, "metadata": metadata, "partitions": found if perPartition else {}}


@owner_read
async def part_stats(
    services: AdminServices,
    name: TopicName,
    earliest_in_backlog: bool,
    without_publishers: bool,
    without_consumers: bool,
) -> dict[str, Any]:
    wanted = WantedFigures(earliest_in_backlog, without_publishers, without_consumers)
    return await wanted.of(await services.topic(name))


@routes.get("/partitioned-internalStats")
async def partitioned_internal_stats(services: AdminServices, role: Role, topic: TopicName) -> dict[str, Any]:
    count = await partition_count(services, topic)
    for_producer = await services.rights.may_produce(role, topic)
    names = partitions_of(topic, range(count))
    found = {
        str(part): told for part, told in await at_owners(services, names, part_internal_stats, for_producer)
    }
    return {"metadata": (await services.resources.partitioned_topic(topic)).builtins(), "partitions": found}


@owner_read
async def part_internal_stats(services: AdminServices, name: TopicName, for_producer: bool) -> dict[str, Any]:
    return internal_stats(await services.topic(name), for_producer=for_producer)
