"""What a subscription needs around it, in memory: a log over lists, a journal, connections that decode what they get.

These are honest implementations of the broker's ports, small enough to read. `StepLoop` is an event loop whose time
stands still until a test moves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.ports import EntryBatch
from anabranch.broker.state.cursor import Cursor
from anabranch.broker.subscription.subscription import Subscription
from anabranch.model.position import BEFORE_ALL, Position
from anabranch.storage.port import Buffer, Entry, LogDamagedError, LogError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata, payload, publish_time
from anabranch.wire.frames import FrameDecoder
from anabranch.wire.subscription_types import EXCLUSIVE

T = TypeVar("T")


class StepLoop(asyncio.SelectorEventLoop):
    """Time moves only by `advance`."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self._now

    def now_ms(self) -> int:
        return int(self._now * 1000)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(coroutine)

    def settle(self, turns: int = 60) -> None:
        """Lets everything that can run now run."""

        async def spin() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(spin())

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self.settle()


def make_entry(
    body: bytes = b"x",
    *,
    key: str | None = None,
    messages: int = 1,
    sequence_id: int = 0,
    publish_time_ms: int = 1,
    deliver_at_ms: int | None = None,
    chunk: tuple[str, int, int] | None = None,
    hashes: tuple[int | None, int | None] = (None, None),
) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="producer", sequence_id=sequence_id, publish_time=publish_time_ms
    )
    if key is not None:
        metadata.partition_key = key
    if messages > 1:
        metadata.num_messages_in_batch = messages
    if deliver_at_ms is not None:
        metadata.deliver_at_time = deliver_at_ms
    if chunk is not None:
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = chunk
    low, high = hashes
    if low is not None:
        metadata.entry_hash_min = low
    if high is not None:
        metadata.entry_hash_max = high
    encoded = metadata.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded + body


