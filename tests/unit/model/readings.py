"""A topic with messages in it, and readers that keep cuts of it: what properties of cuts are tried on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from anabranch.model.buckets import BucketBudget, bucket_of
from anabranch.model.cut import Cut, MessagePosition, Place, at_end, behind
from anabranch.model.gone import EMPTY
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import DataLost, resume
from anabranch.model.segments import HASH_MAX, Segment, SegmentId

# Its key's hash, and its number among all messages of the topic.
Message = tuple[int, int]


@dataclass
class Topic:
    """Segments with a log each. Chance decides about everything that happens to it."""

    chance: random.Random
    layout: SegmentLayout = field(default_factory=lambda: SegmentLayout.initial(2, 0))
    logs: dict[SegmentId, list[tuple[MessagePosition, MessagePosition, Message]]] = field(
        default_factory=dict
    )
    published: int = 0
    has_buckets: bool = False
    is_ordered: bool = True  # Until partitions are added, which moves keys to others.

    @staticmethod
    def bucketed(chance: random.Random) -> Topic:
        """With several entry buckets in a segment, whose number changes."""
        return Topic(chance, SegmentLayout.initial(2, 0, budget=BucketBudget(8)), has_buckets=True)

    @staticmethod
    def classic(chance: random.Random, partitions: int) -> Topic:
        return Topic(chance, SegmentLayout.synthetic([f"t-partition-{n}" for n in range(partitions)], 0))

    @property
    def is_classic(self) -> bool:
        return bool(self.layout.active[0].classic_topic)

    @property
    def messages(self) -> set[Message]:
        """Those that were not pruned."""
        return {message for log in self.logs.values() for *_, message in log}

    def live(self, steps: int, *, prunes: bool = False) -> None:
        for _ in range(steps):
            self.publish(self.chance.choice((0, 1, 2, 5)))
            self.change(prunes=prunes)
        self.publish(3)

    def publish(self, count: int) -> None:
        growing: set[SegmentId] = set()  # Their last entries: nobody has seen those yet.
        for _ in range(count):
            # Few keys, so that each has some messages.
            key = self.chance.randrange(24) * 2741 % (HASH_MAX + 1)
            active = self.layout.active
            segment = active[key % len(active)] if self.is_classic else self.layout.find_active(key)
            log = self.logs.setdefault(segment.id, [])
            # A new ledger, a new entry, or one more message of the batch, whose last it is from now on.
            ledger, entry, index = log[-1][0] if log else (segment.id, -1, 0)
            kind = self.chance.choice(("ledger", "entry", "batch"))
            if kind == "batch" and segment.id in growing:
                first, _, before = log[-1]
                log[-1] = first, behind(*first, is_last_of_entry=False), before
                at = (ledger, entry, index + 1)
            else:
                at = (ledger + 7, 0, 0) if kind == "ledger" and log else (ledger, entry + 1, 0)
            growing.add(segment.id)
            log.append((at, behind(*at, is_last_of_entry=True), (key, self.published)))
            self.published += 1

    def change(self, *, prunes: bool = False) -> None:
        layout = self.layout
        if self.is_classic:
            names = [segment.classic_topic for segment in layout.active]
            if self.chance.random() < 0.3:
                self.is_ordered = False
                self.layout = SegmentLayout.synthetic([*names, f"t-partition-{len(names)}"], 0)
            else:
                self.layout = SegmentLayout.migrated(names, 0)
            return
        at = self.chance.randrange(len(layout.active))
        kinds = ("split", "merge", "prune" if prunes else "split")
        kind = self.chance.choice((*kinds, "rebucket") if self.has_buckets else kinds)
        if kind == "prune" and layout.sealed:
            number = self.chance.choice(layout.sealed).id
            log = self.logs.pop(number, None)
            end = log[-1][1][:2] if log else EMPTY
            self.layout = layout.mark_deleting([number], {number: end}).prune([number])
        elif kind == "rebucket":
            segment = layout.active[at]
            count = self.chance.choice([n for n in (1, 2, 3, 5) if n != segment.bucket_count])
            self.layout = layout.rebucket(segment.id, count, 0)
        elif kind == "merge" and at + 1 < len(layout.active):
            self.layout = layout.merge(layout.active[at].id, layout.active[at + 1].id, 0)
        elif len(layout.active[at].range) > 1:
            self.layout = layout.split(layout.active[at].id, 0)

    def rest(self, place: Place) -> list[tuple[MessagePosition, MessagePosition, Message]]:
        """What the place's segment has from there on."""
        log = self.logs.get(place.segment, [])
        if len(place.at) == 1:
            return [item for item in log if item[0] >= place.at[0]]
        return [item for item in log if item[0] >= place.at[self.bucket(place.segment, item[2])]]

    def bucket(self, number: SegmentId, message: Message) -> int:
        """The entry bucket of a message in its segment."""
        return bucket_of(self.layout.segments[number].bucket_splits, message[0] * 40503 & HASH_MAX)


