"""`/admin/v2/segments`: single segments of scalable topics, as brokers ask each other for them. Super users only.

Each request is answered by the broker that owns the segment; any other one sends the caller there. All of them may be
repeated, and what the topic's record does not call for is refused: to split, merge or delete use `/admin/v2/scalable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.exceptions import HTTPException

from anabranch.broker.admin.errors import RestError, redirect
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, body, decoded_once
from anabranch.broker.broker import Broker
from anabranch.broker.scalable.records import named_segment
from anabranch.controller.ports import CursorStatus, SegmentGone, SegmentRefused
from anabranch.controller.records import Records
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segments import Segment, parse_descriptor

router = APIRouter()

# Names of topics may hold slashes, and Pulsar's admin client sends them as they are.
SEGMENT = "/{tenant}/{namespace}/{topic:path}/{descriptor}"
SUBSCRIPTION = SEGMENT + "/subscription/{subscription:path}"
TIMESTAMP_MS_MAX = 2**63 - 1
KEPT = (
    "A segment of the layout goes by itself once it is sealed, read by every subscription and not retained: skip-all "
    "of a subscription, or its deletion, gives up what it has not read. To give up everything, delete the topic"
)


@dataclass(frozen=True, slots=True)
class Owned:
    """A segment that this broker owns, and its topic."""

    broker: Broker
    topic: TopicName
    segment: Segment

    @property
    def name(self) -> TopicName:
        return self.segment.topic(self.topic)


async def _owned(
    request: Request, broker: BrokerDep, namespace: NamespaceDep, topic: str, descriptor: str
) -> Owned:
    if broker.scalable is None:
        raise RestError(405, "Scalable topics are disabled; set scalableTopicEnabled=true on the brokers")
    parent = TopicName(Domain.TOPIC, namespace, decoded_once(topic))
    span, number = parse_descriptor(decoded_once(descriptor))
    segment = Segment(number, span)
    record = await Records(broker.metadata).get(parent)
    stored = None if record is None else named_segment(record, number)
    if stored is not None and stored.range == span:
        segment = stored
    owned = Owned(broker, parent, segment)
    if not broker.owners.is_mine(owned.name):
        answer = redirect(request, broker.owners.owner(owned.name).http_url)
        raise HTTPException(307, "Ask the segment's owner", {"Location": answer.headers["location"]})
    return owned


async def _subscription(subscription: str) -> str:
    name = decoded_once(subscription)
    if not name:
        raise RestError(412, "Subscription name is empty")
    return name


OwnedDep = Annotated[Owned, Depends(_owned)]
NameDep = Annotated[str, Depends(_subscription)]


# -- cursors; before the segments themselves, whose topics' names may hold anything


@router.get(SUBSCRIPTION + "/backlog")
async def backlog(owned: OwnedDep, subscription: NameDep) -> int:
    """Entries not acknowledged. None, once the segment is sealed and only pieces of messages are left."""
    return (await _cursor(owned, subscription)).backlog


@router.post(SUBSCRIPTION + "/seek", status_code=204)
async def seek(
    owned: OwnedDep, subscription: NameDep, timestamp: Annotated[int, Query(ge=0, le=TIMESTAMP_MS_MAX)]
) -> None:
    await _cursor(owned, subscription)
    await owned.broker.segment_owner.seek(owned.topic, owned.segment, subscription, timestamp)


@router.post(SUBSCRIPTION + "/skip-all", status_code=204)
async def skip_all(owned: OwnedDep, subscription: NameDep) -> None:
    await _cursor(owned, subscription)
    await owned.broker.segment_owner.skip_all(owned.topic, owned.segment, subscription)


@router.put(SUBSCRIPTION, status_code=204)
async def create_subscription(owned: OwnedDep, subscription: NameDep) -> None:
    """At the segment's start, unless it exists."""
    await owned.broker.segment_owner.status(
        owned.topic, owned.segment
    )  # SegmentGone before anything is stored.
    await _register(owned, subscription)
    await owned.broker.segment_owner.create_subscription(
        owned.topic, owned.segment, subscription, InitialPosition.EARLIEST
    )


@router.delete(SUBSCRIPTION, status_code=204)
async def delete_subscription(owned: OwnedDep, subscription: NameDep) -> None:
    """Only what the topic itself has deleted, or never had."""
    await owned.broker.segment_owner.delete_subscription(owned.topic, owned.segment, subscription)


async def _cursor(owned: Owned, subscription: str) -> CursorStatus:
    status = await owned.broker.segment_owner.status(owned.topic, owned.segment)
    found = status.subscriptions.get(subscription)
    if found is None:
        raise SegmentGone(f"{owned.name} has no subscription {subscription}")
    return found


async def _register(owned: Owned, subscription: str) -> None:
    """Subscriptions belong to the topic: none has a cursor without its record.

    One that the topic has already needs nothing, and must not wait for a split or merge to end: it may be the very one
    that asks for this segment.
    """
    records, registration = Records(owned.broker.metadata), owned.broker.registration
    topic = await records.get(owned.topic)
    known = None if topic is None else await records.subscription(owned.topic, topic.generation, subscription)
    if known is not None and not known.is_deleting:
        return
    assert registration is not None
    await registration.register(owned.name, subscription, SubscriptionKind.QUEUE, InitialPosition.EARLIEST)


# -- segments


@router.post(SEGMENT + "/terminate", status_code=204)
async def terminate(owned: OwnedDep) -> None:
    """No more messages, for good."""
    if not await owned.broker.resources.topic_exists(owned.name):
        raise SegmentGone(f"{owned.name} does not exist")
    await owned.broker.segment_owner.seal(owned.topic, owned.segment)


@router.put(SEGMENT, status_code=204)
async def create(owned: OwnedDep, request: Request) -> None:
    """The body may list subscriptions, each of which begins at the segment's start."""
    names = await body(request, list[str], [])
    await owned.broker.segment_owner.create(owned.topic, owned.segment, ())
    for name in names:
        await _register(owned, await _subscription(name))
    await owned.broker.segment_owner.create(owned.topic, owned.segment, names)


@router.delete(SEGMENT, status_code=204)
async def delete(owned: OwnedDep, force: bool = False) -> None:
    """Its storage is given back. Nothing happens if there is none."""
    opened = owned.broker.loaded().get(owned.name)
    if opened is not None and not force:
        consumers = sum(len(s.consumers) for s in opened.subscriptions.values())
        if opened.producers or consumers:
            raise RestError(412, "Segment has active producers/subscriptions; close them, or force")
        if opened.hidden.has_open:
            text = (
                "Segment holds entries of hidden writes that are not decided; decide or drop them, or force"
            )
            raise RestError(412, text)
    try:
        await owned.broker.segment_owner.delete(owned.topic, owned.segment)
    except SegmentRefused as error:
        # Also with force, which Pulsar obeys: the layout would go on sending producers and consumers there.
        raise RestError(409, f"{error}. {KEPT}") from None