class ListLog:
    """A confirmed log over lists, one per ledger. Entries of `cold` ledgers are not cached and must be awaited."""

    def __init__(self, first_ledger: int = 5) -> None:
        self.ledgers: dict[int, list[tuple[int, bytes]]] = {first_ledger: []}
        self.trimmed: Position = BEFORE_ALL
        self.cold: set[int] = set()
        self.skipped: set[Position] = set()
        self.damaged: set[Position] = set()
        self.failure: LogError | None = None
        self.reads = 0
        self.entries_read = 0

    def append(self, entry: bytes, messages: int = 1) -> Position:
        ledger = max(self.ledgers)
        self.ledgers[ledger].append((messages, entry))
        return ledger, len(self.ledgers[ledger]) - 1

    def roll(self) -> None:
        """The topic was closed and opened again: a new ledger."""
        self.ledgers[max(self.ledgers) + 3] = []

    def positions(self) -> list[Position]:
        return [
            at
            for ledger in sorted(self.ledgers)
            for n in range(len(self.ledgers[ledger]))
            if (at := (ledger, n)) >= self.trimmed and at not in self.skipped
        ]

    @property
    def first(self) -> Position:
        return self.normalise(BEFORE_ALL)

    @property
    def end(self) -> Position:
        ledger = max(self.ledgers)
        return ledger, len(self.ledgers[ledger])

    @property
    def last(self) -> Position:
        return self.before(self.end)

    @property
    def is_hiding(self) -> bool:
        return False

    @property
    def size_bytes(self) -> int:
        return sum(len(entry) for entries in self.ledgers.values() for _, entry in entries)

    def normalise(self, at: Position) -> Position:
        at = max(at, self.trimmed)
        for ledger in sorted(self.ledgers):
            if ledger < at[0]:
                continue
            first = max(0, at[1]) if ledger == at[0] else 0
            for n in range(first, len(self.ledgers[ledger])):
                if (ledger, n) not in self.skipped:
                    return ledger, n
        return self.end

    def after(self, at: Position) -> Position:
        return self.normalise((at[0], at[1] + 1))

    def before(self, at: Position) -> Position:
        return max((place for place in self.positions() if place < at), default=BEFORE_ALL)

    def count(self, start: Position, stop: Position) -> int:
        return sum(1 for at in self.positions() if start <= at < stop)

    def messages(self, start: Position, stop: Position) -> int:
        return sum(self.ledgers[at[0]][at[1]][0] for at in self.positions() if start <= at < stop)

    def position_at(self, index: int) -> Position:
        places = self.positions()
        return places[index] if index < len(places) else self.end

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        at = self.normalise(at)
        return None if at[0] in self.cold else self._cut(at, entries_max, bytes_max)

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch:
        self.reads += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        at = self.normalise(at)
        if at in self.damaged:
            raise LogDamagedError(at[0], at[1], at[1] + 1, "wal-1", 77)
        return self._cut(at, entries_max, bytes_max)

    def _cut(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch:
        ledger, first = at
        entries: list[Entry] = []
        size = 0
        for n in range(first, len(self.ledgers[ledger])):
            messages, data = self.ledgers[ledger][n]
            if (ledger, n) in self.damaged or len(entries) >= entries_max or (entries and size >= bytes_max):
                break
            if (ledger, n) in self.skipped:
                break
            entries.append((n, messages, memoryview(data)))
            size += len(data)
        self.entries_read += len(entries)
        return ledger, entries

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        await asyncio.sleep(0)
        for ledger, n in self.positions():
            if publish_time(self.ledgers[ledger][n][1]) >= publish_time_ms:
                return ledger, n
        return self.end


class ListJournal:
    """Keeps deltas; confirms them at once, or when told to."""

    def __init__(self, loop: StepLoop) -> None:
        self.deltas: list[bytes] = []
        self.is_holding = False
        self.failure: Exception | None = None
        self._loop = loop
        self._waiting: list[Callable[[Exception | None], None]] = []

    def record(self, delta: bytes, done: Callable[[Exception | None], None] | None = None) -> None:
        if self.failure is not None:
            if done is not None:
                done(self.failure)
            return
        self.deltas.append(delta)
        if done is not None:
            self._waiting.append(done)
            if not self.is_holding:
                self._loop.call_soon(self.confirm)

    def confirm(self, error: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)


@dataclass
class Message:
    """A MESSAGE frame as a client sees it."""

    consumer: int
    at: Position
    body: bytes
    key: str
    redeliveries: int
    ack_set: list[int]
    epoch: int | None


@dataclass(eq=False)
class RecordingLink:
    """A connection that decodes what is written to it."""

    is_writable: bool = True
    address: str = ""
    client_version: str = ""
    messages: list[Message] = field(default_factory=list)
    commands: list[pb.BaseCommand] = field(default_factory=list)
    closed: list[AttachedConsumer] = field(default_factory=list)
    writes: int = 0
    works: int = 0
    decoder: FrameDecoder = field(default_factory=FrameDecoder)

    async def is_alive(self) -> bool:
        return True

    def work_begun(self) -> None:
        self.works += 1

    def work_ended(self) -> None:
        self.works -= 1

    def write(self, pieces: Sequence[Buffer]) -> None:
        self.writes += 1
        for kind, command, data in self.decoder.feed(b"".join(pieces)):
            assert kind == pb.BaseCommand.MESSAGE
            message = command.message
            self.messages.append(
                Message(
                    message.consumer_id,
                    (message.message_id.ledgerId, message.message_id.entryId),
                    bytes(payload(data)),
                    parse_metadata(data).partition_key,
                    message.redelivery_count,
                    list(message.ack_set),
                    message.consumer_epoch if message.HasField("consumer_epoch") else None,
                )
            )

    def send(self, command: pb.BaseCommand) -> None:
        self.commands.append(pb.BaseCommand.FromString(command.SerializeToString()))

    def consumer_closed(self, consumer: AttachedConsumer, moved_to: Addresses | None = None) -> None:
        self.closed.append(consumer)

    @property
    def places(self) -> list[Position]:
        return [message.at for message in self.messages]

    def take(self) -> list[Position]:
        """What has come since the last time."""
        places = self.places
        self.messages.clear()
        return places


class Rig:
    """One subscription with everything around it."""

    def __init__(
        self,
        *,
        start: Position | None = None,
        limits: DispatchLimits | None = None,
        is_durable: bool = True,
        partition: int = -1,
        log: ListLog | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        self.loop = StepLoop()
        self.log = log or ListLog()
        self.journal = ListJournal(self.loop)
        self.ended: list[Subscription] = []
        self.drained: list[Subscription] = []
        self.limits = limits or DispatchLimits()
        self.subscription = Subscription(
            "sub",
            "persistent://public/default/topic",
            self.log,
            self.journal if is_durable else None,
            cursor or Cursor(start or self.log.first),
            loop=self.loop,
            now_ms=self.loop.now_ms,
            limits=self.limits,
            partition=partition,
            ended=self.ended.append,
            drained=self.drained.append,
        )
        self._ids = 0

    def publish(self, count: int = 1, **options: Any) -> list[Position]:
        messages = options.get("messages", 1)
        places = [self.log.append(make_entry(**options), messages) for _ in range(count)]
        self.subscription.entries_confirmed()
        return places

    def consumer(
        self,
        kind: int = EXCLUSIVE,
        *,
        name: str | None = None,
        permits: int = 1000,
        link: RecordingLink | None = None,
        **options: Any,
    ) -> tuple[AttachedConsumer, RecordingLink]:
        self._ids += 1
        link = link or RecordingLink()
        consumer = AttachedConsumer(self._ids, name or f"c{self._ids}", link, kind=kind, **options)
        self.subscription.add_consumer(consumer)
        self.subscription.consumer_ready(consumer)
        if permits:
            self.subscription.flow(consumer, permits)
        self.loop.settle()
        return consumer, link

    def ack(
        self,
        consumer: AttachedConsumer,
        places: Iterable[Position],
        *,
        is_cumulative: bool = False,
        ack_set: Sequence[int] = (),
        batch_size: int = 0,
        turns: int = 60,
    ) -> list[Exception | None]:
        """Acknowledges and returns what the answers said so far."""
        kind = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
        command = pb.CommandAck(consumer_id=consumer.id, ack_type=kind)
        for ledger, entry in places:
            id = command.message_id.add(ledgerId=ledger, entryId=entry)
            id.ack_set.extend(ack_set)
            if batch_size:
                id.batch_size = batch_size
        answers: list[Exception | None] = []
        self.subscription.ack(consumer, command, answers.append)
        self.loop.settle(turns)
        return answers

    def close(self) -> None:
        self.subscription.close()
        self.loop.settle()
        self.loop.close()
