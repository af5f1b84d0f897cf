"""What a broker does about hidden writes by itself: hear of decisions, give up what nobody finishes, forget the old.

Whoever decides tells the topics of the winners. Losers may have written elsewhere, and whoever was to tell may have
died; so owners follow the records themselves, and look again from time to time in case they have missed something.

A record is forgotten when it is old and every topic it names has carried it out: each owner strikes off its own topics,
and the last one removes the record. The last batch of a stream is remembered for longer: a stream that died after the
record of a batch, and before it has noted that itself, runs the batch again whenever it is started. What lost is
dropped without a record too, as an attempt that nobody finished.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.topic import Topic
from anabranch.broker.write_records import HIDDEN_WRITES
from anabranch.errors import AnabranchError
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

log = logging.getLogger(__name__)

SWEEP_S: Final = 3600.0
# How many times longer the last batch of a stream is remembered than others are: a year instead of a week.
LAST_KEPT_TIMES: Final = 52


class WriteUpkeep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._records = broker.write_records

    async def follow(self) -> None:
        """Carries out decisions as they are stored, for as long as the broker lives."""
        with self._broker.metadata.watch(HIDDEN_WRITES) as watch:
            async for changes in watch:
                if changes.everything:
                    await self.look()
                    continue
                waiting: dict[WriteBatch, list[Topic]] = {}
                for topic in self._hiding():
                    for batch in topic.hidden.entries.open_batches:
                        if self._records.path(batch) in changes.paths:
                            waiting.setdefault(batch, []).append(topic)
                for batch, topics in waiting.items():
                    await self._settle(batch, topics)

    async def _settle(self, batch: WriteBatch, topics: Iterable[Topic]) -> None:
        """A record changes with each topic that is attached to it, too: that is nothing to look after."""
        record = await self._records.get(batch)
        if record is not None and record.settles_something:
            for topic in topics:
                await topic.hidden.look()

    async def look(self) -> None:
        for topic in self._hiding():
            await topic.hidden.look()

    def _hiding(self) -> Iterable[Topic]:
        return [t for t in self._broker.loaded().values() if t.hidden.has_attempts and not t.is_closed]

    # -- forgetting

    async def sweep(self) -> None:
        now_ms = await self._broker.metadata.now_ms()
        kept_ms = self._broker.config.hidden_writes_retention_seconds * 1000
        await self._records.sweep_parts(now_ms - kept_ms)
        for write in await self._records.writes():
            batches = [batch async for batch in self._records.batches(write)]
            for batch in batches:
                # Of a stream only the last batch is ever run again, when the stream is started after a long time.
                is_streams_last = batch.batch > 0 and batch == batches[-1]
                before_ms = now_ms - kept_ms * (LAST_KEPT_TIMES if is_streams_last else 1)
                # A write's batches are as old as their numbers say: what follows one that is kept is newer.
                if not await self._forget(batch, before_ms):
                    break

    async def _forget(self, batch: WriteBatch, before_ms: int) -> bool:
        """False if the record is to be kept."""
        expired = await self._records.expired(batch, before_ms)
        if expired is None:
            return False
        done: list[str] = []
        for topic in expired.topics:
            name = TopicName.parse(topic)
            if self._broker.owners.is_mine(name):
                try:
                    await self._carry_out(name, batch)
                except AnabranchError as error:
                    log.warning("%s stays known for now: %s: %s", batch, name, error)
                    continue
                done.append(topic)
        await self._records.strike_off(expired, done)
        return True

    async def _carry_out(self, name: TopicName, batch: WriteBatch) -> None:
        try:
            topic = await self._broker.topic(name)
        except TopicNotFoundError:
            return
        await topic.hidden.reveal(batch)
