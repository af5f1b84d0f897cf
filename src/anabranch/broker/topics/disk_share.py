"""Trims the oldest entries that only the default retention keeps, while the log takes more than its share of the disk.

Entries under a retention policy are kept, whatever space they take, and so are entries that a subscription has not
acknowledged. Topics are trimmed by age: all drop what is older than a moment, then than a later one, until enough is
free. Each step is a small fraction of the time from the oldest remaining message until now, so that the dropped entries
are the oldest of all topics to within that fraction, at the cost of a search in each topic that has entries so old. The
fraction is of the remaining time, since ages are by producers' clocks: one message of 1970 must not make a step a year.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.open_topics import TOPICS_PER_TURN, OpenTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

# Steps in the time from the oldest remaining message until now.
STEPS: Final = 50
STEP_MIN_MS: Final = 100


class DiskShare:
    def __init__(self, services: TopicServices, open_topics: OpenTopics) -> None:
        self._services = services
        self._open_topics = open_topics

    def excess_bytes(self) -> int:
        """How many bytes the messages take beyond their share; negative while there is room."""
        capacity = self._services.log_store.capacity_bytes
        if capacity is None:
            return 0
        taken = self._services.log_store.stats()["live_bytes"]
        return int(taken - capacity * self._services.config().log_retained_disk_share)

    async def give_back(self) -> None:
        excess = self.excess_bytes()
        if excess <= 0:
            return
        await self._open_all()
        ages = await self._ages()
        if not ages:
            return
        now_ms = self._services.now_ms()
        given = 0
        while given < excess and ages and (first_ms := min(ages.values())) <= now_ms:
            before_ms = first_ms + max(STEP_MIN_MS, (now_ms - first_ms) // STEPS)
            old = [one for one, oldest_ms in ages.items() if oldest_ms < before_ms]
            for topic in sorted(old, key=ages.__getitem__):
                if given >= excess:
                    break
                given += await self._give_back(topic, before_ms)
                oldest_ms = await self._age(topic)
                if oldest_ms is None:
                    del ages[topic]
                else:
                    # Regardless of its first message's publish time: the topic has been searched for messages older
                    # than that moment.
                    ages[topic] = max(oldest_ms, before_ms)
        if given:
            log.info(
                "the log took %d bytes more than its share of the disk (logRetainedDiskShare): deleted %d bytes of the "
                "oldest messages that only the default retention kept",
                excess,
                given,
            )

    async def _ages(self) -> dict[Topic, int]:
        """The publish time of the oldest message, for each topic that has something to trim."""
        found: dict[Topic, int] = {}
        async for topics in self._open_topics.in_turns():
            for topic in topics:
                if (oldest_ms := await self._age(topic)) is not None:
                    found[topic] = oldest_ms
        return found

    async def _age(self, topic: Topic) -> int | None:
        upkeep = topic.upkeep
        if topic.is_closed or not upkeep.is_retained_by_default or upkeep.consumed <= topic.log.kept_first:
            return None
        try:
            oldest_ms = await upkeep.oldest.ms(topic.log)
        except (AnabranchError, OSError) as error:
            log.warning("%s: reading the oldest message failed: %s", topic.name, error)
            return None
        if oldest_ms is None or oldest_ms > self._services.now_ms():
            # The message has no publish time, or an impossible one: it was published after its ledger was begun.
            return topic.log.topic_record.ledgers[0].created_ms
        return oldest_ms

    async def _give_back(self, topic: Topic, before_ms: int) -> int:
        try:
            return await topic.upkeep.give_back(before_ms)
        except (AnabranchError, OSError):
            if not topic.is_closed:
                log.exception("%s: deleting retained messages failed", topic.name)
            return 0

    async def _open_all(self) -> None:
        """Opens all topics: the oldest messages may lie in topics that no client has used since the broker started."""
        for number, (path, _) in enumerate(await self._services.metadata.scan(MANAGED_LEDGERS)):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            name = TopicName.from_storage_path(path.removeprefix(f"{MANAGED_LEDGERS}/"))
            if not self._open_topics.is_opening(name):
                try:
                    await self._open_topics.topic(name)
                except AnabranchError as error:
                    log.info(
                        "%s: opening failed, so none of its retained messages are deleted: %s", name, error
                    )
