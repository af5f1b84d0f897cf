"""Storage of segments that nobody will ever ask for again, found when a broker starts.

A topic's deletion may have been cut short, or have met an owner that could not be reached; an owner may have made a
segment for a leader that was deposed meanwhile. What no topic's record names, or names for another generation, is
deleted here, by the same checks as at a controller's wish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from anabranch.broker.resources import MANAGED_LEDGERS
from anabranch.broker.scalable.records import generation_of, segment_named
from anabranch.errors import AnabranchError
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import TOPICS, BadRecord, ScalableTopic, topic_path
from anabranch.model.segments import Segment, segment_of
from anabranch.storage.topic_record import TopicRecord

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

log = logging.getLogger(__name__)

_JUDGED_PER_TURN: Final = 100


async def sweep_leftovers(broker: Broker, logs: Mapping[str, TopicRecord]) -> None:
    """`logs` are the log records of all topics by their paths, read before this is called."""
    segments = {
        TopicName.from_storage_path(path.removeprefix(MANAGED_LEDGERS + "/")): record
        for path, record in logs.items()
        if path.split("/")[4] == Domain.SEGMENT.value
    }
    if not segments:
        return
    # Read after the logs: a topic's record is stored before its first segment is.
    stored = {path: found.value for path, found in await broker.metadata.scan(TOPICS)}
    topics: dict[str, ScalableTopic | None] = {}
    for number, (name, record) in enumerate(segments.items()):
        if number % _JUDGED_PER_TURN == 0:
            await asyncio.sleep(0)
        path = topic_path(name)
        try:
            if path not in topics:
                value = stored.get(path)
                topics[path] = None if value is None else ScalableTopic.decode(value)
            if broker.owners.is_mine(name) and _is_leftover(topics[path], name, record):
                await _remove(broker, name)
        except BadRecord as error:
            log.error("%s: %s", path, error)


def _is_leftover(topic: ScalableTopic | None, name: TopicName, record: TopicRecord) -> bool:
    if topic is None or generation_of(record.properties) != topic.generation:
        return True
    return segment_named(topic, name) is None and topic.may_delete(segment_of(name)[2])


async def _remove(broker: Broker, name: TopicName) -> None:
    topic, span, number = segment_of(name)
    try:
        await broker.segment_owner.delete(topic, Segment(number, span))
        log.info("%s was left behind by a deleted topic and is removed", name)
    except AnabranchError as error:
        log.info("%s seems left behind, and was not removed: %s", name, error)
