"""`/admin/v2/segments`: single segments of scalable topics, as brokers request them of each other. Super users only.

Each request is answered by the broker that owns the segment; any other broker redirects the caller there. All requests
may be repeated, and a change that the topic's record does not call for is refused: to split, merge or delete use
`/admin/v2/scalable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from anabranch.broker.admin.http.errors import AskElsewhere, RestError
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.parameters import From
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.segment_records import segment_by_id
from anabranch.controller.core.errors import SegmentGone, SegmentRefused
from anabranch.controller.ports import CursorStatus
from anabranch.controller.records import Records
from anabranch.model.names import Domain, TopicName, check_given
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segments import Segment, parse_descriptor

routes = Routes("/admin/v2/segments", tag="segments", domain=Domain.TOPIC)

# Names of topics may hold slashes, and Pulsar's admin client does not encode them.
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

    services: AdminServices
    topic: TopicName
    segment: Segment

    @property
    def name(self) -> TopicName:
        return self.segment.topic(self.topic)


async def _owned(request: HttpRequest) -> Owned:
    services, parent = request.services, request.names.topic
    if services.scalable is None:
        raise RestError(405, "Scalable topics are disabled; set scalableTopicEnabled=true on the brokers")
    span, number = parse_descriptor(decoded_once(request.names.words["descriptor"]))
    segment = Segment(number, span)
    record = await Records(services.metadata).get(parent)
    stored = None if record is None else segment_by_id(record, number)
    if stored is not None and stored.range == span:
        segment = stored
    owned = Owned(services, parent, segment)
    owner = await services.owners.resolve(owned.name)
    if not services.owners.is_mine(owned.name):
        raise AskElsewhere(owner, "Ask the segment's owner")
    return owned


def _checked(subscription: str) -> str:
    if not subscription:
        raise RestError(412, "Subscription name is empty")
    check_given("subscription", subscription)
    return subscription


OwnedSegment = Annotated[Owned, From(_owned)]
CursorName = Annotated[str, From(lambda request: _checked(request.names.subscription))]


# -- cursors; before the segments themselves, whose topics' names may hold anything


@routes.get(SUBSCRIPTION + "/backlog")
async def backlog(owned: OwnedSegment, subscription: CursorName) -> int:
    """The number of unacknowledged entries; 0 once the segment is sealed and only incomplete chunks are left."""
    return (await _cursor(owned, subscription)).backlog


@routes.post(SUBSCRIPTION + "/seek", status=204)
async def seek(
    owned: OwnedSegment,
    subscription: CursorName,
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)],
) -> None:
    await _cursor(owned, subscription)
    await owned.services.segment_owner.seek(owned.topic, owned.segment, subscription, timestamp)


@routes.post(SUBSCRIPTION + "/skip-all", status=204)
async def skip_all(owned: OwnedSegment, subscription: CursorName) -> None:
    await _cursor(owned, subscription)
    await owned.services.segment_owner.skip_all(owned.topic, owned.segment, subscription)


@routes.put(SUBSCRIPTION, status=204)
async def create_subscription(owned: OwnedSegment, subscription: CursorName) -> None:
    """Creates the subscription at the segment's start, unless it exists."""
    await owned.services.segment_owner.status(
        owned.topic, owned.segment
    )  # SegmentGone before anything is stored.
    await _register(owned, subscription)
    await owned.services.segment_owner.create_subscription(
        owned.topic, owned.segment, subscription, InitialPosition.EARLIEST
    )


@routes.delete(SUBSCRIPTION, status=204)
async def delete_subscription(owned: OwnedSegment, subscription: CursorName) -> None:
    """Only if the topic itself has deleted the subscription, or never had it."""
    await owned.services.segment_owner.delete_subscription(owned.topic, owned.segment, subscription)


async def _cursor(owned: Owned, subscription: str) -> CursorStatus:
    status = await owned.services.segment_owner.status(owned.topic, owned.segment)
    found = status.subscriptions.get(subscription)
    if found is None:
        raise SegmentGone(f"{owned.name} has no subscription {subscription}")
    return found


async def _register(owned: Owned, subscription: str) -> None:
    """Subscriptions belong to the topic: none has a cursor without its record.

    Nothing is done for a subscription that the topic has, so that it does not wait for a split or merge to end, which
    may be the very one that creates this segment.
    """
    records, registration = Records(owned.services.metadata), owned.services.registration
    topic = await records.get(owned.topic)
    known = None if topic is None else await records.subscription(owned.topic, topic.generation, subscription)
    if known is not None and not known.is_deleting:
        return
    assert registration is not None
    await registration.register(owned.name, subscription, SubscriptionKind.QUEUE, InitialPosition.EARLIEST)


# -- segments


@routes.post(SEGMENT + "/terminate", status=204)
async def terminate(owned: OwnedSegment) -> None:
    """Seals the segment: it accepts no more messages, permanently."""
    if not await owned.services.resources.topic_exists(owned.name):
        raise SegmentGone(f"{owned.name} does not exist")
    await owned.services.segment_owner.seal(owned.topic, owned.segment)


@routes.put(SEGMENT, status=204)
async def create(owned: OwnedSegment, request: HttpRequest) -> None:
    """Creates the segment. The body may list subscriptions, each of which begins at the segment's start."""
    names = await body(request, list[str], [])
    await owned.services.segment_owner.create(owned.topic, owned.segment, ())
    for name in names:
        await _register(owned, _checked(decoded_once(name)))
    await owned.services.segment_owner.create(owned.topic, owned.segment, names)


@routes.delete(SEGMENT, status=204)
async def delete(owned: OwnedSegment, force: bool = False) -> None:
    """Deletes the segment's storage. Does nothing if there is none."""
    opened = owned.services.loaded().get(owned.name)
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
        await owned.services.segment_owner.delete(owned.topic, owned.segment)
    except SegmentRefused as error:
        # Even with `force`, which Pulsar obeys: the layout would still send producers and consumers there.
        raise RestError(409, f"{error}. {KEPT}") from None
