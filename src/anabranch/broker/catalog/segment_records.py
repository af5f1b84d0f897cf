"""What a segment's owner reads from the record of the segment's topic. Pure.

A segment's own log record carries the generation of the topic it was created for. Storage with another generation, or
of a segment that no layout or plan names, is a leftover: no broker opens it, and creating the segment again clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic, id_of_generation
from anabranch.model.segments import Segment, SegmentId, segment_of
from anabranch.storage.core.topic_record import TopicRecord

GENERATION: Final = "anabranch.generation"


def generation_of(properties: Mapping[str, str]) -> int:
    """The generation that a segment's log was created for, from its record's properties; -1 if it names none."""
    text = properties.get(GENERATION, "")
    return int(text) if text.isdecimal() else -1


def topic_id_of(record: TopicRecord) -> str:
    """The id of the topic that this log is, or is a part of; "" if it is older than topic ids."""
    return record.topic_id or id_of_generation(generation_of(record.properties))


def segment_by_id(record: ScalableTopic, number: SegmentId) -> Segment | None:
    """The segment of the pending plan if there is one, else of the layout; None if neither names it."""
    if record.plan is not None and (planned := record.plan.result.segments.get(number)) is not None:
        return planned
    return record.layout.segments.get(number)


def segment_by_topic(record: ScalableTopic, name: TopicName) -> Segment | None:
    """The segment whose messages this topic holds, `segment://` or classic; None if there is none."""
    if name.domain is Domain.SEGMENT:
        _, span, number = segment_of(name)
        found = segment_by_id(record, number)
        return found if found is not None and found.range == span and not found.classic_topic else None
    layout = record.layout if record.plan is None else record.plan.result
    return next((s for s in layout.segments.values() if s.classic_topic == str(name)), None)
