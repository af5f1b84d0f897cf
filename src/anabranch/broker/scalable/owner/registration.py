"""A client that subscribes directly to a segment is subscribed to the topic first.

The order keeps a subscription whole: its record is stored, *then* the layout is read. A split stores its plan and
*then* reads the subscriptions. So either the controller sees the subscription, or the subscriber sees the plan and
waits for its end. A new subscription has its cursors on every segment before the client is answered: it misses no
message that is published after that, on any segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.broker.catalog.segment_records import segment_by_topic
from anabranch.broker.errors import NotAllowedError, NotReadyError, TopicNotFoundError
from anabranch.broker.scalable.owner.subscription_limits import SubscriptionLimits
from anabranch.broker.subscription.bucket_sharing import asks_to_share
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.controller.feed import StalePart, TopicFeed
from anabranch.controller.ports import Segments
from anabranch.controller.records import Records
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import (
    InitialPosition,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    scalable_name,
)
from anabranch.model.segments import Segment
from anabranch.wire import pulsar_pb2 as pb

# Shorter than a client's own timeout, so that the client gets the reason.
PLAN_WAIT_MAX_S: Final = 20.0


class Registration:
    def __init__(
        self, records: Records, feed: TopicFeed, segments: Segments, limits: SubscriptionLimits
    ) -> None:
        self._records = records
        self._feed = feed
        self._segments = segments
        self._limits = limits

    async def register_consumer(
        self, name: TopicName, request: pb.CommandSubscribe
    ) -> InitialPosition | None:
        """As `register`, for a SUBSCRIBE that finds no cursor on the segment."""
        is_shared = request.subType in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)
        # Consumers that share a segment by entry buckets keep the order of a stream.
        is_shared = is_shared and not asks_to_share(request)
        is_earliest = request.initialPosition == pb.CommandSubscribe.Earliest
        return await self.register(
            name,
            request.subscription,
            SubscriptionKind.QUEUE if is_shared else SubscriptionKind.STREAM,
            InitialPosition.EARLIEST if is_earliest else InitialPosition.LATEST,
            is_by_use=True,
        )

    async def register(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionKind,
        initial: InitialPosition,
        *,
        is_by_use: bool = False,
    ) -> InitialPosition | None:
        """Returns once a cursor of that name may be created on this segment, if there is none by then: the position
        where it begins.

        `name` is the segment's topic. For a classic topic that is no segment nothing is to be done: None.
        """
        topic = scalable_name(name.base)
        record = await self._records.get(topic, fresh=True)
        segment = None if record is None else segment_by_topic(record, name)
        if record is None or segment is None:
            if name.domain is Domain.SEGMENT:
                raise TopicNotFoundError(f"{name} is not a segment of any topic")
            return None
        if not subscription:
            raise NotAllowedError("a subscription needs a name")
        await self._limits.check_new(topic, subscription, is_by_use=is_by_use)
        wanted = SubscriptionRecord(subscription, kind, record.generation, initial)
        stored, is_new = await self._records.register(topic, wanted)
        if stored.is_deleting:
            raise NotReadyError(f"subscription {subscription} of {topic} is being deleted")
        is_spread = is_new or not segment.is_active

        def concerns(plan: ReshapePlan) -> bool:
            # A subscriber that creates the cursors of all segments must know all segments.
            return is_spread or segment.id in plan.parents or segment in plan.children

        after = await self._settled(topic, concerns)
        if after.generation != record.generation:
            raise TopicNotFoundError(f"{topic} was deleted and created again")
        if is_spread:
            await self._spread(topic, after, segment, stored)
        # The creator of a subscription chose where it begins, as on any topic.
        return stored.initial or initial

    async def _settled(self, topic: TopicName, concerns: Callable[[ReshapePlan], bool]) -> ScalableTopic:
        """The topic's record, read again, once no plan that concerns the subscriber is pending."""
        changed = asyncio.Event()
        stop = self._feed.listen(topic, lambda part: changed.set() if StalePart.RECORD in part else None)
        try:
            async with asyncio.timeout(PLAN_WAIT_MAX_S):
                while True:
                    changed.clear()
                    record = await self._records.get(topic, fresh=True)
                    if record is None or record.is_deleting:
                        raise TopicNotFoundError(f"{topic} is being deleted")
                    if record.plan is None or not concerns(record.plan):
                        return record
                    await changed.wait()
        except TimeoutError:
            raise NotReadyError(f"{topic} is in the middle of a split or merge; try again") from None
        finally:
            stop()

    async def _spread(
        self, topic: TopicName, record: ScalableTopic, here: Segment, stored: SubscriptionRecord
    ) -> None:
        """Creates the subscription's cursors wherever they are missing, except here."""
        initial = stored.initial or InitialPosition.EARLIEST
        wanted = [
            segment
            for segment in record.layout.segments.values()
            if segment.id != here.id
            and not segment.is_deleting
            and (segment.is_active or initial is InitialPosition.EARLIEST)
        ]
        await asyncio.gather(*(self._make_cursor(topic, segment, stored.name, initial) for segment in wanted))

    async def _make_cursor(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        try:
            await self._segments.create_subscription(topic, segment, subscription, initial)
        except (SegmentGone, SegmentRefused):
            # The segment or the subscription was deleted meanwhile.
            return
        except SegmentUnavailable as error:
            raise NotReadyError(f"not every segment of {topic} can be reached: {error}") from error
