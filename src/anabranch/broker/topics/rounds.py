"""Periodic work on all open topics: quotas, retention, compaction, rates. One topic's failure affects no other."""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.broker.runtime.background import Work
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.disk_share import DiskShare
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import VersionConflict
from anabranch.model.histogram import Histogram

log = logging.getLogger(__name__)

# Pulsar's buckets for this figure, in seconds.
QUOTA_CHECK_BOUNDS_S = (5, 10, 30, 60, 300)


class TopicRounds:
    def __init__(self, open_topics: OpenTopics, disk_share: DiskShare, clock: Callable[[], float]) -> None:
        self._open_topics = open_topics
        self._disk_share = disk_share
        self._clock = clock
        self.quota_check_times = Histogram(QUOTA_CHECK_BOUNDS_S)

    async def check_quotas(self) -> None:
        """Checks the backlog of each open topic, and applies its quotas."""
        started = self._clock()
        async for topics in self._open_topics.in_turns():
            for topic in topics:
                await self._guarded(topic, topic.quotas.check)
        self.quota_check_times.observe(self._clock() - started)

    async def maintain(self) -> None:
        async for topics in self._open_topics.in_turns():
            for topic in topics:
                if not topic.log_is_empty:
                    await self._guarded(topic, topic.maintain_by_and_by)
        await self._disk_share.give_back()

    async def check_compaction(self) -> None:
        async for topics in self._open_topics.in_turns():
            for topic in topics:
                topic.upkeep.check_compaction()

    async def update_rates(self, seconds: float) -> None:
        """`seconds`: the time since the last round."""
        async for topics in self._open_topics.in_turns():
            for topic in topics:
                try:
                    topic.update_rates(seconds)
                except Exception:  # A failure of one topic must not stop the rates of those behind it.
                    log.exception("%s: updating rates failed", topic.name)

    async def _guarded(self, topic: Topic, work: Callable[[], Work]) -> None:
        """Runs the upkeep of one topic: its failure does not affect other topics."""
        try:
            await work()
        except VersionConflict:
            # Another broker changed the record: the topic is owned by that broker now.
            await self._open_topics.close_if_taken(topic)
        except (AnabranchError, OSError):
            # A topic that was closed or deleted meanwhile needs no upkeep any more.
            if not topic.is_closed:
                log.exception("%s: upkeep failed, trying again at the next round", topic.name)
