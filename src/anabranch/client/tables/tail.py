"""Reads what a topic has beyond a cut, up to the ends that its segments have when the reading begins.

It is a checkpoint consumer that stops: so order, splits, chunks, encryption and lost data are dealt with as there, and
the cut at which it stops is as exact as any checkpoint. Segments that reach their ends early may be read further while
others are still on the way; the cut says how far.

An undecided hidden write holds the tail back like any reader: the tail ends before it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from anabranch.client.consuming.base import ROWS_MAX
from anabranch.client.consuming.checkpoint import CheckpointConsumer
from anabranch.client.consuming.resolving import VisibleEnd, visible_end
from anabranch.client.errors import TimedOut
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.resuming import resume
from anabranch.model.segments import SegmentId

if TYPE_CHECKING:
    import pyarrow as pa

# How long to wait for messages before it is looked whether there are any: the last entries may hold none for readers.
LOOK_S: Final = 0.02
LOOK_MAX_S: Final = 0.5


class TailReader(CheckpointConsumer[bytes]):
    """Call `open`, then `read_all` once, then `checkpoint` for the cut at which it stopped."""

    _names_versions = True

    async def read_all(self, silence_max_s: float) -> list[pa.RecordBatch]:
        """The rows as `receive_arrow` gives them, with the version of the schema. Raises TimedOut if nothing came for
        so long though there is more."""
        aims = await self._ends(tuple(segment.id for segment in self._watch.layout.active))
        batches: list[pa.RecordBatch] = []
        clock = asyncio.get_running_loop().time
        since, pause_s = clock(), LOOK_S
        while not self._has_reached(aims):
            try:
                batches.append(await self.receive_arrow(ROWS_MAX, pause_s))
            except TimedOut:
                if clock() - since > silence_max_s:
                    raise TimedOut(
                        f"{self.topic}: nothing came for {silence_max_s:g} s, and the tail is not read to its end; are "
                        "its brokers up? operation_timeout_s of the client allows more time"
                    ) from None
                if await self._is_held(aims):
                    break
                pause_s = min(2 * pause_s, LOOK_MAX_S)
            else:
                since, pause_s = clock(), LOOK_S
        return batches

    async def _ends(self, numbers: tuple[SegmentId, ...]) -> dict[SegmentId, VisibleEnd]:
        """The ends of segments; those that are gone are left out, as they were read to their ends or are lost, which
        their readers know."""
        topics = [self._watch.topic_of(number) for number in numbers]
        found = await asyncio.gather(
            *(visible_end(self._connections, topic, self._chance, self._topic_id) for topic in topics)
        )
        return {number: end for number, end in zip(numbers, found, strict=True) if end is not None}

    def _has_reached(self, aims: dict[SegmentId, VisibleEnd]) -> bool:
        return all(self._is_read(number, end.at) for number, end in aims.items())

    def _is_read(self, number: SegmentId, end: MessagePosition) -> bool:
        reader = self._segments.get(number)
        if reader is not None:
            # Before it is subscribed, it is unknown whether the data to read are still there.
            return reader.is_attached and not reader.queued and (reader.position or BEGINNING) >= end
        layout = self._watch.layout
        if number not in layout.segments:
            return True
        place = resume(layout, self._cut()).places[number]
        return place is not None and place.is_over

    async def _is_held(self, aims: dict[SegmentId, VisibleEnd]) -> bool:
        """Whether all that is missing waits behind sealed segments that hide entries, and these were read as far as
        readers may."""
        missing = [number for number, end in aims.items() if not self._is_read(number, end.at)]
        opened = tuple(self._segments)
        if any(number in self._segments for number in missing):
            return False
        sealed = tuple(number for number in opened if self._watch.is_over(number))
        ends = await self._ends(tuple(number for number in sealed if number in self._watch.layout.segments))
        return (
            opened == tuple(self._segments)
            and bool(ends)
            and len(ends) == len(sealed)
            and all(end.is_hiding and self._is_read(number, end.at) for number, end in ends.items())
        )
