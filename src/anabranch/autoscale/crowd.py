"""The subscription whose ordered consumers need the most, and how many of them the segments serve. Pure.

A segment serves one consumer of a subscription, or as many as it has entry buckets where they can share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.autoscale.verdict import Observation, counted
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import Segment, SegmentId


@dataclass(frozen=True, slots=True)
class Crowd:
    """The subscription that has the most consumers beyond those that the segments serve."""

    subscription: str = ""
    consumers: int = 0
    served: int = 0
    # The segments that its consumers can share, with how many each serves.
    capacity: Mapping[SegmentId, int] = field(default_factory=dict)

    @staticmethod
    def of(seen: Observation) -> Crowd:
        found = Crowd(served=len(seen.layout.active))
        for name, consumers in sorted(seen.consumers.items()):
            capacity = seen.capacity.get(name, {})
            crowd = Crowd(name, consumers, served(seen.layout, capacity), capacity)
            if not found.subscription or crowd.beyond > found.beyond:
                found = crowd
        return found

    @property
    def beyond(self) -> int:
        return self.consumers - self.served

    @property
    def is_short(self) -> bool:
        return self.beyond > 0

    @property
    def can_share(self) -> bool:
        return bool(self.capacity)

    def __str__(self) -> str:
        return f"subscription {self.subscription!r} has {counted(self.consumers, 'consumer')}"


def served(layout: SegmentLayout, capacity: Mapping[SegmentId, int]) -> int:
    """How many consumers of a subscription the active segments serve."""
    if not capacity:
        return len(layout.active)
    return sum(capacity.get(segment.id, 1) for segment in layout.active)


def can_spare(seen: Observation, one: Segment, other: Segment) -> bool:
    """Whether every subscription's consumers are still served once those two segments are one."""
    segments = len(seen.layout.active) - 1
    for name, consumers in seen.consumers.items():
        capacity = seen.capacity.get(name, {})
        before = served(seen.layout, capacity) - capacity.get(one.id, 1) - capacity.get(other.id, 1)
        joined = 1
        if one.id in capacity and other.id in capacity:
            joined = seen.budget.merged(one.bucket_count, other.bucket_count, segments)
        if consumers > before + joined:
            return False
    return True
