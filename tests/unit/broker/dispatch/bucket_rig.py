"""A subscription whose consumers share a segment by entry buckets, and who they are told to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.entry_buckets import EntryBucketDispatcher, OwnerNames
from anabranch.broker.dispatch.kept import KeptBudget
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.state.cursor import Cursor
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED
from unit.broker.rig import ListLog, RecordingLink, Rig

FOUR = buckets.even(4)
UNEVEN: Splits = (100, 30_000, 30_001)
# One, two, four, seven and twelve buckets, and four of unequal width.
SPLITS: Sequence[Splits] = (*(buckets.even(count) for count in (1, 2, 4, 7, 12)), UNEVEN)


def declared(splits: Splits, mode: pb.KeySharedMode = pb.STICKY) -> pb.KeySharedMeta:
    """What every consumer that shares such a segment declares."""
    meta = pb.KeySharedMeta(keySharedMode=mode, entryBucketDispatch=True)
    for one in buckets.ranges(splits):
        meta.hashRanges.add(start=one.start, end=one.end)
    return meta


class ToldOwnership:
    """Implements `BucketOwnership`: what a test says."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self.kept_budget = KeptBudget()
        self.reassignments = 0
        self.names: list[str | None] = [None] * (len(splits) + 1)
        self.followers: list[Callable[[OwnerNames], None]] = []

    def follow(self, tell: Callable[[OwnerNames], None]) -> Callable[[], None]:
        self.followers.append(tell)
        tell(tuple(self.names))
        return lambda: self.followers.remove(tell)

    def give(self, owners: Mapping[int, str | None]) -> None:
        for number, name in owners.items():
            self.names[number] = name
        for tell in self.followers:
            tell(tuple(self.names))


class BucketRig(Rig):
    def __init__(
        self,
        splits: Splits = FOUR,
        *,
        limits: DispatchLimits | None = None,
        log: ListLog | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        super().__init__(limits=limits, log=log, cursor=cursor)
        self.splits = splits
        self.ownership = ToldOwnership(splits)
        self.subscription.ownership = self.ownership

    def sharer(self, name: str, permits: int = 1000) -> tuple[AttachedConsumer, RecordingLink]:
        return self.consumer(KEY_SHARED, name=name, permits=permits, key_shared=declared(self.splits))

    def give(self, *owners: str | None) -> None:
        """The owner of each bucket, from the first on."""
        self.ownership.give(dict(enumerate(owners)))
        self.loop.settle()

    def stamped(self, bucket: int, count: int = 1, messages: int = 1) -> list[Position]:
        """Entries with keys of one bucket."""
        span = buckets.ranges(self.splits)[bucket]
        return self.spread(span.start, span.end, count, messages)

    def spread(self, low: int | None, high: int | None, count: int = 1, messages: int = 1) -> list[Position]:
        """Entries with that stamp."""
        places = self.publish(count, hashes=(low, high), messages=messages)
        self.loop.settle()
        return places

    def chunk(self, bucket: int | None, message: str, number: int, chunks: int) -> Position:
        one = None if bucket is None else buckets.ranges(self.splits)[bucket]
        hashes = (None, None) if one is None else (one.start, one.end)
        (at,) = self.publish(1, hashes=hashes, chunk=(message, number, chunks))
        self.loop.settle()
        return at

    @property
    def dispatcher(self) -> EntryBucketDispatcher:
        assert isinstance(self.subscription.dispatcher, EntryBucketDispatcher)
        return self.subscription.dispatcher
