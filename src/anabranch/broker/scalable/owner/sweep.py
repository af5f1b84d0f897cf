"""Storage of segments that no topic refers to any more, found when a broker starts.

The deletion of a topic may have been interrupted, or an owner may have been unreachable; an owner may have created a
segment for a leader that was deposed meanwhile. A log that no topic's record names, or that the record names for
another generation, is deleted here, with the same checks as on a controller's request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from anabranch.broker.catalog.owners import Owners
from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.broker.catalog.segment_records import generation_of, segment_by_topic
from anabranch.controller.ports import Segments
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import TOPICS, BadRecord, ScalableTopic, topic_path
from anabranch.model.segments import Segment, segment_of
from anabranch.storage.core.topic_record import TopicRecord

log = logging.getLogger(__name__)

_JUDGED_PER_TURN: Final = 100


async def sweep_leftovers(
    metadata: MetadataStore, owners: Owners, owned: Segments, logs: Mapping[str, TopicRecord]
) -> None:
    """`owned` serves the segments of this broker; `logs` are the log records of all topics by their paths, read before
    this call."""
    segments = {
        TopicName.from_storage_path(path.removeprefix(MANAGED_LEDGERS + "/")): record
        for path, record in logs.items()
        if path.split("/")[4] == Domain.SEGMENT.value
    }
    if not segments:
        return
    # Read after the logs: a topic's record is stored before its first segment is.
    stored = {path: found.value for path, found in await metadata.scan(TOPICS)}
    topics: dict[str, ScalableTopic | None] = {}
    for number, (name, record) in enumerate(segments.items()):
        if number % _JUDGED_PER_TURN == 0:
            await asyncio.sleep(0)
        path = topic_path(name)
        try:
            if path not in topics:
                value = stored.get(path)
                topics[path] = None if value is None else ScalableTopic.decode(value)
            if _is_leftover(topics[path], name, record) and await _is_mine(owners, name):
                await _remove(owned, name)
        except BadRecord as error:
            log.error("record %s is unreadable: %s", path, error)


async def _is_mine(owners: Owners, name: TopicName) -> bool:
    """Waits for an owner: at the start of a cluster bundles may have none yet."""
    try:
        await owners.resolve(name)
    except AnabranchError:
        return False
    return owners.is_mine(name)


def _is_leftover(topic: ScalableTopic | None, name: TopicName, record: TopicRecord) -> bool:
    if topic is None or generation_of(record.properties) != topic.generation:
        return True
    return segment_by_topic(topic, name) is None and topic.may_delete(segment_of(name)[2])


async def _remove(owned: Segments, name: TopicName) -> None:
    topic, span, number = segment_of(name)
    try:
        await owned.delete(topic, Segment(number, span))
        log.info("removed %s, a leftover of a deleted topic", name)
    except AnabranchError as error:
        log.info("removing %s, a leftover of a deleted topic, failed: %s", name, error)
