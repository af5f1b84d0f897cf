"""Segments that were pruned from a topic's layout, for as long as the page shows them. Pure.

A sealed segment that is no longer needed is pruned, often within minutes, and its children lose the link to it. A
picture of the last hour needs both, so readers of layouts pass them to a `LayoutMemory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import Segment, SegmentId


@dataclass(slots=True)
class _Remembered:
    generation: int
    epoch: int = -1
    seen_ms: int = 0
    segments: dict[SegmentId, Segment] = field(default_factory=dict)


class LayoutImage(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of one topic, as it is written down."""

    generation: int
    epoch: int
    seen_ms: int
    segments: list[Segment]


class LayoutMemory:
    """Bounded by the changes of topics within `kept_ms`: a topic that never changed costs nothing."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._topics: dict[TopicName, _Remembered] = {}

    def __len__(self) -> int:
        """How many segments are remembered."""
        return sum(len(known.segments) for known in self._topics.values())

    @property
    def topics(self) -> list[TopicName]:
        """The topics of which segments are remembered."""
        return list(self._topics)

    def image(self) -> dict[str, LayoutImage]:
        """Everything that is remembered, to be written down."""
        return {
            str(topic): LayoutImage(
                known.generation, known.epoch, known.seen_ms, list(known.segments.values())
            )
            for topic, known in self._topics.items()
        }

    def restore(self, images: Mapping[str, LayoutImage]) -> None:
        for name, known in images.items():
            segments = {segment.id: segment for segment in known.segments}
            self._topics[TopicName.parse(name)] = _Remembered(
                known.generation, known.epoch, known.seen_ms, segments
            )

    def see(self, topic: TopicName, record: ScalableTopic, now_ms: int) -> None:
        """Records the present layout of the topic."""
        known = self._topics.get(topic)
        if known is None or known.generation != record.generation:
            self._topics.pop(topic, None)
            if not record.layout.sealed:
                return
            known = self._topics[topic] = _Remembered(record.generation)
        known.seen_ms = now_ms
        if known.epoch == record.layout.epoch:
            return
        known.epoch = record.layout.epoch
        for number, segment in record.layout.segments.items():
            known.segments[number] = _with_links(segment, known.segments.get(number))

    def segments(self, topic: TopicName, record: ScalableTopic, now_ms: int) -> list[Segment]:
        """Every segment of the topic, and those pruned within the time kept; by id."""
        self.see(topic, record, now_ms)
        known = self._topics.get(topic)
        if known is None:
            return list(record.layout.segments.values())
        return [
            segment
            for number, segment in sorted(known.segments.items())
            if number in record.layout.segments or segment.sealed_ms >= now_ms - self._kept_ms
        ]

    def remembered(self, topic: TopicName) -> tuple[int, list[Segment]]:
        """The generation of the topic that was seen last, and its segments, by id."""
        known = self._topics.get(topic)
        return (
            (-1, []) if known is None else (known.generation, [s for _, s in sorted(known.segments.items())])
        )

    def forget(self, now_ms: int) -> None:
        """Drops what is older than the time kept."""
        for topic, known in list(self._topics.items()):
            for number, segment in list(known.segments.items()):
                if segment.sealed_ms and segment.sealed_ms < now_ms - self._kept_ms:
                    del known.segments[number]
            if known.seen_ms < now_ms - self._kept_ms or all(s.is_active for s in known.segments.values()):
                del self._topics[topic]


def _with_links(segment: Segment, before: Segment | None) -> Segment:
    """The segment, with the relatives that it had before they were pruned."""
    if before is None:
        return segment
    return replace(
        segment,
        parents=_joined(before.parents, segment.parents),
        children=_joined(before.children, segment.children),
    )


def _joined(one: Iterable[SegmentId], other: Iterable[SegmentId]) -> tuple[SegmentId, ...]:
    return tuple(sorted({*one, *other}))
