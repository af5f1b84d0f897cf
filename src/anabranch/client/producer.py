"""A producer to a topic: routes by key, follows the layout, keeps every key in order, loses nothing.

`lanes.Lanes` decides which message goes where and when; `gathering.Gathering` when a batch leaves; `entries.Entries`
what it looks like. Each segment in use has an attached producer. When its connection is lost it attaches again and
sends its whole lane again; the broker drops what it has already if deduplication is on. A segment that turns out to be
sealed is asked for its last sequence id first wherever a receipt may have been lost, so that nothing is stored twice;
then the rest of its lane is cut again for its children.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from anabranch.client.batching import Batching
from anabranch.client.budget import MemoryBudget
from anabranch.client.connections import Connections
from anabranch.client.earlier import EarlierLife
from anabranch.client.entries import Encrypts, Entries
from anabranch.client.errors import BadArgument, Closed, ConnectionLost, TimedOut, TopicDeleted
from anabranch.client.gathering import Gathering
from anabranch.client.lanes import NOWHERE, Lane, Lanes, Routing, keyless_hash
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message_id import MessageId
from anabranch.client.receipts import fail, store
from anabranch.client.runs import ITEM_OVERHEAD_BYTES, Limits, Run, Whole, WholeRun
from anabranch.client.segment_producer import Attaching, SegmentProducer
from anabranch.client.singles import Keys, encode_full, encode_single
from anabranch.client.times import to_ms
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

SEND_TIMEOUT_S: Final = 30.0
# Timers may fire this much early.
CLOCK_GRAIN_S: Final = 0.001
# Messages that are no part of a batch and are handed in without a pause, before others get their turn.
TURN_MAX: Final = 64


class Encodes(Protocol):
    """A schema, as far as a producer needs it."""

    def encode(self, value: Any) -> bytes: ...

    def info(self) -> pb.Schema | None: ...


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer behaves. `Client.producer` says what each means."""

    routing: Routing = Routing.HIGH
    batching: Batching | None = field(default_factory=Batching)
    compression: int = pb.NONE
    is_chunking: bool = False
    access_mode: int = pb.Shared
    schema: Encodes | None = None
    encryption: Encrypts | None = None
    send_timeout_s: float | None = SEND_TIMEOUT_S
    properties: Mapping[str, str] = field(default_factory=dict)
    is_named: bool = False


