"""What a segment's owner reads in the record of the topic it is part of. Pure.

A segment's own log record carries the generation of the topic it was made for. Storage with another generation, or of
a segment that no layout or plan names, is a leftover: nobody opens it, and whoever makes the segment anew clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic, id_of_generation
from anabranch.model.segments import Segment, SegmentId, segment_of
from anabranch.storage.topic_record import TopicRecord

GENERATION: Final = "anabranch.generation"


def generation_of(properties: Mapping[str, str]) -> int:
    """The generation that a segment's log was made for, from its record's properties; -1 if it names none."""
    text = properties.get(GENERATION, "")
    return int(text) if text.isdecimal() else -1


def topic_id_of(record: TopicRecord) -> str:
    """The id of the topic that this log is, or is a part of; "" if it is older than ids are."""
    return record.topic_id or id_of_generation(generation_of(record.properties))


def named_segment(record: ScalableTopic, number: SegmentId) -> Segment | None:
    """The segment as the plan has it if one is pending, else as the layout has it; None if neither names it."""
    if record.plan is not None and (planned := record.plan.result.segments.get(number)) is not None:
        return planned
    return record.layout.segments.get(number)


def segment_named(record: ScalableTopic, name: TopicName) -> Segment | None:
    """The segment that this topic holds the messages of, `segment://` or classic; None if it holds none's."""
    if name.domain is Domain.SEGMENT:
        _, span, number = segment_of(name)
        found = named_segment(record, number)
        return found if found is not None and found.range == span and not found.legacy_topic else None
    layout = record.layout if record.plan is None else record.plan.result
    return next((s for s in layout.segments.values() if s.legacy_topic == str(name)), None)
