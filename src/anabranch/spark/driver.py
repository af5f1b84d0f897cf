"""A query's side on the driver: decides what each batch reads, and lets go of what was read.

Batches are planned here and read elsewhere, by the tasks of `anabranch.spark.slice_reader`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.checkpoint import Begin
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Cut
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import DataLost, Gap, epoch_of, resume
from anabranch.spark.feed import TopicFeed
from anabranch.spark.options import Options
from anabranch.spark.plan import Known, Limit, lost, plan, reach
from anabranch.spark.task import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reached:
    """What a batch was ended with: for people who look at the query's progress."""

    layout: SegmentLayout
    known: Known
    cut: Cut

    def lag(self) -> dict[str, Any]:
        """Where each segment ends that is not over, and how many entries of it are still to be read."""
        places = resume(self.layout, self.cut).places
        found: dict[str, Any] = {}
        for number, end in self.known.ends.items():
            place = places.get(number)
            if place is not None and place.is_over:
                continue
            at = BEGINNING if place is None else place.at[0]
            # Across ledgers their number is not known here.
            behind = end[1] - at[1] if end[0] == at[0] else (0 if end <= at else None)
            found[str(number)] = {"end": list(end), "entriesBehind": behind, "read": list(at)}
        return found


@dataclass
class Driver:
    """Of one query. All of it runs on one event loop."""

    options: Options
    feed: TopicFeed = field(init=False)
    reached: Reached | None = None
    _target: Cut | None = None
    _release_next: Cut | None = None
    _releasing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.feed = TopicFeed(self.options)
        await self.feed.open()

    async def close(self) -> None:
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        await self.feed.close()

    # -- a stream

    async def hold(self, begin: Begin) -> None:
        """Before anything is read or resolved: from here on nothing is deleted that the query is to read."""
        await self.feed.hold(from_earliest=begin != "latest")

    async def fix_target(self) -> None:
        """From here on the stream ends where the topic ends now."""
        self._target = await self.feed.resolved("latest")

    async def next_end(self, start: Begin, limit: Limit) -> Cut:
        """The end of the batch that starts there."""
        if not isinstance(start, Cut):
            # A batch of its own, without rows: its end is in Spark's log before the first row is read.
            return await self.feed.resolved(start)
        layout = await self.feed.layout_of(max(epoch_of(start), epoch_of(self._target or Cut())))
        self._check(resume(layout, start).gaps)
        known = await self.feed.known(layout, start)
        self._check(await self.feed.emptied(layout, start, known))
        if limit.is_set:
            known = await self.feed.measured(layout, start, known, self._target, limit)
        ordering = self.options.ordering
        end = reach(layout, start, known, target=self._target, limit=limit, ordering=ordering)
        self.reached = Reached(layout, known, end)
        if end == start:
            # Spark commits a batch when the next one is planned, and there is none.
            self.release(start)
        return end

    async def tasks(self, start: Begin, end: Begin) -> list[Task]:
        """What is to be read between two offsets. The first one may be a wish that the second resolved."""
        if not isinstance(start, Cut) or not isinstance(end, Cut):
            return []
        layout = await self.feed.layout_of(max(epoch_of(start), epoch_of(end)))
        self._check(lost(layout, start, end))
        admin_url = await self.feed.admin_url()
        return [
            Task(
                self.options.service_url,
                self.feed.topic,
                self.feed.topic_of(one.segment),
                layout.segments[one.segment].range,
                one,
                self.options.fail_on_data_loss,
                self.options.timeout_s,
                self.options.read_mode,
                admin_url,
                columns=self.options.columns,
            )
            for one in plan(layout, start, end)
        ]

    def _check(self, gaps: tuple[Gap, ...]) -> None:
        if not gaps:
            return
        error = DataLost.of(self.feed.topic, gaps)
        if self.options.fail_on_data_loss:
            raise DataLost(f"{error}. Or, to go on without them, set failOnDataLoss=false", gaps)
        log.warning("%s", error)

    # -- what was read

    def release(self, cut: Cut) -> None:
        """Moves the cursor there, in the background: nothing depends on when."""
        if self.options.subscription is not None:
            self._release_next = cut
            if self._releasing is None or self._releasing.done():
                self._releasing = asyncio.create_task(self._go_on_releasing())  # Awaited by `close`.

    async def _go_on_releasing(self) -> None:
        while (cut := self._release_next) is not None:
            self._release_next = None
            try:
                await self.feed.release(cut)
            except AnabranchError as error:
                log.warning("subscription %s is not moved yet: %s", self.options.subscription, error)

    # -- a batch

    async def batch(self) -> list[Task]:
        """What `spark.read` reads: from the start to the end that the options say."""
        start = await self.feed.resolved(Cut() if self.options.start is None else self.options.start)
        end = await self.feed.resolved("latest" if self.options.end is None else self.options.end)
        return await self.tasks(start, end)
