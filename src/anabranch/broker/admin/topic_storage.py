"""`/admin/v2/persistent/…`: what a topic holds, what is owed to a subscription, and giving it up."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, SubscriptionDep, TopicDep, body
from anabranch.broker.admin.partitions import each, single
from anabranch.broker.admin.subscriptions import At
from anabranch.broker.admin.topics import message_id
from anabranch.model.position import Position

router = APIRouter()

# One request looks at so many entries; whoever wants more asks again from where it ended.
SCANNED_MAX = 10_000
_SCAN_ENTRIES = 500
_SCAN_BYTES = 4 << 20


@router.delete("/truncate", status_code=204)
async def truncate(broker: BrokerDep, topic: TopicDep) -> None:
    """Gives up every message, read or not, whatever retention says; subscriptions go on at the end."""
    for part in await each(broker, topic):
        await part.upkeep.truncate()


@router.post("/trim", status_code=204)
async def trim(broker: BrokerDep, topic: TopicDep) -> None:
    """Gives up now what nothing keeps any more, instead of at the next turn."""
    for part in await each(broker, topic):
        await part.maintain()


@router.put("/offload")
async def offload(broker: BrokerDep, topic: TopicDep) -> None:
    await single(broker, topic)
    raise RestError(405, "There is no tiered storage to offload to: the log is written where it stays")


@router.get("/offload")
async def offload_status(broker: BrokerDep, topic: TopicDep) -> dict[str, Any]:
    await single(broker, topic)
    return {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": message_id(topic, (-1, -1))}


@router.put("/backlogSize", openapi_extra=takes(At))
@needs(Needs.CONSUME)
async def backlog_size(broker: BrokerDep, topic: TopicDep, request: Request) -> int:
    """The bytes from that message on; entries count with their mean size."""
    place = (await body(request, At)).place
    log = (await single(broker, topic, partitioned=405)).log
    if place == "latest":
        return 0
    at = log.first if place == "earliest" else log.normalise(max(place, log.first))
    return log.size_bytes * log.count(at, log.end) // log.entries if log.entries else 0


@router.get("/backlog")
async def backlog_of_replicas(broker: BrokerDep, topic: TopicDep) -> dict[str, Any]:
    raise RestError(405, "There is no offline topic to estimate: ask for the topic's stats")


@router.get("/getMessageIdByIndex")
async def message_id_by_index(broker: BrokerDep, topic: TopicDep, index: int) -> None:
    await single(broker, topic)
    raise RestError(
        412, "Messages carry no index here: ask by time (messageid), or count entries (examinemessage)"
    )


@router.post("/subscription/{subscription}/analyzeBacklog", openapi_extra=takes(At))
@needs(Needs.CONSUME)
async def analyze(
    broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep, request: Request
) -> dict[str, Any]:
    """Counts what the subscription has not acknowledged, from its cursor or from the message in the body."""
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(
            405, "Analyze backlog on a partitioned topic is not allowed; name one of its partitions"
        )
    found = (await single(broker, topic)).subscriptions.get(subscription)
    if found is None:
        raise RestError(404, f"Subscription {subscription} not found on topic {topic}")
    log = found.topic_log
    place = (await body(request, At, At(ledger_id=-1, entry_id=-1))).place
    at = log.end if place == "latest" else max(found.next, (-1, -1) if place == "earliest" else place)
    at = log.normalise(at)
    entries = messages = scanned = 0
    first: Position | None = None
    last: Position | None = None
    while at < log.end and scanned < SCANNED_MAX:
        ledger, batch = await log.read(at, min(_SCAN_ENTRIES, SCANNED_MAX - scanned), _SCAN_BYTES)
        for number, count, _ in batch:
            at = (ledger, number)
            scanned += 1
            if not found.cursor.is_acked(at):
                unacked = found.cursor.batches.get(at)
                entries += 1
                messages += count if unacked is None else unacked.bit_count()
                first, last = first or at, at
        at = log.after(at)
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": 0,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": at < log.end,
        "firstMessageId": _shown(first),
        "lastMessageId": _shown(last),
    }


def _shown(at: Position | None) -> str | None:
    return None if at is None else f"{at[0]}:{at[1]}"
