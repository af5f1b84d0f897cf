"""The consumers of one subscription, at the broker that leads the topic: performs what `core.sessions` decides.

Events wait in one queue and are performed one at a time by a task that exists only while there are any, so an idle
subscription costs nothing. Only grace timers and the polling for drained segments run by themselves, and `close` ends
both.

A leader may have been deposed without knowing it. It finds out when it stores a session: each record is changed only at
the version that this leader knows, and a conflict makes the leader check who leads. Where its successor has changed
nothing, it can still store what it decided while it led; the successor asks the owners which segments are drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Protocol, assert_never

from anabranch.controller.core import sessions as s
from anabranch.controller.core.errors import NotLeader, OperationRefused, SegmentGone
from anabranch.controller.core.group import ConsumerGroup
from anabranch.controller.core.sharing import Buckets
from anabranch.controller.ports import Assignment, AssignmentLink, Segments
from anabranch.controller.records import Records
from anabranch.controller.settings import ControllerSettings
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import MetadataError, VersionConflict
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import SegmentId

log = logging.getLogger(__name__)

NOTHING_SHARED: Final[Mapping[SegmentId, int]] = MappingProxyType({})
STORE_RETRY_FIRST_S = 0.05
STORE_RETRY_MAX_S = 2.0


class LedTopic(Protocol):
    """What a coordinator needs from the controller that leads its topic."""

    topic: TopicName
    records: Records
    segments: Segments
    settings: ControllerSettings

    def is_seeking(self, subscription: str) -> bool:
        """Whether the subscription's cursors are being moved."""
        ...

    def consumers_changed(self) -> None:
        """A consumer joined or left."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work in the background, until the controller closes."""
        ...

    def depose(self, reason: str) -> None:
        """Another broker leads the topic: the controller drops all that only a leader may know."""
        ...

    def failed(self, error: Exception) -> None:
        """The coordinator met an impossible state: the controller gives the topic up."""
        ...


class _ChangedSinceError(Exception):
    """A former leader has stored a session since the sessions were read."""


