"""How Pulsar's V5 clients name their consumers on single segments: `{consumer}-seg-{segment}`."""

from __future__ import annotations

from typing import Final

from anabranch.model.segments import SegmentId

_MARK: Final = "-seg-"


def segment_consumer(consumer: str, segment: SegmentId) -> str:
    """The name of that consumer on one segment."""
    return f"{consumer}{_MARK}{segment}"


def consumer_and_segment(name: str) -> tuple[str, SegmentId] | None:
    """The consumer and the segment that a name on a segment is made of; None for any other name."""
    consumer, mark, number = name.rpartition(_MARK)
    if not mark or not (number.isascii() and number.isdecimal()):
        return None
    return consumer, SegmentId(int(number))


def is_segment_consumer(name: str) -> bool:
    """Whether a consumer is a V5 client's on one segment."""
    consumer, _, segment = name.rpartition(_MARK)
    return bool(consumer) and segment.isdecimal()