class Producer:
    """Made by `Client.producer`. One loop, no locks: everything happens between two awaits."""

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
        self.watch = watch
        self.connections = connections
        self.chance = chance
        self._settings = settings
        batching = settings.batching
        limits = Limits(batching.messages_max, batching.bytes_max) if batching is not None else Limits(1, 0)
        self._messages_max, self._bytes_max = limits
        self.lanes = Lanes(watch.layout, settings.routing, limits)
        self.entries = Entries(
            name,
            now_ms,
            compression=settings.compression,
            encryption=settings.encryption,
            is_chunking=settings.is_chunking,
        )
        self.attaching = Attaching(
            settings.access_mode,
            settings.schema.info() if settings.schema is not None else None,
            tuple(settings.properties.items()),
            settings.encryption is not None,
        )
        self._loop = asyncio.get_running_loop()
        self._new_receipt = self._loop.create_future
        self._encode = settings.schema.encode if settings.schema is not None else None
        self._keys = Keys()
        self._now_ms = now_ms
        self._budget = budget
        self._closed = closed
        self._gathering = Gathering(
            self._loop, batching.delay_ms / 1000 if batching is not None else 0.0, self._cut
        )
        self._earlier = EarlierLife(self, settings.routing)
        self._next_sequence = 0
        self._last_posted = -1
        self._turn = 0
        self._wholes = 0
        self._pending = 0
        self._segments: dict[SegmentId, SegmentProducer] = {}
        self._error: Exception | None = None
        # The first message that failed and that nobody has been told of.
        self._unreported: Exception | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening = watch.listen(self._layout_changed)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(flush=kind is None)

    async def open(self) -> None:
        """Finds out what the topic holds of a producer of this name; takes the topic, if it is to have it alone."""
        if self._settings.is_named:
            self._next_sequence = await self._earlier.recall() + 1
        active = self.watch.layout.active
        if self._settings.access_mode != pb.Shared:
            # One after the other, in one order: two producers that wait must not each hold what the other waits for.
            for segment in active:
                await self.segment(segment.id).last_sequence_id()
        elif self.attaching.schema is not None:
            # A schema that does not fit shows now, not with the first message.
            await self.segment(active[0].id).last_sequence_id()

    @property
    def topic(self) -> str:
        return str(self.watch.topic)

    @property
    def last_sequence_id(self) -> int:
        """The highest one given out, or found in the topic when the producer was opened; -1 for none."""
        return self._next_sequence - 1

    # -- sending

    async def send(
        self,
        value: Any,
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
            if error is self._unreported:
                self._unreported = None
            raise

    async def post(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | float | None = None,
        sequence_id: int | None = None,
        ordering_key: bytes | None = None,
    ) -> asyncio.Future[MessageId]:
        """Hands a message in and returns once there is room for it; the future tells where it was stored.

        The fast way: post in a loop, then `flush`. Messages of a key are stored in the order of these calls.

        - `key`: chooses the segment. Text, or bytes, which travel as base64.
        - `event_time`, `deliver_at`: a datetime or milliseconds since 1970. A delayed message is held back from
          consumers that share a subscription, `deliver_after` so many seconds.
        - `sequence_id`: given out in order by default; an application that gives its own must give rising ones.
        - `ordering_key`: goes before the key where consumers share a topic by keys.
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
            whole = self._whole_of(
                payload, key, properties, event_time, deliver_at, deliver_after, ordering_key
            )
            return await self._post_special(whole, sequence_id)
        if self._error is not None:
            raise self._error
        budget = self._budget
        reserved = 0
        if budget.is_short(len(payload) + ITEM_OVERHEAD_BYTES):
            reserved = len(payload) + ITEM_OVERHEAD_BYTES
            await self._room(reserved)
        # From here on nothing is awaited until the message is in its lane, in the order of the numbers.
        number = self._next_sequence
        try:
            hash32, key_field = self._keys(key) if key is not None else (self._keyless(), b"")
            if properties is None and event_time is None and type(key) is not bytes:
                single = encode_single(key_field, number, payload)
            else:
                pairs = properties.items() if properties is not None else ()
                is_base64 = isinstance(key, bytes)
                single = encode_full(
                    key_field, number, payload, pairs, to_ms(event_time), is_base64=is_base64
                )
        except BaseException:
            budget.release(reserved)
            raise
        budget.free -= len(single) + ITEM_OVERHEAD_BYTES
        if reserved:
            budget.release(reserved)
        self._next_sequence = number + 1
        self._last_posted = number
        receipt: asyncio.Future[MessageId] = self._new_receipt()
        self._pending += 1
        lane = self.lanes.find(hash32)
        size = lane.size + len(single)
        items = lane.items
        is_full = False
        if size > self._bytes_max and items:
            self._cut(lane)
            items, size, is_full = lane.items, len(single), True
        items.append((number, hash32, single, receipt))
        lane.size = size
        if len(items) == 1:
            self._begin(lane)
        if len(items) >= self._messages_max:
            self._cut(lane)
            is_full = True
        if is_full:
            # A loop of posts must not keep everything else, receipts first of all, from its turn.
            await asyncio.sleep(0)
        return receipt

    async def _room(self, size: int) -> None:
        self._flush_open()
        await self._budget.take(size)
        if self._error is not None:
            self._budget.release(size)
            raise self._error

    def _keyless(self) -> int:
        self._turn += 1
        return keyless_hash(self.lanes.layout, self._turn - 1, self._settings.routing)

    def _begin(self, lane: Lane) -> None:
        """The first message of a run was gathered."""
        self._mark(lane)
        if lane.segment != NOWHERE:
            self._gathering.begun(lane, is_idle=not lane.runs)

    def _mark(self, lane: Lane) -> None:
        """Something was handed in just now."""
        lane.since = self._loop.time()
        if self._timer is None and self._settings.send_timeout_s is not None:
            self._timer = self._loop.call_later(self._settings.send_timeout_s, self._time_out)
        if self._empty.is_set():
            self._empty.clear()

    def _cut(self, lane: Lane) -> None:
        if lane.segment == NOWHERE:
            lane.cut()
        elif (run := lane.cut()) is not None:
            self.segment(lane.segment).send(run)

    def _flush_open(self) -> None:
        for segment in self.lanes.segments:
            lane = self.lanes.lane(segment)
            if lane is not None:
                self._cut(lane)

    # -- messages with an entry to themselves

    def _whole_of(
        self,
        payload: Any,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time: datetime | int | None,
        deliver_at: datetime | int | None,
        deliver_after: timedelta | float | None,
        ordering_key: bytes | None,
    ) -> Whole:
        is_null = payload is None
        if payload is None:
            payload = b""
        elif isinstance(payload, bytearray | memoryview):
            payload = bytes(payload)
        elif not isinstance(payload, bytes):
            raise BadArgument(
                f"a value of type {type(payload).__name__}: send bytes, or make the producer with a schema"
            )
        if deliver_after is not None:
            if deliver_at is not None:
                raise BadArgument("deliver_at and deliver_after: give one of them")
            after_s = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
            deliver_at = self._now_ms() + round(after_s * 1000)
        return Whole(
            payload,
            key,
            tuple((properties or {}).items()),
            to_ms(event_time),
            to_ms(deliver_at),
            ordering_key,
            is_null,
        )

    async def _post_special(self, whole: Whole, sequence_id: int | None) -> asyncio.Future[MessageId]:
        if self._error is not None:
            raise self._error
        cost = len(whole.payload) + ITEM_OVERHEAD_BYTES
        await self._room(cost)
        held = None
        try:
            hash32 = self._keys(whole.key)[0] if whole.key is not None else self._keyless()
            if sequence_id is not None and sequence_id <= self._earlier.recalled:
                held = await self._earlier.stored_in(sequence_id, hash32)
            if self._error is not None:
                raise self._error
            if sequence_id is not None and sequence_id <= self._last_posted:
                raise BadArgument(
                    f"sequence_id={sequence_id} does not follow {self._last_posted}: sequence ids must rise"
                )
        except BaseException:
            self._budget.release(cost)
            raise
        # From here on nothing is awaited: messages join their lanes in the order of their numbers.
        receipt: asyncio.Future[MessageId] = self._new_receipt()
        if held is not None:
            self._budget.release(cost)
            receipt.set_result(MessageId(held, -1, -1))
            return receipt
        number = self._next_sequence if sequence_id is None else sequence_id
        self._next_sequence = max(self._next_sequence, number + 1)
        self._last_posted = number
        self._pending += 1
        self._join(hash32, number, whole, receipt)
        self._wholes += 1
        if self._wholes % TURN_MAX == 0:
            await asyncio.sleep(0)
        return receipt

    def _join(self, hash32: int, number: int, whole: Whole, receipt: asyncio.Future[MessageId]) -> None:
        lane = self.lanes.find(hash32)
        if self._fits_batch(number, whole):
            is_base64 = isinstance(whole.key, bytes)
            field = self._keys(whole.key)[1] if whole.key is not None else b""
            single = encode_full(
                field,
                number,
                whole.payload,
                whole.properties,
                whole.event_time_ms,
                is_base64=is_base64,
                is_null=whole.is_null,
            )
            # What was charged is what `Run.cost` will give back.
            self._budget.free -= len(single) - len(whole.payload)
            if lane.items and lane.size + len(single) > self._bytes_max:
                self._cut(lane)
            lane.items.append((number, hash32, single, receipt))
            lane.size += len(single)
            if len(lane.items) == 1:
                self._begin(lane)
            if len(lane.items) >= self._messages_max:
                self._cut(lane)
            return
        self._cut(lane)
        self._mark(lane)
        run = WholeRun(number, hash32, whole, receipt, lane.since)
        lane.add(run)
        if lane.segment != NOWHERE:
            self.segment(lane.segment).send(run)

    def _fits_batch(self, number: int, whole: Whole) -> bool:
        """Not what is delivered on its own, and not what may be stored already: a broker that holds some of a batch
        drops all of it as a repetition."""
        return (
            self._settings.batching is not None
            and whole.deliver_at_ms is None
            and whole.ordering_key is None
            and len(whole.payload) < self._bytes_max
            and number > self._earlier.recalled
        )

    # -- the end

    async def flush(self) -> None:
        """Sends what is gathered and waits for every receipt.

        Raises the error that ended the producer, or that of the first message since the last `flush` that failed;
        errors that `send` has raised do not count.
        """
        self._flush_open()
        await self._empty.wait()
        error, self._unreported = self._error or self._unreported, None
        if error is not None:
            raise error

    async def close(self, *, flush: bool = True) -> None:
        """Waits for every receipt, if asked to, and detaches."""
        try:
            if flush and self._error is None:
                await self.flush()
        finally:
            self._end(Closed("the producer is closed: make another"))
            await asyncio.gather(*(one.close() for one in self._segments.values()))
            await self.watch.close()
            self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without a word, as a process that dies would."""
        self._end(ConnectionLost("the producer crashed"))
        for one in self._segments.values():
            one.abort()
        self.connections.abort()

    # -- what happens

    def _layout_changed(self) -> None:
        if self.watch.is_deleted:
            self._end(TopicDeleted(f"{self.topic} was deleted"))
            return
        self.lanes.learned(self.watch.layout)
        for number, one in list(self._segments.items()):
            if self.watch.is_over(number):
                self._open_children(number)
                if self.lanes.first_number(number) is None and one.retire():
                    del self._segments[number]
        self._dispatch()

    def _open_children(self, number: SegmentId) -> None:
        """Those of a segment that was in use will be, too: attached while the last answers of the parent come in."""
        known = self.watch.layout.segments.get(number)
        for child in known.children if known is not None else ():
            if not self.watch.is_over(child):
                self.segment(child).open()

    def _dispatch(self) -> None:
        for lane, run in self.lanes.ready():
            self.segment(lane.segment).send(run)

    def segment(self, number: SegmentId) -> SegmentProducer:
        """The producer of that segment; made when it is first asked for."""
        found = self._segments.get(number)
        if found is None:
            found = self._segments[number] = SegmentProducer(self, number)
        return found

    def settled(self, segment: SegmentId, upto: int, ledger: int, entry: int) -> None:
        """The segment holds everything up to a sequence id; the last run of it lies at that place, if one is given."""
        for run in self.lanes.settled(segment, upto):
            is_it = run.last == upto
            store(run, segment, ledger if is_it else -1, entry if is_it else -1)
            self._answered(run)
        lane = self.lanes.lane(segment)
        if lane is not None and lane.items and not lane.runs:
            self._cut(lane)
        self._after_change(segment)

    def refused(self, segment: SegmentId, number: int, error: Exception) -> None:
        """The segment will not have that one run."""
        run = self.lanes.dropped(segment, number)
        if run is not None:
            self._fail(run, error)
        self._after_change(segment)

    def attached(self, segment: SegmentId) -> None:
        lane = self.lanes.lane(segment)
        if lane is not None:
            self._cut(lane)

    def sealed(self, segment: SegmentId) -> None:
        """What the segment did not take goes to its children, at once or when they are known."""
        self.lanes.sealed(segment)
        self._segments.pop(segment, None)
        self._dispatch()

    def _after_change(self, segment: SegmentId) -> None:
        if self.watch.is_over(segment) and self.lanes.first_number(segment) is None:
            one = self._segments.get(segment)
            if one is not None and one.retire():
                del self._segments[segment]
            self._dispatch()

    def failed(self, error: Exception) -> None:
        self._end(error)

    def _answered(self, run: Run) -> None:
        self._budget.release(run.cost)
        self._pending -= run.count
        if self._pending == 0:
            self._empty.set()

    def _fail(self, run: Run, error: Exception) -> None:
        if self._unreported is None:
            self._unreported = error
        fail(run, error)
        self._answered(run)

    def _time_out(self) -> None:
        """Once the oldest message has waited too long, all fail that are behind it: what is sent later must not be
        stored without what was sent before."""
        self._timer = None
        limit_s = self._settings.send_timeout_s
        oldest_s = self.lanes.oldest_s()
        if limit_s is None or oldest_s is None:
            return
        left_s = oldest_s + limit_s - self._loop.time()
        if left_s > CLOCK_GRAIN_S:
            self._timer = self._loop.call_later(left_s, self._time_out)
            return
        error = TimedOut(
            f"no receipt from {self.topic} within {limit_s:g} s: the message may be stored or not; is the broker "
            "reachable? send_timeout_s allows more time"
        )
        for run in self.lanes.clear():
            self._fail(run, error)
        for one in self._segments.values():
            one.forget()

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._stop_listening()
        self._gathering.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for run in self.lanes.clear():
            self._fail(run, self._error)
        self._empty.set()
