"""A checkpoint consumer: reads without a cursor at the broker, from the position that its application gives.

Alone it reads every segment, children after all of their ancestors. In a group the controller assigns segments, and the
consumer reports the sealed ones that it has read to their end, so that their children can follow. Where members share a
segment by its entry buckets, each reads and reports its own, and filters by key what lies across.

Its progress is a place for each segment: where its reader began, moved by the last entry that was opened for the
application, less what is left of that entry. Nothing is noted for single messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.client.acking.core.state import Until
from anabranch.client.consuming.base import ROWS_MAX, Consumer, Setup
from anabranch.client.consuming.core.checkpoint import Begin, unresolved
from anabranch.client.consuming.resolving import earliest, position_of
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions
from anabranch.client.errors import DataLost, TopicMadeAgain
from anabranch.client.message import Message, ReceivedEntry
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.controller_session import (
    ALL_BUCKETS,
    Assigned,
    Assignments,
    ControllerSession,
)
from anabranch.client.values import V
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.cut import Cut, MessagePosition, Place, at_end, is_at_end
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import Gap, check_topic, epoch_of, gaps_of, resume
from anabranch.model.segment_consumers import segment_consumer
from anabranch.model.segments import SegmentId
from anabranch.model.wanted import Part, Wanted
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa


# The numbers of entry buckets of one segment; none of them stands for all.
Buckets = tuple[int, ...]


def _way(assigned: Assigned) -> tuple[str, Buckets]:
    """How a segment is to be read: from which topic, and which of its buckets."""
    is_all = len(assigned.own_buckets) == len(assigned.bucket_ranges)
    return assigned.topic, () if is_all else assigned.own_buckets


def _wanted(splits: Splits, own: Buckets, positions: tuple[MessagePosition, ...]) -> Wanted:
    ranges = buckets.ranges(splits)
    return Wanted.joined(Part(ranges[n], positions[n]) for n in sorted(own) if not is_at_end(positions[n]))


class CheckpointConsumer(Consumer[V]):
    """Made by `Client.checkpoint_consumer`."""

    def __init__(self, setup: Setup, *, group: str | None, begin: Begin) -> None:
        super().__init__(setup)
        self.group = group
        self._begin = begin
        self._is_open = False
        self._start = Cut()  # The cut that `begin` means.
        self._topic_id = ""  # The id of the topic it was opened on.
        self._roots: frozenset[SegmentId] = frozenset()  # Nothing older to read when it was opened.
        # The places of segments when they were opened or released, and of those read to their end. A segment that is
        # read from the earliest message on has no place until it has a position.
        self._places: dict[SegmentId, Place] = {}
        self._fresh: dict[SegmentId, Place] = {}
        self._splits: dict[SegmentId, Splits] = {}  # Of the segments in `_parts`.
        self._opened: dict[SegmentId, ReceivedEntry] = {}  # The last opened entry of each.
        self._given: dict[
            SegmentConsumer, ReceivedEntry
        ] = {}  # The application may still be busy with these.
        self._inbox.opened = self._entry_opened
        # Read to their end, but the application may still be busy with their last message.
        self._ending: list[SegmentConsumer] = []
        self._asking = 0
        self._assignment: Assignments = {}
        self._read_as: dict[SegmentId, tuple[str, Buckets]] = {}  # In a group.
        # The entry buckets that it reads of a segment, where these have positions of their own.
        self._parts: dict[SegmentId, Buckets] = {}
        self._unreported: set[tuple[SegmentId, int]] = set()
        self._reporting: asyncio.Task[None] | None = None
        self._session: ControllerSession | None = None
        if group is not None:
            self._session = ControllerSession(
                setup.connections,
                setup.watch,
                group,
                setup.consumer_name,
                pb.CHECKPOINT,
                self._assigned,
                self._fail,
                Backoff(setup.chance),
                knows_buckets=True,
            )

    @property
    def reading(self) -> frozenset[SegmentId]:
        """The segments that it reads now."""
        return frozenset(self._segments)

    # -- opening

    async def open(self) -> None:
        """Returns once it reads its first segments, or that takes too long.

        Raises DataLost if messages behind the checkpoint are gone, BadCheckpoint if the checkpoint is of another topic:
        TopicMadeAgain if that topic had the same name.
        """
        self._start = await self._resolved(self._begin)
        # Checked first: the layout of another topic may never reach the epoch of this checkpoint's.
        check_topic(self._watch.layout, self._start, self.topic)
        await self._layout_of(epoch_of(self._start))
        check_topic(self._watch.layout, self._start, self.topic)
        found = resume(self._watch.layout, self._start)
        self._topic_id = self._watch.layout.topic_id or self._start.topic_id
        if found.gaps:
            raise DataLost.of(self.topic, found.gaps)
        self._roots = frozenset(found.readable)
        self._is_open = True
        if self._session is None:
            self._places = {place.segment: place for place in self._start.places}
            self._follow()
        else:
            await self._session.open()
        await super().open()

    async def _resolved(self, begin: Begin) -> Cut:
        """Asks the brokers where the latest messages are, the earliest, or those of a time."""
        if isinstance(begin, Cut):
            return begin if begin.places else await self._earliest(self._watch.layout)
        since_ms = None if begin == "latest" else begin
        while True:
            layout = self._watch.layout
            try:
                async with asyncio.TaskGroup() as asking:
                    asked = [
                        (place, asking.create_task(self._position_of(place, since_ms)))
                        for place in unresolved(layout, begin)
                    ]
            except ExceptionGroup as refused:
                raise refused.exceptions[0] from None
            found = [place.moved(at) for place, task in asked if (at := task.result()) is not None]
            if len(found) == len(asked):
                cut = Cut(tuple(found), layout.topic_id)
                return cut if begin == "latest" else Cut.merge(cut, await self._earliest(layout))
            # One segment is gone: the next layout has others in its place.
            await self._layout_of(layout.epoch + 1)

    async def _earliest(self, layout: SegmentLayout) -> Cut:
        """Data that is gone by now is no loss, whatever comes before it in its range."""
        return await earliest(self._connections, layout, self._watch.topic_of, self._chance)

    async def _position_of(self, place: Place, since_ms: int | None) -> MessagePosition | None:
        topic = self._watch.topic_of(place.segment)
        return await position_of(self._connections, topic, since_ms, self._chance)

    async def _layout_of(self, epoch: int) -> None:
        """Waits for a layout of at least this epoch: a broker may be behind for a moment."""
        news = asyncio.Event()
        stop = self._watch.listen(news.set)
        try:
            while self._watch.layout.epoch < epoch and not self._watch.is_deleted:
                news.clear()
                await news.wait()
        finally:
            stop()

    # -- messages

    async def receive(self, timeout_s: float | None = None) -> Message[V]:
        """The next message. Raises TimedOut if no message comes within `timeout_s`; cancelling the call loses no
        message.

        The call says that the application has dealt with all earlier messages.
        """
        ready = self._ready
        if ready:
            return ready.pop()
        self._deal_with_given()
        self._asking += 1
        try:
            return await self._inbox.next(timeout_s)
        finally:
            self._asking -= 1

    @property
    def gives_ready(self) -> bool:
        return False  # A receive marks earlier messages as dealt with.

    _keeps_columns = False  # Nothing is acknowledged.

    async def receive_arrow(self, rows_max: int = ROWS_MAX, timeout_s: float | None = None) -> pa.RecordBatch:
        self._deal_with_given()
        self._asking += 1
        try:
            return await super().receive_arrow(rows_max, timeout_s)
        finally:
            self._asking -= 1

    receive_arrow.__doc__ = Consumer.receive_arrow.__doc__

    def checkpoint(self) -> bytes:
        """How far the application has come: all received messages count as dealt with.

        For a member of a group, how far it has come in segments that it reads or has read: `merge_checkpoints` makes
        one checkpoint of all members'.
        """
        self._deal_with_given()
        return self._cut().encode()

    def _entry_opened(self, entry: ReceivedEntry) -> None:
        self._opened[entry.owner.segment] = self._given[entry.owner] = entry

    def _deal_with_given(self) -> None:
        """The application has dealt with all given messages: segments may be finished, and their children may begin.

        The broker stores nothing of these acknowledgements; it notifies a reader that has reached the end.
        """
        for owner, entry in self._given.items():
            if not self._inbox.ready_of(owner):
                owner.acks.add_until(Until(entry.ledger, entry.entry))
                if self._watch.is_over(owner.segment):
                    owner.acks.send()
        self._given = {owner: entry for owner, entry in self._given.items() if self._inbox.ready_of(owner)}
        self._finish_ending()

    # -- places

    def _place(self, number: SegmentId) -> Place | None:
        """Where the application is in a segment; None if it has no position yet and begins at the earliest message."""
        place, entry = self._places.get(number), self._opened.get(number)
        if number in self._parts:
            return self._place_of_part(number, entry)
        if entry is None:
            return place
        return (place or self._fresh[number]).moved(*self._reached(entry))

    def _reached(self, entry: ReceivedEntry) -> tuple[MessagePosition, tuple[int, int] | None]:
        """Where the application is in the segment of its last entry, and where incomplete chunks begin."""
        # For a message with missing chunks, the other chunks lie behind this place.
        if not self._inbox.ready_of(entry.owner):
            return (entry.ledger, entry.entry + 1, 0), entry.resume
        chunks_from = min((*entry.chunks, *([entry.resume] if entry.resume else [])), default=None)
        return (entry.ledger, entry.entry, max(0, self._ready[-1].index)), chunks_from

    def _place_of_part(self, number: SegmentId, entry: ReceivedEntry | None) -> Place | None:
        """The same where only some buckets are read: the others stay where they were."""
        place, reader, own = self._places.get(number), self._segments[number], self._parts[number]
        at, chunks_from = (None, None) if entry is None else self._reached(entry)
        if not reader.queued:
            # Entries of other buckets were passed, too.
            passed, open_chunks = reader.passed
            if passed is not None and (at is None or passed >= at):
                at, chunks_from = passed, open_chunks
        if at is None:
            return place
        place = place or self._fresh[number]
        count = self._bucket_count(number)
        positions = list(place.each(count))
        if all(at <= positions[bucket] for bucket in own):
            return place
        for bucket in own:
            positions[bucket] = max(positions[bucket], at)
        if len(own) < count and place.chunks_from is not None:
            chunks_from = min(place.chunks_from, chunks_from or place.chunks_from)
        return place.standing(tuple(positions), chunks_from)

    def _bucket_count(self, number: SegmentId) -> int:
        return len(self._splits[number]) + 1

    def _cut(self) -> Cut:
        begun = {**self._opened, **self._parts}
        places = {number: place for number in begun if (place := self._place(number)) is not None}
        return Cut(tuple({**self._places, **places}.values()), self._topic_id)

    def _tidy(self) -> None:
        """Drops places that newer ones cover, and keeps what the others say because of them."""
        self._places = {place.segment: place for place in self._cut().places}

    # -- segments

    def _layout_changed(self) -> None:
        super()._layout_changed()
        if self._watch.is_deleted or not self._is_open:
            return
        try:
            check_topic(self._watch.layout, self._cut(), self.topic)
        except TopicMadeAgain as error:
            self._fail(error)
            return
        if self._session is None:
            self._follow()
        else:
            self._read_assigned()

    def _follow(self) -> None:
        """Starts to read, outside a group, the segments that may be read now."""
        layout = self._watch.layout
        self._learn_epochs()
        found = resume(layout, self._cut())
        # A segment that is being read may have sent its last message before it was deleted: its reader reports that.
        gaps = [gap for gap in found.gaps if gap.position is None or gap.segment not in self._segments]
        if gaps:
            self._fail(DataLost.of(self.topic, gaps))
            return
        # Pruned and not read to their end yet: their readers may still have messages.
        first = [self._fresh[number] for number in self._segments if number not in layout.segments]
        for number in found.readable:
            fresh = Place.of(layout.segments[number])
            if number not in self._segments and not any(one.is_before(fresh) for one in first):
                self._open(number, self._watch.topic_of(number), found.places[number], is_apart=False)
        self._tidy()

    def _learn_epochs(self) -> None:
        """A segment may have been read to its end before the layout said when it was sealed."""
        for number, place in self._places.items():
            known = self._watch.layout.segments.get(number)
            if place.is_over and not place.sealed_epoch and known is not None:
                self._places[number] = place.over(known.sealed_epoch)
            elif len(place.at) > 1 and known is not None and known.is_sealed:
                end = at_end(known.sealed_epoch)
                at = tuple(end if is_at_end(one) else one for one in place.at)
                self._places[number] = replace(place, at=at)

    def _assigned(self, assigned: Assignments) -> None:
        self._assignment = assigned
        for number in [
            n for n in self._segments if n not in assigned or _way(assigned[n]) != self._read_as[n]
        ]:
            if self._is_pruned(number) and (gaps := self._unread(number)):
                self._fail(DataLost.of(self.topic, gaps))
            self._release(number)
        self._read_assigned()

    def _read_assigned(self) -> None:
        """Reads, in a group, its assigned segments; those that the layout does not have yet follow later."""
        layout = self._watch.layout
        self._learn_epochs()
        news = [n for n in self._assignment if n not in self._segments and n in layout.segments]
        if news:
            # The segment's place, if a reader had reached it before this group started.
            start = resume(layout, self._start).places
            for number in news:
                place = self._places.get(number) or start[number]
                topic, own = way = _way(self._assignment[number])
                if place is not None and place.is_over:
                    self._report(number)
                elif (
                    place is not None
                    and len(place.at) > 1
                    and own
                    and all(is_at_end(place.at[n]) for n in own)
                ):
                    self._report(number, own)
                else:
                    known = self._start.get(number) is not None or number in self._roots
                    self._read_as[number] = way
                    self._open(number, topic, place, is_apart=not known, own=own)
        self._tidy()
        for number in [n for n, place in self._places.items() if place.is_over and n not in layout.segments]:
            del self._places[number]

    def _open(
        self, number: SegmentId, topic: str, place: Place | None, *, is_apart: bool, own: Buckets = ()
    ) -> None:
        """`own` are the buckets to read; none for all of them."""
        segment = self._watch.layout.segment(number)
        fresh = Place.of(segment, is_apart=is_apart)
        self._fresh[number] = fresh
        if place is not None and number not in self._places:
            listed = self._start.get(number) is not None
            self._places[number] = place if listed else fresh
        start = None if place is None else place.first
        wanted: Wanted | None = None
        if own or (place is not None and len(place.at) > 1):
            own = own or tuple(range(segment.bucket_count))
            self._parts[number], self._splits[number] = own, segment.bucket_splits
            wanted = _wanted(segment.bucket_splits, own, (place or fresh).each(segment.bucket_count))
            start = None if place is None else wanted.start
        chunks_from = None if place is None else place.chunks_from
        if start is not None and chunks_from is not None and chunks_from >= start[:2]:
            chunks_from = None  # They are of messages in other buckets, which stand further on.
        name = segment_consumer(self.consumer_name, number)
        suffix = f"{self._chance.getrandbits(32):08x}"
        self._read(
            number,
            topic,
            SubscribeOptions(f"reader-{suffix}", pb.CommandSubscribe.Exclusive, name, is_durable=False),
            start=start,
            chunks_from=chunks_from,
            wanted=wanted,
            ended=self._ended,
            may_be_gone=self._is_pruned,
            lost=self._lost,
            topic_id=self._topic_id,
        )

    def _release(self, number: SegmentId) -> None:
        """Notes where the application is, before its waiting messages are dropped."""
        place = self._place(number)
        if place is not None:
            self._places[number] = place
        self._opened.pop(number, None)
        self._given.pop(self._segments[number], None)
        self._read_as.pop(number, None)
        self._parts.pop(number, None)
        self._splits.pop(number, None)
        del self._fresh[number]
        super()._release(number)

    def _is_pruned(self, number: SegmentId) -> bool:
        """Whether the segment was pruned. If so, the layout says whether anything was lost."""
        return number not in self._watch.layout.segments

    def _unread(self, number: SegmentId) -> list[Gap]:
        """The data of a pruned segment behind what the application has."""
        place, reader = self._place(number), self._segments[number]
        if place is None or (reader.has_ended and reader.queued == 0):
            return []
        return gaps_of(self._watch.layout, place)

    def _lost(self, reader: SegmentConsumer, is_gone: bool) -> DataLost | None:
        """The loss if the segment, or the next data to read in it, was deleted; None if the reader had read all of
        it."""
        place, position = self._fresh[reader.segment], reader.position
        gaps = [Gap(place.segment, place.range, position)]
        if is_gone and position is not None:
            gaps = gaps_of(self._watch.layout, place.moved(position))
        return DataLost.of(self.topic, gaps) if gaps else None

    # -- the end of a segment

    def _ended(self, reader: SegmentConsumer) -> None:
        if reader not in self._ending:
            self._ending.append(reader)
        if self._asking:
            self._finish_ending()

    def _finish_ending(self) -> None:
        """The application asks for more: it has dealt with everything given before."""
        over = [reader for reader in self._ending if reader.queued == 0]
        if not over:
            return
        self._ending = [reader for reader in self._ending if reader.queued]
        for reader in over:
            number = reader.segment
            if self._segments.get(number) is reader:
                known = self._watch.layout.segments.get(number)
                sealed_epoch = known.sealed_epoch if known is not None else 0
                place = self._places.get(number) or self._fresh[number]
                own = self._parts.get(number, ())
                done = place.over(sealed_epoch)
                if own:
                    positions = list(place.each(self._bucket_count(number)))
                    for bucket in own:
                        positions[bucket] = at_end(sealed_epoch)
                    done = place.standing(tuple(positions), place.chunks_from)
                self._release(number)
                self._places[number] = done
                self._report(number, () if done.is_over else own)
        self._layout_changed()

    def _report(self, number: SegmentId, own: Buckets = ()) -> None:
        """Tells the controller that the segment was read to its end, or these buckets of it."""
        if self._session is not None:
            self._unreported |= {(number, 1 + n) for n in own} or {(number, ALL_BUCKETS)}
            if self._reporting is None or self._reporting.done():
                self._reporting = asyncio.create_task(
                    self._go_on_reporting(self._session)
                )  # Ended by `close`.

    async def _go_on_reporting(self, session: ControllerSession) -> None:
        """Repeats until the controller has received every finished segment."""
        backoff = Backoff(self._chance)
        while self._unreported:
            # Buckets mean nothing to a controller that does not share the segment, as one of an earlier release.
            self._unreported = {
                (number, which)
                for number, which in self._unreported
                if which == ALL_BUCKETS
                or (number in self._assignment and self._assignment[number].own_buckets)
            }
            if not self._unreported:
                break
            now = sorted(self._unreported)
            if await session.report_finished(now):
                self._unreported.difference_update(now)
            else:
                await backoff.wait()

    # -- the end

    def _stop(self) -> None:
        super()._stop()
        # The children of a segment that ends meanwhile are not read here any more.
        self._is_open = False
        if self._session is not None:
            self._session.stop()

    async def _left(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        leaving = [self._session.leave()] if self._session is not None else []
        await asyncio.gather(*leaving, *self._leaving.values())

    def crash(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        if self._session is not None:
            self._session.abort()
        super().crash()