class Reader:
    """Reads segments one message at a time, in any order that the cut allows."""

    def __init__(self, topic: Topic, start: Cut | None = None) -> None:
        self.topic = topic
        self.cut = start or Cut()
        self.delivered: list[Message] = []
        self.follow()

    def follow(self) -> None:
        """Looks at the topic's layout as it is now."""
        found = resume(self.topic.layout, self.cut)
        if found.gaps:
            raise DataLost.of("the topic", found.gaps)
        self._readable = found.readable
        places = {place.segment: place for place in self.cut.places}
        for number in found.readable:
            if number not in places:
                places[number] = found.places[number] or Place.of(self.topic.layout.segments[number])
        self.cut = Cut(tuple(places.values()))

    @property
    def open(self) -> list[Place]:
        return [place for place in self.cut.places if place.segment in self._readable]

    def read(self, count: int) -> None:
        for _ in range(count):
            if not self.read_one():
                return

    def read_one(self) -> bool:
        """Whether there was anything to read, or to finish."""
        places = self.open
        self.topic.chance.shuffle(places)
        for place in places:
            rest = self.topic.rest(place)
            if rest:
                _, then, message = rest[0]
                self.delivered.append(message)
                self._put(place.upto(then))
                return True
            segment = self.topic.layout.segments[place.segment]
            if segment.is_sealed:
                self._put(place.over(segment.sealed_epoch))
                self.follow()
                return True
        return False

    def _put(self, place: Place) -> None:
        self.cut = Cut((*(p for p in self.cut.places if p.segment != place.segment), place))


class Group:
    """Members that share the segments. Which one reads a segment changes at any time."""

    def __init__(self, topic: Topic, members: int, start: Cut | None = None) -> None:
        self.topic = topic
        self.start = start or Reader(topic).cut  # As if resolved by all members when they were opened.
        self.members = [Member(self) for _ in range(members)]
        self.finished: set[SegmentId] = set()
        self.finished_buckets: set[tuple[SegmentId, int]] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.topic.chance.choice(self.members).step()

    def assignable(self) -> list[SegmentId]:
        layout = self.topic.layout
        known = resume(layout, self.start)
        over = {n for n, place in known.places.items() if place is not None and place.is_over}
        over |= self.finished
        return [n for n in layout.segments if n not in over and layout.ancestors(n) <= over]


class Member:
    """Keeps its own places only."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.places: dict[SegmentId, Place] = {}
        self.delivered: set[Message] = set()

    def checkpoint(self) -> Cut:
        return Cut(tuple(self.places.values()))

    def step(self) -> None:
        topic = self.group.topic
        choices = self.group.assignable()
        if not choices:
            return
        number = topic.chance.choice(choices)
        segment = topic.layout.segments[number]
        place = self.places.get(number)
        if place is None:
            known = self.group.start.get(number)
            place = known if known is not None else Place.of(segment, is_apart=True)
        if segment.bucket_count > 1 and topic.chance.random() < 0.8:
            self.places[number] = self._read_bucket(segment, place)
            return
        for _ in range(topic.chance.randrange(4)):
            rest = topic.rest(place) if not place.is_over else []
            if rest:
                self.delivered.add(rest[0][2])
                place = place.upto(rest[0][1])
            elif segment.is_sealed and not place.is_over:
                place = place.over(segment.sealed_epoch)
        if place.is_over:
            self.group.finished.add(number)
        self.places[number] = place

    def _read_bucket(self, segment: Segment, place: Place) -> Place:
        """Reads one bucket of a segment that others share, from where it knows it."""
        topic, count = self.group.topic, segment.bucket_count
        if place.is_over:
            return place
        bucket = topic.chance.randrange(count)
        positions = list(place.each(count))
        for _ in range(topic.chance.randrange(4)):
            rest = [
                item
                for item in topic.logs.get(segment.id, [])
                if item[0] >= positions[bucket] and topic.bucket(segment.id, item[2]) == bucket
            ]
            if rest:
                self.delivered.add(rest[0][2])
                positions[bucket] = rest[0][1]
            elif segment.is_sealed:
                positions[bucket] = at_end(segment.sealed_epoch)
                self.group.finished_buckets.add((segment.id, bucket))
        if all((segment.id, n) in self.group.finished_buckets for n in range(count)):
            self.group.finished.add(segment.id)
        return place.standing(tuple(positions))


def assert_in_order(topic: Topic, messages: list[Message]) -> None:
    last: dict[int, int] = {}
    for key, number in messages if topic.is_ordered else ():
        assert last.get(key, -1) < number, f"key {key:x}: {number} after {last[key]}"
        last[key] = number
