"""Any mix of publishing, permits, acknowledging, refusing, joining, leaving and moving of buckets.

At every moment no two consumers hold entries of one bucket, the first deliveries of a bucket come in the order of the
log, and nothing is sent twice unless it was given back. A message in chunks has its place where it becomes whole; the
chunks before that hold nothing. At the end, with permits and owners for everyone and every holder acknowledging whole
messages or leaving, everything has been delivered: chunks whose message never becomes whole, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.kept import KeptBudget
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.model import buckets
from anabranch.model.position import Position
from anabranch.model.segments import HashRange
from unit.broker.dispatch.bucket_rig import SPLITS, BucketRig
from unit.broker.rig import RecordingLink

NAMES = ("a", "b", "c", "d")
HASHES = st.integers(0, 0xFFFF)


@dataclass
class Sharer:
    """What a client knows of its consumer."""

    consumer: AttachedConsumer
    link: RecordingLink
    seen: int = 0
    # Given to it and neither acknowledged nor given back, in the order of arrival.
    held: list[Position] = field(default_factory=list)


@dataclass
class Published:
    buckets: range
    messages: int = 1
    chunk: tuple[str, int, int] | None = None
    # The messages of its batch that are not acknowledged.
    left: int = 0
    # Of a chunk: whether it made the message whole at the consumer that has it.
    completes: bool = False
    deliveries: int = 0
    is_acked: bool = False
    given_back: int = 0


class SharedSegment(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sharers: dict[str, Sharer] = {}
        self.log: dict[Position, Published] = {}
        self.begun: dict[str, list[int]] = {}
        # The consumer of each message in chunks that has some of them, and their numbers by place.
        self.partial: dict[str, tuple[Sharer, dict[Position, int]]] = {}
        # The last entry of each bucket that was delivered for the first time.
        self.furthest: dict[int, Position] = {}
        self.rig: BucketRig

    @initialize(
        splits=st.sampled_from(SPLITS),
        aside=st.integers(1, 4),
        burst=st.integers(1, 6),
        is_cold=st.booleans(),
        kept_bytes=st.sampled_from((0, 150, 1 << 20)),
    )
    def begin(self, splits: buckets.Splits, aside: int, burst: int, is_cold: bool, kept_bytes: int) -> None:
        limits = DispatchLimits(
            held_per_consumer_max=aside,
            burst_entries=burst,
            burst_bytes=200,
            # Neither counts here.
            consumer_unacked_max=1,
            subscription_unacked_max=2,
        )
        self.rig = BucketRig(splits, limits=limits)
        self.kept_bytes = kept_bytes
        self.rig.ownership.kept_budget = KeptBudget(kept_bytes)
        if is_cold:
            self.rig.log.cold.add(5)
        self.count = len(splits) + 1

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.everything_arrives()
        finally:
            self.rig.close()

    # -- steps

    def publish(self, span: HashRange | None, messages: int, **options: Any) -> None:
        hashes = (None, None) if span is None else (span.start, span.end)
        (at,) = self.rig.publish(1, hashes=hashes, messages=messages, **options)
        touched = buckets.touched(self.rig.splits, span)
        self.log[at] = Published(touched, messages, options.get("chunk"), left=(1 << messages) - 1)
        self.look()

    @rule(data=st.data(), count=st.integers(1, 5), messages=st.sampled_from((1, 1, 3)))
    def publish_in_a_bucket(self, data: st.DataObject, count: int, messages: int) -> None:
        ranges = buckets.ranges(self.rig.splits)
        for _ in range(count):
            self.publish(data.draw(st.sampled_from(ranges)), messages)

    @rule(one=HASHES, other=HASHES, messages=st.sampled_from((1, 3)))
    def publish_across_buckets(self, one: int, other: int, messages: int) -> None:
        self.publish(HashRange(min(one, other), max(one, other)), messages)

    @rule(messages=st.sampled_from((1, 3)))
    def publish_without_a_stamp(self, messages: int) -> None:
        self.publish(None, messages)

    @rule(data=st.data(), name=st.sampled_from(("m1", "m2")), is_stamped=st.booleans())
    def publish_a_chunk(self, data: st.DataObject, name: str, is_stamped: bool) -> None:
        """The next chunk of a message, with the stamp of its first one."""
        begun = self.begun.get(name)
        if begun is None:
            ranges = buckets.ranges(self.rig.splits)
            bucket = data.draw(st.integers(0, len(ranges) - 1)) if is_stamped else -1
            begun = self.begun[name] = [0, data.draw(st.integers(2, 4)), bucket, len(self.log)]
        number, chunks, bucket, serial = begun
        span = None if bucket < 0 else buckets.ranges(self.rig.splits)[bucket]
        self.publish(span, 1, chunk=(f"{name}-{serial}", number, chunks))
        begun[0] += 1
        if begun[0] == chunks:
            del self.begun[name]

    @rule(name=st.sampled_from(NAMES), permits=st.integers(0, 8))
    def join(self, name: str, permits: int) -> None:
        if name not in self.sharers:
            self.sharers[name] = Sharer(*self.rig.sharer(name, permits))
            self.look()

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.count - 1))
        self.rig.ownership.give({number: data.draw(st.sampled_from((*NAMES, None)))})
        self.look()

    @rule()
    def share_evenly(self) -> None:
        names = sorted(self.sharers)
        if names:
            self.rig.ownership.give({n: names[n % len(names)] for n in range(self.count)})
            self.look()

    @precondition(lambda self: self.sharers)
    @rule(data=st.data(), permits=st.integers(1, 10))
    def flow(self, data: st.DataObject, permits: int) -> None:
        sharer = self.sharers[data.draw(st.sampled_from(sorted(self.sharers)))]
        self.rig.subscription.flow(sharer.consumer, permits)
        self.look()

    @precondition(lambda self: any(one.held for one in self.sharers.values()))
    @rule(data=st.data(), is_part=st.booleans())
    def ack(self, data: st.DataObject, is_part: bool) -> None:
        sharer, at = self.choose_held(data)
        one = self.log[at]
        if is_part and one.messages > 1:
            # The lowest of those that are left.
            left = one.left & (one.left - 1)
            assert self.rig.ack(sharer.consumer, [at], ack_set=[left], batch_size=one.messages) == [None]
            one.left = left
        else:
            assert self.rig.ack(sharer.consumer, [at]) == [None]
            one.left = 0
        if not one.left:
            one.is_acked = True
            sharer.held.remove(at)
        self.look()

    @precondition(lambda self: self.sharers and any(not one.is_acked for one in self.log.values()))
    @rule(data=st.data())
    def ack_what_another_has_or_nobody(self, data: st.DataObject) -> None:
        """As one does that comes back and repeats what it had acknowledged."""
        sharer = self.sharers[data.draw(st.sampled_from(sorted(self.sharers)))]
        at = data.draw(st.sampled_from([at for at, one in self.log.items() if not one.is_acked]))
        self.log[at].is_acked = True
        for other in self.sharers.values():
            if at in other.held:
                other.held.remove(at)
        assert self.rig.ack(sharer.consumer, [at]) == [None]
        self.look()

    @precondition(lambda self: any(one.held for one in self.sharers.values()))
    @rule(data=st.data(), is_all=st.booleans())
    def refuse(self, data: st.DataObject, is_all: bool) -> None:
        sharer, at = self.choose_held(data)
        back = list(sharer.held) if is_all else [at]
        self.give_back(sharer, back)
        self.rig.subscription.redeliver(sharer.consumer, None if is_all else back)
        self.look()

    @precondition(lambda self: self.sharers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sharer = self.sharers.pop(data.draw(st.sampled_from(sorted(self.sharers))))
        self.give_back(sharer, list(sharer.held))
        self.partial = {name: one for name, one in self.partial.items() if one[0] is not sharer}
        self.rig.subscription.remove_consumer(sharer.consumer)
        self.look()

    @precondition(lambda self: self.sharers)
    @rule(data=st.data())
    def stop_or_go_on(self, data: st.DataObject) -> None:
        """Its socket fills up, or drains."""
        sharer = self.sharers[data.draw(st.sampled_from(sorted(self.sharers)))]
        sharer.link.is_writable = not sharer.link.is_writable
        if sharer.link.is_writable:
            self.rig.subscription.link_writable(sharer.link)
        self.look()

    @rule()
    def roll(self) -> None:
        self.rig.log.roll()

    # -- what must hold

    def choose_held(self, data: st.DataObject) -> tuple[Sharer, Position]:
        name = data.draw(st.sampled_from(sorted(name for name, one in self.sharers.items() if one.held)))
        sharer = self.sharers[name]
        return sharer, data.draw(st.sampled_from(sharer.held))

    def give_back(self, sharer: Sharer, places: list[Position]) -> None:
        for at in places:
            sharer.held.remove(at)
            self.log[at].given_back += 1
            self.log[at].completes = False
        for name, (holder, parts) in list(self.partial.items()):
            if holder is sharer and not parts.keys().isdisjoint(places):
                del self.partial[name]

    def look(self) -> None:
        """Takes what has arrived."""
        self.rig.loop.settle(40)
        arrived: list[tuple[Position, Sharer]] = []
        for sharer in self.sharers.values():
            arrived += [(message.at, sharer) for message in sharer.link.messages[sharer.seen :]]
            sharer.seen = len(sharer.link.messages)
        for at, sharer in arrived:
            one = self.log[at]
            assert not one.is_acked, f"{at} was sent though it is acknowledged"
            one.deliveries += 1
            assert one.deliveries == 1 + one.given_back, f"{at} was sent twice"
            sharer.held.append(at)
            if one.chunk is not None:
                one.completes = self.join_parts(sharer, at, *one.chunk)
        for sharer in self.sharers.values():
            self.check_order([at for at, to in arrived if to is sharer])

    def join_parts(self, sharer: Sharer, at: Position, name: str, number: int, chunks: int) -> bool:
        """Whether the chunk makes its message whole."""
        holder, parts = self.partial.get(name, (None, {}))
        if holder is not sharer or (number == 0 and number in parts.values()):
            parts = {}
        parts[at] = number
        self.partial[name] = sharer, parts
        if len(set(parts.values())) < chunks:
            return False
        del self.partial[name]
        return True

    def holds(self, at: Position) -> bool:
        one = self.log[at]
        return one.chunk is None or one.completes

    def check_order(self, places: list[Position]) -> None:
        for at in places:
            one = self.log[at]
            if one.deliveries > 1 or not self.holds(at):
                continue
            for bucket in one.buckets:
                assert self.furthest.get(bucket, (-1, -1)) < at, f"{at} came late in bucket {bucket}"
                self.furthest[bucket] = at

    @invariant()
    def no_more_is_kept_than_there_is_room_for(self) -> None:
        assert 0 <= self.rig.ownership.kept_budget.left <= self.kept_bytes

    @invariant()
    def no_bucket_is_with_two(self) -> None:
        holders: dict[int, str] = {}
        for name, sharer in self.sharers.items():
            held = [self.log[at] for at in sharer.held if self.holds(at)]
            for bucket in {bucket for one in held for bucket in one.buckets}:
                assert holders.setdefault(bucket, name) == name, f"bucket {bucket} is with two"

    def everything_arrives(self) -> None:
        if not self.sharers:
            self.join("a", 1000)
        for sharer in self.sharers.values():
            sharer.link.is_writable = True
            self.rig.subscription.flow(sharer.consumer, 100_000)
        self.share_evenly()
        for _ in range(3 * len(self.log) + 3):
            # As a client does: a message in chunks is acknowledged once all of it is there.
            if not self.ack_held(lambda sharer, at: self.is_whole(sharer, at)):
                break
            self.no_bucket_is_with_two()
        held = {at for sharer in self.sharers.values() for at in sharer.held}
        missing = [at for at, one in self.log.items() if not one.is_acked and at not in held]
        assert not missing, f"{missing} never came"
        assert self.rig.dispatcher.withheld == 0
        assert self.rig.dispatcher.is_all_sent
        assert self.rig.ownership.kept_budget.left == self.kept_bytes
        self.ack_held(lambda sharer, at: True)
        assert self.rig.subscription.backlog() == 0

    def ack_held(self, which: Callable[[Sharer, Position], bool]) -> bool:
        """Acknowledges what consumers hold; False if there was nothing to acknowledge."""
        is_any = False
        for sharer in self.sharers.values():
            places = [at for at in sharer.held if which(sharer, at)]
            is_any = is_any or bool(places)
            assert self.rig.ack(sharer.consumer, places) == [None]
            for at in places:
                self.log[at].is_acked = True
                sharer.held.remove(at)
        self.look()
        return is_any

    def is_whole(self, sharer: Sharer, at: Position) -> bool:
        """Also where a client has acknowledged or refused some of it by itself."""
        chunk = self.log[at].chunk
        if chunk is None:
            return True
        name, _, chunks = chunk
        of = [place for place, one in self.log.items() if one.chunk is not None and one.chunk[0] == name]
        if len(of) < chunks:
            # Its producer never finishes it.
            return False
        is_apart = len({(self.log[place].is_acked, self.log[place].given_back) for place in of}) > 1
        return is_apart or all(place in sharer.held for place in of)


TestSharedSegment = SharedSegment.TestCase
TestSharedSegment.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
