"""A producer to a topic: routes by key, follows the layout, keeps every key in order, loses nothing.

Messages enter here: they are numbered, hashed, encoded and gathered in the lane of their segment. `lanes` decides which
message goes where and when, `gathering` when a batch is sent, `entries` how it is encoded, and `engine` ensures that
all of them are stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic

from anabranch.client.errors import BadArgument, Closed, ConnectionLost, Unsupported
from anabranch.client.message_id import BatchReceipt, MessageId
from anabranch.client.producing.batching import Batching
from anabranch.client.producing.budget import MemoryBudget
from anabranch.client.producing.core.lanes import keyless_hash
from anabranch.client.producing.core.runs import (
    ITEM_FIELDS,
    ITEM_OVERHEAD_BYTES,
    BatchLimits,
    SingleMessage,
    WholeRun,
)
from anabranch.client.producing.engine import SEND_TIMEOUT_S, Flow, ProducerSettings
from anabranch.client.producing.prepared import Prepared, whole_of
from anabranch.client.producing.recall import EarlierLife
from anabranch.client.producing.singles import (
    SentKeys,
    SinglePieces,
    encode_full,
    encode_properties,
    encode_single,
    in_pieces,
    pairs_of,
)
from anabranch.client.times import to_ms
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.client.values import V
from anabranch.model.keyhash import bucket_hash
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.client.producing.tables import TableRuns, TableSending

__all__ = ["SEND_TIMEOUT_S", "Producer", "ProducerSettings"]

# How many unbatched messages are handed in without a pause, before other tasks get their turn.
TURN_MAX: Final = 64


class Producer(Generic[V]):
    """Made by `Client.producer`. One loop, no locks: each step happens between two awaits."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        name: str,
        settings: ProducerSettings,
        *,
        chance: random.Random,
        now_ms: Callable[[], int],
        budget: MemoryBudget,
        closed: Callable[[Producer], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._watch = watch
        self._topic_id = watch.layout.topic_id
        self._settings = settings
        self._flow = Flow(connections, watch, name, settings, chance=chance, now_ms=now_ms, budget=budget)
        self._lanes = self._flow.lanes
        self._limit(self._lanes.limits)
        self._flow.limits_changed = self._limit
        self._loop = asyncio.get_running_loop()
        self._new_receipt = self._loop.create_future
        self._encode = settings.schema.encode if settings.schema is not None else None
        self._keys = SentKeys()
        self._now_ms = now_ms
        self._budget = budget
        self._closed = closed
        self._earlier = EarlierLife(self._flow, settings.routing)
        self._tables: TableRuns | None = None
        self._next_sequence = 0
        self._last_posted = -1
        self._turn = 0
        # The entry-bucket hash of its messages without a key: one bucket, so that they keep their order in a segment.
        self._keyless_low = bucket_hash(name.encode())
        self._wholes = 0

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(flush=kind is None)

    async def open(self) -> None:
        """Asks the topic what it holds of a producer of this name; takes exclusive access, if so configured."""
        if self._settings.is_named:
            self._next_sequence = await self._earlier.recall() + 1
        active = self._watch.layout.active
        if self._settings.access_mode != pb.Shared:
            # One after the other, in a fixed order: two waiting producers must not each hold what the other waits for.
            for segment in active:
                await self._flow.segment(segment.id).last_sequence_ids()
        elif self._flow.attaching.schema is not None or self._settings.write is not None:
            # An incompatible schema, or a decided write, is noticed now, not with the first message.
            await self._flow.segment(active[0].id).last_sequence_ids()

    def _limit(self, limits: BatchLimits) -> None:
        self._items_max, self._bytes_max = limits.messages_max * ITEM_FIELDS, limits.bytes_max

    @property
    def topic(self) -> str:
        return self._watch.shown_topic

    @property
    def topic_id(self) -> str:
        """The id of the topic it was opened on, which no other topic of that name has; "" if brokers give none."""
        return self._topic_id

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id given out, or found in the topic when the producer was opened; -1 for none."""
        return self._next_sequence - 1

    @property
    def topics_written(self) -> frozenset[str]:
        """The segments or partitions that may hold messages of this producer; a hidden write is decided there."""
        return frozenset(self._flow.topics_written)

    # -- sending

    async def send(
        self,
        value: V | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        sequence_id: int | None = None,
        ordering_key: bytes | None = None,
    ) -> MessageId:
        """Sends one message and returns once it is stored. The arguments are those of `post`."""
        receipt = await self.post(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            sequence_id=sequence_id,
            ordering_key=ordering_key,
        )
        try:
            return await receipt
        except Exception as error:
            self._flow.reported(error)
            raise

    async def post(
        self,
        value: V | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        sequence_id: int | None = None,
        ordering_key: bytes | None = None,
    ) -> asyncio.Future[MessageId]:
        """Hands a message in and returns once there is room for it; the future returns where it was stored.

        The fast way: post in a loop, then `flush`. Messages of a key are stored in the order of these calls.

        - `key`: chooses the segment. Text, or bytes, which are sent as base64.
        - `event_time`, `deliver_at`: a datetime or milliseconds since 1970. A delayed message is held back from
          consumers that share a subscription, by `deliver_after` for so many seconds.
        - `sequence_id`: assigned in order by default; an application that gives its own must give rising ones.
        - `ordering_key`: takes precedence over the key where consumers share a topic by keys.
        """
        payload = value if self._encode is None or value is None else self._encode(value)
        if (
            type(payload) is not bytes
            or deliver_at is not None
            or deliver_after is not None
            or sequence_id is not None
            or ordering_key is not None
            or len(payload) >= self._bytes_max
        ):
            whole = whole_of(
                payload, key, properties, event_time, deliver_at, deliver_after, ordering_key, self._now_ms
            )
            return await self._post_special(whole, sequence_id)
        flow = self._flow
        if flow.error is not None:
            raise flow.error
        budget = self._budget
        reserved = 0
        if budget.is_short(len(payload) + ITEM_OVERHEAD_BYTES):
            reserved = len(payload) + ITEM_OVERHEAD_BYTES
            await flow.room(reserved)
        # Nothing is awaited from here on until the message is in its lane, in the order of the numbers.
        number = self._next_sequence
        try:
            hash32, key_field = self._keys[key] if key is not None else (self._keyless(), b"")
            if properties is None and event_time is None and type(key) is not bytes:
                size, pieces = encode_single(key_field, number, payload)
            else:
                pairs = pairs_of(properties) if properties is not None else ()
                is_base64 = isinstance(key, bytes)
                size, pieces = in_pieces(
                    encode_full(key_field, number, payload, pairs, to_ms(event_time), is_base64=is_base64)
                )
        except BaseException:
            budget.release(reserved)
            raise
        self._next_sequence = number + 1
        self._last_posted = number
        receipt: asyncio.Future[MessageId] = self._new_receipt()
        is_full = self._gather(number, hash32, size, pieces, receipt)
        if reserved:
            budget.release(reserved)
        if is_full:
            # A loop of posts must give other tasks their turn, receipts above all.
            await asyncio.sleep(0)
        return receipt

    def _gather(self, number: int, hash32: int, size: int, pieces: SinglePieces, receipt: Any) -> bool:
        """Adds an encoded message to its lane. True if a batch became full."""
        self._budget.free -= size + ITEM_OVERHEAD_BYTES
        flow = self._flow
        flow.pending += 1
        lane = self._lanes.find(hash32)
        is_full = False
        if lane.size + size > self._bytes_max and lane.items:
            flow.cut(lane)
            is_full = True
        lane.size += size
        lane.parts += pieces
        items = lane.items
        items += (number, hash32, receipt)
        if len(items) == ITEM_FIELDS:
            flow.begin(lane)
        if len(items) >= self._items_max:
            flow.cut(lane)
            is_full = True
        return is_full

    def _keyless(self) -> int:
        self._turn += 1
        return keyless_hash(self._lanes.layout, self._turn - 1, self._settings.routing, self._keyless_low)

    # -- from other threads

    def prepared(
        self,
        value: Any,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time: datetime | int | None,
        deliver_at: datetime | int | None,
        deliver_after: timedelta | float | None,
        ordering_key: bytes | None,
    ) -> Prepared | None:
        """Prepares a message for `post_prepared`; raises what is wrong with it. Any thread may call it.

        Returns None if the message must be posted by `post`.
        """
        payload = value if self._encode is None or value is None else self._encode(value)
        hash32, head = self._keys[key] if key is not None else (None, b"")
        if self._flow.error is not None:
            raise self._flow.error
        if (
            type(payload) is not bytes
            or deliver_at is not None
            or deliver_after is not None
            or ordering_key is not None
            or len(payload) >= self._bytes_max
        ):
            return whole_of(
                payload, key, properties, event_time, deliver_at, deliver_after, ordering_key, self._now_ms
            )
        if properties is not None:
            head = encode_properties(pairs_of(properties)) + head
        return payload, hash32, head, to_ms(event_time), type(key) is bytes

    def would_refuse(self, size: int) -> bool:
        """Whether memory is short, and messages are refused then. Any thread may call it."""
        return self._budget.would_refuse(size)

    async def post_prepared(self, posts: deque[tuple[Prepared, Any]]) -> None:
        """Posts messages in order, each with the future for its receipt, and removes them from the left once they are
        in their lanes. Memory for them was promised: they wait for it."""
        budget, flow = self._budget, self._flow
        while posts:
            message, receipt = posts[0]
            is_full = False
            try:
                if isinstance(message, SingleMessage):
                    await self._post_special(message, None, receipt)
                else:
                    payload, hash32, head, event_time_ms, is_base64 = message
                    cost, reserved = len(payload) + ITEM_OVERHEAD_BYTES, 0
                    if flow.error is not None:
                        raise flow.error
                    if budget.is_short(cost):
                        reserved = cost
                        await flow.room(cost, is_begun=True)
                    number = self._next_sequence
                    if event_time_ms is None and not is_base64:
                        size, pieces = encode_single(head, number, payload)
                    else:
                        size, pieces = in_pieces(
                            encode_full(head, number, payload, (), event_time_ms, is_base64=is_base64)
                        )
                    self._next_sequence = number + 1
                    self._last_posted = number
                    if hash32 is None:
                        hash32 = self._keyless()
                    is_full = self._gather(number, hash32, size, pieces, receipt)
                    if reserved:
                        budget.release(reserved)
            except Exception as error:
                receipt.set_exception(error)
            posts.popleft()
            if is_full:
                await asyncio.sleep(0)

    # -- messages with their own entry

    async def _post_special(
        self, whole: SingleMessage, sequence_id: int | None, promised: Any = None
    ) -> asyncio.Future[MessageId]:
        """`promised` is the future to use, for a message that memory was promised to."""
        if self._flow.error is not None:
            raise self._flow.error
        cost = len(whole.payload) + ITEM_OVERHEAD_BYTES
        await self._flow.room(cost, is_begun=promised is not None)
        held = None
        try:
            hash32 = self._keys[whole.key][0] if whole.key is not None else self._keyless()
            if sequence_id is not None and sequence_id <= self._earlier.recalled:
                low = hash32 & 0xFFFF if whole.ordering_key is None else bucket_hash(whole.ordering_key)
                held = await self._earlier.stored_in(sequence_id, hash32, low)
            if self._flow.error is not None:
                raise self._flow.error
            if sequence_id is not None and sequence_id <= self._last_posted:
                raise BadArgument(
                    f"sequence_id={sequence_id} does not follow {self._last_posted}: sequence ids must rise"
                )
        except BaseException:
            self._budget.release(cost)
            raise
        # Nothing is awaited from here on: messages join their lanes in the order of their numbers.
        receipt: asyncio.Future[MessageId] = self._new_receipt() if promised is None else promised
        if held is not None:
            self._budget.release(cost)
            receipt.set_result(MessageId(held, -1, -1))
            return receipt
        number = self._next_sequence if sequence_id is None else sequence_id
        self._next_sequence = max(self._next_sequence, number + 1)
        self._last_posted = number
        self._join(hash32, number, whole, receipt)
        self._wholes += 1
        if self._wholes % TURN_MAX == 0:
            await asyncio.sleep(0)
        return receipt

    def _join(
        self, hash32: int, number: int, whole: SingleMessage, receipt: asyncio.Future[MessageId]
    ) -> None:
        if self._fits_batch(number, whole):
            is_base64 = isinstance(whole.key, bytes)
            field = self._keys[whole.key][1] if whole.key is not None else b""
            single = encode_full(
                field,
                number,
                whole.payload,
                whole.properties,
                whole.event_time_ms,
                is_base64=is_base64,
                is_null=whole.is_null,
            )
            # So far the payload was charged.
            self._budget.free += len(whole.payload) + ITEM_OVERHEAD_BYTES
            self._gather(number, hash32, *in_pieces(single), receipt)
            return
        self._flow.pending += 1
        run = WholeRun(number, hash32, whole, receipt, 0.0)
        lane = self._lanes.find_by(hash32, run.bucket_hash)
        run.since = self._flow.now(lane)
        self._flow.add([(lane, run)])

    def _fits_batch(self, number: int, whole: SingleMessage) -> bool:
        """Whether a message may join a batch: not a message with its own delivery time or ordering key, and not one
        that may be stored already: a broker that holds some of a batch drops all of it as a repetition."""
        return (
            self._settings.batching is not None
            and whole.deliver_at_ms is None
            and whole.ordering_key is None
            and len(whole.payload) < self._bytes_max
            and number > self._earlier.recalled
        )

    # -- tables

    async def send_batch(
        self,
        table: Any,
        *,
        key: str | None = None,
        value: str = "value",
        event_time: str | None = None,
        properties: str | None = None,
    ) -> BatchReceipt:
        """Sends every row of an Arrow table or record batch, and returns once all are stored. See `post_batch`."""
        receipt = await self.post_batch(
            table, key=key, value=value, event_time=event_time, properties=properties
        )
        try:
            return await receipt
        except Exception as error:
            self._flow.reported(error)
            raise

    async def post_batch(
        self,
        table: Any,
        *,
        key: str | None = None,
        value: str = "value",
        event_time: str | None = None,
        properties: str | None = None,
    ) -> asyncio.Future[BatchReceipt]:
        """Hands every row of an Arrow table or record batch in, and returns once there is room for the last.

        The arguments name columns: values and keys of strings or bytes (null means no value, or no key), event times as
        timestamps or milliseconds, properties as a map or a struct of strings. Values are sent unchanged: a schema is
        not applied. Each row is a message like any other, in batches that any client reads.
        """
        if self._flow.error is not None:
            raise self._flow.error
        if self._tables is None:
            self._tables = await _load_tables(self._settings, self._keyless_low)
            self._lanes.regroup = self._tables.regroup
        names = {"value": value, "key": key, "event_time": event_time, "properties": properties}
        sending = self._tables.start(table, names, self._new_receipt())
        is_begun = False
        for piece in self._tables.pieces(sending, self._budget.bytes_max // 4, self._lanes.places):
            await self._flow.room(piece.estimate, is_begun=is_begun)
            is_begun = True
            try:
                self._post_piece(self._tables, sending, piece.batch)
            finally:
                self._budget.release(piece.estimate)
            await asyncio.sleep(0)
        return sending.receipt

    def _post_piece(self, tables: TableRuns, sending: TableSending, batch: Any) -> None:
        """Nothing is awaited here: its rows are in their lanes before any message with a higher number."""
        runs = tables.runs(self._lanes, sending, batch, self._next_sequence, self._loop.time())
        self._next_sequence += batch.num_rows
        self._last_posted = self._next_sequence - 1
        self._flow.pending += batch.num_rows
        for lane in {id(lane): lane for lane, _ in runs}.values():
            self._flow.now(lane)
        for _, run in runs:
            self._budget.free -= run.cost
        self._flow.add(runs)

    # -- the end

    async def flush(self) -> None:
        """Sends gathered messages and waits for every receipt.

        Raises the error that ended the producer, or that of the first failed message since the last `flush`; errors
        that `send` has raised do not count.
        """
        await self._flow.flush()

    async def close(self, *, flush: bool = True) -> None:
        """Waits for every receipt, if `flush` is true, and detaches."""
        try:
            if flush and self._flow.error is None:
                await self.flush()
        finally:
            self._flow.end(Closed("the producer is closed: make another"))
            await self._flow.close()
            self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without closing it properly, like a dying process."""
        self._flow.end(ConnectionLost("the producer crashed"))
        self._flow.abort()


async def _load_tables(settings: ProducerSettings, keyless_low: int) -> TableRuns:
    """Kernels are compiled at their first use on a machine, which takes seconds: this runs outside the loop."""
    try:
        from anabranch.client.producing.tables import TableRuns
        from anabranch.columns import warm_up
    except ImportError as error:
        raise Unsupported(f"tables need {error.name}: pip install anabranch[arrow]") from None
    await asyncio.to_thread(warm_up, decoding=False)
    batching = settings.batching or Batching()
    limits = BatchLimits(batching.messages_max, batching.bytes_max)
    return TableRuns(settings.routing, limits, keyless_low, is_encrypted=settings.encryption is not None)
