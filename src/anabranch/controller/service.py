"""All scalable topics at one broker: creates, finds and deletes them, and leads those that no other broker leads.

Any broker reads, creates and lists topics. Only a topic's leader changes its layout, subscriptions or sessions; a
broker asked for such a change stands for election if the topic has no leader, and names the leader otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from anabranch.controller import election
from anabranch.controller.core import events as e
from anabranch.controller.core.errors import (
    ControllerError,
    NotLeader,
    OperationRefused,
    SegmentGone,
    TooBusy,
    TopicExists,
    TopicMissing,
)
from anabranch.controller.core.sharing import Buckets
from anabranch.controller.feed import TopicFeed
from anabranch.controller.ports import (
    Assignment,
    AssignmentLink,
    Candidates,
    OnlyCandidate,
    Segments,
    SegmentStatus,
)
from anabranch.controller.records import Records, new_topic_id
from anabranch.controller.settings import SEGMENTS_MAX, Classic, ControllerSettings, NoClassic
from anabranch.controller.topic_controller import ControllerParts, TopicController
from anabranch.controller.unfinished import unfinished
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import (
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    namespace_path,
    scalable_name,
)
from anabranch.model.segments import LayoutRefused, Segment, SegmentId

log = logging.getLogger(__name__)

# How long a caller waits for a topic between two leaders.
LEADERLESS_MAX_S = 5.0
LEADERLESS_RETRY_S = 0.05
# How long a caller waits for another broker to finish a stored plan.
PLAN_MAX_S = 20.0
CREATED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    name: str
    kind: SubscriptionKind
    is_connected: bool
    assigned: tuple[SegmentId, ...]
    # The buckets that it has of those of the segments that it shares.
    shares: Mapping[SegmentId, Buckets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    record: SubscriptionRecord
    consumers: Sequence[ConsumerStats] = ()


@dataclass(frozen=True, slots=True)
class TopicStats:
    topic: ScalableTopic
    leader: str
    # None for a segment whose owner could not be asked.
    segments: Mapping[SegmentId, SegmentStatus | None] = field(default_factory=dict)
    subscriptions: Mapping[str, SubscriptionStats] = field(default_factory=dict)


class ScalingPort(Protocol):
    """The automatic scaler, notified of events that may cause a split, a merge or a rebucket. No call may wait."""

    def consumers_changed(self, controller: TopicController) -> None:
        """A consumer registered (new, or back again), or left for good."""
        ...

    def settled(self, controller: TopicController) -> None:
        """A leader has begun, or has finished all waiting work."""
        ...

    def deposed(self, controller: TopicController) -> None:
        """This broker does not lead the topic any more."""
        ...

    def reshaped(
        self, controller: TopicController, kind: PlanKind, segments: tuple[int, ...], what: str = ""
    ) -> None:
        """Those segments have been split, merged or replaced on request. `what` completes the sentence that says so."""
        ...


async def _no_check(topic: TopicName) -> None:
    """Every topic may stay."""


class ScalableTopics:
    def __init__(
        self,
        metadata: MetadataStore,
        segments: Segments,
        *,
        service_url: str,
        settings: ControllerSettings | None = None,
        classic: Classic | None = None,
        candidates: Candidates | None = None,
        check_new: Callable[[TopicName], Awaitable[None]] = _no_check,
    ) -> None:
        """`check_new` is asked once a new topic's record is stored, and raises if the topic may not stay."""
        self.metadata = metadata
        self.segments = segments
        self.service_url = service_url
        self.settings = settings or ControllerSettings()
        self.records = Records(metadata)
        self.feed = TopicFeed(metadata)
        self._classic = classic or NoClassic()
        self._candidates = candidates or OnlyCandidate()
        self._check_new = check_new
        self._parts = ControllerParts(
            metadata,
            self.records,
            self.feed,
            segments,
            self.settings,
            service_url,
            self.view,
            self._candidates,
        )
        self._handing_over: asyncio.Task[None] | None = None
        # Namespaces with topics that this broker may have to lead since a short while, and the task that looks.
        self._gained: set[NamespaceName] = set()
        self._taking_up: asyncio.Task[None] | None = None
        self._controllers: dict[TopicName, TopicController] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stop_watching_session: Callable[[], None] = lambda: None
        self.scaling: ScalingPort | None = None
        self._is_closed = False

    # -- life

    async def start(self) -> None:
        self.feed.start()
        self._stop_watching_session = self.metadata.session.on_change(self._session_changed)
        self._spawn(self._take_up_unfinished())
        self._spawn(self._collect_always())

    async def close(self) -> None:
        self._is_closed = True
        self._stop_watching_session()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for controller in list(self._controllers.values()):
            try:
                await controller.close(resign=True)
            except AnabranchError as error:
                log.info("%s: resigning failed: %s", controller.topic, error)
        self._controllers.clear()
        await self.feed.close()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        # The task is held in `_tasks` and cancelled by `close`.
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _take_up_unfinished(self) -> None:
        while True:
            try:
                topics = await unfinished(self.metadata)
                break
            except AnabranchError as error:
                log.warning("reading unfinished plans failed, trying again: %s", error)
                await asyncio.sleep(self.settings.retry_max_s)
        # One after the other: there may be thousands, and clients come first.
        for topic in topics:
            await _quietly(self._controller(topic).lead)

    async def _take_up_gained(self) -> None:
        """Takes up the unfinished topics that this broker should lead since the owners changed. Perhaps their leader
        has died, and no other broker has a controller of them."""
        while self._gained:
            # Clients come first: they bring the topics that they use. And owners change several times in a row.
            await asyncio.sleep(self.settings.retry_max_s)
            gained, self._gained = self._gained, set()
            for namespace in sorted(gained):
                try:
                    # Those that are led too: the leader may be about to end.
                    topics = await unfinished(self.metadata, namespace_path(namespace), led_too=True)
                except AnabranchError as error:
                    log.warning("%s: reading unfinished plans failed, trying again: %s", namespace, error)
                    self._gained.add(namespace)
                    continue
                for topic in topics:
                    if not self._candidates.is_elsewhere(topic):
                        await _quietly(self._controller(topic).lead)

    def _session_changed(self, state: SessionState) -> None:
        # While the session is in doubt this broker keeps serving: the store refuses stale writes. A lost session ends
        # its leadership.
        if state is SessionState.LOST:
            for controller in list(self._controllers.values()):
                controller.depose("the metadata session is lost")
        elif state is SessionState.CONNECTED:
            for controller in list(self._controllers.values()):
                if not controller.is_leader:
                    self._spawn(_quietly(controller.lead))

    # -- which broker leads

    async def urged(self, topic: TopicName) -> None:
        """Another broker has a use for the topic's leader, which should be this one."""
        topic = scalable_name(topic)
        if not self._is_closed and not self._candidates.is_elsewhere(topic):
            await _quietly(self._controller(topic).lead)

    def owners_changed(self, namespaces: Iterable[NamespaceName]) -> None:
        """Some topics of these namespaces have other owners, and so other brokers that should lead them. Does not
        wait."""
        self.candidates_changed()
        self._gained.update(namespaces)
        if self._taking_up is None and not self._is_closed and self._gained:
            self._taking_up = self._spawn(self._take_up_gained())
            self._taking_up.add_done_callback(self._taken_up)

    def _taken_up(self, task: asyncio.Task[None]) -> None:
        self._taking_up = None

    def candidates_changed(self) -> None:
        """Other brokers may be the ones that should lead topics led here. Does not wait."""
        if self._handing_over is None and not self._is_closed and self._misplaced():
            self._handing_over = self._spawn(self._hand_over())
            self._handing_over.add_done_callback(self._handed_over)

    def _handed_over(self, task: asyncio.Task[None]) -> None:
        self._handing_over = None

    async def _hand_over(self) -> None:
        """Leaves topics to the brokers that should lead them, each when its operation is done."""
        while misplaced := self._misplaced():
            for controller in misplaced:
                if not controller.is_busy:
                    await _quietly(controller.step_down)
            await asyncio.sleep(self.settings.retry_max_s)

    def _misplaced(self) -> list[TopicController]:
        """The controllers that lead topics which other brokers should lead."""
        return [
            controller
            for controller in self._controllers.values()
            if controller.is_leader and self._candidates.is_elsewhere(controller.topic)
        ]

    # -- any broker

    @property
    def controllers(self) -> Mapping[TopicName, TopicController]:
        return self._controllers

    async def create(
        self, topic: TopicName, segments: int = 1, properties: Mapping[str, str] | None = None
    ) -> ScalableTopic:
        """Creates a topic. TopicExists if the name is taken. Once this returns the topic can be used."""
        topic = scalable_name(topic)
        if not 1 <= segments <= SEGMENTS_MAX:
            raise OperationRefused(f"{segments} segments: a topic starts with 1 to {SEGMENTS_MAX}")
        if await self._classic.topics(topic):
            raise TopicExists(
                f"a classic topic persistent://{topic.namespace}/{topic.local} exists: `anabranch topics migrate "
                f"{topic.namespace}/{topic.local}` makes it scalable"
            )
        generation = await self.records.new_generation()
        now_ms = await self.metadata.now_ms()
        layout = SegmentLayout.initial(segments, now_ms, new_topic_id(), self.settings.buckets)
        record = ScalableTopic(layout, generation, dict(properties or {}))
        version = await self.records.create_topic(topic, record)
        try:
            await self._check_new(topic)
        except AnabranchError:
            await self._take_back(topic, version)
            raise
        # Metadata first. If this broker dies here, the next controller creates the missing segments.
        for first in range(0, segments, CREATED_AT_ONCE):
            made = layout.active[first : first + CREATED_AT_ONCE]
            await asyncio.gather(*(self.segments.create(topic, segment, ()) for segment in made))
        return record

    async def _take_back(self, topic: TopicName, version: int) -> None:
        """Removes a record that this broker stored a moment ago, with that version."""
        try:
            await self.records.remove_new(topic, version)
        except TooBusy:
            # A broker leads it already.
            with contextlib.suppress(TopicMissing):
                await self.delete(topic, force=True)

    async def get(self, topic: TopicName) -> ScalableTopic | None:
        """The record; None if there is none."""
        found = await self.records.topic(scalable_name(topic))
        return None if found is None else found[0]

    async def view(self, topic: TopicName) -> ScalableTopic:
        """The record, or the synthetic record of a classic topic. TopicMissing if there is neither."""
        record = await self.get(topic)
        if record is not None:
            return record
        classic = await self._classic.topics(topic)
        if not classic:
            raise TopicMissing(f"{scalable_name(topic)} does not exist")
        now_ms, topic_id = await self.metadata.now_ms(), await self._classic.topic_id(topic)
        return ScalableTopic(SegmentLayout.synthetic([str(t) for t in classic], now_ms, topic_id), 0)

    async def topics(
        self, namespace: NamespaceName, properties: Mapping[str, str] | None = None
    ) -> list[TopicName]:
        return await self.records.topics(namespace, properties or {})

    async def update(
        self, topic: TopicName, change: Callable[[ScalableTopic], ScalableTopic]
    ) -> ScalableTopic:
        """Changes what any broker may change: properties, policy. Only the leader changes the layout."""
        return await self.records.update_topic(scalable_name(topic), change)

    async def subscriptions(self, topic: TopicName) -> dict[str, SubscriptionRecord]:
        record = await self.view(topic)
        found = await self.records.subscriptions(scalable_name(topic), record.generation)
        return {r.name: r for r in found}

    async def leader(self, topic: TopicName) -> str:
        """The service URL of the topic's leader; "" if it has none at the moment."""
        return await election.leader_of(self.metadata, scalable_name(topic))

    def touch(self, topic: TopicName) -> None:
        """The topic is in use here: make sure that it has a controller. Does not wait."""
        topic = scalable_name(topic)
        if not self._is_closed and topic not in self._controllers:
            self._spawn(_quietly(self._controller(topic).lead))

    def _controller(self, topic: TopicName) -> TopicController:
        controller = self._controllers.get(topic)
        if controller is None:
            if self._is_closed:
                raise NotLeader(topic, "")
            controller = self._controllers[topic] = TopicController(topic, self._parts, self)
        return controller

    async def leading(self, topic: TopicName) -> TopicController:
        """The topic's controller once this broker leads it; NotLeader if another does."""
        topic = scalable_name(topic)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEADERLESS_MAX_S
        while True:
            controller = self._controller(topic)
            try:
                await controller.lead()
                return controller
            except NotLeader as error:
                # The topic is between two leaders, or the record outlives its leader: a broker will be elected.
                if error.leader or loop.time() > deadline:
                    raise
            await asyncio.sleep(LEADERLESS_RETRY_S)

    async def release(self, topic: TopicName) -> None:
        """The topic is no longer used here: its controller is removed, and with it any leadership."""
        controller = self._controllers.pop(scalable_name(topic), None)
        if controller is not None:
            await controller.close(resign=True)

    def topic_ended(self, controller: TopicController) -> None:
        """The topic was deleted."""
        if self._controllers.get(controller.topic) is controller:
            del self._controllers[controller.topic]
        self._spawn(_quietly(lambda: controller.close(resign=True)))

    # -- the leader

    async def _request(self, topic: TopicName, make: Callable[[e.Ticket], e.Request]) -> SegmentLayout:
        return await (await self.leading(topic)).request(make)

    async def split(self, topic: TopicName, segment: int) -> SegmentLayout:
        """Splits the segment and returns the new layout. LayoutRefused if the segment cannot be split."""
        controller = await self.leading(topic)
        now_ms = await self.metadata.now_ms()
        layout = await controller.request(lambda ticket: e.SplitRequested(ticket, segment, now_ms))
        if self.scaling is not None:
            self.scaling.reshaped(controller, PlanKind.SPLIT, (segment,))
        return layout

    async def merge(self, topic: TopicName, one: int, other: int) -> SegmentLayout:
        controller = await self.leading(topic)
        now_ms = await self.metadata.now_ms()
        layout = await controller.request(
            lambda ticket: e.MergeRequested(ticket, one, other, now_ms, self.settings.buckets)
        )
        if self.scaling is not None:
            self.scaling.reshaped(controller, PlanKind.MERGE, (one, other))
        return layout

    async def rebucket(self, topic: TopicName, segment: int, buckets: int) -> SegmentLayout:
        """Replaces the segment by one of the same range with so many entry buckets; returns the new layout.
        LayoutRefused if the segment cannot be replaced, or cannot have so many."""
        most = self.settings.buckets.segment_max
        if not 1 <= buckets <= most:
            raise LayoutRefused(f"{buckets} entry buckets: a segment may have 1 to {most} here")
        controller = await self.leading(topic)
        now_ms = await self.metadata.now_ms()
        layout = await controller.request(
            lambda ticket: e.RebucketRequested(ticket, segment, buckets, now_ms)
        )
        if self.scaling is not None:
            what = f" to {buckets} entry bucket{'' if buckets == 1 else 's'}"
            self.scaling.reshaped(controller, PlanKind.REBUCKET, (segment,), what)
        return layout

    async def create_subscription(
        self,
        topic: TopicName,
        name: str,
        kind: SubscriptionKind = SubscriptionKind.STREAM,
        initial: InitialPosition = InitialPosition.EARLIEST,
    ) -> None:
        if not name:
            raise OperationRefused("a subscription needs a name")
        await self._request(topic, lambda ticket: e.SubscriptionRequested(ticket, name, kind, initial))

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        await self._request(topic, lambda ticket: e.SubscriptionDeletionRequested(ticket, name))

    async def seek(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        await self._request(topic, lambda ticket: e.SeekRequested(ticket, name, timestamp_ms))

    async def skip_all(self, topic: TopicName, name: str) -> None:
        await self._request(topic, lambda ticket: e.SeekRequested(ticket, name, None))

    async def delete(self, topic: TopicName, *, force: bool = False) -> None:
        topic = scalable_name(topic)
        record = await self.get(topic)
        if record is None:
            raise TopicMissing(f"{topic} does not exist")
        controller = await self.leading(topic)
        if not force:
            await self._check_unused(topic, record)
        # The mark comes first and from here: a plan that cannot be finished must not prevent the deletion.
        await self.update(topic, lambda r: replace(r, is_deleting=True))
        await controller.request(e.DeletionRequested)

    async def _check_unused(self, topic: TopicName, record: ScalableTopic) -> None:
        segments = list(record.layout.segments.values())
        found = await asyncio.gather(*(self._status_if_stored(topic, segment) for segment in segments))
        for segment, status in zip(segments, found, strict=True):
            if status is None:
                continue
            number = segment.id
            consumers = sum(cursor.consumers for cursor in status.subscriptions.values())
            if status.producers or consumers:
                raise OperationRefused(
                    f"segment {number} of {topic} has {status.producers} producers and {consumers} consumers; "
                    "close them or delete with force"
                )
            if status.is_hiding:
                raise OperationRefused(
                    f"segment {number} of {topic} holds entries of hidden writes that are not decided; "
                    "decide or drop them, or delete with force"
                )

    async def migrate(self, topic: TopicName, *, force: bool = False) -> None:
        """Makes a classic topic scalable: its partitions become sealed parents of fresh segments."""
        topic = scalable_name(topic)
        if await self.get(topic) is not None:
            raise TopicExists(f"{topic} is a scalable topic already")
        classic = await self._classic.topics(topic)
        if not classic:
            raise TopicMissing(f"there is no classic topic persistent://{topic.namespace}/{topic.local}")
        if not force:
            for name in classic:
                if attached := await self._classic.attached(name):
                    raise OperationRefused(
                        f"{name} has {attached} producers and consumers connected; close them or use force"
                    )
        # Before anything is stored: a caller that is sent to the leader begins there again.
        await self.leading(topic)
        names, now_ms = [str(t) for t in classic], await self.metadata.now_ms()
        # The topic keeps its id: checkpoints of the classic topic stay valid for the scalable one.
        topic_id = await self._classic.topic_id(topic) or new_topic_id()
        before = SegmentLayout.synthetic(names, now_ms, topic_id)
        plan = ReshapePlan(
            PlanKind.MIGRATE,
            tuple(before.segments),
            SegmentLayout.migrated(names, now_ms, topic_id, self.settings.buckets),
        )
        generation = await self.records.new_generation()
        kinds: dict[str, SubscriptionKind] = {
            r.name: r.kind for r in await self.records.subscriptions(topic, 0)
        }
        for name in classic:
            kinds |= await self._classic.subscriptions(name)
        for subscription, kind in kinds.items():
            record = SubscriptionRecord(subscription, kind, generation, InitialPosition.EARLIEST)
            await self.records.store_subscription(topic, record)
        await self.records.create_topic(topic, ScalableTopic(before, generation, plan=plan))
        # The plan is stored, so it will be finished. What remains is to wait: a repair takes its turn after it.
        try:
            controller = await self.leading(topic)
            await controller.read_record()
            await controller.request(e.RepairRequested)
        except NotLeader:
            # The leader has changed since. The next one finishes what is stored.
            await self._until_planless(topic)

    async def terminate(self, topic: TopicName) -> None:
        """Ends the topic: once this returns no segment accepts a message, and there will be no others. May be
        repeated."""

        def terminated(record: ScalableTopic) -> ScalableTopic:
            if record.is_deleting:
                raise TopicMissing(f"{topic} is being deleted")
            if record.plan is not None:
                raise TooBusy(f"{topic} is being changed at the moment; try again")
            return replace(record, is_terminated=True)

        topic = scalable_name(topic)
        await self._until_planless(topic)
        record = await self.update(topic, terminated)
        await asyncio.gather(*(self.segments.seal(topic, segment) for segment in record.layout.active))

    async def _until_planless(self, topic: TopicName) -> None:
        """Waits until the leader has finished the plan of that topic; TooBusy if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PLAN_MAX_S
        while loop.time() < deadline:
            record = await self.get(topic)
            if record is None or record.plan is None:
                return
            await asyncio.sleep(LEADERLESS_RETRY_S)
        raise TooBusy(f"{topic} is still being changed; what was asked for is stored and will be finished")

    async def stats(self, topic: TopicName) -> TopicStats:
        topic = scalable_name(topic)
        controller = await self.leading(topic)
        record = await self.view(topic)
        subscriptions = {}
        for name, found in (await self.subscriptions(topic)).items():
            coordinator = controller.coordinators.get(name)
            sessions = {} if coordinator is None else coordinator.group.sessions
            subscriptions[name] = SubscriptionStats(
                found,
                [
                    ConsumerStats(s.name, found.kind, s.is_connected, s.assigned, s.shares)
                    for _, s in sorted(sessions.items())
                ],
            )
        return TopicStats(record, controller.leader, await self._statuses(topic, record), subscriptions)

    async def _statuses(
        self, topic: TopicName, record: ScalableTopic
    ) -> dict[SegmentId, SegmentStatus | None]:
        segments = list(record.layout.segments.values())
        found = await asyncio.gather(*(self._status(topic, segment) for segment in segments))
        return {segment.id: status for segment, status in zip(segments, found, strict=True)}

    async def _status_if_stored(self, topic: TopicName, segment: Segment) -> SegmentStatus | None:
        """The status; None if the segment has no storage. TooBusy if its owner cannot be asked."""
        try:
            return await self.segments.status(topic, segment)
        except SegmentGone:
            return None
        except AnabranchError as error:
            raise TooBusy(
                f"whether segment {segment.id} of {topic} is in use is not known: {error}; try again, or delete with "
                "force"
            ) from error

    async def _status(self, topic: TopicName, segment: Segment) -> SegmentStatus | None:
        try:
            return await self.segments.status(topic, segment)
        except AnabranchError as error:
            log.debug("%s: no status of segment %s: %s", topic, segment.descriptor, error)
            return None

    # -- sessions

    async def register(
        self,
        topic: TopicName,
        subscription: str,
        consumer: str,
        kind: SubscriptionKind,
        consumer_id: int,
        link: AssignmentLink,
        *,
        knows_buckets: bool = False,
    ) -> Assignment:
        """Registers the consumer and returns its assignment. Changes come over `link`, until the consumer leaves or
        another takes its name."""
        controller = await self.leading(topic)
        return await controller.register(
            subscription, consumer, kind, consumer_id, link, knows_buckets=knows_buckets
        )

    async def leave(self, topic: TopicName, subscription: str, consumer: str, link: AssignmentLink) -> None:
        """The consumer will not come back: its segments go to the others at once."""
        controller = self._controllers.get(scalable_name(topic))
        coordinator = None if controller is None else controller.coordinators.get(subscription)
        if coordinator is not None:
            await coordinator.leave(consumer, link)

    def disconnected(self, topic: TopicName, subscription: str, consumer: str, link: AssignmentLink) -> None:
        """The consumer's connection is gone; it has the grace period to come back."""
        controller = self._controllers.get(scalable_name(topic))
        coordinator = None if controller is None else controller.coordinators.get(subscription)
        if coordinator is not None:
            coordinator.connection_lost(consumer, link)

    def sharing_refused(
        self, topic: TopicName, subscription: str, consumer: str, link: AssignmentLink
    ) -> None:
        """The consumer came to read a whole segment that it was to share: its client does not know buckets."""
        controller = self._controllers.get(scalable_name(topic))
        coordinator = None if controller is None else controller.coordinators.get(subscription)
        if coordinator is not None:
            coordinator.sharing_refused(consumer, link)

    async def finished(
        self,
        topic: TopicName,
        subscription: str,
        consumer: str,
        segments: Sequence[int],
        buckets: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        """A member of a checkpoint group has read those segments to their end, and those buckets of others."""
        controller = self._controllers.get(scalable_name(topic))
        coordinator = None if controller is None else controller.coordinators.get(subscription)
        if coordinator is None:
            raise NotLeader(scalable_name(topic), "")
        parts = {SegmentId(number): frozenset(found) for number, found in (buckets or {}).items()}
        await coordinator.finished(consumer, frozenset(SegmentId(n) for n in segments), parts)

    def segment_progress(self, topic: TopicName, segment: int) -> None:
        """A segment owner on this broker reports that a subscription has read a sealed segment to its end."""
        controller = self._controllers.get(scalable_name(topic))
        if controller is not None:
            controller.segment_progress(SegmentId(segment))

    def consumers_changed(self, controller: TopicController) -> None:
        """A consumer joined or left."""
        if self.scaling is not None:
            self.scaling.consumers_changed(controller)

    def settled(self, controller: TopicController) -> None:
        """That controller has no waiting work any more."""
        if self.scaling is not None:
            self.scaling.settled(controller)

    def deposed(self, controller: TopicController) -> None:
        if self.scaling is not None:
            self.scaling.deposed(controller)

    # -- collecting sealed segments

    async def _collect_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.collect_every_s)
            self.candidates_changed()
            for controller in list(self._controllers.values()):
                if not controller.has_sealed:
                    continue
                try:
                    await controller.collect()
                except AnabranchError as error:
                    log.info(
                        "%s: checking sealed segments failed, retrying in %s s: %s",
                        controller.topic,
                        self.settings.collect_every_s,
                        error,
                    )
                except Exception:
                    log.exception("%s: checking sealed segments failed, retrying later", controller.topic)


async def _quietly(work: Callable[[], Awaitable[object]]) -> None:
    """Does work without a waiting caller: a refusal is ignored. Work that is cancelled before it begins is not even
    made."""
    try:
        await work()
    except (ControllerError, NotLeader) as error:
        log.debug("%s", error)
    except AnabranchError as error:
        log.info("%s", error)
