"""Finds the sealed segments that are not needed any more, so that the topic's leader has them removed.

A segment may go when its retention has passed or has left nothing in it, it has no hidden entries that may yet be shown
to readers, every subscription has read it to its end, and no producer can be in doubt any more about its messages
there: after a lost connection producers ask a sealed segment which of their messages it holds, and a missing segment
can only be taken to hold none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from anabranch.controller.core import events as e
from anabranch.controller.core.errors import SegmentGone
from anabranch.controller.core.operations import ControlledTopic
from anabranch.controller.ports import Segments, SegmentStatus
from anabranch.controller.records import Records
from anabranch.controller.settings import ControllerSettings
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId

# The most time that producers have to ask; with a shorter retention, that time.
DOUBT_MS: Final = 60_000

Expired = Mapping[SegmentId, tuple[int, int] | None]


class Collection:
    """The sealed segments of one topic, checked by the controller that leads it."""

    def __init__(
        self,
        topic: TopicName,
        segments: Segments,
        records: Records,
        settings: ControllerSettings,
        now_ms: Callable[[], Awaitable[int]],
    ) -> None:
        self._topic = topic
        self._segments = segments
        self._records = records
        self._settings = settings
        self._now_ms = now_ms
        self._seen_ms: Mapping[SegmentId, int] = {}

    async def still_unneeded(self, state: ControlledTopic | None, numbers: Sequence[SegmentId]) -> e.Unneeded:
        """Checks again when the removal has its turn: a seek that was answered before then keeps its segments."""
        found = {} if state is None else await self.unneeded(state)
        ends = {number: end for number, end in found.items() if number in numbers}
        known = tuple((number, end) for number, end in ends.items() if end is not None)
        return e.Unneeded(tuple(ends), known)

    async def unneeded(self, state: ControlledTopic) -> Expired:
        """The segments that can be removed now, and their ends as far as known."""
        if not state.topic.layout.sealed:
            return {}
        layout = state.topic.layout
        # The store's time, which the layouts use too: the clocks of brokers differ.
        now_ms = await self._now_ms()
        seen_ms = self._seen_sealed(layout, now_ms)
        records = await self._records.subscriptions(self._topic, state.topic.generation)
        found: dict[SegmentId, tuple[int, int] | None] = {}
        for segment in layout.sealed:  # By id: parents first. Only roots go, so lineage never has holes.
            if segment.is_deleting:
                continue
            keep_ms = await self._settings.retention_ms(segment.topic(self._topic))
            emptied_ms = keep_ms if self._settings.emptied_ms is None else self._settings.emptied_ms
            if emptied_ms is None:
                continue
            least_ms = emptied_ms if keep_ms is None else min(emptied_ms, keep_ms)
            if segment.sealed_ms + least_ms > now_ms:
                continue
            if seen_ms[segment.id] + min(least_ms, DOUBT_MS) > now_ms:
                continue
            if all(parent in found for parent in segment.parents):
                status = await self._status(segment)
                is_over = keep_ms is not None and segment.sealed_ms + keep_ms <= now_ms
                if status is not None and status.storage_bytes > 0 and not is_over:
                    continue
                if status is None or _is_unneeded(status, segment, records):
                    found[segment.id] = None if status is None else status.end
        return found

    def _seen_sealed(self, layout: SegmentLayout, now_ms: int) -> Mapping[SegmentId, int]:
        """The moment at which this leader first found each segment sealed.

        The layout's own times are those of the plans, and a plan may wait long for its seal: all brokers may be down.
        """
        self._seen_ms = {segment.id: self._seen_ms.get(segment.id, now_ms) for segment in layout.sealed}
        return self._seen_ms

    async def _status(self, segment: Segment) -> SegmentStatus | None:
        try:
            return await self._segments.status(self._topic, segment)
        except SegmentGone:
            return None


def _is_unneeded(status: SegmentStatus, segment: Segment, records: Sequence[SubscriptionRecord]) -> bool:
    if status.is_hiding:
        return False
    for record in records:
        if record.kind is SubscriptionKind.CHECKPOINT or record.is_deleting:
            continue
        # A subscription without an initial position was promised nothing from segments where it has no cursor.
        promised = record.initial is not None or record.name in status.subscriptions
        if promised and not status.is_drained_by(record, segment.id):
            return False
    return True
