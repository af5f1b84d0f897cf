"""Writes one task's rows as hidden entries. Runs in a task; its result tells the driver what to decide on.

Rows are sent in *legs*. A leg is a separate attempt, and its record batches are kept until all of it is stored: if a
connection is lost half-way, it is unknown what the broker holds of it, and the leg is written again as another attempt.
The driver gets the complete attempts only, so incomplete ones never become visible. A leg is as large as memory allows;
most tasks have one.

Brokers give up a batch that has had no producer for some minutes. So a task keeps a producer open from its beginning to
its end, besides those that write, whether or not there are rows. A task that ends within a moment need not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from anabranch.client.client import Client
from anabranch.client.errors import BadArgument, WriteDecided
from anabranch.client.hidden_writes.write import Write
from anabranch.client.producing.producer import Producer
from anabranch.client.threads.portal import Portal
from anabranch.client.transport.attachment import Backoff
from anabranch.errors import AnabranchError
from anabranch.spark.columns.sink_columns import BadColumn, SinkColumns
from anabranch.spark.options.sink import SinkOptions
from anabranch.spark.task.tally import RowTally, tally_of

log = logging.getLogger(__name__)

# The most that is kept of a leg, in bytes of Arrow.
LEG_BYTES: Final = 128 << 20
# How much of that may be on its way.
UNANSWERED_BYTES: Final = 32 << 20
# Record batches are joined up to this size before they are encoded: small ones cost more per row.
GATHER_BYTES: Final = 4 << 20
# A task opens that producer after this time, and again after that: well within the shortest time that brokers may be
# set to wait.
SHOW_S: Final = 1.0
SHOW_AGAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All that a task needs to know."""

    options: SinkOptions
    columns: SinkColumns
    # With `encode`: an `anabranch.spark.values.encode.Encoder`.
    encoder: Any = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a task. `topics` may hold entries of it, including those of incomplete attempts.

    `tally` covers all rows of the task, even if it wrote none of them because the write was decided."""

    attempts: tuple[UUID, ...]
    topics: frozenset[str]
    tally: RowTally
    is_decided: bool = False  # An earlier run has written and decided it.
    # Where the complete attempts have written, and the id of the topic then. Topics without an id are left out.
    written: frozenset[tuple[str, str]] = frozenset()


def write_rows(
    plan: WritePlan,
    write: str,
    batch: int,
    rows: Iterable[Any],
    new_attempt: Callable[[], UUID],
    *,
    show_s: float = SHOW_S,
) -> TaskOutcome:
    """Writes all record batches. Raises the error that prevents it, once its attempts are given up."""
    portal = Portal()
    writer = TaskWriter(plan, write, batch, new_attempt)
    rest = iter(rows)
    is_decided = False
    try:
        portal.call(writer.begin(show_s))
        for table in _gathered(rest):
            portal.call(writer.add(table))
        portal.call(writer.finish())
    except WriteDecided:
        # The rows are read to the end all the same: operators before the sink store their state when their last row is
        # taken. They are counted, too: the decided run must have written the same rows.
        is_decided = True
        for table in _gathered(rest):
            writer.count(table)
    finally:
        portal.call(writer.close())
        portal.stop()
    topics = frozenset(writer.topics)
    if is_decided:
        return TaskOutcome((), topics, writer.tally, is_decided)
    return TaskOutcome(tuple(writer.attempts), topics, writer.tally, written=frozenset(writer.written))


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Tables that are large enough to be encoded at once."""
    import pyarrow as pa

    held: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= GATHER_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


@dataclass
class _Leg:
    write: Write
    producers: dict[str, Producer] = field(default_factory=dict)
    tables: list[tuple[str, Any]] = field(default_factory=list)
    size: int = 0


