"""A query's side on the driver: decides what each batch reads, and releases what was read.

Batches are planned here and read elsewhere, by the tasks of `spark.task.read_slice`. Topics that join are read from
their beginning. Topics that leave are not in the next offset any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from anabranch.client.errors import ConnectionLost, TopicDeleted, TopicMadeAgain
from anabranch.client.reading.ledgers import ledgers_of
from anabranch.client.transport.attachment import Backoff
from anabranch.errors import AnabranchError
from anabranch.model.buckets import Splits
from anabranch.model.cut import Cut
from anabranch.model.resuming import DataLost, Gap, check_topic, epoch_of, resume
from anabranch.model.segments import SegmentId
from anabranch.spark.driver import lags
from anabranch.spark.driver.topic import DriverTopic
from anabranch.spark.driver.topics import Feeds
from anabranch.spark.options.source import Options
from anabranch.spark.plan.bucket_slices import cut_by_bucket, room, shares
from anabranch.spark.plan.limit import Limit
from anabranch.spark.plan.offsets import Offset, initial
from anabranch.spark.plan.packing import TASKS_PER_CORE, SegmentSize, packed, tasks_for, weight
from anabranch.spark.plan.plan import (
    Segments,
    TopicView,
    lost,
    plan,
    reach_all,
    reach_and_short,
    rows_to_come,
)
from anabranch.spark.plan.split_slices import Ledgers, cut_up, needs_ledgers
from anabranch.spark.plan.task import Task, Tasks

log = logging.getLogger(__name__)

# How many rows of each segment are measured, where only the times of rows limit a batch.
LOOK_AHEAD_ROWS: Final = 1_000_000
# How many times as far a segment is measured where its share was not enough.
DEEPER: Final = 4
# Where nothing is new, Spark asks again 10 ms later. The driver waits for news, for a quarter of the time without news,
# but not longer than this: another source of the same query waits as well.
PAUSE_MAX_S: Final = 0.5
PAUSE_SHARE: Final = 4
# A query that asks less often has a trigger with its own pause, or has run a batch of another source.
SPARK_PAUSES_S: Final = 0.1
GO_ON: Final = "Or, to go on without them, set failOnDataLoss=false"
FROM_BEGINNING: Final = (
    "A query with failOnDataLoss=false goes on by itself, with the present topic from its beginning"
)


@dataclass
class Driver:
    """The driver of one query. All of it runs on one event loop."""

    options: Options
    feeds: Feeds = field(init=False)
    clock: Callable[[], float] = time.monotonic
    # The views that the last batch was planned with, and where it ends.
    _planned: tuple[Mapping[str, TopicView], Mapping[str, Cut]] | None = None
    _target: Mapping[str, Cut] | None = None
    # Topics whose unread messages are protected from deletion.
    _held: set[str] = field(default_factory=set)
    _few_since: float | None = None  # When too few rows for a batch were first seen.
    # The count of news when the last batch was planned, when Spark had its last answer, and since when nothing was new.
    _seen: int = -1
    _answered: float = float("-inf")
    _quiet_since: float = float("-inf")
    _release_next: Mapping[str, Cut] | None = None
    _releasing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.feeds = Feeds(self.options)
        await self.feeds.open()

    async def close(self) -> None:
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        await self.feeds.close()

    # -- a stream

    async def _hold(self, start: Offset) -> None:
        """Called before anything is read or resolved: from here on no message is deleted that the query is to read."""
        feeds = {name: feed for name, feed in self.feeds.current.items() if name not in self._held}
        await asyncio.gather(
            *(feed.hold(from_earliest=start.begin_of(name) != "latest") for name, feed in feeds.items())
        )
        self._held |= feeds.keys()

    async def fix_target(self) -> None:
        """From here on the stream ends at the present ends of its topics."""
        await self.feeds.settle()
        self._target = await self._resolved(Offset(wish="latest"))

    async def has_news(self) -> bool:
        """Whether the next answer may differ from the last one, that there was nothing to read.

        Waits for news for a while, where Spark asks repeatedly: the longer there was none, the longer.
        """
        pause_s, now = 0.0, self.clock()
        if self._target is None and now - self._answered < SPARK_PAUSES_S:
            pause_s = min(PAUSE_MAX_S, (now - self._quiet_since) / PAUSE_SHARE)
        if self._few_since is not None:
            pause_s = max(0.0, min(pause_s, self._few_since + self.options.delay_ms / 1000 - now))
        await self.feeds.following.wait(pause_s, self._seen)
        self._answered = self.clock()
        is_late = self._few_since is not None and self._has_waited(self._few_since)
        return is_late or self.feeds.is_one_due or self.feeds.following.count != self._seen

    async def next_end(self, start: Offset, limit: Limit) -> Offset:
        """The end of the batch that starts there."""
        following = self.feeds.following
        await following.look()
        # News from here on may be missed.
        self._seen = following.count
        end = await self._next_end(start, limit)
        self._answered = self.clock()
        if end != start:
            self._quiet_since = self._answered
        return end

    async def _next_end(self, start: Offset, limit: Limit) -> Offset:
        await self.feeds.settle()
        await self._hold(start)
        if not start.is_resolved:
            # A separate batch, without rows: its end is in Spark's log before the first row is read.
            self._check_all_are_there()
            return Offset(await self._resolved(start))
        views: Mapping[str, TopicView] = await self._views(start.cuts)
        options = self.options
        if limit.is_set or options.skew_ms is not None or options.rows_min > 1:
            views, ends = await self._limited(views, limit)
        else:
            ends = reach_all(views, ordering=options.ordering)
        self._planned = views, ends
        end = Offset(ends)
        if end == start:
            # Spark commits a batch when the next one is planned, and there is none.
            self.release(start.cuts)
        return end

    @property
    def lags(self) -> dict[str, Any] | None:
        """How far the query is behind after its last batch, for people."""
        return None if self._planned is None else lags.told(*self._planned)

    async def _limited(
        self, views: Mapping[str, TopicView], limit: Limit
    ) -> tuple[Mapping[str, TopicView], dict[str, Cut]]:
        """The views, measured as far as necessary, and where the batch ends.

        Each segment is first measured by its share of the limit; only segments of which all was taken are measured
        further: the driver holds about as much as one batch takes, and not that much of each segment.
        """
        most = self._look_ahead(limit)
        depth = most.share(max(1, sum(len(view.known.ends) for view in views.values())))
        views = await self._measured(views, depth)
        while True:
            ends, short = self._reached(views, limit, is_all=depth == most)
            if not short or depth == most:
                return views, ends
            depth = depth.times(DEEPER, most)
            views = {**views, **await self._measured({name: views[name] for name in short}, depth, short)}

    def _reached(
        self, views: Mapping[str, TopicView], limit: Limit, *, is_all: bool
    ) -> tuple[dict[str, Cut], Segments]:
        """Where the batch ends, and the segments whose measures are too short to say so; `is_all` if no more is
        measured: then a batch of any size has all that the limit allows, and does not wait for more."""
        options = self.options
        starts = {name: view.start for name, view in views.items()}
        if options.rows_min > 1 and self._target is None:
            found, short = rows_to_come(views, options.ordering)
            if short and found is not None and found < options.rows_min:
                if not is_all:
                    return starts, short
                found = None
            if self._waits(found):
                return starts, {}
        return reach_and_short(views, limit=limit, ordering=options.ordering, skew_ms=options.skew_ms)

    def _look_ahead(self, limit: Limit) -> Limit:
        """How much of each segment must be known."""
        if limit.is_set:
            return limit
        return Limit(rows=max(self.options.rows_min, 0 if self.options.skew_ms is None else LOOK_AHEAD_ROWS))

    def _waits(self, found: int | None) -> bool:
        """Whether there are too few rows yet, and not for too long."""
        options, few_since, self._few_since = self.options, self._few_since, None
        if found is None or not 0 < found < options.rows_min:
            return False
        few_since = self.clock() if few_since is None else few_since
        if self._has_waited(few_since):
            return False
        self._few_since = few_since
        return True

    def _has_waited(self, since: float) -> bool:
        """Whether rows have waited for more of them as long as is allowed."""
        return self.clock() - since >= self.options.delay_ms / 1000

    def _check_all_are_there(self) -> None:
        """Raises TopicDeleted for unknown names: such a name is most likely a mistake, unless the query has read that
        topic before."""
        missing = sorted(set(self.options.choice.names) - self.feeds.current.keys())
        if missing:
            raise TopicDeleted(
                f"{', '.join(missing)}: there is no such topic; create it first, or do not name it"
            )

    async def _resolved(self, start: Offset) -> dict[str, Cut]:
        """A cut of each existing topic."""
        feeds = self.feeds.current
        found = await asyncio.gather(*(feed.resolved(start.begin_of(name)) for name, feed in feeds.items()))
        return dict(zip(feeds, found, strict=True))

    async def _still_there(self, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The cuts without topics that left, and with those that joined."""
        for name in cuts:
            if name not in self.feeds.current or name in self.feeds.left:
                await self._let_go(name, cuts[name])
        for name in self.feeds.left - cuts.keys():
            self.feeds.forget(name)
            self._held.discard(name)
        there = {name: cut for name, cut in cuts.items() if name in self.feeds.current}
        joined = {name: Cut() for name in self.feeds.current if name not in cuts and self._is_in_target(name)}
        return there | joined

    def _is_in_target(self, name: str) -> bool:
        return self._target is None or name in self._target

    async def _let_go(self, name: str, cut: Cut) -> None:
        feed = self.feeds.forget(name)
        self._held.discard(name)
        if not self.options.choice.has(name) or (feed is not None and not feed.may_have_more(cut)):
            log.info("%s is not read any more", name)
        elif await self.feeds.exists(name, cut):
            if name in self.feeds.current:
                log.info("%s exists, though the namespace watch did not list it", name)
            else:
                log.info("%s does not match %s any more", name, self.options.choice)
        else:
            self._lost(DataLost(f"{name} was deleted, and its unread messages are lost"))

    async def _views(self, start: Mapping[str, Cut]) -> dict[str, TopicView]:
        backoff = Backoff(random.Random())
        while True:
            cuts = await self._still_there(start)
            try:
                found = await asyncio.gather(*(self._view(name, cut) for name, cut in cuts.items()))
                return dict(zip(cuts, found, strict=True))
            except TopicDeleted:
                # Deleted in this moment. The other topics are a batch, too, once that topic has left them.
                is_sole = len(self.options.choice.names) == 1
                if is_sole or not any(feed.is_deleted for feed in self.feeds.current.values()):
                    raise
            # Brokers may disagree for a moment whether that topic exists.
            await backoff.wait()
            await self.feeds.settle()

    async def _view(self, name: str, start: Cut) -> TopicView:
        feed, target = self.feeds.current[name], self._target
        start = await self._of_topic(feed, start)
        aim = None if target is None else target.get(name, start)
        layout = await feed.layout_of(max(epoch_of(start), epoch_of(aim or Cut())))
        start = await feed.begun(start)
        self._check(feed, resume(layout, start).gaps)
        known = await feed.known(layout, start)
        self._check(feed, await feed.emptied(layout, start, known))
        return TopicView(layout, start, known, aim)

    async def _of_topic(self, feed: DriverTopic, cut: Cut) -> Cut:
        """The cut. If it belongs to an earlier, deleted topic of that name: the beginning, if the user wants to
        continue."""
        try:
            await feed.check(cut)
        except TopicMadeAgain as error:
            self._lost(error)
            return Cut()
        return cut

    async def _measured(
        self, views: Mapping[str, TopicView], limit: Limit, only: Segments | None = None
    ) -> dict[str, TopicView]:
        feeds = self.feeds.current
        admin_url = await self._direct_url()
        found = await asyncio.gather(
            *(
                feeds[name].measured(view, limit, admin_url, None if only is None else only[name])
                for name, view in views.items()
            )
        )
        return dict(zip(views, found, strict=True))

    # -- the tasks of a batch

    async def tasks(self, start: Offset, end: Offset, *, is_batch: bool = False) -> list[Tasks]:
        """The tasks that read between two offsets. The first offset may be a wish that the second resolved."""
        if not start.is_resolved or not end.is_resolved:
            return []
        found = await asyncio.gather(
            *(self._tasks(name, start.cuts.get(name, Cut()), cut) for name, cut in end.cuts.items())
        )
        feeds = {
            task.segment_topic: name for name, tasks in zip(end.cuts, found, strict=True) for task, _ in tasks
        }
        slices = [one for tasks in found for one in tasks]
        pieces = await self._cut_up(slices, feeds, is_batch)
        if self.options.max_partitions is None and len(pieces) > len(slices):
            # The number that was asked for.
            return [(task,) for task in pieces]
        return await self._packed(pieces, feeds)

    async def _tasks(self, name: str, start: Cut, end: Cut) -> list[tuple[Task, Splits]]:
        """The tasks of one topic, each with the splits of its segment."""
        if start == end:
            return []
        try:
            feed = await self.feeds.of(name)
            try:
                check_topic(feed.layout, end, feed.topic)
            except TopicMadeAgain as error:
                self._lost(error)
                return []
            # As the batch was planned, if it began in a topic that is gone.
            start = await self._of_topic(feed, start)
            layout = await feed.layout_of(max(epoch_of(start), epoch_of(end)))
        except TopicDeleted:
            self._lost(DataLost(f"{name} was deleted, and this batch has messages of it"))
            return []
        self._check(feed, lost(layout, start, end))
        admin_url = await self._direct_url()
        tasks = [
            Task(
                self.options.service_url,
                feed.topic,
                feed.topic_of(one.segment),
                layout.segments[one.segment].range,
                one,
                self.options.fail_on_data_loss,
                self.options.timeout_s,
                self.options.read_mode,
                admin_url,
                self.options.security,
                columns=self.options.columns,
                ranges=self.options.ranges,
                decryption_keys=self.options.decryption_keys,
                topic_id=layout.topic_id,
                message_bytes_max=self.options.message_bytes_max,
                object_access=self.options.object_access,
            )
            for one in plan(layout, start, end)
            if self.options.ranges.may_be_in(layout.segments[one.segment])
        ]
        return [(task, layout.segments[task.slice.segment].bucket_splits) for task in tasks]

    async def _direct_url(self) -> str:
        """The address for requests about the log's files; "" if files are not to be read."""
        return "" if self.options.read_mode == "broker" else await self.feeds.admin_url()

    async def _cut_up(
        self, planned: list[tuple[Task, Splits]], feeds: Mapping[str, str], is_batch: bool
    ) -> list[Task]:
        """Cuts tasks so that there are at least as many as the options ask for, if that is possible."""
        options, tasks = self.options, [task for task, _ in planned]
        if not tasks or len(tasks) >= options.min_partitions:
            return tasks
        if options.ordering == "none" or (is_batch and not options.orders_batches):
            return await self._cut_by_position(tasks, options.min_partitions)
        # A key's rows stay in one task, in order. Where a segment has one bucket, only a batch cuts further: it
        # promises no order among tasks.
        rooms = [room(task.slice, splits) for task, splits in planned]
        if max(rooms) == 1:
            return await self._cut_by_position(tasks, options.min_partitions) if is_batch else tasks
        limits = [options.min_partitions if is_batch and most == 1 else most for most in rooms]
        counts = shares(await self._weights(tasks, feeds), limits, options.min_partitions)
        pieces: list[Task] = []
        rest: list[Task] = []
        of_rest = 0
        for (task, splits), most, count in zip(planned, rooms, counts, strict=True):
            if is_batch and most == 1:
                rest.append(task)
                of_rest += count
            else:
                pieces += [replace(task, slice=one) for one in cut_by_bucket(task.slice, splits, count)]
        return pieces + (await self._cut_by_position(rest, of_rest) if rest else [])

    async def _cut_by_position(self, tasks: list[Task], pieces_min: int) -> list[Task]:
        admin_url = await self.feeds.admin_url()
        ledgers = await asyncio.gather(*(self._ledgers(task, admin_url) for task in tasks))
        slices = [(task.slice, known) for task, known in zip(tasks, ledgers, strict=True)]
        pieces = cut_up(slices, pieces_min)
        return [replace(task, slice=one) for task, parts in zip(tasks, pieces, strict=True) for one in parts]

    async def _packed(self, tasks: list[Task], feeds: Mapping[str, str]) -> list[Tasks]:
        """Packs several small tasks into one of Spark's tasks. `feeds` maps each segment's topic to the topic of the
        query."""
        options = self.options
        cores = os.cpu_count() or 1
        most = max(options.min_partitions, TASKS_PER_CORE * cores)
        if len(tasks) <= (most if options.max_partitions is None else options.max_partitions):
            return [(task,) for task in tasks]
        weights = await self._weights(tasks, feeds)
        most = options.max_partitions or max(options.min_partitions, tasks_for(weights, cores))
        return [tuple(tasks[place] for place in places) for places in packed(weights, most)]

    async def _weights(self, tasks: list[Task], feeds: Mapping[str, str]) -> list[int]:
        """The expected cost of each task. Where sizes are unknown, positions give an estimate."""
        numbers: dict[str, set[SegmentId]] = {}
        for task in tasks:
            numbers.setdefault(feeds[task.segment_topic], set()).add(task.slice.segment)
        found = await asyncio.gather(*(self._kept(name, segments) for name, segments in numbers.items()))
        kept = dict(zip(numbers, found, strict=True))
        return [weight(task.slice, kept[feeds[task.segment_topic]].get(task.slice.segment)) for task in tasks]

    async def _kept(self, name: str, segments: Iterable[SegmentId]) -> Mapping[SegmentId, SegmentSize]:
        try:
            return await (await self.feeds.of(name)).kept(segments)
        except AnabranchError as error:
            log.warning("%s: asking for the sizes of segments failed: %s", name, error)
            return {}

    async def _ledgers(self, task: Task, admin_url: str) -> Ledgers:
        if not needs_ledgers(task.slice):
            return ()
        try:
            return await asyncio.to_thread(
                ledgers_of, admin_url, task.segment_topic, task.security, self.options.timeout_s
            )
        except ConnectionLost as error:
            log.warning("%s is read by a single task: %s", task.segment_topic, error)
            return ()

    def _check(self, feed: DriverTopic, gaps: Iterable[Gap]) -> None:
        if gaps := tuple(gaps):
            self._lost(DataLost.of(feed.topic, gaps))

    def _lost(self, error: DataLost | TopicMadeAgain) -> None:
        if self.options.fail_on_data_loss:
            if isinstance(error, TopicMadeAgain):
                raise TopicMadeAgain(f"{error}. {FROM_BEGINNING}") from None
            raise DataLost(f"{error}. {GO_ON}", error.gaps)
        log.warning("%s", error)

    # -- releasing what was read

    def release(self, cuts: Mapping[str, Cut]) -> None:
        """Moves the cursors to the cuts, in the background: nothing depends on the moment."""
        if self.options.subscription is not None:
            self._release_next = cuts
            if self._releasing is None or self._releasing.done():
                self._releasing = asyncio.create_task(self._go_on_releasing())  # Awaited by `close`.

    async def _go_on_releasing(self) -> None:
        while (cuts := self._release_next) is not None:
            self._release_next = None
            await asyncio.gather(*(self._release(name, cut) for name, cut in cuts.items()))

    async def _release(self, name: str, cut: Cut) -> None:
        feed = self.feeds.current.get(name)
        try:
            if feed is not None:
                await feed.release(cut)
        except AnabranchError as error:
            log.warning(
                "moving subscription %s of %s failed, trying again later: %s",
                self.options.subscription,
                name,
                error,
            )
            # So that the release is retried.
            self.feeds.following.note()

    # -- a batch

    async def batch(self) -> list[Tasks]:
        """The tasks of `spark.read`: from the start to the end that the options give."""
        choice = self.options.choice
        start = initial(choice, Cut() if self.options.start is None else self.options.start)
        end = initial(choice, "latest" if self.options.end is None else self.options.end)
        self._check_all_are_there()
        cuts, ends = await asyncio.gather(self._resolved(start), self._resolved(end))
        return await self.tasks(Offset(cuts), Offset(ends), is_batch=True)
