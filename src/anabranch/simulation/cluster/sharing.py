"""Segments that consumers share by entry buckets, in a simulated cluster: how often what happened, and faults put in.

For the time of a run, parts of brokers and clients are replaced by ones that count, and that do wrong what the sabotage
says. Nothing else about them changes, but that a bucket is passed over after a few entries that wait instead of
thousands: no run has that many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field, fields
from typing import Any, Final

from anabranch.broker.dispatch import single
from anabranch.broker.dispatch.base import DispatchContext
from anabranch.broker.dispatch.bucket_queues import Bucket
from anabranch.broker.dispatch.bucket_scan import BucketScan
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.entry_buckets import BucketOwnership, EntryBucketDispatcher
from anabranch.broker.dispatch.every_bucket import Span
from anabranch.broker.dispatch.single import SingleActiveDispatcher
from anabranch.broker.dispatch.stamps import WantedHashes
from anabranch.broker.scalable.sessions import consumer_sessions
from anabranch.broker.state.bucket_dedup import BucketDeduplication
from anabranch.broker.state.dedup import WHOLE
from anabranch.broker.subscription import subscription
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic import stamps
from anabranch.client.producing.core.last_ids import LastIds
from anabranch.client.producing.segment import SegmentProducer
from anabranch.model.cut import MessagePosition, Place
from anabranch.model.keyhash import bucket_hash
from anabranch.model.position import Position
from anabranch.simulation.cluster.sabotage import Sabotage
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.stamps import stamp_of

# After so many entries that wait, a bucket is passed over.
ASIDE_MAX: Final = 3


@dataclass(slots=True)
class SharingFigures:
    """How often each of these happened, in all segments and subscriptions of a run."""

    shared: int = field(default=0, metadata={"is": "entries to sharers"})
    to_shared: int = field(default=0, metadata={"is": "segments that came to be shared"})
    to_sole: int = field(default=0, metadata={"is": "back to one reader"})
    moved: int = field(default=0, metadata={"is": "buckets handed over"})
    withheld: int = field(default=0, metadata={"is": "entries withheld for a holder"})
    barriers: int = field(default=0, metadata={"is": "entries of every bucket"})
    straddling: int = field(default=0, metadata={"is": "of some buckets"})
    lagging: int = field(default=0, metadata={"is": "buckets passed over"})

    def __add__(self, other: SharingFigures) -> SharingFigures:
        return SharingFigures(*(map(sum, zip(astuple(self), astuple(other), strict=True))))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name)} {one.metadata['is']}" for one in fields(self))


@dataclass(slots=True)
class GroupFigures:
    """The same for checkpoint groups."""

    divided: int = field(default=0, metadata={"is": "entries passed over for their buckets"})
    shared: int = field(default=0, metadata={"is": "checkpoints with positions of buckets"})
    again: int = field(default=0, metadata={"is": "messages that another member had"})
    merged: int = field(default=0, metadata={"is": "merged checkpoints"})

    def __add__(self, other: GroupFigures) -> GroupFigures:
        return GroupFigures(*(map(sum, zip(astuple(self), astuple(other), strict=True))))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name)} {one.metadata['is']}" for one in fields(self))


class _Ways:
    """In which way each segment was last read, by topic and subscription."""

    def __init__(self, figures: SharingFigures) -> None:
        self._figures = figures
        self._are_shared: dict[tuple[str, str], bool] = {}

    def joined(self, context: DispatchContext, *, is_shared: bool) -> None:
        one = (context.topic, context.subscription)
        before = self._are_shared.get(one)
        self._are_shared[one] = is_shared
        if before is not None and before is not is_shared:
            if is_shared:
                self._figures.to_shared += 1
            else:
                self._figures.to_sole += 1


class WatchedDispatcher(EntryBucketDispatcher):
    """Counts, and has the faults of the run. Each run has a subclass of its own."""

    figures: SharingFigures
    ways: _Ways
    sabotage: frozenset[Sabotage] = frozenset()

    def __init__(self, context: DispatchContext, ownership: BucketOwnership) -> None:
        super().__init__(context, ownership)
        # The consumer that was last sent something of each bucket.
        self._last: list[AttachedConsumer | None] = [None] * self.bucket_count
        if Sabotage.FORGET_LAG in self.sabotage:
            self._scan.__class__ = ForgetfulScan

    def rewind(self) -> None:
        super().rewind()
        if Sabotage.FORGET_LAG in self.sabotage:
            self._scan.__class__ = ForgetfulScan

    @property
    def _aside_max(self) -> int:
        return ASIDE_MAX

    def add(self, consumer: AttachedConsumer) -> None:
        super().add(consumer)
        self.ways.joined(self._ctx, is_shared=True)

    def _appoint(self) -> None:
        super()._appoint()
        if Sabotage.HAND_OVER_EARLY in self.sabotage:
            for bucket in self._queues.all:
                if bucket.owner is not bucket.holder:
                    bucket.holder, bucket.held = None, 0
            if len({bucket.owner for bucket in self._queues.all}) > 1:
                self._queues.every.holder, self._queues.every.held = None, 0

    def _span_of(self, metadata: pb.MessageMetadata) -> Span:
        stamp = stamp_of(metadata)
        if Sabotage.ROUTE_BY_MIN in self.sabotage:
            low = stamp[0] if stamp is not None else 0
        elif Sabotage.OUTER_KEY in self.sabotage and stamp is None:
            low = bucket_hash(metadata.partition_key.encode())
        else:
            return super()._span_of(metadata)
        metadata.entry_hash_min = metadata.entry_hash_max = low
        return super()._span_of(metadata)

    def _route(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        consumer = super()._route(at, metadata)
        if consumer is None:
            return None
        first, last = self._span_of(metadata)
        if len(self.consumers) > 1:
            self.figures.shared += 1
            self.figures.barriers += first < last and (first, last) == self._all
            self.figures.straddling += first < last and (first, last) != self._all
        for number in range(first, last + 1):
            before = self._last[number]
            self.figures.moved += before is not None and before is not consumer
            self._last[number] = consumer
        return consumer

    def _put_aside(self, at: Position, span: Span, metadata: pb.MessageMetadata) -> None:
        touched = self._queues.touched(span)
        owner = touched[0].owner
        if owner is not None and not all(bucket.is_free_for(owner) for bucket in touched):
            self.figures.withheld += 1
        before = sum(bucket.is_following for bucket in touched)
        super()._put_aside(at, span, metadata)
        self.figures.lagging += before - sum(bucket.is_following for bucket in touched)


class ForgetfulScan(BucketScan):
    """A bucket that was passed over goes on with what comes next."""

    def pass_over(self, bucket: Bucket, at: Position) -> None:
        bucket.since = self.at


def _up_to_the_highest(self: SegmentProducer, answer: pb.CommandProducerSuccess) -> LastIds:
    return LastIds(answer.last_sequence_id, whole=answer.last_sequence_id)


def _furthest(standing: Callable[..., Place]) -> Callable[..., Place]:
    def stand(self: Place, at: tuple[MessagePosition, ...], *rest: Any) -> Place:
        return standing(self, (max(at),), *rest)

    return stand


def _for_all(ack_one: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Acknowledgements of one sharer count for what the others have of earlier entries."""

    def ack(self: Any, consumer: AttachedConsumer, id: pb.MessageIdData) -> None:
        ack_one(self, consumer, id)
        if isinstance(self.dispatcher, WatchedDispatcher):
            at = (id.ledgerId, id.entryId)
            for other in self.dispatcher.consumers:
                for place in [place for place in other.pending if place < at]:
                    ack_one(self, other, pb.MessageIdData(ledgerId=place[0], entryId=place[1]))

    return ack


