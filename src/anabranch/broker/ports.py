"""What the parts of a broker ask of each other: a topic's log as its subscriptions see it, and a consumer's connection.

Positions are (ledger, entry) pairs. Inside the broker a cursor's place is always *the next entry wanted* (inclusive),
never "the last one done": the protocol's mark-delete and last-message-id forms are made at the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from anabranch.model.position import Position
from anabranch.storage.port import Buffer, Entry
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.attached import Attached
    from anabranch.broker.consumer import Consumer
    from anabranch.broker.producer import Producer
    from anabranch.model.names import TopicName
    from anabranch.wire.frames import Frame

# Told that something is durable, or why it will never be.
Done = Callable[[Exception | None], None]

# Consecutive entries of one ledger.
EntryBatch = tuple[int, list[Entry]]


class LogReader(Protocol):
    """A topic's confirmed log, across its ledgers."""

    @property
    def first(self) -> Position:
        """The first entry still kept, or `end` if there is none."""

    @property
    def end(self) -> Position:
        """Where the next entry to be confirmed will lie. Everything below it is confirmed and readable."""

    @property
    def last(self) -> Position:
        """The last confirmed entry that is still kept, or (-1, -1)."""

    @property
    def is_hiding(self) -> bool:
        """Whether there are entries at `end` already that readers may see later."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes the kept entries have."""

    def normalise(self, at: Position) -> Position:
        """The smallest position >= `at` that holds an entry, or `end`. Skips trimmed entries and ledger ends."""

    def after(self, at: Position) -> Position:
        """The position following entry `at`, normalised."""

    def before(self, at: Position) -> Position:
        """The last entry below `at`, or (-1, -1): the protocol's mark-delete form of a cursor whose next is `at`."""

    def count(self, start: Position, stop: Position) -> int:
        """How many kept entries lie in [start, stop). Cheap: arithmetic over the ledger list."""

    def position_at(self, index: int) -> Position:
        """The position of the index-th kept entry, or the end. Cheap as well."""

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """Entries from normalised `at` on if cached, else None. At the end of the log: (ledger, [])."""

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch:
        """The same from storage. Stops at a ledger's end. Raises LogDamagedError / LogMissingError."""

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """The first entry whose publish time is at or after the given one, or `end`."""


class Subscribed(Protocol):
    """A subscription as its consumers' connections see it; of a topic that keeps messages, or of one that does not."""

    name: str
    topic: str

    @property
    def type_name(self) -> str: ...

    @property
    def topic_log(self) -> LogReader:
        """NotAllowedError where nothing is kept."""

    @property
    def mark_delete(self) -> Position: ...

    def backlog(self) -> int: ...

    def consumer_ready(self, consumer: Consumer) -> None: ...

    def remove_consumer(self, consumer: Consumer) -> None: ...

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None: ...

    def flow(self, consumer: Consumer, permits: int) -> None: ...

    def link_writable(self, link: ConsumerLink) -> None: ...

    def ack(self, consumer: Consumer, command: pb.CommandAck, done: Done | None = None) -> None: ...

    def when_stored(self, done: Done) -> None: ...

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None = None
    ) -> None: ...

    async def seek(self, at: Position, ack_set: Sequence[int] = ()) -> None: ...

    async def seek_to_time(self, publish_time_ms: int) -> None: ...


class Publishable(Protocol):
    """A topic as its producers' connections see it."""

    @property
    def name(self) -> TopicName: ...

    @property
    def attached(self) -> Attached: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def publish(self) -> Callable[[Producer, Sequence[Frame]], None]: ...

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None: ...

    def last_sequence_id(self, producer: str) -> int: ...

    async def settled_sequence_id(self, producer: str) -> int:
        """The last id that is stored, once nothing of that producer is on its way to the disk."""

    def store_epoch(self, done: Done) -> None:
        """Makes it durable that a producer got the topic to itself, as far as the topic itself is."""


class Journal(Protocol):
    """Where a topic's state changes are made durable, in the same commits as its entries."""

    def record(self, delta: bytes, done: Callable[[Exception | None], None] | None = None) -> None:
        """Appends a state delta; `done` is called once it is confirmed, or with the error if it never will be."""


class ConsumerLink(Protocol):
    """A consumer's connection."""

    @property
    def is_writable(self) -> bool:
        """False while the socket's buffer is over its limit. `Subscription.link_writable` is called when it drains."""

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Queues bytes (whole frames, in pieces) for the socket, without copying large pieces."""

    def send(self, command: pb.BaseCommand) -> None:
        """Queues one simple command."""

    def work_begun(self) -> None:
        """Something that the client asked for takes several turns of the event loop: it is not read from meanwhile."""

    def work_ended(self) -> None: ...

    async def is_alive(self) -> bool:
        """Asks the other side; False if it does not answer in time."""

    def consumer_closed(self, consumer: Consumer) -> None:
        """The broker has closed this consumer: the client is told and will come back if it wants."""
