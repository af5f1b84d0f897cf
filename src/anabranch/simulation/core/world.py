"""The controller's decisions in a small world: `core.step` and `core.sessions` without loop, network or brokers.

The world is what the decisions are about: one stored record, subscription and session records, segments with entries
and cursors. Every actor is a generator that pauses before and after everything it does, and chance picks the next one:
so leaders die between any two effects, two lead at once, effects come late from a deposed leader, run twice, or take
place while their answer is lost. Actors are in `leader.py` and `clients.py`; here are the state and its laws.

Each law is checked at the step that could break it, and the rest at the end, when nothing is left to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from enum import Enum

from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.errors import AnabranchError
from anabranch.model.scalable import (
    ConsumerRecord,
    InitialPosition,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import Segment, SegmentId
from anabranch.simulation.core.log import CoreMessage, SegmentLog

TRACE_LINES = 80

# A pause: anything may happen before the generator continues.
Turns = Generator[None, None, None]


class Broken(AssertionError):
    """A law of the world was broken: the message has the seed and the events."""


class CoreSabotage(Enum):
    """Faults put in on purpose, to verify that the laws notice."""

    PUBLISH_UNSEALED = "the parents' owners answer that they are sealed and leave them open"
    FORGET_CURSORS = "children are made without the subscriptions' cursors"
    STALE_READS = "the record is not read again before a subscription's cursors are made or deleted"
    HAND_OUT_EARLY = "a segment is handed out while its parents have entries left"
    OWNER_BELIEVES = "owners do what they are told without reading the record"
    COLLECT_UNREAD = "sealed segments are collected although a subscription has not read them"
    REPLAN_N = "a leader that resumes a rebucket chooses another number of entry buckets than was planned"
    FORGET_MARK = "a subscription is deleted without marking its record first"
    HAND_OVER_EARLY = "a bucket goes to its next consumer while the last one still has a message of it"
    SHARE_UNKNOWING = "a consumer whose client does not know buckets is told to share"


class StoreDown(AnabranchError):
    """The store did not answer."""

    retryable = True


class CoreWorld:
    """All state, and the verbs by which actors change it. Verbs are atomic; actors pause between them."""

    def __init__(self, seed: int, sabotage: frozenset[CoreSabotage] = frozenset()) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.sabotage = sabotage
        self.is_hostile = True
        self.trouble = 1.0  # How often things go wrong while it is, compared with the worst time.
        self.trace: list[str] = []
        # The stored record. Versions start over when the record is made again, as in any store.
        self.topic: ScalableTopic | None = None
        self.version = 0
        self.generations = 0
        self.subscriptions: dict[str, tuple[SubscriptionRecord, int]] = {}
        self.consumers: dict[str, dict[str, tuple[ConsumerRecord, int]]] = {}
        self.elected = 0  # The number of the leader that was elected last.
        self.logs: dict[SegmentId, SegmentLog] = {}
        self._busy: set[SegmentId] = set()
        # What clients were promised, and what they saw. A subscription made again under the same name is another one.
        self.lives: dict[str, int] = {}
        self.owed: dict[tuple[str, int], set[CoreMessage]] = {}
        self.delivered: dict[tuple[str, int], set[CoreMessage]] = {}
        self.newest: dict[tuple[str, int, int], int] = {}
        self.complete: set[tuple[str, int]] = set()  # Lives whose creation the controller confirmed.
        self.sought: set[tuple[str, int]] = set()
        self.shares_sealed = True
        # How often a message came to a reader that shares its segment, and how often a bucket was withheld.
        self.shared_deliveries = 0
        self.withheld = 0
        self.listeners: list[Callable[[str], None]] = []

    def note(self, text: str) -> None:
        self.trace.append(text)

    def broken(self, what: str) -> Broken:
        tail = "\n".join(f"  {line}" for line in self.trace[-TRACE_LINES:])
        return Broken(f"seed {self.seed}: {what}\n{tail}")

    # -- the store

    def lossy(self, chance: float = 0.06) -> None:
        """Sometimes the store does not answer; called before and after a write, so that its fate is open."""
        if self.is_hostile and self.chance.random() < chance:
            raise StoreDown("the store does not answer")

    def put_topic(self, topic: ScalableTopic, if_version: int) -> int | None:
        """The new version; None on a conflict."""
        if self.topic is None or self.version != if_version or self.topic.generation != topic.generation:
            return None
        topic.layout.check()
        self._check_layout_change(topic)
        self.topic = topic
        self.version += 1
        return self.version

    def create_topic(self, topic: ScalableTopic) -> None:
        assert self.topic is None
        self.topic, self.version = topic, 0

    def remove_topic(self, generation: int) -> None:
        if self.topic is None or self.topic.generation != generation:
            return
        self.topic = None
        for name in list(self.subscriptions):
            self.remove_subscription(name)
        self.consumers.clear()
        self.note(f"topic {generation} removed")

    def put_subscription(self, record: SubscriptionRecord) -> None:
        found = self.subscriptions.get(record.name)
        if found is None:
            self.lives[record.name] = self.lives.get(record.name, 0) + 1
            self.note(f"subscription {record.name} begins its life {self.lives[record.name]}")
            self.subscriptions[record.name] = (record, 0)
        else:
            self.subscriptions[record.name] = (record, found[1] + 1)
        for listener in list(self.listeners):
            listener(record.name)

    def remove_subscription(self, name: str) -> None:
        if self.subscriptions.pop(name, None) is not None:
            self.note(f"subscription {name} is gone")
        self.consumers.pop(name, None)

    def subscription(self, name: str) -> SubscriptionRecord | None:
        """The record as read by an actor that knows the present topic."""
        found = self.subscriptions.get(name)
        if found is None or self.topic is None or found[0].generation != self.topic.generation:
            return None
        return found[0]

    def put_consumer(self, name: str, record: ConsumerRecord, if_version: int | None) -> int | None:
        """The new version; None on a conflict."""
        sessions = self.consumers.setdefault(name, {})
        found = sessions.get(record.name)
        if (None if found is None else found[1]) != if_version:
            return None
        version = 0 if if_version is None else if_version + 1
        sessions[record.name] = (record, version)
        self._check_records(name)
        return version

    def remove_consumer(self, name: str, consumer: str, if_version: int | None) -> bool:
        """False on a conflict."""
        sessions = self.consumers.get(name, {})
        if consumer in sessions and sessions[consumer][1] != if_version:
            return False
        sessions.pop(consumer, None)
        return True

    def consumer_version(self, name: str, consumer: str) -> int | None:
        found = self.consumers.get(name, {}).get(consumer)
        return None if found is None else found[1]

    def life(self, name: str) -> tuple[str, int]:
        return name, self.lives.get(name, 0)

    # -- segments' owners: changes of one segment wait for each other, and the world may change in between

    def locked(self, number: SegmentId) -> Iterator[None]:
        while number in self._busy:
            yield
        self._busy.add(number)

    def release(self, number: SegmentId) -> None:
        self._busy.discard(number)

    def owner_reads(self) -> ScalableTopic:
        if self.is_hostile and self.chance.random() < 0.04:
            raise SegmentUnavailable("the owner cannot be reached")
        if self.topic is None:
            raise SegmentRefused("there is no such topic")
        return self.topic

    def create_segment(self, segment: Segment, subscriptions: tuple[str, ...]) -> Turns:
        yield from self.locked(segment.id)
        try:
            record = self.owner_reads()
            if not self._believes and not record.may_create(segment.id, segment.range):
                raise SegmentRefused(f"segment {segment.id} is not to be made")
            yield
            found = self.logs.get(segment.id)
            if found is None or found.generation != record.generation:
                self._lose(segment.id, "was cleared away as a leftover")
                self.logs[segment.id] = SegmentLog(record.generation, segment.range, segment.bucket_splits)
            for name in subscriptions:
                yield
                stored = self.subscription(name)
                is_wanted = self._believes or (stored is not None and not stored.is_deleting)
                if is_wanted and CoreSabotage.FORGET_CURSORS not in self.sabotage:
                    self.logs[segment.id].cursors.setdefault(name, 0)
        finally:
            self.release(segment.id)

    def seal_segment(self, segment: Segment) -> Turns:
        yield from self.locked(segment.id)
        try:
            record = self.owner_reads()
            if not self._believes and not record.may_seal(segment.id):
                raise SegmentRefused(f"segment {segment.id} is not to be sealed")
            yield
            fresh = SegmentLog(record.generation, segment.range, segment.bucket_splits)
            log = self.logs.setdefault(segment.id, fresh)
            if CoreSabotage.PUBLISH_UNSEALED not in self.sabotage:
                log.is_sealed = True
        finally:
            self.release(segment.id)

    def delete_segment(self, segment: Segment) -> Turns:
        yield from self.locked(segment.id)
        try:
            if self.is_hostile and self.chance.random() < 0.04:
                raise SegmentUnavailable("the owner cannot be reached")
            record = self.topic
            log = self.logs.get(segment.id)
            is_asked_for = self._believes or record is None or record.may_delete(segment.id)
            is_leftover = record is not None and log is not None and log.generation != record.generation
            if not is_asked_for and not is_leftover:
                raise SegmentRefused(f"segment {segment.id} is not to be deleted")
            # The log's own record is changed by compare-and-set: a log created since is not the one meant.
            yield
            if self.logs.get(segment.id) is log and log is not None:
                self._lose(segment.id, "was deleted")
        finally:
            self.release(segment.id)

    def create_cursor(self, segment: Segment, name: str, initial: InitialPosition) -> Turns:
        yield from self.locked(segment.id)
        try:
            self.owner_reads()
            stored = self.subscription(name)
            if not self._believes and (stored is None or stored.is_deleting):
                raise SegmentRefused(f"there is no subscription {name}")
            log = self._log(segment.id)
            log.cursors.setdefault(name, 0 if initial is InitialPosition.EARLIEST else len(log.entries))
            yield
        finally:
            self.release(segment.id)

    def delete_cursor(self, segment: Segment, name: str) -> Turns:
        yield from self.locked(segment.id)
        try:
            stored = self.subscription(name)
            if not self._believes and stored is not None and not stored.is_deleting:
                raise SegmentRefused(f"there is a subscription {name}")
            log = self.logs.get(segment.id)
            if log is not None:
                for part in (log.cursors, log.acked, log.readers, log.holders):
                    part.pop(name, None)
            yield
        finally:
            self.release(segment.id)

    def move_cursor(self, segment: Segment, name: str, *, to_end: bool) -> Turns:
        yield from self.locked(segment.id)
        try:
            log = self._log(segment.id)
            if name in log.cursors:
                if to_end:
                    self.owed.get(self.life(name), set()).difference_update(log.entries)
                log.cursors[name] = len(log.entries) if to_end else 0
                log.acked.pop(name, None)
                # Messages that the cursor had skipped may come now, after those already seen.
                self.sought.add(self.life(name))
            yield
        finally:
            self.release(segment.id)

    def drained(self, number: SegmentId, name: str) -> bool:
        """Whether the subscription has drained the segment, as its owner reports to a controller."""
        log = self.logs.get(number)
        record = self.subscription(name)
        if log is None:
            return True
        if name not in log.cursors:
            return log.is_sealed and record is not None and record.initial is InitialPosition.LATEST
        return log.is_drained(name)

    def is_unneeded(self, number: SegmentId) -> bool:
        """Whether every subscription has drained the segment, as its owner reports to a controller."""
        return CoreSabotage.COLLECT_UNREAD in self.sabotage or all(
            self.drained(number, name) for name in self.subscriptions if self.subscription(name)
        )

    def _log(self, number: SegmentId) -> SegmentLog:
        log = self.logs.get(number)
        if log is None or self.topic is None or log.generation != self.topic.generation:
            raise SegmentGone(f"segment {number} is gone")
        return log

    @property
    def _believes(self) -> bool:
        return CoreSabotage.OWNER_BELIEVES in self.sabotage

    # -- clients

    def publish(self, segment: Segment, message: CoreMessage) -> bool:
        """Publishes; False if the segment accepts no messages. An accepted message is owed to every present
        subscription."""
        number = segment.id
        log = self.logs.get(number)
        topic = self.topic
        if (
            log is None
            or log.span != segment.range
            or log.is_sealed
            or topic is None
            or log.generation != topic.generation
        ):
            return False
        self._check_writable(number, topic)
        for name in self.subscriptions:
            record = self.subscription(name)
            if record is None or record.is_deleting or record.kind is SubscriptionKind.CHECKPOINT:
                continue
            life = self.life(name)
            if life in self.complete and name not in log.cursors:
                raise self.broken(f"{message} was published to segment {number}, which lacks {name}'s cursor")
        log.entries.append(message)
        for name in log.cursors:
            self.owed.setdefault(self.life(name), set()).add(message)
        return True

    def owner(self, number: SegmentId, name: str, bucket: int) -> str:
        """The consumer that has the bucket by the stored sessions; "" if none has."""
        for consumer, (record, _) in sorted(self.consumers.get(name, {}).items()):
            if number in record.assigned and bucket in record.shares.get(number, (bucket,)):
                return consumer
        return ""

    def deliver(self, number: SegmentId, name: str) -> int | None:
        """The next entry of the cursor for a reader that keeps no order, if there is one."""
        log = self.logs.get(number)
        if log is None or name not in log.cursors or log.cursors[name] >= len(log.entries):
            return None
        at = log.cursors[name]
        self._delivered(number, name, log.entries[at], keeps_order=False)
        return at

    def deliver_in_order(self, number: SegmentId, name: str, reader: object, consumer: str) -> int | None:
        """The next entry of one of the buckets that an attached reader of a stream may have."""
        log = self.logs.get(number)
        if log is None or name not in log.cursors:
            return None
        shares = log.readers[name][reader]
        holders, acked = log.holders.setdefault(name, {}), log.acked.get(name, set())
        passed: set[int] = set()
        for at in range(log.cursors[name], len(log.entries)):
            bucket = log.bucket(log.entries[at])
            if at in acked or bucket in passed:
                continue
            passed.add(bucket)  # What comes later in this bucket waits for this entry.
            if shares and self.owner(number, name, bucket) != consumer:
                continue
            holder = holders.get(bucket)
            if holder is not None and holder is not reader:
                self.withheld += 1
                if CoreSabotage.HAND_OVER_EARLY not in self.sabotage:
                    continue
                later = range(at + 1, len(log.entries))
                at = next((n for n in later if log.bucket(log.entries[n]) == bucket and n not in acked), at)
            holders[bucket] = reader
            self.shared_deliveries += shares
            self._delivered(number, name, log.entries[at], keeps_order=True)
            return at
        return None

    def _delivered(self, number: SegmentId, name: str, message: CoreMessage, *, keeps_order: bool) -> None:
        life = self.life(name)
        seen = self.delivered.setdefault(life, set())
        if message in seen:
            return
        seen.add(message)
        self.note(f"{name} got {message.key:04x} number {message.number} from segment {number}")
        if not keeps_order or life in self.sought:
            return
        newest = self.newest.get((*life, message.key), -1)
        if message.number < newest:
            raise self.broken(f"{name} got {message} after number {newest} of that key")
        self._check_acknowledged(number, name, message)
        self.newest[(*life, message.key)] = message.number

    def acknowledge(self, number: SegmentId, name: str, at: int) -> None:
        log = self.logs.get(number)
        if log is None or name not in log.cursors or at >= len(log.entries):
            return
        acked = log.acked.setdefault(name, set())
        log.holders.get(name, {}).pop(log.bucket(log.entries[at]), None)
        if at >= log.cursors[name]:
            acked.add(at)
        while log.cursors[name] in acked:
            acked.remove(log.cursors[name])
            log.cursors[name] += 1

    # -- laws

    def _check_acknowledged(self, number: SegmentId, name: str, message: CoreMessage) -> None:
        """Nothing of a bucket may be delivered before its older entries are acknowledged."""
        log = self.logs[number]
        acked, bucket = log.acked.get(name, set()), log.bucket(message)
        for at in range(log.cursors[name], len(log.entries)):
            older = log.entries[at]
            if older == message:
                return
            if at not in acked and log.bucket(older) == bucket:
                raise self.broken(
                    f"{name} got {message} of bucket {bucket} while {older} is not acknowledged"
                )

    def _check_records(self, name: str) -> None:
        """One stored session for each bucket of what is shared, and only clients that know buckets share.

        Where nothing can be shared, a deposed leader may leave two sessions with one segment: its owner lets one read.
        """
        named: dict[tuple[SegmentId, int], tuple[str, bool]] = {}
        for consumer, (record, _) in sorted(self.consumers.get(name, {}).items()):
            if record.shares and not record.knows_buckets:
                raise self.broken(
                    f"{consumer} of {name} does not know buckets and shares {dict(record.shares)}"
                )
            for number in record.assigned:
                log = self.logs.get(number)
                every = range(1 if log is None else len(log.splits) + 1)
                for bucket in record.shares.get(number, tuple(every)):
                    shares = number in record.shares
                    other, shares_too = named.setdefault((number, bucket), (consumer, shares))
                    if other != consumer and (shares or shares_too):
                        raise self.broken(f"bucket {bucket} of segment {number} is of {other} and {consumer}")

    def _check_writable(self, number: SegmentId, topic: ScalableTopic) -> None:
        """Everything before a segment that is written to must be sealed."""
        layout = topic.layout if number in topic.layout.segments else None
        if layout is None:
            return
        for ancestor in layout.ancestors(number):
            log = self.logs.get(ancestor)
            if log is not None and not log.is_sealed:
                raise self.broken(f"segments {ancestor} and {number}, its descendant, both take messages")

    def _check_layout_change(self, topic: ScalableTopic) -> None:
        old = self.topic
        assert old is not None
        if topic.layout.epoch < old.layout.epoch:
            raise self.broken(f"the layout went back from epoch {old.layout.epoch} to {topic.layout.epoch}")
        if topic.layout.epoch == old.layout.epoch or topic.is_deleting:
            return
        if old.plan is not None and topic.layout != old.plan.result:
            raise self.broken(f"plan {old.plan.id} was stored, and something else was published")
        for segment in topic.layout.active:
            if segment.id in old.layout.segments:
                continue  # Its creation may have been interrupted; it is completed when it is next used.
            log = self.logs.get(segment.id)
            if log is None:
                raise self.broken(f"segment {segment.id} was published before it was made")
            if log.is_sealed:
                raise self.broken(f"segment {segment.id} was published as active and is sealed")
            self._check_cursors(segment, log)
        for segment in topic.layout.sealed:
            log = self.logs.get(segment.id)
            if log is not None and not log.is_sealed and not segment.is_deleting:
                raise self.broken(f"segment {segment.id} was published as sealed and takes messages")
        for gone in old.layout.segments.keys() - topic.layout.segments.keys():
            if gone in self.logs:
                raise self.broken(f"segment {gone} was pruned and still has storage")

    def _check_cursors(self, segment: Segment, log: SegmentLog) -> None:
        """A visible child must have the cursors that its parents have."""
        for parent in segment.parents:
            above = self.logs.get(parent)
            for name in above.cursors if above is not None else ():
                record = self.subscription(name)
                if record is not None and not record.is_deleting and name not in log.cursors:
                    raise self.broken(
                        f"segment {segment.id} was published without {name}'s cursor, which its parent {parent} has"
                    )

    def _lose(self, number: SegmentId, how: str) -> None:
        """A log is deleted. No subscription may still need its entries."""
        log = self.logs.pop(number, None)
        topic = self.topic
        if log is None or topic is None or topic.is_deleting or log.generation != topic.generation:
            return
        for name, at in log.cursors.items():
            record = self.subscription(name)
            if record is None or record.is_deleting:
                continue
            left = [m for m in log.entries[at:] if m in self.owed.get(self.life(name), ())]
            if left:
                raise self.broken(f"segment {number} {how} with {left[0]} still owed to {name}")

    def check_quiet(self) -> None:
        """Checks the laws of the final state."""
        topic = self.topic
        if topic is None:
            return
        if topic.plan is not None or topic.is_deleting:
            raise self.broken("all is quiet and an operation is left unfinished in the record")
        for name, (record, _) in self.subscriptions.items():
            if record.is_deleting:
                raise self.broken(f"the deletion of {name} was never finished")
        for segment in topic.layout.segments.values():
            log = self.logs.get(segment.id)
            if log is None or log.generation != topic.generation:
                raise self.broken(f"segment {segment.id} has no storage")
            if log.is_sealed != segment.is_sealed:
                raise self.broken(f"segment {segment.id} is {segment.state} in the layout only")
            for name in log.cursors:
                if self.subscription(name) is None:
                    raise self.broken(f"segment {segment.id} has a cursor of {name}, which does not exist")
            for name, (record, _) in self.subscriptions.items():
                wants = record.initial is InitialPosition.EARLIEST or (record.initial and segment.is_active)
                if wants and record.kind is not SubscriptionKind.CHECKPOINT and name not in log.cursors:
                    raise self.broken(f"segment {segment.id} has no cursor of {name}")
        for name in self.subscriptions:
            life = self.life(name)
            missing = self.owed.get(life, set()) - self.delivered.get(life, set())
            if missing:
                raise self.broken(f"{min(missing, key=repr)} never came to {name}")
