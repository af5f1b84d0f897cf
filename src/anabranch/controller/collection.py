"""Sealed segments that nobody needs any more: found by the topic's leader, which then has them removed.

One goes when retention has passed or has left nothing in it, it hides nothing that readers may yet be shown, every
subscription has read it to its end, and no producer can be in doubt any more about what it sent there: after a lost
connection producers ask a sealed segment which of their messages it holds, and one that is gone can only be taken to
hold none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from anabranch.controller.coordinator import is_drained
from anabranch.controller.ports import SegmentGone, Segments, SegmentStatus
from anabranch.controller.records import Records
from anabranch.controller.settings import ControllerSettings
from anabranch.controller.topic_controller import TopicController
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId

# How long producers have, at most, to ask; with a shorter retention, that long.
DOUBT_MS: Final = 60_000

Expired = Mapping[SegmentId, tuple[int, int] | None]


class Collection:
    def __init__(
        self,
        segments: Segments,
        records: Records,
        settings: ControllerSettings,
        now_ms: Callable[[], Awaitable[int]],
    ) -> None:
        self._segments = segments
        self._records = records
        self._settings = settings
        self._now_ms = now_ms
        self._seen_ms: WeakKeyDictionary[TopicController, Mapping[SegmentId, int]] = WeakKeyDictionary()

    async def unneeded(self, controller: TopicController) -> Expired:
        """Those of a topic led here that can go now, and where they end as far as that is known."""
        state = controller.state
        if state is None or not state.topic.layout.sealed:
            return {}
        layout = state.topic.layout
        # The store's time, as that of the layouts: the clocks of brokers differ.
        now_ms = await self._now_ms()
        seen_ms = self._seen_sealed(controller, layout, now_ms)
        records = await self._records.subscriptions(controller.topic, state.topic.generation)
        found: dict[SegmentId, tuple[int, int] | None] = {}
        for segment in layout.sealed:  # By id: parents first. Only roots go, so that lineage never has holes.
            if segment.is_deleting:
                continue
            keep_ms = await self._settings.retention_ms(segment.topic(controller.topic))
            emptied_ms = keep_ms if self._settings.emptied_ms is None else self._settings.emptied_ms
            if emptied_ms is None:
                continue
            least_ms = emptied_ms if keep_ms is None else min(emptied_ms, keep_ms)
            if segment.sealed_ms + least_ms > now_ms:
                continue
            if seen_ms[segment.id] + min(least_ms, DOUBT_MS) > now_ms:
                continue
            if all(parent in found for parent in segment.parents):
                status = await self._status(controller.topic, segment)
                is_over = keep_ms is not None and segment.sealed_ms + keep_ms <= now_ms
                if status is not None and status.storage_bytes > 0 and not is_over:
                    continue
                if status is None or _is_unneeded(status, segment, records):
                    found[segment.id] = None if status is None else status.end
        return found

    def _seen_sealed(
        self, controller: TopicController, layout: SegmentLayout, now_ms: int
    ) -> Mapping[SegmentId, int]:
        """When this leader first found each sealed segment to be one.

        The layout's own times are those of the plans, and a plan may wait long for its seal: all brokers may be down.
        """
        known = self._seen_ms.get(controller, {})
        seen = {segment.id: known.get(segment.id, now_ms) for segment in layout.sealed}
        self._seen_ms[controller] = seen
        return seen

    async def _status(self, topic: TopicName, segment: Segment) -> SegmentStatus | None:
        try:
            return await self._segments.status(topic, segment)
        except SegmentGone:
            return None


def _is_unneeded(status: SegmentStatus, segment: Segment, records: Sequence[SubscriptionRecord]) -> bool:
    if status.is_hiding:
        return False
    for record in records:
        if record.kind is SubscriptionKind.CHECKPOINT or record.is_deleting:
            continue
        # A subscription that never said where it begins was promised nothing of what it has no cursor in.
        promised = record.initial is not None or record.name in status.subscriptions
        if promised and not is_drained(record, status, segment.id):
            return False
    return True
