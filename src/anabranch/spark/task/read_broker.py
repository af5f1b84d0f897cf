"""Reads one slice of a segment through its broker, as Arrow record batches. Runs in a task, on its own loop.

It ends when everything before the slice's end has arrived, whether or not there were messages in it. The reader waits
for a broker that is gone; a broker that is silent for too long fails the task, which Spark runs again.

A message that was sent in chunks belongs to the slice that has its last chunk. The planner did not inspect messages, so
the first chunks may lie before the slice: then reading begins again further back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from anabranch.client.consuming.inbox import Inbox
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions, ValueReading
from anabranch.client.crypto.encryption import Encryption
from anabranch.client.errors import CryptoFailed, DataLost, TimedOut, TopicDeleted, TopicMadeAgain
from anabranch.client.message import ReceivedEntry
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, MessagePosition, Place
from anabranch.model.resuming import gaps_of
from anabranch.spark.driver.latest import Ends
from anabranch.spark.plan.task import Task
from anabranch.spark.task import loss
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# The most rows of a record batch: Spark does not cut batches again.
ROWS_MAX: Final = 65_536
# How often to check whether everything has arrived, if the last part holds no messages.
LOOK_S: Final = 0.2
# How far before a slice the chunks of a message are first looked for, in entries.
FIRST_BACK: Final = 64


def read(task: Task) -> Iterator[Any]:
    """The record batches of a slice, with the columns of `anabranch.columns.SCHEMA` and more; none is empty."""
    with asyncio.Runner() as runner:
        reader = BrokerReader(task)
        try:
            runner.run(reader.open())
            while (batch := runner.run(reader.next())) is not None:
                yield batch
        finally:
            runner.run(reader.close())


def is_gone(task: Task) -> bool:
    """Whether the slice's segment does not exist any more."""

    async def ask() -> bool:
        reader = BrokerReader(task)
        try:
            return await reader.find_end() is None
        finally:
            await reader.close()

    with asyncio.Runner() as runner:
        return runner.run(ask())