@contextmanager
def watched_sharing(
    figures: SharingFigures, groups: GroupFigures, sabotage: frozenset[Sabotage]
) -> Iterator[None]:
    """Within the block, everything about shared segments is counted, and sabotaged."""
    of_run = _Ways(figures)

    class OfRun(WatchedDispatcher):
        ways = of_run

    OfRun.figures, OfRun.sabotage = figures, sabotage

    class Sole(SingleActiveDispatcher):
        def add(self, consumer: AttachedConsumer) -> None:
            super().add(consumer)
            of_run.joined(self._ctx, is_shared=False)

    class Wanted(WantedHashes):
        def touch(self, metadata: pb.MessageMetadata) -> bool:
            is_wanted = super().touch(metadata)
            if Sabotage.FORGET_ALL_OTHERS in sabotage and stamp_of(metadata) is None:
                return False
            groups.divided += not is_wanted
            return is_wanted

    changed: list[tuple[Any, str, Any]] = [
        (single, "WantedHashes", Wanted),
        (subscription, "EntryBucketDispatcher", OfRun),
        (subscription, "SingleActiveDispatcher", Sole),
    ]
    if Sabotage.SHARE_UNKNOWING in sabotage:
        changed += [
            (consumer_sessions, "can_share", lambda version: True),
            (consumer_sessions.ConsumerSessions, "_sharing_refused", lambda self, consumer: None),
        ]
    if Sabotage.ONE_ID_FOR_ALL in sabotage:
        changed += [
            (stamps, "lane_of", lambda splits, metadata: WHOLE),
            (BucketDeduplication, "lane_of", lambda self, metadata: WHOLE),
        ]
    if Sabotage.FURTHEST_OF_ALL in sabotage:
        changed.append((Place, "standing", _furthest(Place.standing)))
    if Sabotage.SETTLE_UP_TO in sabotage:
        changed.append((SegmentProducer, "_last_ids", _up_to_the_highest))
    if Sabotage.ACK_FOR_OTHERS in sabotage:
        changed.append((Subscription, "_ack_one", _for_all(Subscription._ack_one)))
    with ExitStack() as undo:
        for part, name, value in changed:
            undo.enter_context(_set(part, name, value))
        yield


@contextmanager
def _set(part: Any, name: str, value: Any) -> Iterator[None]:
    is_own, was = name in vars(part), getattr(part, name)
    setattr(part, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(part, name, was)
        else:
            delattr(part, name)
