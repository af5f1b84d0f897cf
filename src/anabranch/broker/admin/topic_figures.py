"""`/admin/v2/persistent/…/stats` and its kin: what is known of a topic and its partitions, in Pulsar's shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from anabranch.broker.admin.large import in_turns, json_answer
from anabranch.broker.admin.params import BrokerDep, RoleDep, TopicDep
from anabranch.broker.admin.partitions import merged, single
from anabranch.broker.admin.topics import each_existing, partition_count
from anabranch.broker.topic import Topic
from anabranch.broker.topic_stats import (
    add_earliest,
    full_topic_stats,
    internal_stats,
    ledger_info,
)

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a topic's figures is asked for, under Pulsar's names."""

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


async def _wanted(
    getEarliestTimeInBacklog: bool = False, excludePublishers: bool = False, excludeConsumers: bool = False
) -> Wanted:
    return Wanted(getEarliestTimeInBacklog, excludePublishers, excludeConsumers)


WantedDep = Annotated[Wanted, Depends(_wanted)]


@router.get("/stats")
async def stats(broker: BrokerDep, topic: TopicDep, wanted: WantedDep) -> dict[str, Any]:
    return await wanted.of(await single(broker, topic))


@router.get("/internalStats")
async def internal(broker: BrokerDep, role: RoleDep, topic: TopicDep) -> dict[str, Any]:
    found = await single(broker, topic)
    return internal_stats(found, for_producer=await broker.rights.may_produce(role, topic))


@router.get("/internal-info")
async def info(broker: BrokerDep, topic: TopicDep) -> dict[str, Any]:
    """What is stored of the topic's ledgers and cursors."""
    count = 0 if topic.is_partition else await broker.resources.partitions(topic)
    if not count:
        return ledger_info(await single(broker, topic))
    found = await each_existing(broker, topic, count)
    return {"version": 0, "partitions": {str(part.name): ledger_info(part) for part in found}}


@router.get("/partitioned-stats", response_model=dict[str, Any])
async def partitioned_stats(
    broker: BrokerDep, topic: TopicDep, wanted: WantedDep, perPartition: bool = True
) -> Response:
    count = await partition_count(broker, topic)
    existing = await each_existing(broker, topic, count)
    found = {str(part.name): await wanted.of(part) async for part in in_turns(existing, 100)}
    metadata = (await broker.resources.partitioned_topic(topic)).builtins()
    all_of_it = merged(list(found.values()))
    return json_answer({**all_of_it, "metadata": metadata, "partitions": found if perPartition else {}})


@router.get("/partitioned-internalStats")
async def partitioned_internal_stats(broker: BrokerDep, role: RoleDep, topic: TopicDep) -> dict[str, Any]:
    count = await partition_count(broker, topic)
    for_producer = await broker.rights.may_produce(role, topic)
    found = {
        str(part.name): internal_stats(part, for_producer=for_producer)
        for part in await each_existing(broker, topic, count)
    }
    return {"metadata": (await broker.resources.partitioned_topic(topic)).builtins(), "partitions": found}
