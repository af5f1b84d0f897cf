"""Gives back the oldest of what only the default retention keeps, while the log takes more than its share of the disk.

A retention that somebody has set is kept, whatever it takes, and so is everything that a subscription has yet to
acknowledge. Topics are gone through by age: all give up what is older than a moment, then than a later one, until
enough is free. Each step is a small part of the time from the oldest message that is left until now, so that what is
given up is the oldest of all topics to within that part, at the cost of a search in each topic that has something so
old. The part is of what is left, since ages are by producers' clocks: one message of 1970 must not make a step a year.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from anabranch.broker.open_topics import TOPICS_PER_TURN
from anabranch.broker.resources import MANAGED_LEDGERS
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)

# Of the time from the oldest message that is left until now.
STEPS: Final = 50
STEP_MIN_MS: Final = 100


class DiskShare:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def excess_bytes(self) -> int:
        """How much more messages take than they are to; below zero while there is room."""
        capacity = self._broker.log.capacity_bytes
        if capacity is None:
            return 0
        taken = self._broker.log.stats()["live_bytes"]
        return int(taken - capacity * self._broker.config.log_retained_disk_share)

    async def give_back(self) -> None:
        excess = self.excess_bytes()
        if excess <= 0:
            return
        await self._open_all()
        ages = await self._ages()
        if not ages:
            return
        now_ms = self._broker.now_ms()
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
                    # Whatever its first message says: what is older than that moment has been looked for.
                    ages[topic] = max(oldest_ms, before_ms)
        if given:
            log.info(
                "the log took %d bytes more than its share of the disk (logRetainedDiskShare): %d bytes of the oldest "
                "messages that only the default retention kept were given back",
                excess,
                given,
            )

    async def _ages(self) -> dict[Topic, int]:
        """When the oldest message was published, of each topic that has something to give back."""
        found: dict[Topic, int] = {}
        async for topics in self._broker.open_topics.in_turns():
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
            log.warning("%s: its oldest message cannot be read: %s", topic.name, error)
            return None
        if oldest_ms is None or oldest_ms > self._broker.now_ms():
            # It says nothing, or something that is not so: it came after its ledger was begun.
            return topic.log.topic_record.ledgers[0].created_ms
        return oldest_ms

    async def _give_back(self, topic: Topic, before_ms: int) -> int:
        try:
            return await topic.upkeep.give_back(before_ms)
        except (AnabranchError, OSError):
            if not topic.is_closed:
                log.exception("giving back what %s retains failed", topic.name)
            return 0

    async def _open_all(self) -> None:
        """The oldest messages may well lie in topics that nobody has used since the broker started."""
        broker = self._broker
        for number, (path, _) in enumerate(await broker.metadata.scan(MANAGED_LEDGERS)):
            if not number % TOPICS_PER_TURN:
                await asyncio.sleep(0)
            name = TopicName.from_storage_path(path.removeprefix(f"{MANAGED_LEDGERS}/"))
            if not broker.open_topics.is_opening(name):
                try:
                    await broker.topic(name)
                except AnabranchError as error:
                    log.info("%s was not opened, and gives nothing back: %s", name, error)