class TaskWriter:
    """Call `begin`, `add`, `finish`, `close`, all on one loop. After `finish`, `attempts` have all rows."""

    def __init__(self, plan: WritePlan, write: str, batch: int, new_attempt: Callable[[], UUID]) -> None:
        self._plan = plan
        self._write = write
        self._batch = batch
        self._new_attempt = new_attempt
        self._client: Client | None = None
        self._leg: _Leg | None = None
        # The topic for a producer while there is nothing to write: the topic of all rows, or of the last ones.
        self._place = plan.options.topic
        self._showing: asyncio.Task[None] | None = None
        self.attempts: list[UUID] = []
        self.topics: set[str] = set()
        self.written: set[tuple[str, str]] = set()
        self.tally = RowTally()

    def count(self, table: Any) -> Any:
        """Counts the table's rows and returns the table in the form that is written."""
        encoded = self._encoded(table)
        self.tally = self.tally.plus(tally_of(encoded, self._plan.columns))
        return encoded

    async def begin(self, show_s: float) -> None:
        self._showing = asyncio.create_task(self._show(show_s))

    async def _show(self, after_s: float) -> None:
        """Keeps a producer open that writes nothing, until the task ends.

        It is opened again from time to time: a producer from before a split has no segment any more."""
        write: Write | None = None
        shown: Producer | None = None
        try:
            await asyncio.sleep(after_s)
            while True:
                if self._place is not None:
                    write = write or Write(self._write, self._batch, self._new_attempt())
                    try:
                        before, shown = shown, await self._producer(self._place, write)
                        if before is not None:
                            await before.close(flush=False)
                    except WriteDecided:
                        return  # The task learns it with its rows.
                    except AnabranchError as error:
                        log.warning("connecting the task's first producer failed, trying again: %s", error)
                await asyncio.sleep(after_s if shown is None else SHOW_AGAIN_S)
        finally:
            if shown is not None:
                await shown.close(flush=False)

    async def add(self, table: Any) -> None:
        for topic, part in self._by_topic(self.count(table)):
            if self._leg is not None and self._leg.size + part.nbytes > LEG_BYTES:
                await self._end_leg()
            leg = self._leg = self._leg or self._new_leg()
            leg.tables.append((topic, part))
            leg.size += part.nbytes
            self._place = topic
            try:
                await self._post(leg, topic, part)
            except AnabranchError as error:
                await self._again(error)

    async def finish(self) -> None:
        """Returns once every row is stored."""
        if self._leg is not None:
            await self._end_leg()

    async def close(self) -> None:
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.gather(self._showing, return_exceptions=True)
        if self._leg is not None:
            await self._leave(self._leg)
        if self._client is not None:
            await self._client.close(flush=False)

    # -- legs

    def _new_leg(self) -> _Leg:
        return _Leg(Write(self._write, self._batch, self._new_attempt()))

    async def _end_leg(self) -> None:
        assert self._leg is not None
        try:
            await self._flush(self._leg)
        except AnabranchError as error:
            await self._again(error, is_last=True)
        self.attempts.append(self._leg.write.attempt)
        for producer in self._leg.producers.values():
            if producer.topic_id:
                self.written |= {(topic, producer.topic_id) for topic in producer.topics_written}
        await self._leave(self._leg)
        self._leg = None

    async def _again(self, error: AnabranchError, *, is_last: bool = False) -> None:
        """Writes the leg as further attempts until it is complete or the time is over."""
        pause = Backoff(random.Random(), first_s=0.1)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._plan.options.timeout_s
        while True:
            if not error.retryable or loop.time() > deadline:
                raise error
            assert self._leg is not None
            log.warning("attempt %s failed, writing its rows again: %s", self._leg.write.attempt.hex, error)
            await self._leave(self._leg)
            self._leg = _Leg(
                Write(self._write, self._batch, self._new_attempt()), {}, self._leg.tables, self._leg.size
            )
            await pause.wait()
            try:
                for topic, part in self._leg.tables:
                    await self._post(self._leg, topic, part)
                if is_last:
                    await self._flush(self._leg)
                return
            except AnabranchError as later:
                error = later

    async def _post(self, leg: _Leg, topic: str, part: Any) -> None:
        producer = leg.producers.get(topic)
        if producer is None:
            producer = leg.producers[topic] = await self._producer(topic, leg.write)
        columns = self._plan.columns
        await producer.post_batch(
            part,
            value=columns.value or "value",
            key=columns.key,
            properties=columns.properties,
            event_time=columns.event_time,
        )

    async def _producer(self, topic: str, write: Write) -> Producer:
        options = self._plan.options
        if self._client is None:
            self._client = Client(
                options.service_url,
                memory_bytes_max=UNANSWERED_BYTES,
                operation_timeout_s=options.timeout_s,
                security=options.security,
            )
        try:
            return await self._client.producer(
                topic,
                write=write,
                schema=None if self._plan.encoder is None else self._plan.encoder.schema,
                compression=options.compression,
                batching=options.batching,
                send_timeout_s=options.timeout_s,
            )
        except BadArgument as error:
            raise BadColumn(f"column 'topic': {error}") from None

    async def _flush(self, leg: _Leg) -> None:
        for producer in leg.producers.values():
            await producer.flush()

    async def _leave(self, leg: _Leg) -> None:
        for producer in leg.producers.values():
            self.topics |= producer.topics_written
            await producer.close(flush=False)

    # -- rows

    def _encoded(self, table: Any) -> Any:
        return table if self._plan.encoder is None else self._plan.encoder(table)

    def _by_topic(self, table: Any) -> Iterator[tuple[str, Any]]:
        """The rows of each topic, in their order."""
        if self._plan.options.topic is not None:
            yield self._plan.options.topic, table
            return
        import pyarrow.compute as pc

        column = table[self._plan.columns.topic]
        for name in pc.unique(column).to_pylist():
            if name is None:
                raise BadColumn("column 'topic' is null in a row: each row must name its topic")
            yield name, table.filter(pc.equal(column, name))
