"""Finds the topics that need a leader although no client asks for them, when a broker starts or gains topics.

A lost leader is succeeded by a broker that has a controller of the topic. If there was no other, as when a single
broker is restarted, a split or a deletion would stay half done until the topic is next used, which a topic being
deleted never is, and sealed segments would be kept for as long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    TOPICS,
    BadRecord,
    ScalableTopic,
    controller_path,
    topic_of_path,
    topic_path,
)

log = logging.getLogger(__name__)

# Records read in one turn of the loop: some ten milliseconds, whatever the number of topics.
RECORDS_PER_TURN: Final = 500


async def unfinished(
    metadata: MetadataStore, below: str = TOPICS, *, led_too: bool = False
) -> list[TopicName]:
    """The topics with unfinished work, and those that have sealed segments to collect and, unless `led_too`, no leader.

    The former are included even if they seem to have a leader: it may be lost already, and then any broker that has a
    controller is notified.
    """
    stored = {path: node.value for path, node in await metadata.scan(below)}
    found = []
    for count, (path, value) in enumerate(stored.items(), 1):
        if count % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
        topic = topic_of_path(path)
        if topic is None or path != topic_path(topic) or not value:
            continue
        try:
            record = ScalableTopic.decode(value)
        except BadRecord as error:
            log.error("record %s is unreadable: %s", path, error)
            continue
        is_led = controller_path(topic) in stored and not led_too
        if record.plan is not None or record.is_deleting or (record.layout.sealed and not is_led):
            found.append(topic)
    return found
