"""Which consumers may share a segment by its entry buckets (PIP-486). Pure."""

from __future__ import annotations

from anabranch.broker.errors import ConsumerAssignError, NotAllowedError
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb


def asks_to_share(request: pb.CommandSubscribe) -> bool:
    """Whether the consumer asks for a share of the buckets. Consumers of other types are not concerned by the flag."""
    return request.subType == pb.CommandSubscribe.Key_Shared and request.keySharedMeta.entryBucketDispatch


def check_topic(name: TopicName, request: pb.CommandSubscribe) -> None:
    """Raises unless consumers can share that topic by entry buckets, as this one asks to."""
    if name.domain is not Domain.SEGMENT:
        raise NotAllowedError(f"{name} is not a segment of a scalable topic: it has no entry buckets")
    if not request.durable:
        raise NotAllowedError("only consumers of a durable subscription can share a segment by entry buckets")
    if request.read_compacted:
        raise NotAllowedError(f"{name} is a segment of a scalable topic, which is not compacted")


def check_declared(request: pb.CommandSubscribe, splits: Splits) -> None:
    """Raises ConsumerAssignError unless the consumer names the bounds of all buckets, as every sharer does."""
    meta = request.keySharedMeta
    if meta.keySharedMode != pb.STICKY:
        raise ConsumerAssignError("consumers that share by entry buckets must declare them, with mode STICKY")
    wanted, declared = buckets.ranges(splits), meta.hashRanges
    # A frame has room for a million of them: they are counted before they are read.
    if len(declared) != len(wanted) or any(
        (one.start, one.end) != (other.start, other.end) for one, other in zip(declared, wanted, strict=True)
    ):
        listed = ", ".join(str(one) for one in wanted[:8]) + (", ..." if len(wanted) > 8 else "")
        raise ConsumerAssignError(
            f"the declared ranges are not the {len(wanted)} entry buckets of the segment: {listed}"
        )
