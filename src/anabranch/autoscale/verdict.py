"""The facts that a decision about a scalable topic is made from, and its possible results: plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from anabranch.autoscale.load import LoadReport
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId

Rule = Literal["consumers", "load"]
BucketRule = Literal["consumers", "idle"]

# The caps whose suppressions are counted.
MAX_SEGMENTS: Final = "max_segments"
MAX_DEPTH: Final = "max_depth"
NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Observation:
    """One topic as its leader sees it, at one moment of the store's time."""

    layout: SegmentLayout
    # Only records of segments that have an owner: an old record that no broker updates is no evidence.
    load: Mapping[SegmentId, LoadReport]
    # Consumers by subscription, STREAM and CHECKPOINT only. A consumer within its grace period counts.
    consumers: Mapping[str, int]
    now_ms: int
    # By subscription, the segments that its consumers can share, each with how many it serves: one for each entry
    # bucket. Every other segment serves one consumer, as where entries are not stamped with their buckets, and every
    # segment does if a member of the group knows no buckets.
    capacity: Mapping[str, Mapping[SegmentId, int]] = field(default_factory=dict)
    # What new segments get, and the most that one may have.
    budget: BucketBudget = ONE_BUCKET
    # When an ordered consumer last left for good, as far as the leader knows: not before it began to lead.
    last_left_ms: int = 0


class NoSplit(StrEnum):
    """Why there was no split, as a label for counters."""

    OFF = "off"
    NOT_NEEDED = "not_needed"
    ONE_HASH = "one_hash"  # Every segment that should split covers a single hash.
    HOT_KEY = "hot_key"  # The segment's splits divided nothing; each wait is longer.
    COOLDOWN = "cooldown"
    MAX_SEGMENTS = "max_segments"
    NOT_WORTH = "not_worth"  # Consumers need more room, but a split would be merged back.


class NoMerge(StrEnum):
    """Why there was no merge, as a label for counters. Among several pairs, the one that came closest gives the
    reason."""

    OFF = "off"
    NOT_ASKED = "not_asked"
    MIN_SEGMENTS = "min_segments"
    CONSUMERS = "consumers"
    NO_RECORD = "no_record"
    WARM = "warm"
    WARM_TOGETHER = "warm_together"  # Each is cold, but together they would be over a split limit.
    WINDOW = "window"
    COOLDOWN = "cooldown"
    MAX_DEPTH = "max_depth"


class NoRebucket(StrEnum):
    """Why no segment got another number of entry buckets, as a label for counters."""

    OFF = "off"
    NOT_NEEDED = "not_needed"
    NOT_SHARED = "not_shared"  # Consumers lack room, and no segment can be shared by them.
    MAX_BUCKETS = "max_buckets"
    COOLDOWN = "cooldown"
    CONSUMERS = "consumers"  # Buckets beyond the topic's share are needed.
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class Split:
    segment: SegmentId
    rule: Rule
    because: str
    # The value that `SegmentLayout.split` stores on the children.
    lopsided: int = 0


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of two neighbours; `one` has the lower range."""

    one: SegmentId
    other: SegmentId
    because: str
    # The cap may have stopped a split that was due; the merge even makes room for it.
    suppressed: frozenset[str] = NOTHING


@dataclass(frozen=True, slots=True)
class Rebucket:
    """A segment is replaced by one of the same range with that number of entry buckets."""

    segment: SegmentId
    buckets: int
    rule: BucketRule
    because: str
    suppressed: frozenset[str] = NOTHING


@dataclass(frozen=True, slots=True)
class Stay:
    because: str
    # The caps, among `MAX_SEGMENTS` and `MAX_DEPTH`, that alone stopped an action that was otherwise due.
    suppressed: frozenset[str] = NOTHING
    # Until this moment of the store's time the same facts lead to no action and suppress nothing else; None is for
    # ever.
    look_again_ms: int | None = None
    no_split: NoSplit = NoSplit.NOT_NEEDED
    no_merge: NoMerge = NoMerge.NOT_ASKED
    no_rebucket: NoRebucket = NoRebucket.NOT_NEEDED


Reshape = Split | Merge | Rebucket
Verdict = Reshape | Stay


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000  # The end of the year 9999.


def moment(ms: int) -> str:
    """A moment of the store's time as people read it."""
    if not 0 <= ms <= _LAST_MS:
        return "the end of time"  # A cooldown may be set that long.
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S} UTC"


def span(ms: int) -> str:
    """A length of time as people read it: `5 min`, `90 s`, `24 h`."""
    for size, unit in ((3_600_000, "h"), (60_000, "min")):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms / 1000:g} s"


def counted(number: int, what: str) -> str:
    """`1 segment`, `3 segments`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def percent(share: float) -> str:
    """`120 %`; a share above zero is never rounded to zero."""
    return "under 1 %" if 0 < share < 0.01 else f"{100 * share:,.0f} %"
