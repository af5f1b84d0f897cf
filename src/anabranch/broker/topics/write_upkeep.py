"""A broker's own work on hidden writes: carry out decisions, drop attempts that no job finishes, forget old records.

The job that decides notifies the winners' topics. Losers may have written to other topics, and the job may have died
before it notified; so owners follow the records themselves, and check again from time to time in case they have missed
something.

A record is forgotten when it is old and every topic it names has carried it out: each owner strikes off its own topics,
and the last one removes the record. The last batch of a stream is remembered for longer: a stream that died after the
record of a batch was stored, and before it noted that itself, runs the batch again whenever it is started. Losing
attempts are dropped without a record too, as attempts that no job finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from typing import Final

from anabranch.broker.catalog.owners import Owners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.hidden_writes.records import HIDDEN_WRITES, WriteRecords
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

SWEEP_S: Final = 3600.0
# How many times longer the last batch of a stream is remembered than others: a year instead of a week.
LAST_KEPT_TIMES: Final = 52


class WriteUpkeep:
    def __init__(
        self,
        open_topics: OpenTopics,
        records: WriteRecords,
        metadata: MetadataStore,
        owners: Owners,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._open_topics = open_topics
        self._records = records
        self._metadata = metadata
        self._owners = owners
        self._config = config

    async def follow(self) -> None:
        """Carries out decisions as they are stored, for as long as the broker runs."""
        with self._metadata.watch(HIDDEN_WRITES) as watch:
            async for changes in watch:
                # Methods of their own: the locals of this one would keep the last topics until the next change.
                if changes.everything:
                    await self.look()
                else:
                    await self._look_at(changes.paths)

    async def _look_at(self, paths: Container[str]) -> None:
        """Carries out the decisions in the records at those paths."""
        waiting: dict[WriteBatch, list[Topic]] = {}
        for topic in self._hiding():
            for batch in topic.hidden.entries.open_batches:
                if self._records.path(batch) in paths:
                    waiting.setdefault(batch, []).append(topic)
        for batch, topics in waiting.items():
            await self._settle(batch, topics)

    async def _settle(self, batch: WriteBatch, topics: Iterable[Topic]) -> None:
        """Carries the record out in these topics. A record also changes with each topic attached to it: such changes
        are ignored."""
        record = await self._records.get(batch)
        if record is not None and record.settles_something:
            for topic in topics:
                await topic.hidden.look()

    async def look(self) -> None:
        for topic in self._hiding():
            await topic.hidden.look()

    def _hiding(self) -> Iterable[Topic]:
        return [t for t in self._open_topics.all().values() if t.hidden.has_attempts and not t.is_closed]

    # -- forgetting

    async def sweep(self) -> None:
        now_ms = await self._metadata.now_ms()
        kept_ms = self._config().hidden_writes_retention_seconds * 1000
        await self._records.sweep_parts(now_ms - kept_ms)
        for write in await self._records.writes():
            batches = [batch async for batch in self._records.batches(write)]
            for batch in batches:
                # A stream runs only its last batch again, possibly when it is started after a long time.
                is_streams_last = batch.batch > 0 and batch == batches[-1]
                before_ms = now_ms - kept_ms * (LAST_KEPT_TIMES if is_streams_last else 1)
                # Batches of a write are numbered by age: those after one that is kept are newer.
                if not await self._forget(batch, before_ms):
                    break

    async def _forget(self, batch: WriteBatch, before_ms: int) -> bool:
        """Forgets the record if every topic has carried it out; False if the record is to be kept."""
        expired = await self._records.expired(batch, before_ms)
        if expired is None:
            return False
        done: list[str] = []
        for topic in expired.topics:
            name = TopicName.parse(topic)
            if self._owners.is_mine(name):
                try:
                    await self._carry_out(name, batch)
                except AnabranchError as error:
                    log.warning(
                        "hidden write %s: its record stays for now, as revealing it in %s failed: %s",
                        batch,
                        name,
                        error,
                    )
                    continue
                done.append(topic)
        await self._records.strike_off(expired, done)
        return True

    async def _carry_out(self, name: TopicName, batch: WriteBatch) -> None:
        try:
            topic = await self._open_topics.topic(name)
        except TopicNotFoundError:
            return
        await topic.hidden.reveal(batch)
