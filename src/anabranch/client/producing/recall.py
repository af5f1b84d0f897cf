"""What an earlier life of a producer has stored: asked for when a producer with a name is opened."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from anabranch.client.producing.core.lanes import Routing
from anabranch.client.producing.core.last_ids import LastIds
from anabranch.client.producing.segment import LaneOwner, SegmentProducer
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.model.buckets import bucket_of
from anabranch.model.segments import Segment, SegmentId

# How many segments are asked at once for what they hold.
RECALL_MAX: Final = 50


class Asker(LaneOwner, Protocol):
    watch: LayoutWatch

    def segment(self, number: SegmentId) -> SegmentProducer: ...


class EarlierLife:
    """`recalled` is the highest sequence id that was found; -1 before any segment was asked."""

    def __init__(self, owner: Asker, routing: Routing) -> None:
        self.recalled = -1
        self._owner = owner
        self._routing = routing
        # The last sequence ids in segments: the sealed ones, and those that were active when they were asked first. An
        # earlier life sends nothing any more.
        self._held: dict[SegmentId, LastIds] = {}

    async def recall(self) -> int:
        """Asks what the topic already holds of a producer with this name, so that nothing is sent twice."""
        asking = asyncio.Semaphore(RECALL_MAX)

        async def last(number: SegmentId, is_sealed: bool) -> int:
            async with asking:
                if is_sealed:
                    return (await self._ask(number)).highest
                # The segment may turn out to be sealed before the layout says so, and then its children must not
                # receive its messages.
                found = self._held[number] = await self._owner.segment(number).last_sequence_ids()
                return found.highest

        known = [last(number, one.is_sealed) for number, one in self._owner.watch.layout.segments.items()]
        self.recalled = max(await asyncio.gather(*known), default=-1)
        return self.recalled

    async def _ask(self, sealed: SegmentId) -> LastIds:
        if sealed not in self._held:
            is_there = sealed in self._owner.watch.layout.segments
            self._held[sealed] = (
                await SegmentProducer(self._owner, sealed).ask_sealed() if is_there else LastIds()
            )
        return self._held[sealed]

    def _past(self, hash32: int) -> list[Segment]:
        """The segments that a key of this hash went through before, as far as the layout remembers.

        Partitions of a migrated topic are left out: which of them had the key is unknown when some are pruned.
        """
        hash16 = self._routing.of(hash32)
        return [
            segment
            for number, segment in self._owner.watch.layout.segments.items()
            if (segment.is_sealed or number in self._held)
            and hash16 in segment.range
            and not segment.classic_topic
        ]

    async def stored_in(self, sequence: int, hash32: int, bucket_hash: int) -> SegmentId | None:
        """The segment that holds a message from before this producer was opened, if one does.

        Messages of a bucket go through the segments of their hashes in order, so a higher sequence id in the message's
        bucket of a segment that covered its hash means that this message is stored there or in an ancestor. An active,
        new segment is not asked: it drops repetitions itself.
        """
        while unasked := [one.id for one in self._past(hash32) if one.id not in self._held]:
            await self._ask(unasked[0])
        for one in self._past(hash32):
            if self._held[one.id].of(bucket_of(one.bucket_splits, bucket_hash)) >= sequence:
                return one.id
        return None