class BrokerReader:
    """Call `open`, then `next` until it returns None, then `close`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._slice = task.slice
        self._wanted = task.slice.start  # Earlier rows are not returned: it moves with the returned rows.
        self._end: MessagePosition = BEGINNING
        self._chance = random.Random()
        self._connections = Connections(task.service_url, task.security)
        self._inbox = Inbox()
        self._segment: _SliceConsumer | None = None
        self._arrow: Any = None
        self._back = 0  # How many entries before the slice the reading began.
        self._reads_all = False  # Reading began at the first existing message.
        keys = dict(task.decryption_keys)
        self._reading = ValueReading(decryption=Encryption(private_keys=keys) if keys else None)

    async def open(self) -> None:
        """Finds the end of a slice that extends to its segment's end, and starts to read."""
        last = await self.find_end()
        if last is None:
            await self._gone(self._slice.start)
            return
        # A later end is a position that is still empty: everything before it exists.
        self._end = last if self._slice.end is None else min(last, self._slice.end)
        if self._slice.end is None or self._slice.end > (self._slice.start or BEGINNING):
            chunks_from = self._slice.chunks_from
            await self._read_from(self._slice.start if chunks_from is None else (*chunks_from, 0))

    async def find_end(self) -> MessagePosition | None:
        """The position behind the segment's last message; None if the segment is gone."""
        ends = Ends(self._connections, self._chance)
        try:
            async with asyncio.timeout(self._task.timeout_s):
                end = await ends.of(self._task.segment_topic)
                await ends.keep(())
                return end
        except TimeoutError:
            raise self._too_slow() from None

    async def _read_from(self, start: MessagePosition | None) -> None:
        """Reads from `start`; None means the earliest existing message."""
        from anabranch.client.consuming.arrow_reader import ArrowReader

        if self._segment is not None:
            await self._segment.close()
        name = f"spark-{self._chance.getrandbits(32):08x}"
        self._inbox = Inbox()
        self._arrow = ArrowReader(
            self._inbox,
            keeps=False,
            versions=self._task.versions,
            unpacked_bytes_max=self._task.message_bytes_max,
            wanted=self._task.wanted,
        )
        self._segment = _SliceConsumer(
            self._connections,
            self._slice.segment,
            self._task.segment_topic,
            self._task.topic,
            SubscribeOptions(name, pb.CommandSubscribe.Exclusive, name, is_durable=False),
            self._inbox,
            chance=self._chance,
            topic_id=self._task.topic_id,
            start=start,
            may_be_gone=lambda _: True,
            lost=lambda reader, _: self._task.loss(reader.position),
            reading=self._reading,
            wanted=self._task.wanted,
        )
        self._segment.whole_from = self._slice.start
        self._segment.open()

    # -- rows

    async def next(self) -> Any:
        """A record batch with at least one row; None at the end."""
        from anabranch.spark.columns.rows import between

        silent_since, reached = time.monotonic(), None
        while (segment := self._segment) is not None:
            if segment.position != reached:
                # Entries that are of other slices count, too.
                silent_since, reached = time.monotonic(), segment.position
            # Checked first: everything that has arrived by then is seen below. Without a subscription, the data to read
            # may be gone.
            has_all = segment.is_attached and (segment.position or BEGINNING) >= self._end
            if segment.orphan is not None:
                await self._go_back(segment.orphan)
                continue
            if (has_all or segment.has_ended) and not segment.queued:
                self._check()
                if not has_all:
                    await self._gone(segment.position)
                return None
            try:
                batch, entries = await self._arrow.read(ROWS_MAX, LOOK_S)
            except TimedOut:
                if time.monotonic() - silent_since > self._task.timeout_s:
                    raise self._too_slow() from None
                continue
            except CryptoFailed as error:
                raise self._no_key(error) from None
            except TopicMadeAgain as error:
                loss.failed(self._task, error)
                return None
            except DataLost:
                if not self._back:
                    if await self.find_end() is None:
                        await self._gone(segment.position)
                        return None
                    loss.lost(self._task, segment.position)
                await self._read_from(None)
                continue
            # Messages behind a chunk that needs another read are read again with it.
            until = self._end if segment.orphan is None else min(self._end, (*segment.orphan, 0))
            rows = between(batch, self._wanted, until)
            behind = (entries[-1].ledger, entries[-1].entry + 1, 0)
            self._wanted = max(self._wanted or BEGINNING, min(behind, until))
            if rows.num_rows:
                return rows
        return None

    async def _go_back(self, orphan: tuple[int, int]) -> None:
        """Begins to read further back, for a chunk whose message began before the slice."""
        assert self._slice.start is not None
        assert self._segment is not None
        ledger, entry, _ = self._slice.start
        if self._reads_all:
            loss.lost(self._task, (*orphan, 0))
            self._segment.whole_from = None
            self._segment.orphan = None
        elif self._back >= entry:
            # It began in an earlier ledger, which may have any length.
            self._reads_all = True
            await self._read_from(None)
        else:
            self._back = min(entry, self._back * 8 or FIRST_BACK)
            await self._read_from((ledger, entry - self._back, 0))

    # -- failures

    async def _gone(self, position: MessagePosition | None) -> None:
        """The segment was deleted. Nothing is lost if it had no message behind the position: layouts remember its
        end."""
        watch = LayoutWatch(self._connections, self._task.topic, Backoff(self._chance))
        place = Place(self._slice.segment, self._task.range, at=(position or BEGINNING,))
        try:
            async with asyncio.timeout(self._task.timeout_s):
                await watch.open(create=False)
            # A segment that is still listed is about to be pruned, and its end is unknown yet.
            is_lost = place.segment in watch.layout.segments or bool(gaps_of(watch.layout, place))
        except (TopicDeleted, TimeoutError):
            is_lost = True
        finally:
            await watch.close()
        if is_lost:
            loss.lost(self._task, position)

    def _check(self) -> None:
        try:
            self._arrow.check()
        except CryptoFailed as error:
            raise self._no_key(error) from None

    def _no_key(self, error: CryptoFailed) -> CryptoFailed:
        given = ", ".join(f"{name}={path}" for name, path in self._task.decryption_keys) or "not given"
        return CryptoFailed(
            f"{self._task.segment_topic}: {error}. Here it is the option decryptionKeys ({given}) that gives keys: "
            "orders=/keys/orders.pem, the path of a private key that every executor has"
        )

    def _too_slow(self) -> AnabranchError:
        return TimedOut(
            f"{self._task.segment_topic}: nothing came for {self._task.timeout_s:g} s before "
            f"{self._end}; are the brokers at {self._task.service_url} up? timeoutSeconds allows more time"
        )

    async def close(self) -> None:
        if self._segment is not None:
            await self._segment.close()
        await self._connections.close()


class _SliceConsumer(SegmentConsumer):
    """Notices chunks at or behind `whole_from` whose message began before anything that was read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.whole_from: MessagePosition | None = None
        self.orphan: tuple[int, int] | None = None
        self._begun: set[str] = set()

    def _put_together(self, chunk: ReceivedEntry) -> ReceivedEntry | None:
        at = (chunk.ledger, chunk.entry)
        if chunk.metadata.chunk_id == 0:
            self._begun.add(chunk.metadata.uuid)
        elif (
            self.whole_from is not None
            and at >= self.whole_from[:2]
            and chunk.metadata.uuid not in self._begun
        ):
            self.orphan = self.orphan or at
        return super()._put_together(chunk)
