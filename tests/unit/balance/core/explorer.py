"""Every course that a flow can take when brokers die: a small world of three brokers, gone through exhaustively.

A broker writes one thing at a time. It decides what to write at one moment, and what it wrote comes to the channel at
another: also after its death, or never. Time passes only where the explorer says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.orphans import Repair, RepairKind, RepairTimes, repairs
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import (
    Duty,
    DutyKind,
    LeaderHand,
    child_of,
    duty_of,
    ended,
    must_wait_for_source,
    owned,
)
from anabranch.model.bundles import BundleName

TIMES = RepairTimes(in_flight_max_ms=1, tombstone_ms=10)


@dataclass(frozen=True)
class Boundaries:
    """The owner of a bundle changes the boundaries of the namespace, by compare-and-set."""

    author: BrokerRun
    parent: BundleName
    children: tuple[BundleName, ...]


@dataclass(frozen=True, eq=True)
class World:
    states: tuple[BundleChange, ...]
    namespace: frozenset[BundleName]
    living: frozenset[BrokerRun]
    leader: BrokerRun | None
    term: int
    pending: tuple[BundleChange | Boundaries, ...] = ()  # One of each author, sorted by them.
    released: frozenset[tuple[BundleName, int]] = frozenset()
    now_ms: int = 0
    # What may still go wrong: deaths, restarts, and time that passes although there is something to do.
    kills: int = 0
    restarts: int = 0
    delays: int = 0

    @cached_property
    def fold(self) -> Fold:
        """For reading."""
        return self.copied_fold()

    def copied_fold(self) -> Fold:
        return Fold.restored(self.term, self.states)

    @cached_property
    def runs(self) -> dict[str, str]:
        return {one.broker: one.run for one in self.living}

    def with_fold(self, fold: Fold) -> World:
        return replace(self, states=tuple(fold.snapshot()), term=fold.term)

    def with_pending(self, *made: BundleChange | Boundaries) -> World:
        return replace(self, pending=tuple(sorted((*self.pending, *made), key=lambda one: one.author)))

    def with_troubles(self, *, kills: int = 0, restarts: int = 0, delays: int = 0) -> World:
        return replace(self, kills=kills, restarts=restarts, delays=delays)

    def without(self, landed: BundleChange | Boundaries) -> World:
        return replace(self, pending=tuple(one for one in self.pending if one is not landed))

    @cached_property
    def busy(self) -> frozenset[BrokerRun]:
        return frozenset(one.author for one in self.pending)

    @cached_property
    def hashed(self) -> int:
        """By what differs most often. To hash all fields of all changes takes most of the time otherwise."""
        states = tuple((one.bundle.range, one.version, one.state) for one in self.states)
        living = tuple(sorted(one.run for one in self.living))
        leader = None if self.leader is None else self.leader.run
        pending = tuple(one.author.run for one in self.pending)
        return hash((states, living, leader, pending, self.term, self.kills, len(self.released)))

    def __hash__(self) -> int:
        return self.hashed


# -- what brokers do by themselves


def works(world: World) -> Iterator[World]:
    """What a broker can do now, one thing each."""
    fold = world.fold
    for now in world.states:
        for me in sorted(now.named & world.living - world.busy):
            duty = duty_of(me, now)
            if duty is not None:
                yield from _performed(world, fold, duty, now, me)
    if world.leader is None:
        for one in sorted(world.living):
            fold = world.copied_fold()
            fold.lead(world.term + 1)
            yield replace(world.with_fold(fold), leader=one)
    elif world.leader not in world.busy:
        yield from _repaired(world, world.leader)
    me = min(world.living)
    for bundle in sorted(world.namespace):
        found = world.fold.get(bundle)
        if me not in world.busy and (found is None or found.state is BundleState.FREED):
            yield world.with_pending(
                owned(bundle, world.fold.next_version(bundle), me, me, world.now_ms, "lookup")
            )


def _performed(world: World, fold: Fold, duty: Duty, now: BundleChange, me: BrokerRun) -> Iterator[World]:
    at = (duty.bundle, duty.version)
    match duty.kind:
        case DutyKind.HAND_OVER:
            yield replace(world, released=world.released | {at})
        case DutyKind.RECEIVE if must_wait_for_source(duty, world.runs, at in world.released):
            return
        case DutyKind.SPLIT:
            missing = [child for child in duty.children if not _is_of(fold.get(child), me)]
            if missing:
                made = child_of(now, missing[0], fold.next_version(missing[0]), me, world.now_ms)
                if fold.why_not(made) is None:
                    yield world.with_pending(made)
            elif duty.bundle in world.namespace:
                yield world.with_pending(Boundaries(me, duty.bundle, duty.children))
            else:
                yield world.with_pending(ended(duty, now, me, world.now_ms))
        case _:
            yield world.with_pending(ended(duty, now, me, world.now_ms))


def _is_of(found: BundleChange | None, me: BrokerRun) -> bool:
    return found is not None and found.state is BundleState.ASSIGNED and found.to == me


def _repaired(world: World, leader: BrokerRun) -> Iterator[World]:
    fold, hand = world.fold, LeaderHand(leader, world.term)
    for repair in repairs(fold, world.runs, world.namespace.__contains__, world.now_ms, TIMES):
        yield world.with_pending(_made(world, hand, fold.bundles[repair.bundle], repair))


def _made(world: World, hand: LeaderHand, now: BundleChange, repair: Repair) -> BundleChange:
    match repair.kind:
        case RepairKind.REASSIGN:
            return hand.reassign(now, repair.to or min(world.living), world.now_ms, "")
        case RepairKind.REMOVE:
            return hand.remove(now, world.now_ms, "")
        case RepairKind.FORGET:
            return hand.forget(now, world.now_ms, "")


def landed(world: World) -> Iterator[World]:
    """What was written comes to the channel, or to the metadata store."""
    for one in world.pending:
        after = world.without(one)
        if isinstance(one, Boundaries):
            if one.parent in world.namespace:
                after = replace(after, namespace=world.namespace - {one.parent} | set(one.children))
            yield after
        else:
            fold = after.copied_fold()
            fold.apply(one)
            yield after.with_fold(fold)


# -- what goes wrong


def troubles(world: World) -> Iterator[World]:
    if world.kills and len(world.living) > 1:
        for dead in sorted(world.living):
            yield replace(
                world,
                living=world.living - {dead},
                leader=None if world.leader == dead else world.leader,
                kills=world.kills - 1,
            )
    if world.restarts:
        there = {one.broker for one in world.living}
        for broker in sorted({"a:6650", "b:6650", "c:6650"} - there):
            again = BrokerRun(broker, f"{broker[0]}-{world.restarts + 1}")
            yield replace(world, living=world.living | {again}, restarts=world.restarts - 1)
    if world.delays:
        yield replace(world, now_ms=world.now_ms + TIMES.in_flight_max_ms, delays=world.delays - 1)
    for one in world.pending:
        if one.author not in world.living:
            yield world.without(one)


# -- all courses


@dataclass
class Explorer:
    """`is_prompt`: no bundle that the namespace has may need to wait until a change is late."""

    is_prompt: bool
    seen: set[World] = field(default_factory=set)
    settled: set[World] = field(default_factory=set)

    def explore(self, start: World) -> None:
        """Goes through every course from there, and checks each world that it meets."""
        waiting = [start]
        while waiting:
            world = waiting.pop()
            if world in self.seen:
                continue
            self.seen.add(world)
            self.settle(world)
            waiting += [
                after
                for moved in (works(world), landed(world), troubles(world))
                for after in moved
                if after not in self.seen
            ]

    def settle(self, world: World) -> World:
        """Lets the living do what there is to do until nothing is left, and checks what comes of it."""
        path: list[World] = []
        idle_ms = 0
        world = world.with_troubles()
        while world not in self.settled:
            assert len(path) < 200, f"never quiet: {path[-1]}"
            path.append(world)
            after = next((after for after in chain(landed(world), works(world)) if after != world), None)
            if after is not None:
                world, idle_ms = after, 0
            elif idle_ms <= TIMES.tombstone_ms:
                if self.is_prompt:
                    check_served(world)
                world = replace(world, now_ms=world.now_ms + TIMES.in_flight_max_ms)
                idle_ms += TIMES.in_flight_max_ms
            else:
                check(world)
                break
        self.settled.update(path)
        return world


def check_served(world: World) -> None:
    """Each bundle that the namespace has is of a living broker: nothing waits for a change to be late."""
    for bundle in world.namespace:
        now = world.fold.get(bundle)
        assert now is not None, bundle
        assert now.owner in world.living, now


def check(world: World) -> None:
    """Each bundle that the namespace has is of one living broker, and no other bundle is of any."""
    fold = world.fold
    owned_bundles = set()
    for now in world.states:
        assert not now.is_in_flight, now
        if now.owner is not None:
            assert now.owner in world.living, now
            owned_bundles.add(now.bundle)
    assert owned_bundles == world.namespace
    assert fold.term == world.term
    place = 0
    for bundle in sorted(world.namespace):
        first, last = bundle.edges
        assert first == place, "each topic lies in exactly one bundle"
        place = last
    assert place == 0xFFFFFFFF
