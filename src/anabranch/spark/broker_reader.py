"""Reads one slice of a segment through its broker, as Arrow record batches. Runs in a task, on a loop of its own.

It is over when everything before the slice's end has arrived, whether or not there were messages in it. A broker that
goes away is waited for; one that is silent for too long fails the task, which Spark runs again.

A message that was sent in chunks belongs to the slice that has its last chunk. Whoever chose the slices did not look at
messages, so the first chunks may lie before the slice: then reading begins again further back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from anabranch.client.connections import Backoff, Connections
from anabranch.client.crypto import Encryption
from anabranch.client.errors import CryptoFailed, DataLost, TimedOut, TopicDeleted, TopicMadeAgain
from anabranch.client.inbox import Inbox
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Entry
from anabranch.client.segment_consumer import Reading, SegmentConsumer, Subscription
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Place, Position
from anabranch.model.resuming import gaps_of
from anabranch.spark.ends import Ends
from anabranch.spark.task import Task
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# Of a record batch: Spark does not cut them again.
ROWS_MAX: Final = 65_536
# How often to look whether all has arrived, if the last of it holds no messages.
LOOK_S: Final = 0.2
# How far before a slice the chunks of a message are looked for first, in entries.
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
    """`open`, `next` until it gives None, `close`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._slice = task.slice
        self._wanted = task.slice.start  # Rows before it are not given: it moves with what was given.
        self._end: Position = BEGINNING
        self._chance = random.Random()
        self._connections = Connections(task.service_url, task.security)
        self._inbox = Inbox()
        self._segment: _SliceConsumer | None = None
        self._arrow: Any = None
        self._back = 0  # How many entries before the slice it began to read.
        self._reads_all = False  # From the first message that there is.
        keys = dict(task.decryption_keys)
        self._reading = Reading(decryption=Encryption(private_keys=keys) if keys else None)

    async def open(self) -> None:
        """Finds the end of a slice that goes to its segment's, and starts to read."""
        last = await self.find_end()
        if last is None:
            await self._gone(self._slice.start)
            return
        # An end that is further on is a position that nothing was written to: all before it is there.
        self._end = last if self._slice.end is None else min(last, self._slice.end)
        if self._slice.end is None or self._slice.end > (self._slice.start or BEGINNING):
            chunks_from = self._slice.chunks_from
            await self._read_from(self._slice.start if chunks_from is None else (*chunks_from, 0))

    async def find_end(self) -> Position | None:
        """Behind the segment's last message; None if it is gone."""
        ends = Ends(self._connections, self._chance)
        try:
            async with asyncio.timeout(self._task.timeout_s):
                end = await ends.of(self._task.segment_topic)
                await ends.keep(())
                return end
        except TimeoutError:
            raise self._too_slow() from None

    async def _read_from(self, start: Position | None) -> None:
        """None: from the earliest message that is there."""
        from anabranch.client.arrow_reader import ArrowReader

        if self._segment is not None:
            await self._segment.close()
        name = f"spark-{self._chance.getrandbits(32):08x}"
        self._inbox = Inbox()
        self._arrow = ArrowReader(
            self._inbox,
            keeps=False,
            versions=self._task.versions,
            unpacked_bytes_max=self._task.message_bytes_max,
        )
        self._segment = _SliceConsumer(
            self._connections,
            self._slice.segment,
            self._task.segment_topic,
            self._task.topic,
            Subscription(name, pb.CommandSubscribe.Exclusive, name, is_durable=False),
            self._inbox,
            chance=self._chance,
            topic_id=self._task.topic_id,
            start=start,
            may_be_gone=lambda _: True,
            lost=lambda reader, _: self._task.loss(reader.position),
            reading=self._reading,
        )
        self._segment.whole_from = self._slice.start
        self._segment.open()

    # -- rows

    async def next(self) -> Any:
        """A record batch with at least a row; None at the end."""
        from anabranch.spark.rows import between

        silent_since = time.monotonic()
        while (segment := self._segment) is not None:
            # Looked at first: nothing that has arrived by then is missed below. Unless it is subscribed, what it is to
            # read may be gone.
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
                self._task.failed(error)
                return None
            except DataLost:
                if not self._back:
                    if await self.find_end() is None:
                        await self._gone(segment.position)
                        return None
                    self._task.lost(segment.position)
                await self._read_from(None)
                continue
            # What lies behind a chunk that needs another look comes again with it.
            until = self._end if segment.orphan is None else min(self._end, (*segment.orphan, 0))
            rows = between(batch, self._wanted, until)
            behind = (entries[-1].ledger, entries[-1].entry + 1, 0)
            self._wanted = max(self._wanted or BEGINNING, min(behind, until))
            if rows.num_rows:
                return rows
        return None

    async def _go_back(self, orphan: tuple[int, int]) -> None:
        """Begins to read further back, for the sake of a chunk whose message began before the slice."""
        assert self._slice.start is not None
        assert self._segment is not None
        ledger, entry, _ = self._slice.start
        if self._reads_all:
            self._task.lost((*orphan, 0))
            self._segment.whole_from = None
            self._segment.orphan = None
        elif self._back >= entry:
            # It began in a ledger before, which may be of any length.
            self._reads_all = True
            await self._read_from(None)
        else:
            self._back = min(entry, self._back * 8 or FIRST_BACK)
            await self._read_from((ledger, entry - self._back, 0))

    # -- what goes wrong

    async def _gone(self, position: Position | None) -> None:
        """Its segment was deleted. Nothing is lost if that had nothing behind a position: layouts remember its end."""
        watch = LayoutWatch(self._connections, self._task.topic, Backoff(self._chance))
        place = Place(self._slice.segment, self._task.range, at=(position or BEGINNING,))
        try:
            async with asyncio.timeout(self._task.timeout_s):
                await watch.open(create=False)
            # Where the segment is still listed it is about to be pruned, and its end is not told yet.
            is_lost = place.segment in watch.layout.segments or bool(gaps_of(watch.layout, place))
        except (TopicDeleted, TimeoutError):
            is_lost = True
        finally:
            await watch.close()
        if is_lost:
            self._task.lost(position)

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
        self.whole_from: Position | None = None
        self.orphan: tuple[int, int] | None = None
        self._begun: set[str] = set()

    def _put_together(self, chunk: Entry) -> Entry | None:
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