class Coordinator:
    """Performs the decisions of one subscription. The leader's `TopicController` makes it, and closes it when it is
    deposed."""

    def __init__(self, leader: LedTopic, record: SubscriptionRecord, layout: SegmentLayout) -> None:
        self.record = record
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        kind = None if record.kind is SubscriptionKind.QUEUE else record.kind
        self._fresh = ConsumerGroup(layout, kind, shares_sealed=leader.settings.shares_sealed)
        self.group = self._fresh
        self._events: deque[tuple[s.Event, asyncio.Future[None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        # The waiting joins, each with the future of its caller: a name may join again before its first join is
        # answered.
        self._joins: dict[asyncio.Future[None], tuple[str, asyncio.Future[Assignment]]] = {}
        self._done: asyncio.Future[None] | None = None  # The future of the event being performed.
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._settling: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None
        self._ask_delay_s = 0.0
        # Raised when cursors have been moved: earlier answers about drained segments are then void.
        self._moves = 0
        # The versions of the sessions' records, as far as known.
        self._versions: dict[str, int] = {}
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self.group.sessions and self._pump is None and not self._events

    @property
    def capacity(self) -> Mapping[SegmentId, int]:
        """The segments that the subscription's consumers can share, each with how many it serves. Every other segment
        serves one consumer."""
        group = self.group
        if not group.knows_buckets:
            return NOTHING_SHARED
        # A budget of one bucket keeps the order across keys: nothing adds buckets to such a topic by itself.
        least = 1 if self._leader.settings.buckets.total > 1 else 2
        found = {segment.id: group.room(segment) for segment in group.layout.active}
        return {number: room for number, room in found.items() if room >= least} or NOTHING_SHARED

    def close(self) -> None:
        self._is_closed = True
        if self._pump is not None:
            self._pump.cancel()
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()
        self._stop_settling()
        self._stop_asking()
        error = NotLeader(self._leader.topic, "")
        for _, done in self._events:
            _fail(done, error)
        self._events.clear()
        for _, join in self._joins.values():
            _fail(join, error)
        self._joins.clear()

    # -- events

    async def restore(self) -> None:
        """Takes over the sessions that the previous leader stored."""
        await self._put(await self._read_stored())

    async def _read_stored(self) -> s.Restored:
        found = await self._leader.records.consumers(self._leader.topic, self.record.name)
        self._versions = {record.name: version for record, version in found}
        numbers = self.group.unknown if found else ()
        said = await asyncio.gather(*(self._is_drained(number) for number in numbers))
        told: dict[bool | None, set[SegmentId]] = {True: set(), False: set(), None: set()}
        for number, verdict in zip(numbers, said, strict=True):
            told[verdict].add(number)
        records = tuple(record for record, _ in found)
        return s.Restored(records, frozenset(told[True]), frozenset(told[False]))

    async def join(
        self,
        name: str,
        kind: SubscriptionKind,
        link: AssignmentLink,
        consumer_id: int,
        *,
        knows_buckets: bool = False,
    ) -> Assignment:
        if not self.group.sessions and self.group.unknown:
            drained = await self._ask(self.group.unknown)
            if drained:
                await self._put(s.Drained(drained))
        for other, earlier in self._joins.values():
            if other == name:
                _fail(earlier, OperationRefused(f"consumer {name} registered again over another connection"))
        answer: asyncio.Future[Assignment] = self._loop.create_future()
        done = self._put(s.Joined(name, kind, link, consumer_id, knows_buckets))
        self._joins[done] = name, answer
        try:
            await done
            return await answer
        finally:
            self._joins.pop(done, None)

    async def leave(self, name: str, link: AssignmentLink) -> None:
        await self._put(s.Left(name, link))

    def sharing_refused(self, name: str, link: AssignmentLink) -> None:
        """The consumer came to read a whole segment that it was to share."""
        self._put(s.SharingRefused(name, link))

    def connection_lost(self, name: str, link: AssignmentLink) -> None:
        self._put(s.MemberLost(name, link))

    async def finished(
        self, name: str, segments: frozenset[SegmentId], buckets: Mapping[SegmentId, frozenset[int]]
    ) -> None:
        await self._put(s.Finished(name, segments, buckets))

    def layout_changed(self, layout: SegmentLayout) -> None:
        self._put(s.LayoutChanged(layout))

    async def withdraw_descendants(self) -> None:
        """Withdraws the descendants of sealed segments: each sealed segment may have something to read again."""
        await self._put(s.Undrained(frozenset(self.group.layout.segments)))

    async def drop(self) -> None:
        await self._put(s.SubscriptionDeleted())

    def cursors_moved(self) -> None:
        self._moves += 1

    async def check_drained(self) -> None:
        """Checks every sealed segment that is not known to be drained, after cursors have been moved."""
        drained = await self._ask(self.group.unknown, is_seeking=True)
        if drained:
            await self._put(s.Drained(drained))

    def progressed(self, number: SegmentId) -> None:
        """The owner of a segment reports that a subscription has drained it: ask now instead of later."""
        if number in self.group.watched:
            self._ask_after(0.0)

    # -- the queue

    def _put(self, event: s.Event) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        # A caller that does not await the future does not need its failure.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        if self._is_closed:
            _fail(done, NotLeader(self._leader.topic, ""))
            return done
        self._events.append((event, done))
        if self._pump is None:
            # The task is held in `_pump` and cancelled by `close`.
            self._pump = self._loop.create_task(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._events:
                event, done = self._events.popleft()
                self._done = done
                try:
                    await self._take(event)
                    if not done.done():
                        done.set_result(None)
                finally:
                    # The event was interrupted: how much of it took place is unknown.
                    _fail(done, NotLeader(self._leader.topic, ""))
        except asyncio.CancelledError:
            raise
        except NotLeader:
            return  # The coordinator was deposed, and is closed by now.
        except Exception as error:
            log.exception(
                "%s, subscription %s: the coordinator failed and stops", self._leader.topic, self.record.name
            )
            self._pump = None
            self._leader.failed(error)
            return
        self._pump = None

    async def _take(self, event: s.Event) -> None:
        while True:
            self.group, effects = s.step(self.group, event)
            try:
                for effect in effects:
                    await self._perform(effect)
                return
            except _ChangedSinceError:
                self.group = replace(self._fresh, layout=self.group.layout)
                event = await self._read_stored()

    async def _perform(self, effect: s.Effect) -> None:
        leader = self._leader
        match effect:
            case s.StoreSession(record):
                await self._store_session(record)
            case s.FenceSession(record):
                await self._fence_session(record)
            case s.RemoveSession(consumer):
                await self._remove_session(consumer)
                leader.consumers_changed()
            case s.Push(link, consumer_id, epoch, numbers, shares):
                assert hasattr(link, "send_assignment")
                link.send_assignment(leader.topic, consumer_id, self._assignment(epoch, numbers, shares))
            case s.JoinAnswer(_, epoch, numbers, shares):
                joining = self._joining()
                if joining is not None and not joining.done():
                    joining.set_result(self._assignment(epoch, numbers, shares))
                leader.consumers_changed()
            case s.RefuseJoin(_, reason):
                joining = self._joining()
                if joining is not None:
                    _fail(joining, OperationRefused(reason))
            case s.StartGrace(consumer, timer):
                self._cancel_grace(consumer)
                self._graces[consumer] = self._loop.call_later(
                    leader.settings.session_grace_s, self._grace_over, consumer, timer
                )
            case s.CancelGrace(consumer):
                self._cancel_grace(consumer)
            case s.StartSettling(timer):
                self._stop_settling()
                self._settling = self._loop.call_later(leader.settings.settle_s, self._settled, timer)
            case s.StopSettling():
                self._stop_settling()
            case s.WatchDrain(numbers):
                self._stop_asking()
                if numbers:
                    self._ask_delay_s = leader.settings.drain_poll_first_s
                    # Ask at once: a segment may have been sealed empty.
                    self._ask_after(0.0)
            case _:
                assert_never(effect)

    def _joining(self) -> asyncio.Future[Assignment] | None:
        """The future of the caller whose join is being performed."""
        found = None if self._done is None else self._joins.get(self._done)
        return None if found is None else found[1]

    def _assignment(
        self, epoch: int, numbers: tuple[SegmentId, ...], shares: Mapping[SegmentId, Buckets]
    ) -> Assignment:
        segments, is_checkpoint = self.group.layout.segments, self.group.kind is SubscriptionKind.CHECKPOINT
        there = tuple(segments[n] for n in numbers if n in segments)
        return Assignment(epoch, there, frozenset(shares), shares if is_checkpoint else {})

    async def _store_session(self, record: ConsumerRecord) -> None:
        leader, name = self._leader, record.name

        async def store() -> None:
            known = self._versions.get(name)
            if known is None:
                await (
                    self._check_leads()
                )  # No record can conflict here, so only this check finds a deposition.
            self._versions[name] = await leader.records.store_consumer(
                leader.topic, self.record.name, record, known
            )

        await self._insist(name, store)

    async def _fence_session(self, record: ConsumerRecord) -> None:
        leader, name = self._leader, record.name

        async def store() -> None:
            # Its versions may be those of a leader that was elected before it read them.
            await self._check_leads()
            try:
                self._versions[name] = await leader.records.store_consumer(
                    leader.topic, self.record.name, record, self._versions[name]
                )
            except VersionConflict:
                await self._check_leads()
                raise _ChangedSinceError from None

        await self._insist(name, store)

    async def _remove_session(self, name: str) -> None:
        leader = self._leader

        async def remove() -> None:
            known = self._versions.get(name)
            await leader.records.remove_consumer(leader.topic, self.record.name, name, known)

        await self._insist(name, remove)
        self._versions.pop(name, None)

    async def _insist(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        """Tries until the record is stored: nothing that depends on it may be sent before. The end of leadership
        cancels this."""
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
                # Another leader's version, or that of our own write whose answer was lost.
                is_known = False
            except MetadataError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(delay)
                delay = min(2 * delay, STORE_RETRY_MAX_S)

    async def _look_again(self, name: str) -> None:
        """The record is not what this leader stored: the present leader decides."""
        await self._check_leads()
        records = self._leader.records
        found = await records.consumer_version(self._leader.topic, self.record.name, name)
        if found is None:
            self._versions.pop(name, None)
        else:
            self._versions[name] = found

    async def _check_leads(self) -> None:
        """Raises NotLeader, after ending all of the leader's work, if another broker was elected."""
        if not await self._leader.records.is_led_here(self._leader.topic):
            self._leader.depose("another broker was elected")
            raise NotLeader(self._leader.topic, "")

    def _cancel_grace(self, consumer: str) -> None:
        timer = self._graces.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def _grace_over(self, consumer: str, timer: int) -> None:
        self._graces.pop(consumer, None)
        self._put(s.GraceExpired(consumer, timer))

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def _settled(self, timer: int) -> None:
        self._settling = None
        self._put(s.SettlingOver(timer))

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
        self._leader.spawn(self._ask_watched())

    async def _ask_watched(self) -> None:
        watched = self.group.watched
        if not watched or self._is_closed:
            return
        drained = await self._ask(watched)
        if self._is_closed:
            return
        if drained:
            self._ask_delay_s = self._leader.settings.drain_poll_first_s
            await self._put(s.Drained(drained))
        if self._asking is None:
            self._ask_after(self._ask_delay_s)
            self._ask_delay_s = min(2 * self._ask_delay_s, self._leader.settings.drain_poll_max_s)

    async def _ask(self, numbers: tuple[SegmentId, ...], *, is_seeking: bool = False) -> frozenset[SegmentId]:
        """The segments among these that this subscription has drained, as far as their owners can be asked."""
        moves = self._moves
        found = await asyncio.gather(*(self._is_drained(number) for number in numbers))
        # While a seek is under way, an owner may still report the old cursor.
        if moves != self._moves or (self._leader.is_seeking(self.record.name) and not is_seeking):
            return frozenset()
        return frozenset(number for number, drained in zip(numbers, found, strict=True) if drained)

    async def _is_drained(self, number: SegmentId) -> bool | None:
        """Whether the segment is drained; None if its owner cannot be asked."""
        segment = self.group.layout.segments.get(number)
        if segment is None or segment.is_deleting:
            return True
        try:
            status = await self._leader.segments.status(self._leader.topic, segment)
        except SegmentGone:
            # The layout names the segment, but it has no storage: it was collected, and the pruning follows.
            return segment.is_sealed
        except AnabranchError as error:
            log.debug("%s: asking about segment %s failed: %s", self._leader.topic, number, error)
            return None
        return status.is_drained_by(self.record, number, self.group.sessions)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # The waiting caller may have its answer already, in another way.
