"""What the driver knows of a topic: its layout, where segments end, how many rows they have, and the cursor that holds
its messages. It lives on one event loop for as long as the query runs, and survives the loss of brokers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from anabranch.client.consuming.core.checkpoint import Begin, unresolved
from anabranch.client.consuming.reader_place import unknown
from anabranch.client.consuming.resolving import earliest, position_of, subscribe_probe, unless_gone
from anabranch.client.errors import TimedOut, TopicDeleted, TopicMadeAgain
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import BEGINNING, Cut, MessagePosition, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import Gap, check_topic, is_unproved, positions_of, resume
from anabranch.model.segments import SegmentId
from anabranch.spark.driver.latest import Ends, Following, Probe
from anabranch.spark.driver.row_counts import Meters
from anabranch.spark.options.source import Options
from anabranch.spark.plan.limit import Limit, Steps
from anabranch.spark.plan.packing import SegmentSize
from anabranch.spark.plan.plan import Known, TopicView, runs

log = logging.getLogger(__name__)


class DriverTopic:
    """Call `open` first, `close` at the end. Every wait is bounded by the option timeoutSeconds."""

    def __init__(
        self,
        options: Options,
        connections: Connections,
        topic: str,
        chance: random.Random,
        following: Following,
    ) -> None:
        self._options = options
        self._name = topic
        self._chance = chance
        self._connections = connections
        self._watch = LayoutWatch(connections, topic, Backoff(chance))
        # Never removed: the watch belongs to this topic.
        self._watch.listen(following.note)
        self._ends = Ends(connections, chance, following)
        self._sealed_ends: dict[SegmentId, MessagePosition] = {}
        self._sealed_kept: dict[SegmentId, SegmentSize] = {}
        self._seen: tuple[SegmentLayout, Known] | None = None
        self._released: dict[SegmentId, Place] = {}
        self._is_overtaken = False
        self._is_made_again = False
        self._meters = Meters(
            connections,
            self._watch,
            chance,
            fails_on_data_loss=options.fail_on_data_loss,
            object_access=options.object_access,
        )

    @property
    def layout(self) -> SegmentLayout:
        return self._watch.layout

    @property
    def topic(self) -> str:
        """The name in its rows."""
        return self._watch.shown_topic

    @property
    def is_deleted(self) -> bool:
        """True also if there is another topic of its name by now."""
        return self._watch.is_deleted or self._is_made_again

    def topic_of(self, number: SegmentId) -> str:
        return self._watch.topic_of(number)

    async def open(self) -> None:
        """Raises TopicDeleted if there is no such topic."""
        async with self._in_time("its layout"):
            await self._watch.open(create=False)
        self._ends.topic_id = self.layout.topic_id

    async def close(self) -> None:
        await self._meters.close()
        await self._ends.keep(())
        await self._watch.close()

    def _in_time(self, what: str) -> InTime:
        return InTime(self._options, f"{self._name}: {what}")

    async def layout_of(self, epoch: int) -> SegmentLayout:
        """A layout of at least this epoch: a broker may be behind for a moment."""
        news = asyncio.Event()
        stop = self._watch.listen(news.set)
        try:
            async with self._in_time(f"a layout of epoch {epoch}"):
                while self._watch.layout.epoch < epoch and not self._watch.is_deleted:
                    news.clear()
                    await news.wait()
        finally:
            stop()
        if self.is_deleted:
            raise TopicDeleted(f"{self.topic} was deleted")
        return self._watch.layout

    async def check(self, cut: Cut) -> None:
        """Raises TopicMadeAgain if the cut is of another topic of the same name.

        Where ids do not decide that, brokers do: they know which positions they ever had.
        """
        layout = self.layout
        check_topic(layout, cut, self.topic)
        if not is_unproved(layout, cut):
            return
        asked = {n: at for n, at in positions_of(cut).items() if n in layout.segments}
        async with self._in_time("whether its checkpoint is of this topic"):
            found = await asyncio.gather(
                *(self._ends.is_foreign(self.topic_of(n), at) for n, at in asked.items())
            )
        for (number, at), is_foreign in zip(asked.items(), found, strict=True):
            if is_foreign:
                raise TopicMadeAgain(str(unknown(self.topic_of(number), at)))

    # -- positions

    async def resolved(self, begin: Begin) -> Cut:
        """The cut that "latest", or a time, means now."""
        if isinstance(begin, Cut):
            return begin
        since_ms = None if begin == "latest" else begin
        async with self._in_time("where to start"):
            while True:
                layout = self.layout
                places = unresolved(layout, begin)
                found = await asyncio.gather(*(self._position(place.segment, since_ms) for place in places))
                if None not in found:
                    moved = (p.moved(at) for p, at in zip(places, found, strict=True) if at is not None)
                    cut = Cut(tuple(moved), layout.topic_id)
                    return cut if begin == "latest" else Cut.merge(cut, await self._earliest(layout))
                # One segment is gone: the next layout has others in its place.
                await self.layout_of(layout.epoch + 1)

    async def begun(self, start: Cut) -> Cut:
        """The cut; for "earliest" the present beginning, including places of data deleted before anything was read."""
        if start.places:
            return start
        async with self._in_time("where it begins"):
            return await self._earliest(self.layout)

    async def _earliest(self, layout: SegmentLayout) -> Cut:
        return await earliest(self._connections, layout, self.topic_of, self._chance)

    async def _position(self, number: SegmentId, since_ms: int | None) -> MessagePosition | None:
        return await position_of(self._connections, self.topic_of(number), since_ms, self._chance)

    async def known(self, layout: SegmentLayout, start: Cut) -> Known:
        """The ends of all segments that are not over at `start`. A segment that is gone has no end."""
        places = resume(layout, start).places
        wanted = [n for n, place in places.items() if place is None or not place.is_over]
        async with self._in_time("where its segments end"):
            try:
                found = await asyncio.gather(*(self._end(layout, number) for number in wanted))
            except TopicMadeAgain as error:
                self._is_made_again = True
                raise TopicDeleted(str(error)) from None
            growing = {n for n in wanted if n not in self._sealed_ends and n in self.layout.segments}
            await self._ends.keep({self.topic_of(number) for number in growing})
        ranges = self._options.ranges
        known = Known(
            {n: at for n, at in zip(wanted, found, strict=True) if at is not None},
            hiding=frozenset(n for n in growing if self._ends.is_hiding(self.topic_of(n))),
            unwanted=frozenset(n for n in wanted if not ranges.may_be_in(layout.segments[n])),
        )
        self._seen = layout, known
        return known

    async def kept(self, numbers: Iterable[SegmentId]) -> dict[SegmentId, SegmentSize]:
        """The sizes of segments, as far as they are known. Segments that are gone are left out."""
        found = {number: self._sealed_kept.get(number) for number in numbers}
        topics = {
            n: self.topic_of(n) for n, kept in found.items() if kept is None and n in self.layout.segments
        }
        async with self._in_time("how large its segments are"):
            await asyncio.gather(
                *(self._ends.of(topic) for topic in topics.values() if self._ends.kept(topic) is None)
            )
        found |= {number: self._ends.kept(topic) for number, topic in topics.items()}
        return {number: kept for number, kept in found.items() if kept is not None}

    def may_have_more(self, cut: Cut) -> bool:
        """Whether there may be messages behind a cut, as far as is known. For topics that cannot be asked any more."""
        if self._seen is None:
            return True
        layout, known = self._seen
        return any(
            (place is None or not place.is_over)
            and known.ends.get(number, BEGINNING) > (BEGINNING if place is None else place.first)
            for number, place in resume(layout, cut).places.items()
        )

    async def _end(self, layout: SegmentLayout, number: SegmentId) -> MessagePosition | None:
        if number not in self._sealed_ends:
            if number not in self.layout.segments:
                return None
            is_sealed = layout.segments[number].is_sealed
            # The last known end of a segment that is sealed by now may be older than the seal.
            end = await self._ends.of(self.topic_of(number), now=is_sealed)
            is_growing = not is_sealed or self._ends.is_hiding(self.topic_of(number))
            if end is None or is_growing:
                return end
            self._sealed_ends[number] = end
            if (kept := self._ends.kept(self.topic_of(number))) is not None:
                self._sealed_kept[number] = kept
        return self._sealed_ends[number]

    async def emptied(self, layout: SegmentLayout, start: Cut, known: Known) -> tuple[Gap, ...]:
        """The deleted data that was to be read in segments that have nothing left at all."""
        looked_at = [
            place
            for number, place in resume(layout, start).places.items()
            if place is not None and not place.is_over and known.ends.get(number, place.first) < place.first
        ]
        async with self._in_time("whether messages are gone"):
            found = await asyncio.gather(
                *(self._ends.has_lost(self.topic_of(p.segment), p.first) for p in looked_at)
            )
        return tuple(
            Gap(p.segment, p.range, p.first) for p, is_lost in zip(looked_at, found, strict=True) if is_lost
        )

    async def measured(
        self, view: TopicView, limit: Limit, admin_url: str, only: frozenset[SegmentId] | None = None
    ) -> TopicView:
        """The view with the rows that a limited batch may take, of all segments or of some. Segments without a wanted
        row cost nothing.

        Files are inspected if a broker answers admin requests at that address.
        """
        _, possible = runs(view.layout, view.start, view.known, view.target, self._options.ordering)
        wanted = [run for run in possible if run.segment.id not in view.known.unwanted]
        steps = {run.segment.id: Steps((), run.bound) for run in possible} | dict(view.known.steps)
        async with self._in_time("how many rows there are"):
            steps |= await self._meters.measure(wanted, limit, admin_url, only)
        return replace(view, known=replace(view.known, steps=steps))

    # -- the cursor that holds messages

    async def hold(self, *, from_earliest: bool) -> None:
        """Returns once the subscription exists on every segment, so that no message from here on is deleted."""
        if self._options.subscription is not None:
            async with self._in_time(f"subscription {self._options.subscription}"):
                await self._settle(self.layout.active[0].id, None, from_earliest=from_earliest)

    async def release(self, cut: Cut) -> None:
        """Moves the subscription to a cut: messages before it are not needed any more."""
        if self._options.subscription is None:
            return
        layout = await self.layout_of(0)
        places = resume(layout, cut).places
        news = {n: p for n, p in places.items() if p is not None and self._is_news(p)}
        async with self._in_time(f"subscription {self._options.subscription}"):
            await asyncio.gather(*(self._settle(n, place, from_earliest=True) for n, place in news.items()))
        self._released = {n: p for n, p in {**self._released, **news}.items() if n in layout.segments}

    def _is_news(self, place: Place) -> bool:
        return self._released.get(place.segment) != place and (place.is_over or place.first > BEGINNING)

    async def _settle(self, number: SegmentId, place: Place | None, *, from_earliest: bool) -> None:
        async def settle_once() -> None:
            if number in self.layout.segments:
                connection = await self._connections.owner(self.topic_of(number))
                await self._ack(connection, self.topic_of(number), place, from_earliest)

        await unless_gone(settle_once, f"the subscription of segment {number}", self._chance)

    async def _ack(
        self, connection: ClientConnection, topic: str, place: Place | None, from_earliest: bool
    ) -> None:
        """Subscribes, acknowledges up to a place if there is one, and leaves the cursor there."""
        assert self._options.subscription is not None
        probe = connection.attach(PartKind.CONSUMER, lambda number: Probe(connection, number))
        try:
            await subscribe_probe(
                connection,
                probe.number,
                topic,
                self._options.subscription,
                "spark",
                is_durable=True,
                from_earliest=from_earliest,
            )
            if place is not None:
                read = _last_read(place, await probe.last())
                self._compare(probe.acknowledged, read)
                if min(read) >= 0:
                    await probe.ack_until(*read)
            await probe.close()
        finally:
            probe.detach()

    def _compare(self, acknowledged: tuple[int, int], read: tuple[int, int]) -> None:
        """Warns, once, if the subscription is ahead of the query: it does not hold the messages between them."""
        if acknowledged[1] < 0 or acknowledged <= read or self._is_overtaken:
            return
        self._is_overtaken = True
        log.warning(
            "%s: subscription %s has acknowledged up to %d:%d, but this query has read up to %d:%d only. Another "
            "query with that subscription is ahead of it, or was with another checkpoint. Messages between "
            "the two are kept by the topic's retention alone: give each query a subscription of its own",
            self.topic,
            self._options.subscription,
            *acknowledged,
            *read,
        )


def _last_read(place: Place, end: tuple[int, int]) -> tuple[int, int]:
    """The last entry that was read as a whole; entry -1 if that is in an earlier ledger, or there is none."""
    if place.is_over:
        return end
    ledger, entry, _ = place.first
    # Chunks of incomplete messages are read again.
    ledger, entry = min((ledger, entry), place.chunks_from or (ledger, entry))
    return ledger, entry - 1


class InTime:
    """Like `asyncio.timeout` with the option timeoutSeconds, but raises TimedOut naming what was awaited."""

    def __init__(self, options: Options, what: str) -> None:
        self._timeout = asyncio.timeout(options.timeout_s)
        self._text = (
            f"{what} was not told within {options.timeout_s:g} s; are the brokers at {options.service_url} up? "
            "timeoutSeconds allows more time"
        )

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self._timeout.__aexit__(*exc)
        except TimeoutError:
            raise TimedOut(self._text) from None
