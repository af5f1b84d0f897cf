"""The clients of the core world: producers, consumers of both kinds, and direct subscribers to a segment."""

from __future__ import annotations

from anabranch.controller.core import sessions as s
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import InitialPosition, SubscriptionRecord
from anabranch.model.segments import SegmentId
from anabranch.simulation.core.leader import NAMES, Leader, LeaderLink
from anabranch.simulation.core.log import CoreMessage
from anabranch.simulation.core.world import CoreSabotage, CoreWorld, Turns


class CoreReader:
    """A consumer of an order-keeping subscription."""

    def __init__(
        self, world: CoreWorld, name: str, subscription: str, leaders: list[Leader], *, knows_buckets: bool
    ) -> None:
        self.world = world
        self.name = name
        self.subscription = subscription
        self.leaders = leaders
        self.link: LeaderLink | None = None
        self.knows_buckets = knows_buckets
        self.assigned: tuple[SegmentId, ...] = ()
        self.shared: frozenset[SegmentId] = frozenset()

    def assign(self, segments: tuple[SegmentId, ...], shared: frozenset[SegmentId]) -> None:
        """Who is to read a segment in another way, all of it or its share, detaches first."""
        if shared and not self.knows_buckets:
            raise self.world.broken(
                f"{self.name} does not know buckets and is told to share {sorted(shared)}"
            )
        for gone in set(self.assigned) - set(segments) | (self.shared ^ shared):
            self._detach(gone)
        self.assigned, self.shared = segments, shared

    def _detach(self, number: SegmentId) -> None:
        log = self.world.logs.get(number)
        if log is not None:
            log.detach(self.subscription, self)

    def live(self) -> Turns:
        world = self.world
        while True:
            yield
            if world.subscription(self.subscription) is None:
                self.assign((), frozenset())
                self.link = None
                continue
            if self.link is None or not self.link.leader.is_alive or self._leaves():
                self._register()
                continue
            segments = self._readable()
            if segments:
                yield from self._read(world.chance.choice(segments))

    def _leaves(self) -> bool:
        """Now and then its connection breaks, or the reader crashes and starts again."""
        return self.world.is_hostile and self.world.chance.random() < 0.02 * self.world.trouble

    def _register(self) -> None:
        old, alive = self.link, [leader for leader in self.leaders if leader.is_alive]
        says_goodbye = self.world.chance.random() < 0.3
        if old is not None and old.leader.is_alive:
            event = (s.Left if says_goodbye else s.MemberLost)(self.name, old)
            old.leader.session_inbox.append((self.subscription, event))
        if says_goodbye or self.world.chance.random() < 0.5:
            self.assign((), frozenset())  # It releases its segments; without a goodbye that is a crash.
        self.link = None
        if alive:
            leader = alive[-1]  # The leader that a lookup names.
            self.link = LeaderLink(self, leader)
            kind = NAMES[self.subscription]
            knows = self.knows_buckets or CoreSabotage.SHARE_UNKNOWING in self.world.sabotage
            leader.session_inbox.append((self.subscription, s.Joined(self.name, kind, self.link, 0, knows)))

    def _readable(self) -> list[SegmentId]:
        if CoreSabotage.HAND_OUT_EARLY in self.world.sabotage and self.world.topic is not None:
            return list(self.world.topic.layout.segments)
        return list(self.assigned)

    def _read(self, number: SegmentId) -> Turns:
        world, name = self.world, self.subscription
        log = world.logs.get(number)
        if log is None or not log.attach(name, self, shares=number in self.shared):
            return
        at = world.deliver_in_order(number, name, self, self.name)
        if at is None:
            return
        yield
        while world.is_hostile and world.chance.random() < 0.8:
            yield  # Slow, so that buckets move meanwhile.
        if world.logs.get(number) is log and self in log.readers.get(name, {}):
            world.acknowledge(number, name, at)


def queue_reader(world: CoreWorld, subscription: str) -> Turns:
    """Reads whatever any segment has."""
    while True:
        yield
        if world.is_hostile and world.chance.random() < 0.6:
            continue  # Slow, so that there is something to lose.
        numbers = [n for n, log in world.logs.items() if subscription in log.cursors]
        if numbers:
            number = world.chance.choice(numbers)
            log, at = world.logs[number], world.deliver(number, subscription)
            yield
            if at is not None and world.logs.get(number) is log:
                world.acknowledge(number, subscription, at)


def producer(world: CoreWorld, keys: tuple[int, ...], sent: dict[int, int]) -> Turns:
    """Sends to the segment that the last known layout names, and reads the layout again when that segment refuses."""
    layout: SegmentLayout | None = None
    while True:
        yield
        if layout is None:
            layout = world.topic.layout if world.topic is not None else None
            continue
        if not world.is_hostile:
            return
        key = world.chance.choice(keys)
        segment = layout.find_active(key)
        yield
        if world.publish(segment, CoreMessage(key, sent[key])):
            sent[key] += 1
        else:
            layout = None


def direct_subscriber(world: CoreWorld, name: str) -> Turns:
    """A client subscribes to one segment: the owner stores the record, waits for any plan, then makes the cursor."""
    topic = world.topic
    if topic is None:
        return
    segment = world.chance.choice(topic.layout.active)
    yield
    log = world.logs.get(segment.id)
    if log is None or name in log.cursors:
        return
    record = world.subscription(name)
    if record is not None and record.is_deleting:
        return
    if record is None:
        topic = world.topic
        if topic is None:
            return
        record = SubscriptionRecord(name, NAMES[name], topic.generation, InitialPosition.EARLIEST)
        world.put_subscription(record)
    # The creator of the subscription chose its initial position. A cursor elsewhere would never be read: on segments
    # sealed before, a subscription that began at the latest message counts as drained without one.
    initial = record.initial or InitialPosition.EARLIEST
    yield
    while True:
        topic = world.topic
        if topic is None:
            return
        involved = topic.plan is not None and (
            segment.id in topic.plan.parents or any(segment.id == c.id for c in topic.plan.children)
        )
        if not involved:
            break
        yield
    yield
    try:
        yield from world.create_cursor(segment, name, initial)
    except (SegmentRefused, SegmentGone, SegmentUnavailable):
        return
    world.note(f"a client subscribed to segment {segment.id} as {name}")
