"""One scalable topic at one broker: leads it, or knows that another broker does. Performs what `core.step` decides.

A controller is made when the topic is first used here and stays until the topic is deleted or the broker closes. An
idle controller costs a few objects: no task, no timer, no watch of its own. Operations wait in one queue and are
performed by a task that exists only while there are any. Losing leadership drops everything that only a leader may
know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from anabranch.controller import election
from anabranch.controller.collection import Collection
from anabranch.controller.coordinator import Coordinator
from anabranch.controller.core import events as e
from anabranch.controller.core.errors import NotLeader, OperationRefused, SegmentGone, TopicMissing
from anabranch.controller.core.operations import ControlledTopic, Seeking
from anabranch.controller.core.step import resume, step
from anabranch.controller.feed import StalePart, TopicFeed
from anabranch.controller.ports import Assignment, AssignmentLink, Candidates, Segments
from anabranch.controller.records import Records
from anabranch.controller.settings import ControllerSettings
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    InitialPosition,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import Segment, SegmentId

log = logging.getLogger(__name__)

Made = Callable[[e.Ticket], e.Request]


@dataclass(frozen=True, slots=True)
class ControllerParts:
    """The parts that the controllers of one broker share."""

    metadata: MetadataStore
    records: Records
    feed: TopicFeed
    segments: Segments
    settings: ControllerSettings
    service_url: str
    # The topic's record, or the synthetic record of a classic topic. TopicMissing if there is neither.
    view: Callable[[TopicName], Awaitable[ScalableTopic]]
    candidates: Candidates


class ControllerListener(Protocol):
    """The owner of the controllers. None of these calls may wait."""

    def consumers_changed(self, controller: TopicController) -> None:
        """A consumer registered (new, or back again), or left for good."""
        ...

    def settled(self, controller: TopicController) -> None:
        """A leader has begun, or has finished all waiting work."""
        ...

    def deposed(self, controller: TopicController) -> None:
        """This broker does not lead the topic any more."""
        ...

    def topic_ended(self, controller: TopicController) -> None:
        """The topic was deleted."""
        ...


class TopicController:
    def __init__(self, topic: TopicName, parts: ControllerParts, listener: ControllerListener) -> None:
        self.topic = topic
        self.records = parts.records
        self.segments = parts.segments
        self.settings = parts.settings
        self.leader = ""  # As last read; "" while there is none.
        self._metadata = parts.metadata
        self._service_url = parts.service_url
        self._view = parts.view
        self._candidates = parts.candidates
        self._listener = listener
        self._collection = Collection(
            topic, parts.segments, parts.records, parts.settings, parts.metadata.now_ms
        )
        self._loop = asyncio.get_running_loop()
        self._state: ControlledTopic | None = None  # Only while leading.
        self._coordinators: dict[str, Coordinator] = {}
        self._events: deque[e.Event] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._standing: asyncio.Task[None] | None = None
        self._stand_again: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._tickets: dict[e.Ticket, asyncio.Future[SegmentLayout]] = {}
        self._tickets_given = 0
        self._completed: dict[str, SubscriptionRecord] = {}
        self._to_read = StalePart(0)
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_removing = False
        self._stop_listening = parts.feed.listen(topic, self._changed)

    # -- leading

    @property
    def is_leader(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> ControlledTopic | None:
        """A leader's knowledge of the topic; None on every other broker."""
        return self._state

    @property
    def has_sealed(self) -> bool:
        """Whether there may be sealed segments to check. A classic topic is checked for its partitions."""
        state = self._state
        return state is not None and (state.is_classic or bool(state.topic.layout.sealed))

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way or waits. The listener is notified when that is over."""
        return self._pump is not None

    @property
    def coordinators(self) -> Mapping[str, Coordinator]:
        return self._coordinators

    @property
    def draining(self) -> int:
        """How many sealed segments are shared by the consumers of a subscription."""
        return len({number for one in self._coordinators.values() for number in one.group.draining})

    async def lead(self) -> None:
        """Returns once this broker leads the topic. NotLeader if another does, TopicMissing if there is no topic."""
        if self.is_leader:
            return
        if self._standing is None:
            # The task is held in `_standing`, awaited by every caller of `lead`, and cancelled by `close`.
            self._standing = self._loop.create_task(self._stand())
            self._standing.add_done_callback(self._stood)
        standing = self._standing
        try:
            await asyncio.shield(standing)
        except asyncio.CancelledError:
            # Either the election was cancelled, or this caller.
            if not standing.cancelled():
                raise
            raise NotLeader(self.topic, "") from None
        if not self.is_leader:
            raise NotLeader(self.topic, self.leader)

    def _stood(self, task: asyncio.Task[None]) -> None:
        self._standing = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.debug("%s: not leading: %s", self.topic, error)
        if isinstance(error, TopicMissing):
            # Also where another broker led it: no controller outlives its topic.
            self._listener.topic_ended(self)
        elif not isinstance(error, NotLeader):
            self._stand_later()

    def _stand_later(self) -> None:
        """Stands for election again after trouble with the store: perhaps no caller asks again, while consumers wait
        for a leader."""
        if self._stand_again is None and not self._is_closed:
            self._stand_again = self._loop.call_later(self.settings.retry_max_s, self._stand_now)

    def _stand_now(self) -> None:
        self._stand_again = None
        if not self._is_closed and not self.is_leader:
            self._changed(StalePart.CONTROLLER)

    async def _stand(self) -> None:
        if self._is_closed:
            raise NotLeader(self.topic, "")
        view = await self._view(self.topic)  # TopicMissing before anything is written.
        if view.is_deleting:
            # Its leader resigns just before the record is removed. Only if that does not happen is the work ours.
            await asyncio.sleep(self.settings.retry_max_s)
            await self._view(self.topic)
        if self._candidates.is_elsewhere(self.topic):
            await self._defer()
        self.leader = await election.stand(self._metadata, self.topic, self._service_url)
        if self.leader != self._service_url:
            raise NotLeader(self.topic, self.leader)
        try:
            await self._take_up()
        except BaseException:
            for coordinator in self._coordinators.values():
                coordinator.close()
            self._coordinators.clear()
            # A broker has to lead, and this one cannot.
            await election.resign(self._metadata, self.topic)
            raise

    async def _defer(self) -> None:
        """Leaves the election to the broker that should lead. NotLeader once one leads; returns if none does in time:
        rather the wrong broker leads than none."""
        deadline = self._loop.time() + self.settings.defer_s
        is_urged = False
        while self._candidates.is_elsewhere(self.topic) and self._loop.time() < deadline:
            leader = await election.leader_of(self._metadata, self.topic, fresh=True)
            if leader:
                if leader == self._service_url:
                    return
                self.leader = leader
                raise NotLeader(self.topic, leader)
            if is_urged:
                await asyncio.sleep(self.settings.defer_look_s)
            else:
                is_urged = True
                await self._candidates.urge(self.topic)

    async def step_down(self) -> None:
        """Leaves the leadership to the broker that should have it."""
        if self.is_leader:
            self.depose("another broker should lead it")
            await election.resign(self._metadata, self.topic)

    async def _take_up(self) -> None:
        # The record is read again: the previous leader may have changed it before the election.
        found = await self.records.topic(self.topic) or (await self._view(self.topic), -1)
        state = ControlledTopic(*found)
        records = await self.records.subscriptions(self.topic, state.topic.generation)
        for record in records:
            if record.kind is not SubscriptionKind.QUEUE and not record.is_deleting:
                await self._coordinate(record, state.topic.layout)
        if self._is_closed:
            raise NotLeader(self.topic, "")
        self._completed = {r.name: r for r in records}
        self._state = state
        log.info("%s: leading at epoch %s", self.topic, state.topic.layout.epoch)
        self._state, effects = resume(state)
        self._events.append(e.RepairRequested())
        self._events.extend(e.SubscriptionDeletionRequested(0, r.name) for r in records if r.is_deleting)
        self._start(effects)

    async def _coordinate(self, record: SubscriptionRecord, layout: SegmentLayout) -> Coordinator:
        coordinator = Coordinator(self, record, layout)
        self._coordinators[record.name] = coordinator
        await coordinator.restore()
        return coordinator

    def depose(self, reason: str) -> None:
        """This broker no longer leads: what only a leader may know is dropped, and waiting callers are notified."""
        if self._standing is not None:
            self._standing.cancel()
        if not self.is_leader:
            for coordinator in self._coordinators.values():
                coordinator.close()
            self._coordinators.clear()
            return
        log.info("%s: no longer leading: %s", self.topic, reason)
        self._state = None
        self.leader = ""
        self._listener.deposed(self)
        self._end_work(NotLeader(self.topic, ""))

    def _end_work(self, error: AnabranchError) -> None:
        for task in (self._pump, *self._tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._pump = None
        self._events.clear()
        for coordinator in self._coordinators.values():
            coordinator.close()
        self._coordinators.clear()
        tickets, self._tickets = self._tickets, {}
        for waiting in tickets.values():
            if not waiting.done():
                waiting.set_exception(error)

    def failed(self, error: Exception) -> None:
        """An impossible state stops this topic, not the broker: give up its leadership, and let it be led again."""
        self.depose(f"it failed: {error!r}")
        self.spawn(election.resign(self._metadata, self.topic))

    async def close(self, *, resign: bool) -> None:
        self._is_closed = True
        self._stop_listening()
        if self._stand_again is not None:
            self._stand_again.cancel()
        was_leader = self.is_leader
        self.depose("the controller is released")
        for task in (self._reading, *self._tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if was_leader and resign:
            await election.resign(self._metadata, self.topic)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # The task is held in `_tasks` and cancelled by `close`.
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: a background task failed: %s", self.topic, error)

    # -- changes in the store

    def _changed(self, part: StalePart) -> None:
        self._to_read |= part
        if self._reading is None and not self._is_closed:
            # The task is held in `_reading` and cancelled by `close`.
            self._reading = self._loop.create_task(self._read_changes())

    async def _read_changes(self) -> None:
        try:
            while self._to_read and not self._is_closed:
                part, self._to_read = self._to_read, StalePart(0)
                try:
                    await self._read_parts(part)
                except AnabranchError as error:
                    # After trouble with the store everything is marked to be read again. Later changes are read now.
                    log.debug("%s: reading changes failed: %s", self.topic, error)
                    if StalePart.CONTROLLER in part and not self.is_leader:
                        self._stand_later()
        finally:
            self._reading = None

    async def _read_parts(self, part: StalePart) -> None:
        if StalePart.CONTROLLER in part:
            await self._read_leader()
        if StalePart.RECORD in part and self.is_leader:
            await self.read_record()
        if StalePart.SUBSCRIPTIONS in part and self.is_leader:
            await self._read_subscriptions()
        if StalePart.PARTITIONS in part and self._state is not None and self._state.is_classic:
            await self.collect()

    async def _read_leader(self) -> None:
        if self._is_removing:
            return  # This broker itself removes its leadership record together with the topic's.
        found = await election.leader_of(self._metadata, self.topic)
        if self.is_leader:
            if not await election.is_leader(self._metadata, self.topic):
                self.depose("another broker leads it")
        else:
            self.leader = found
        if not found and self._standing is None:
            try:
                await self.lead()
            except AnabranchError as error:
                log.debug("%s: not leading: %s", self.topic, error)

    async def read_record(self) -> None:
        """Reads a change that another broker has stored."""
        found = await self.records.topic(self.topic)
        state = self._state
        if state is None:
            return
        if found is None:
            if not state.is_classic:
                self._put(e.TopicRead(None, -1))
        elif found[1] > state.version or found[0].generation != state.topic.generation:
            self._put(e.TopicRead(*found))

    async def collect(self) -> None:
        """Removes the sealed segments that are not needed any more."""
        state = self._state
        if state is None:
            return
        if state.is_classic:
            await self._read_classic(state.topic.layout)
        elif expired := await self._collection.unneeded(state):
            self.remind(e.SegmentsExpired(tuple(expired)))

    async def _read_classic(self, known: SegmentLayout) -> None:
        """Reads the classic topic again: nothing below `/topics` shows that it has more partitions, or is gone."""
        try:
            found = await self._view(self.topic)
        except TopicMissing:
            await self._end_classic()
            return
        if found.generation == 0 and found.layout.epoch != known.epoch:
            self._put(e.TopicRead(found, -1))

    async def _end_classic(self) -> None:
        """The classic topic was deleted: its consumers are notified, and no broker leads it any more."""
        await self._drop_sessions("")
        self._is_removing = True
        await election.resign(self._metadata, self.topic)
        await self.records.remove_classic(self.topic)
        self._listener.topic_ended(self)

    async def _read_subscriptions(self) -> None:
        assert self._state is not None
        known = list(self._coordinators)
        records = await self.records.subscriptions(self.topic, self._state.topic.generation)
        for name in sorted(set(known).difference(record.name for record in records)):
            if await self.records.has_subscription(self.topic, name):
                continue  # A migration has stored it for the topic to come.
            # Another leader deleted it. A subscription made again under the same name starts without consumers.
            self._completed.pop(name, None)
            await self._drop_sessions(name)
        for record in records:
            if self._completed.get(record.name) == record:
                continue
            self._completed[record.name] = record
            coordinator = self._coordinators.get(record.name)
            if coordinator is not None:
                coordinator.record = record
            if record.is_deleting:
                continue
            self._put(e.SubscriptionFound(record.name))

    # -- operations

    async def request(self, make: Made) -> SegmentLayout:
        """Performs the operation and returns the layout; raises its refusal."""
        self._tickets_given += 1
        ticket = self._tickets_given
        answer: asyncio.Future[SegmentLayout] = self._loop.create_future()
        self._tickets[ticket] = answer
        try:
            self._put(make(ticket))
            return await answer
        finally:
            self._tickets.pop(ticket, None)

    def _put(self, event: e.Event) -> None:
        if not self.is_leader:
            raise NotLeader(self.topic, self.leader)
        self._events.append(event)
        self._start([])

    def remind(self, event: e.Request) -> None:
        """Queues work without a waiting caller. Dropped if this broker does not lead."""
        if self.is_leader:
            self._put(event)

    def _start(self, effects: list[e.Effect]) -> None:
        if self._pump is None and (self._events or effects):
            # The task is held in `_pump` and cancelled when this broker no longer leads.
            self._pump = self._loop.create_task(self._run(effects))

    async def _run(self, effects: list[e.Effect]) -> None:
        try:
            await self._work(effects)
            while self._events and self.is_leader:
                assert self._state is not None
                self._state, effects = step(self._state, self._events.popleft())
                await self._work(effects)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("%s: the controller failed", self.topic)
            self._pump = None
            self.failed(error)
            return
        self._pump = None
        self._listener.settled(self)

    async def _work(self, effects: list[e.Effect]) -> None:
        """Performs the effects, and those that follow from them, until the operation is done."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            try:
                event = await self._perform(effect)
            except AnabranchError as error:
                log.debug("%s: effect %s failed: %s", self.topic, type(effect).__name__, error)
                event = e.EffectFailed(effect, error)
            if event is not None and self._state is not None:
                self._state, more = step(self._state, event)
                todo.extend(more)

    async def _perform(self, effect: e.Effect) -> e.Event | None:
        topic, records, segments = self.topic, self.records, self.segments
        match effect:
            case e.StoreTopic(record, if_version):
                return await self._store_topic(record, if_version)
            case e.ReadTopic():
                return await self._fresh()
            case e.ReadSubscriptions():
                assert self._state is not None
                return e.SubscriptionsRead(await records.subscriptions(topic, self._state.topic.generation))
            case e.CreateSegments(_, made, names):
                await _all(segments.create(topic, segment, names) for segment in made)
            case e.SealSegment(_, segment):
                await segments.seal(topic, segment)
            case e.DeleteSegments(gone, best_effort):
                await self._delete_segments(gone, best_effort)
            case e.StoreSubscription(record, overwrite):
                if overwrite:
                    await records.change_subscription(topic, record)
                else:
                    record = await records.register_subscription(topic, record)
                self._completed[record.name] = record
            case e.CreateCursors(name, where, initial):
                await _all(self._create_cursor(segment, name, initial) for segment in where)
            case e.DeleteCursors(name, where):
                await _all(self._delete_cursor(segment, name) for segment in where)
            case e.WithdrawDescendants(name):
                if (coordinator := self._coordinators.get(name)) is not None:
                    await coordinator.withdraw_descendants()
            case e.MoveCursors(name, where, timestamp_ms):
                try:
                    await _all(self._move_cursor(segment, name, timestamp_ms) for segment in where)
                finally:
                    if (coordinator := self._coordinators.get(name)) is not None:
                        coordinator.cursors_moved()
            case e.CheckUnneeded(numbers):
                return await self._collection.still_unneeded(self._state, numbers)
            case e.CheckDrained(name):
                if (coordinator := self._coordinators.get(name)) is not None:
                    await coordinator.check_drained()
            case e.DropSessions(name):
                await self._drop_sessions(name)
            case e.RemoveSubscription(name):
                await records.remove_subscription(topic, name)
                self._completed.pop(name, None)
            case e.RemoveTopic():
                self._is_removing = True
                try:
                    await records.remove_topic(topic)
                except BaseException:
                    self._is_removing = False
                    raise
            case e.TellConsumers(layout):
                for coordinator in self._coordinators.values():
                    coordinator.layout_changed(layout)
                return None
            case e.Wait(attempt):
                delay = min(self.settings.retry_first_s * 2 ** (attempt - 1), self.settings.retry_max_s)
                await asyncio.sleep(delay)
                return None
            case e.Answer(ticket, layout):
                if (waiting := self._tickets.get(ticket)) is not None and not waiting.done():
                    waiting.set_result(layout)
                return None
            case e.Refuse(ticket, error):
                if (waiting := self._tickets.get(ticket)) is not None and not waiting.done():
                    waiting.set_exception(error)
                return None
            case e.EndController():
                self._listener.topic_ended(self)
                return None
            case _:
                assert_never(effect)
        return e.Done()

    async def _store_topic(self, record: ScalableTopic, if_version: int) -> e.Event:
        # While the session is in doubt another broker may lead already: work begun now would be begun twice.
        if self._metadata.session.state is not SessionState.CONNECTED:
            raise NotLeader(self.topic, "")
        try:
            return e.TopicStored(await self.records.store_topic(self.topic, record, if_version))
        except VersionConflict:
            return await self._fresh()

    async def _fresh(self) -> e.TopicRead:
        found = await self.records.topic(self.topic)
        return e.TopicRead(None, -1) if found is None else e.TopicRead(*found)

    async def _delete_segments(self, gone: tuple[Segment, ...], best_effort: bool) -> None:
        for segment in gone:
            try:
                await self.segments.delete(self.topic, segment)
            except AnabranchError as error:
                if not best_effort:
                    raise
                log.warning("%s: deleting segment %s failed: %s", self.topic, segment.descriptor, error)

    async def _create_cursor(self, segment: Segment, name: str, initial: InitialPosition) -> None:
        try:
            await self.segments.create_subscription(self.topic, segment, name, initial)
        except SegmentGone:
            if segment.is_active:
                raise

    async def _delete_cursor(self, segment: Segment, name: str) -> None:
        with contextlib.suppress(SegmentGone):
            await self.segments.delete_subscription(self.topic, segment, name)

    async def _move_cursor(self, segment: Segment, name: str, timestamp_ms: int | None) -> None:
        try:
            if timestamp_ms is None:
                await self.segments.skip_all(self.topic, segment, name)
            else:
                await self.segments.seek(self.topic, segment, name, timestamp_ms)
        except SegmentGone:
            if segment.is_active:
                raise

    async def _drop_sessions(self, name: str) -> None:
        for known in [name] if name else list(self._coordinators):
            coordinator = self._coordinators.get(known)
            if coordinator is not None:
                await coordinator.drop()
                coordinator.close()
                del self._coordinators[known]

    # -- sessions

    async def register(
        self,
        subscription: str,
        consumer: str,
        kind: SubscriptionKind,
        consumer_id: int,
        link: AssignmentLink,
        *,
        knows_buckets: bool = False,
    ) -> Assignment:
        coordinator = await self._coordinator(subscription, kind)
        return await coordinator.join(consumer, kind, link, consumer_id, knows_buckets=knows_buckets)

    async def _coordinator(self, subscription: str, kind: SubscriptionKind) -> Coordinator:
        state = self._state
        if state is None:
            raise NotLeader(self.topic, self.leader)
        if state.topic.is_deleting:
            raise TopicMissing(f"{self.topic} is being deleted")
        if not subscription:
            raise OperationRefused("a subscription needs a name")
        if (known := self._coordinators.get(subscription)) is not None:
            return known
        wanted = SubscriptionRecord(subscription, kind, state.topic.generation)
        record = await self.records.register_subscription(self.topic, wanted)
        if record.is_deleting:
            raise NotLeader(self.topic, "")  # The client retries: the name is free again in a moment.
        if record.kind is SubscriptionKind.QUEUE:
            raise OperationRefused(
                f"subscription {subscription} is of type QUEUE, whose consumers attach to every segment; "
                "use a queue consumer or another name"
            )
        if (known := self._coordinators.get(subscription)) is not None:
            return known
        if self._state is None:
            raise NotLeader(self.topic, self.leader)
        self._completed[subscription] = record
        coordinator = Coordinator(self, record, self._state.topic.layout)
        self._coordinators[subscription] = coordinator
        return coordinator

    def is_seeking(self, subscription: str) -> bool:
        """Whether the subscription's cursors are being moved."""
        doing = None if self._state is None else self._state.doing
        return isinstance(doing, Seeking) and doing.request.name == subscription

    def segment_progress(self, number: SegmentId) -> None:
        for coordinator in self._coordinators.values():
            coordinator.progressed(number)

    def consumers_changed(self) -> None:
        """A consumer joined or left some subscription of this topic."""
        self._listener.consumers_changed(self)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Runs the works concurrently. The first failure is raised once all have ended: none goes on unattended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
