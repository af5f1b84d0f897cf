"""Hash ranges and segments: the pieces a scalable topic's layout is made of. Pure.

A segment owns an inclusive range of the 16-bit hash space and, within a layout, knows the segments it came from and
those it became. Segments are values: sealing one, or cutting a pruned relative out of its links, gives a new one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NewType

from anabranch.errors import AnabranchError
from anabranch.model.names import Domain, InvalidName, TopicName

SegmentId = NewType("SegmentId", int)

HASH_MAX: Final = 0xFFFF
# How many merges of its past a segment remembers. Decisions count those within a window, up to a small limit.
MERGE_TIMES_MAX: Final = 64

_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})")


class LayoutRefused(AnabranchError):
    """The layout does not allow that split, merge or prune; the message says why and what would be allowed."""

    code = 22  # NotAllowedError


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """`start` to `end`, both inclusive."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= HASH_MAX:
            raise InvalidName(f"[{self.start}, {self.end}] is not a range within 0..{HASH_MAX}")

    def __contains__(self, value: int) -> bool:
        return self.start <= value <= self.end

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    def overlaps(self, other: HashRange) -> bool:
        return self.start <= other.end and other.start <= self.end

    def is_adjacent_to(self, other: HashRange) -> bool:
        return self.end + 1 == other.start or other.end + 1 == self.start

    def halves(self) -> tuple[HashRange, HashRange]:
        if self.start == self.end:
            raise LayoutRefused(f"the range {self} holds one hash and cannot be split")
        middle = (self.start + self.end) // 2
        return HashRange(self.start, middle), HashRange(middle + 1, self.end)

    def joined(self, other: HashRange) -> HashRange:
        assert self.is_adjacent_to(other)
        return HashRange(min(self.start, other.start), max(self.end, other.end))

    def common(self, other: HashRange) -> HashRange:
        """The part that both have; they must overlap."""
        return HashRange(max(self.start, other.start), min(self.end, other.end))

    @staticmethod
    def even(count: int) -> list[HashRange]:
        """The whole space in `count` ranges of equal width; the last takes the remainder."""
        if not 1 <= count <= HASH_MAX + 1:
            raise LayoutRefused(f"{count} segments: the hash space can be cut into 1 to {HASH_MAX + 1}")
        width = (HASH_MAX + 1) // count
        return [
            HashRange(n * width, HASH_MAX if n == count - 1 else (n + 1) * width - 1) for n in range(count)
        ]


WHOLE: Final = HashRange(0, HASH_MAX)


class SegmentState(StrEnum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment, as of one layout."""

    id: SegmentId
    range: HashRange
    parents: tuple[SegmentId, ...] = ()
    children: tuple[SegmentId, ...] = ()
    created_epoch: int = 0
    sealed_epoch: int = 0  # 0 while active: sealing raises the epoch, so no segment is sealed at 0.
    created_ms: int = 0
    sealed_ms: int = 0
    # Times of the merges along the longest chain of its past, latest last. Stored, because pruning cuts the links from
    # which it could be derived.
    merged_ms: tuple[int, ...] = ()
    # The classic topic that this segment stands for, if the topic was migrated from one; else the segment has a log of
    # its own.
    classic_topic: str = ""
    # The starts of its entry buckets but the first, on the ring of keys' low halves; fixed for its life. See `buckets`.
    bucket_splits: tuple[int, ...] = ()
    # How many splits in a row, up to its own parent's, left one child with nearly all the load: a hot key, which no
    # split can divide. Each of them doubles the wait before the next.
    lopsided: int = 0
    # Marked for deletion: its storage may be removed at any moment, and then the segment is pruned.
    is_deleting: bool = False
    # Then: one past its last entry, as (ledger, entry); (0, 0) if it never had one, None if unknown.
    end: tuple[int, int] | None = None

    @property
    def state(self) -> SegmentState:
        return SegmentState.SEALED if self.sealed_epoch else SegmentState.ACTIVE

    @property
    def is_active(self) -> bool:
        return not self.sealed_epoch

    @property
    def is_sealed(self) -> bool:
        return bool(self.sealed_epoch)

    @property
    def bucket_count(self) -> int:
        return len(self.bucket_splits) + 1

    @property
    def descriptor(self) -> str:
        return f"{self.range}-{self.id}"

    def sealed(self, epoch: int, now_ms: int, children: tuple[SegmentId, ...]) -> Segment:
        # The children keep the times of merges: a topic remembers many sealed segments in one record.
        return replace(self, sealed_epoch=epoch, sealed_ms=now_ms, children=children, merged_ms=())

    def without_relative(self, gone: SegmentId) -> Segment:
        if gone not in self.parents and gone not in self.children:
            return self
        return replace(
            self,
            parents=tuple(p for p in self.parents if p != gone),
            children=tuple(c for c in self.children if c != gone),
        )

    def topic(self, parent: TopicName) -> TopicName:
        """The topic that holds its messages: `segment://…`, or the classic topic it stands for."""
        if self.classic_topic:
            return TopicName.parse(self.classic_topic)
        return TopicName(Domain.SEGMENT, parent.namespace, parent.local, self.descriptor)


def parse_descriptor(text: str) -> tuple[HashRange, SegmentId]:
    """`0000-7fff-1` as (range, id); InvalidName for anything that `Segment.descriptor` would not print."""
    match = _DESCRIPTOR.fullmatch(text)
    if match is None:
        raise InvalidName(f"{text!r} is not of the form 0000-7fff-1: hex start, hex end, segment id")
    return HashRange(int(match[1], 16), int(match[2], 16)), SegmentId(int(match[3]))


def segment_of(topic: TopicName) -> tuple[TopicName, HashRange, SegmentId]:
    """The scalable topic that a `segment://` topic is part of, its range and its id."""
    if topic.domain is not Domain.SEGMENT:
        raise InvalidName(f"{topic} is not a segment://")
    span, number = parse_descriptor(topic.segment)
    return TopicName(Domain.TOPIC, topic.namespace, topic.local), span, number


def spoken_name(topic: TopicName) -> str:
    """The name for an error's text. Users know their topics, not the `segment://` names of the parts."""
    if topic.domain is not Domain.SEGMENT:
        return str(topic)
    whole, _, number = segment_of(topic)
    return f"segment {number} of {whole}"
