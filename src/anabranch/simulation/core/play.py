"""One run of the core world: first with every kind of trouble, then with none, until nothing is left to do.

`play(seed)` is the only entry point. The next actor is picked by chance, one pause at a time, so that any two actors
can meet anywhere; the laws are in `world.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.controller.core import events as e
from anabranch.controller.core.errors import SegmentRefused, SegmentUnavailable
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import InitialPosition, ScalableTopic, SubscriptionKind
from anabranch.simulation.core.clients import CoreReader, direct_subscriber, producer, queue_reader
from anabranch.simulation.core.leader import NAMES, Leader
from anabranch.simulation.core.world import Broken, CoreSabotage, CoreWorld, Turns

KEYS = (0x0000, 0x1234, 0x4000, 0x7FFF, 0x8000, 0xBEEF, 0xC001, 0xFFFF)
LEADERS_MAX = 3
# How many active segments requests may lead to: with few of them, consumers share.
ACTIVE_MAX = (1, 3, 6)
HOSTILE_TURNS = 1500
# With less trouble: leaders live long enough for consumers to share segments, and buckets to move.
BUSY_TURNS = 1500
QUIET_TURNS_MAX = 60_000
BUCKETS = (1, 2, 4, 7)


@dataclass
class CorePlay:
    """One run."""

    world: CoreWorld
    leaders: list[Leader] = field(default_factory=list)
    actors: list[Iterator[None]] = field(default_factory=list)
    requests: dict[int, e.Request] = field(default_factory=dict)
    tickets: int = 0
    leaders_made: int = 0
    budget: BucketBudget = ONE_BUCKET
    active_max: int = 1

    def run(self) -> None:
        world, chance = self.world, self.world.chance
        self.budget = BucketBudget(chance.choice(BUCKETS), 8)
        self.active_max = chance.choice(ACTIVE_MAX)
        world.shares_sealed = chance.random() < 0.8
        self._found_topic()
        sent = dict.fromkeys(KEYS, 0)
        self.actors += [producer(world, KEYS[::2], sent), producer(world, KEYS[1::2], sent)]
        for name, kind in NAMES.items():
            if kind is SubscriptionKind.QUEUE:
                self.actors.append(queue_reader(world, name))
            else:
                for n in range(chance.choice((2, 4, 5))):
                    knows = chance.random() < 0.8
                    reader = CoreReader(world, f"{name}-{n}", name, self.leaders, knows_buckets=knows)
                    self.actors.append(reader.live())
        for turn in range(HOSTILE_TURNS + BUSY_TURNS):
            world.trouble = 1.0 if turn < HOSTILE_TURNS else 0.1
            self._trouble()
            self._advance(chance.randrange(len(self.actors) + len(self.leaders)))
        self._calm()

    def _advance(self, number: int) -> None:
        if number < len(self.leaders):
            leader = self.leaders[number]
            if next(leader.generator, self) is self:
                self._bury(leader)
            return
        actor = self.actors[number - len(self.leaders)]
        if next(actor, self) is self:
            self.actors.remove(actor)

    # -- trouble

    def _trouble(self) -> None:
        chance = self.world.chance
        roll = chance.random()
        if roll < 0.006 * self.world.trouble and self.leaders:
            leader = chance.choice(self.leaders)
            self.world.note(f"L{leader.number} dies")
            self._bury(leader)
        if len(self.leaders) > 1 and chance.random() < 0.008:
            self._bury(self.leaders[0])  # It has learned that another was elected.
        if (not self.leaders and roll < 0.3) or (
            len(self.leaders) < LEADERS_MAX and roll > 1 - 0.01 * self.world.trouble
        ):
            self._elect()
        if chance.random() < 0.05 * self.world.trouble:
            self._ask()
        if chance.random() < 0.01 * self.world.trouble:
            self.actors.append(direct_subscriber(self.world, chance.choice(list(NAMES))))
        if self.world.topic is None:
            self._found_topic()

    def _bury(self, leader: Leader) -> None:
        leader.is_alive = False
        leader.generator.close()
        self.leaders.remove(leader)
        self.world.listeners.remove(leader.subscription_changed)

    def _elect(self) -> None:
        self.leaders_made += 1
        self.world.elected = self.leaders_made
        leader = Leader(self.world, self.leaders_made, self.requests)
        self.leaders.append(leader)
        self.world.listeners.append(leader.subscription_changed)

    def _found_topic(self) -> None:
        world = self.world
        world.generations += 1
        layout = SegmentLayout.initial(world.chance.choice((1, 1, 2, 3)), 1, budget=self.budget)
        world.create_topic(ScalableTopic(layout, world.generations))
        world.note(f"topic {world.generations} made")

        def make() -> Turns:
            for segment in layout.active:
                try:
                    yield from world.create_segment(segment, ())
                except (SegmentRefused, SegmentUnavailable):
                    return  # The next leader's repair creates the missing segments.

        self.actors.append(make())

    def _ask(self) -> None:
        world, chance = self.world, self.world.chance
        if not self.leaders or world.topic is None:
            return
        leader = chance.choice(self.leaders)
        self.tickets += 1
        request = self._request(world.topic, leader)
        if request is not None:
            self.requests[self.tickets] = request
            world.note(f"L{leader.number} is asked: {request}")
            leader.inbox.append(request)

    def _request(self, topic: ScalableTopic, leader: Leader) -> e.Request | None:
        chance, ticket = self.world.chance, self.tickets
        active = topic.layout.active
        name = chance.choice(list(NAMES))
        match chance.choices(range(8), (6, 5, 5, 3, 1, 6, 0.25, 2))[0]:
            case 0:
                number = chance.choice(active).id
                return e.SplitRequested(ticket, number, 1) if len(active) < self.active_max else None
            case 1 if len(active) > 1:
                at = chance.randrange(len(active) - 1)
                return e.MergeRequested(ticket, active[at].id, active[at + 1].id, 1, self.budget)
            case 2:
                initial = chance.choice(list(InitialPosition))
                return e.SubscriptionRequested(ticket, name, NAMES[name], initial)
            case 3:
                return e.SubscriptionDeletionRequested(ticket, name)
            case 4:
                return e.SeekRequested(ticket, name, chance.choice((0, None)))
            case 5:
                return self._expired(topic, leader)
            case 6:
                return e.DeletionRequested(ticket)
            case 7:
                segment, count = chance.choice(active), chance.choice((1, 2, 4, 8))
                differs = count != segment.bucket_count
                return e.RebucketRequested(ticket, segment.id, count, 1) if differs else None
            case _:
                return None

    def _expired(self, topic: ScalableTopic, leader: Leader) -> e.SegmentsExpired | None:
        """Sealed roots that every subscription has drained, as the leader finds by asking."""
        world = self.world
        found = [s.id for s in topic.layout.sealed if not s.parents and world.is_unneeded(s.id)]
        return e.SegmentsExpired(tuple(found)) if found else None

    # -- the calm

    def _calm(self) -> None:
        world, chance = self.world, self.world.chance
        world.is_hostile = False
        world.note("all faults end")
        for leader in list(self.leaders)[:-1]:
            self._bury(leader)  # Deposed: it has learned of the newest leader by now.
        if not self.leaders:
            self._elect()
        self.leaders[0].look_at_subscriptions()
        for turn in range(QUIET_TURNS_MAX):
            if not self.leaders:
                self._elect()
            if world.topic is None:
                self._found_topic()
            self._advance(chance.randrange(len(self.actors) + len(self.leaders)))
            if turn % 50 == 0 and self._is_settled():
                world.check_quiet()
                return
        raise world.broken(f"it never comes to rest; {self._unsettled()}")

    def _is_settled(self) -> bool:
        return not self._unsettled()

    def _unsettled(self) -> str:
        world = self.world
        leader = self.leaders[0] if self.leaders else None
        if (
            leader is None
            or leader.inbox
            or leader.session_inbox
            or not leader.is_idle
            or world.topic is None
        ):
            return "the leader is at work"
        if world.topic.plan is not None or any(r.is_deleting for r, _ in world.subscriptions.values()):
            return "the record has an operation to be finished"
        for number, log in world.logs.items():
            if log.generation != world.topic.generation or number not in world.topic.layout.segments:
                continue
            for name, at in log.cursors.items():
                if at < len(log.entries):
                    return f"segment {number} has {len(log.entries) - at} entries left for {name}"
        return ""


def play(seed: int, sabotage: frozenset[CoreSabotage] = frozenset()) -> CoreWorld:
    """Runs one seed; Broken says what went wrong and which events led to it."""
    world = CoreWorld(seed, sabotage)
    try:
        CorePlay(world).run()
    except Broken:
        raise
    except AssertionError as error:
        raise world.broken(f"the core broke its own rule: {error!r}") from error
    return world
