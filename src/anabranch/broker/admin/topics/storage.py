"""`/admin/v2/persistent/…`: what a topic stores, the backlog of a subscription, and deleting messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from anabranch.broker.admin.across.owner_calls import owner_call
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import SubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import on_parts, single
from anabranch.broker.admin.topics.subscriptions import At
from anabranch.broker.admin.topics.topics import message_id
from anabranch.broker.subscription.subscription import Subscription
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position

routes = topic_routes(Domain.PERSISTENT)

# The most entries that one request scans; a caller that wants more asks again from where it ended.
SCANNED_MAX = 10_000
_SCAN_ENTRIES = 500
_SCAN_BYTES = 4 << 20


@routes.delete("/truncate", status=204)
async def truncate(services: AdminServices, topic: TopicName) -> None:
    """Deletes every message, read or not, regardless of retention; subscriptions continue at the end."""
    await on_parts(services, topic, truncate_part)


@owner_call
async def truncate_part(services: AdminServices, name: TopicName) -> None:
    await (await services.topic(name)).upkeep.truncate()


@routes.post("/trim", status=204)
async def trim(services: AdminServices, topic: TopicName) -> None:
    """Deletes what is no longer retained now, instead of at the next regular check."""
    await on_parts(services, topic, trim_part)


@owner_call
async def trim_part(services: AdminServices, name: TopicName) -> None:
    await (await services.topic(name)).maintain()


@routes.put("/offload")
async def offload(services: AdminServices, topic: TopicName) -> None:
    await single(services, topic)
    raise RestError(405, "There is no tiered storage to offload to: the log is written where it stays")


@routes.get("/offload")
async def offload_status(services: AdminServices, topic: TopicName) -> dict[str, Any]:
    await single(services, topic)
    return {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": message_id(topic, (-1, -1))}


@routes.put("/backlogSize", body=At, needs=Needs.CONSUME)
async def backlog_size(services: AdminServices, topic: TopicName, request: HttpRequest) -> int:
    """The bytes from that message on; entries count with their average size."""
    place = (await body(request, At)).place
    log = (await single(services, topic, partitioned=405)).log
    if place == "latest":
        return 0
    at = log.first if place == "earliest" else log.normalise(max(place, log.first))
    return log.size_bytes * log.count(at, log.end) // log.entries if log.entries else 0


@routes.get("/backlog")
async def backlog_of_replicas(services: AdminServices, topic: TopicName) -> dict[str, Any]:
    raise RestError(405, "There is no offline topic to estimate: ask for the topic's stats")


@routes.get("/getMessageIdByIndex")
async def message_id_by_index(services: AdminServices, topic: TopicName, index: int) -> None:
    await single(services, topic)
    raise RestError(
        412, "Messages carry no index here: ask by time (messageid), or count entries (examinemessage)"
    )


@routes.post("/subscription/{subscription}/analyzeBacklog", body=At, needs=Needs.CONSUME)
async def analyze(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, request: HttpRequest
) -> dict[str, Any]:
    """Counts the subscription's unacknowledged messages, from its cursor or from the message in the body."""
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(
            405, "Analyze backlog on a partitioned topic is not allowed; name one of its partitions"
        )
    found = (await single(services, topic)).subscriptions.get(subscription)
    if found is None:
        raise RestError(404, f"Subscription {subscription} not found on topic {topic}")
    log = found.topic_log
    place = (await body(request, At, At(ledger_id=-1, entry_id=-1))).place
    at = log.end if place == "latest" else max(found.next, (-1, -1) if place == "earliest" else place)
    counted = await count_unacked(found, at)
    return analysis(counted.entries, counted.messages, counted.is_cut, counted.first, counted.last)


class Unacked(NamedTuple):
    """What a subscription has not acknowledged, from some place on."""

    entries: int
    messages: int
    is_cut: bool  # More entries would have had to be scanned than one request may.
    first: str | None
    last: str | None


async def count_unacked(found: Subscription, at: Position) -> Unacked:
    """Counts by reading, at most `SCANNED_MAX` entries."""
    log = found.topic_log
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
    return Unacked(entries, messages, at < log.end, _shown(first), _shown(last))


def analysis(
    entries: int, messages: int, is_cut: bool, first: str | None, last: str | None
) -> dict[str, Any]:
    """The answer in Pulsar's form."""
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
        "aborted": is_cut,
        "firstMessageId": first,
        "lastMessageId": last,
    }


def _shown(at: Position | None) -> str | None:
    return None if at is None else f"{at[0]}:{at[1]}"
