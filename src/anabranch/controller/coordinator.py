"""One subscription's consumers, at the broker that leads the topic: performs what `core.sessions` decides.

Events wait in one queue and are worked off one at a time by a task that exists only while there are any, so an idle
subscription costs nothing. Grace timers and the asking for drained segments are the only things that go on by
themselves, and `close` ends both.

A leader may have been deposed without having heard of it. It finds out when it stores a session: each record is changed
only at the version that this leader knows, and a conflict makes it look who leads. What it can still store, over what
its successor has not touched, is what it decided while it led; the successor's owners know what is drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, assert_never

from anabranch.controller.core import sessions as s
from anabranch.controller.errors import OperationRefused
from anabranch.controller.ports import Assignment, AssignmentLink, NotLeader, SegmentGone, SegmentStatus
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import MetadataError, VersionConflict
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import (
    ConsumerRecord,
    InitialPosition,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import SegmentId

if TYPE_CHECKING:
    from anabranch.controller.topic_controller import TopicController

log = logging.getLogger(__name__)

STORE_RETRY_FIRST_S = 0.05
STORE_RETRY_MAX_S = 2.0


class Coordinator:
    """Made by the leader's `TopicController`, closed when it no longer leads."""

    def __init__(
        self, controller: TopicController, record: SubscriptionRecord, layout: SegmentLayout
    ) -> None:
        self.record = record
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        kind = None if record.kind is SubscriptionKind.QUEUE else record.kind
        self.group = s.Group(layout, kind)
        self._events: deque[tuple[s.Event, asyncio.Future[None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        # The joins that wait, and who waits for each: a name may join again before its first join is answered.
        self._joins: dict[asyncio.Future[None], tuple[str, asyncio.Future[Assignment]]] = {}
        self._done: asyncio.Future[None] | None = None  # Of the event that is worked off.
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._asking: asyncio.TimerHandle | None = None
        self._ask_delay_s = 0.0
        # Raised when cursors have been moved: what was learned before about drained segments counts for nothing.
        self._moves = 0
        # Of the sessions' records, as far as known.
        self._versions: dict[str, int] = {}
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self.group.sessions and self._pump is None and not self._events

    def close(self) -> None:
        self._is_closed = True
        if self._pump is not None:
            self._pump.cancel()
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()
        self._stop_asking()
        error = NotLeader(self._controller.topic, "")
        for _, done in self._events:
            _fail(done, error)
        self._events.clear()
        for _, join in self._joins.values():
            _fail(join, error)
        self._joins.clear()

    # -- what happens

    async def restore(self) -> None:
        """Takes over the sessions that the leader before us stored."""
        found = await self._controller.records.consumers(self._controller.topic, self.record.name)
        self._versions = {record.name: version for record, version in found}
        numbers = self.group.unknown if found else ()
        said = await asyncio.gather(*(self._is_drained(number) for number in numbers))
        told: dict[bool | None, set[SegmentId]] = {True: set(), False: set(), None: set()}
        for number, verdict in zip(numbers, said, strict=True):
            told[verdict].add(number)
        records = tuple(record for record, _ in found)
        await self._put(s.Restored(records, frozenset(told[True]), frozenset(told[False])))

    async def join(
        self, name: str, kind: SubscriptionKind, link: AssignmentLink, consumer_id: int
    ) -> Assignment:
        if not self.group.sessions and self.group.unknown:
            drained = await self._ask(self.group.unknown)
            if drained:
                await self._put(s.Drained(drained))
        for other, earlier in self._joins.values():
            if other == name:
                _fail(earlier, OperationRefused(f"consumer {name} registered again over another connection"))
        answer: asyncio.Future[Assignment] = self._loop.create_future()
        done = self._put(s.Joined(name, kind, link, consumer_id))
        self._joins[done] = name, answer
        try:
            await done
            return await answer
        finally:
            self._joins.pop(done, None)

    async def leave(self, name: str, link: AssignmentLink) -> None:
        await self._put(s.Left(name, link))

    def connection_lost(self, name: str, link: AssignmentLink) -> None:
        self._put(s.ConnectionLost(name, link))

    async def finished(self, name: str, segments: frozenset[SegmentId]) -> None:
        await self._put(s.Finished(name, segments))

    def layout_changed(self, layout: SegmentLayout) -> None:
        self._put(s.LayoutChanged(layout))

    async def withdraw_descendants(self) -> None:
        """Every sealed segment may have something to read again."""
        await self._put(s.Undrained(frozenset(self.group.layout.segments)))

    async def drop(self) -> None:
        await self._put(s.SubscriptionDeleted())

    def cursors_moved(self) -> None:
        self._moves += 1

    async def check_drained(self) -> None:
        """Looks at every sealed segment that is not known to be drained, once cursors have been moved."""
        drained = await self._ask(self.group.unknown, is_seeking=True)
        if drained:
            await self._put(s.Drained(drained))

    def progressed(self, number: SegmentId) -> None:
        """The owner of a segment says that something was drained: ask now instead of later."""
        if number in self.group.watched:
            self._ask_after(0.0)

    # -- the queue

    def _put(self, event: s.Event) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        # Whoever does not wait for it does not care whether it failed.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        if self._is_closed:
            _fail(done, NotLeader(self._controller.topic, ""))
            return done
        self._events.append((event, done))
        if self._pump is None:
            # Held in `_pump`, cancelled by `close`.
            self._pump = self._loop.create_task(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._events:
                event, done = self._events.popleft()
                self._done = done
                try:
                    self.group, effects = s.step(self.group, event)
                    for effect in effects:
                        await self._perform(effect)
                    if not done.done():
                        done.set_result(None)
                finally:
                    # Cut short, nobody knows how much of it took place.
                    _fail(done, NotLeader(self._controller.topic, ""))
        except asyncio.CancelledError:
            raise
        except NotLeader:
            return  # Deposed, and closed by now.
        except Exception as error:
            log.exception("%s: subscription %s stops", self._controller.topic, self.record.name)
            self._pump = None
            self._controller.failed(error)
            return
        self._pump = None

    async def _perform(self, effect: s.Effect) -> None:
        controller = self._controller
        match effect:
            case s.StoreSession(record):
                await self._store_session(record)
            case s.RemoveSession(consumer):
                await self._remove_session(consumer)
                controller.consumers_changed()
            case s.Push(link, consumer_id, epoch, numbers):
                assert hasattr(link, "send_assignment")
                link.send_assignment(controller.topic, consumer_id, self._assignment(epoch, numbers))
            case s.Answer(_, epoch, numbers):
                joining = self._joining()
                if joining is not None and not joining.done():
                    joining.set_result(self._assignment(epoch, numbers))
                controller.consumers_changed()
            case s.RefuseJoin(_, reason):
                joining = self._joining()
                if joining is not None:
                    _fail(joining, OperationRefused(reason))
            case s.StartGrace(consumer, timer):
                self._cancel_grace(consumer)
                self._graces[consumer] = self._loop.call_later(
                    controller.settings.session_grace_s, self._grace_over, consumer, timer
                )
            case s.CancelGrace(consumer):
                self._cancel_grace(consumer)
            case s.WatchDrain(numbers):
                self._stop_asking()
                if numbers:
                    self._ask_delay_s = controller.settings.drain_poll_first_s
                    # At once: a segment may have been sealed empty.
                    self._ask_after(0.0)
            case _:
                assert_never(effect)

    def _joining(self) -> asyncio.Future[Assignment] | None:
        """Whoever waits for the join that is worked off."""
        found = None if self._done is None else self._joins.get(self._done)
        return None if found is None else found[1]

    def _assignment(self, epoch: int, numbers: tuple[SegmentId, ...]) -> Assignment:
        segments = self.group.layout.segments
        return Assignment(epoch, tuple(segments[n] for n in numbers if n in segments))

    async def _store_session(self, record: ConsumerRecord) -> None:
        controller, name = self._controller, record.name

        async def store() -> None:
            known = self._versions.get(name)
            if known is None:
                await (
                    self._check_leads()
                )  # Nothing else would tell: there is no record to be in conflict with.
            self._versions[name] = await controller.records.store_consumer(
                controller.topic, self.record.name, record, known
            )

        await self._insist(name, store)

    async def _remove_session(self, name: str) -> None:
        controller = self._controller

        async def remove() -> None:
            known = self._versions.get(name)
            await controller.records.remove_consumer(controller.topic, self.record.name, name, known)

        await self._insist(name, remove)
        self._versions.pop(name, None)

    async def _insist(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        """Tries until it is stored: nothing that depends on it may be told before. Leadership's end cancels it."""
        delay = STORE_RETRY_FIRST_S
        is_known = True
        while True:
            try:
                if not is_known:
                    await self._look_again(name)
                    is_known = True
                await write()
                return
            except VersionConflict:
                # Another leader's, or our own write whose answer was lost.
                is_known = False
            except MetadataError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(delay)
                delay = min(2 * delay, STORE_RETRY_MAX_S)

    async def _look_again(self, name: str) -> None:
        """The record is not what we stored: whoever leads now has the last word."""
        await self._check_leads()
        records = self._controller.records
        found = await records.consumer_version(self._controller.topic, self.record.name, name)
        if found is None:
            self._versions.pop(name, None)
        else:
            self._versions[name] = found

    async def _check_leads(self) -> None:
        """NotLeader, and the end of all of the leader's work, if another broker was elected."""
        if not await self._controller.records.is_led_here(self._controller.topic):
            self._controller.depose("another broker was elected")
            raise NotLeader(self._controller.topic, "")

    def _cancel_grace(self, consumer: str) -> None:
        timer = self._graces.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def _grace_over(self, consumer: str, timer: int) -> None:
        self._graces.pop(consumer, None)
        self._put(s.GraceExpired(consumer, timer))

    # -- asking the owners

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _ask_after(self, seconds: float) -> None:
        self._stop_asking()
        if not self._is_closed and self.group.watched:
            self._asking = self._loop.call_later(seconds, self._ask_now)

    def _ask_now(self) -> None:
        self._asking = None
        self._controller.spawn(self._ask_watched())

    async def _ask_watched(self) -> None:
        watched = self.group.watched
        if not watched or self._is_closed:
            return
        drained = await self._ask(watched)
        if self._is_closed:
            return
        if drained:
            self._ask_delay_s = self._controller.settings.drain_poll_first_s
            await self._put(s.Drained(drained))
        if self._asking is None:
            self._ask_after(self._ask_delay_s)
            self._ask_delay_s = min(2 * self._ask_delay_s, self._controller.settings.drain_poll_max_s)

    async def _ask(self, numbers: tuple[SegmentId, ...], *, is_seeking: bool = False) -> frozenset[SegmentId]:
        """Which of those segments this subscription has drained, as far as their owners can be asked."""
        moves = self._moves
        found = await asyncio.gather(*(self._is_drained(number) for number in numbers))
        # While a seek is under way, an owner may still say where the cursor was.
        if moves != self._moves or (self._controller.is_seeking(self.record.name) and not is_seeking):
            return frozenset()
        return frozenset(number for number, drained in zip(numbers, found, strict=True) if drained)

    async def _is_drained(self, number: SegmentId) -> bool | None:
        """None if its owner cannot be asked."""
        segment = self.group.layout.segments.get(number)
        if segment is None or segment.is_deleting:
            return True
        try:
            status = await self._controller.segments.status(self._controller.topic, segment)
        except SegmentGone:
            # Named by the layout and without storage: it was collected, and the pruning is on its way.
            return segment.is_sealed
        except AnabranchError as error:
            log.debug("%s: cannot ask about segment %s: %s", self._controller.topic, number, error)
            return None
        return is_drained(self.record, status, number, self.group)


def is_drained(
    record: SubscriptionRecord, status: SegmentStatus, number: SegmentId, group: s.Group | None = None
) -> bool:
    """Whether the subscription has read that segment to its end."""
    if not status.is_sealed or status.is_hiding:
        return False
    if record.kind is SubscriptionKind.CHECKPOINT:
        names = () if group is None else group.sessions
        return any(f"{name}-seg-{number}" in status.finished_readers for name in names)
    cursor = status.subscriptions.get(record.name)
    if cursor is None:
        return record.initial is InitialPosition.LATEST
    return cursor.is_drained


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Whoever waited may have been told already, in another way.
