"""Which messages of a queue are to be delivered again, and when. Pure: entries and times in, entries out.

A broker redelivers whole entries. Messages of a batch that the application still works on must not be delivered twice:
a `BatchState` knows which messages were acknowledged, which were handed back, and which of those are asked for again.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final

from anabranch.client.errors import BadArgument
from anabranch.client.message import ReceivedEntry


@dataclass(frozen=True, slots=True)
class NackDelay:
    """How long a message that was handed back waits: `first_s`, then `factor` times longer each time, up to `max_s`."""

    first_s: float = 1.0
    max_s: float = 60.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.max_s and self.factor >= 1):
            raise BadArgument("NackDelay needs 0 <= first_s <= max_s and factor >= 1")

    def after(self, redeliveries: int) -> float:
        """The pause before the next delivery of a message that was redelivered so often."""
        # 64 doublings exceed any limit; more of them would overflow.
        return min(self.max_s, self.first_s * self.factor ** min(redeliveries, 64))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message redelivered `redeliveries_max` times and handed back once more is sent to `topic`.

    By default that topic's name is the topic's name, the subscription's and "DLQ", joined with dashes, as with Pulsar's
    clients.
    """

    redeliveries_max: int
    topic: str | None = None

    def __post_init__(self) -> None:
        if self.redeliveries_max < 0:
            raise BadArgument("redeliveries_max must not be negative")


# How many batches that were asked for again are remembered; they may have gone to other consumers. Messages of a
# forgotten batch may be delivered twice.
SHARED_MAX: Final = 10_000


class BatchState:
    """What has become of an entry's messages, as bits. All deliveries of the entry share this state."""

    __slots__ = ("asked", "due", "left", "nacked", "waiting")

    def __init__(self, entry: ReceivedEntry) -> None:
        self.left = bits_of_entry(entry)  # Not acknowledged.
        self.nacked = 0  # Handed back, and waiting for their delay.
        self.asked = 0  # To be delivered again.
        # Of the messages handed back, the ones to be asked for, all together when the last of them is due: a broker
        # redelivers every message that is not acknowledged, so asking for each one when it is due would deliver the
        # others twice.
        self.waiting = 0
        self.due: float | None = None

    def acked(self, bits: int) -> int:
        """Marks messages as acknowledged; returns the bits of those that are not."""
        keep = ~bits
        self.left = left = self.left & keep
        self.nacked &= keep
        self.asked &= keep
        return left

    @property
    def held(self) -> int:
        """The messages that the application has, or will have."""
        return self.left & ~self.nacked & ~self.asked


def batch_of(entry: ReceivedEntry) -> BatchState:
    batch = entry.batch
    if batch is None:
        batch = entry.batch = BatchState(entry)
    return batch  # type: ignore[no-any-return]


# The place of an entry in one life of its segment: in the next life a broker delivers all of the entry again, as new.
Place = tuple[object, object, int, int]


def place_of(entry: ReceivedEntry) -> Place:
    return (entry.owner, entry.life, entry.ledger, entry.entry)


def bit_of(index: int) -> int:
    """The bit of a message by its index in a batch; a message outside a batch has the first bit."""
    return 1 << index if index > 0 else 1


def bits_of_entry(entry: ReceivedEntry) -> int:
    """The bits of all messages that were given out."""
    return entry.wanted if entry.wanted >= 0 else (1 << entry.count) - 1


class Redeliveries:
    """The redeliveries of one consumer. `due` returns what to ask brokers for; `is_wanted` judges what they send."""

    def __init__(self, delay: NackDelay, processing_timeout_s: float | None = None) -> None:
        self._delay = delay
        self._timeout_s = processing_timeout_s
        self._count = 0  # Breaks ties: entries cannot be compared.
        self._nacked: list[tuple[float, int, ReceivedEntry]] = []
        self._given: deque[tuple[float, ReceivedEntry, int]] = deque()
        # Batches asked for again: a broker may send more of them than was asked for, messages that the application
        # still has or has acknowledged since.
        self._shared: dict[Place, BatchState] = {}

    def given(self, entry: ReceivedEntry, bits: int, now: float) -> None:
        """Notes that the application has messages of an entry, and starts their processing time-out."""
        if self._timeout_s is not None:
            batch_of(entry)
            self._given.append((now + self._timeout_s, entry, bits))

    def take_back(self, entry: ReceivedEntry, bits: int) -> int:
        """The application hands messages back; returns those that it had."""
        batch = batch_of(entry)
        bits &= batch.held
        batch.nacked |= bits
        return bits

    def later(self, entry: ReceivedEntry, bits: int, now: float) -> None:
        """Schedules the redelivery of messages that were handed back."""
        batch, due = batch_of(entry), now + self._delay.after(entry.redeliveries)
        batch.waiting |= bits
        if batch.due is None:
            self._push(entry, due)
        batch.due = due if batch.due is None else max(due, batch.due)

    def _push(self, entry: ReceivedEntry, due: float) -> None:
        self._count += 1
        heapq.heappush(self._nacked, (due, self._count, entry))

    def acked(self, entry: ReceivedEntry, index: int) -> int:
        """Marks a message as acknowledged; returns the bits of its entry's messages that are not."""
        return self.acked_bits(entry, bit_of(index))

    def acked_bits(self, entry: ReceivedEntry, bits: int) -> int:
        """Like `acked`, for several of the entry's messages."""
        batch = batch_of(entry)
        left = batch.acked(bits)
        if self._shared and not batch.held and not batch.asked:
            # None of its messages is under way, so whatever arrives of the batch from now on is new.
            self._shared.pop(place_of(entry), None)
        return left

    @property
    def next_due(self) -> float | None:
        """When `due` will next have a result."""
        while self._given and not batch_of(self._given[0][1]).held & self._given[0][2]:
            self._given.popleft()
        times = [times[0][0] for times in (self._nacked, self._given) if times]
        return min(times, default=None)

    def due(self, now: float) -> list[tuple[ReceivedEntry, int]]:
        """Entries with the bits of messages that are to be asked for now."""
        found: dict[ReceivedEntry, int] = {}
        while self._nacked and self._nacked[0][0] <= now:
            _, _, entry = heapq.heappop(self._nacked)
            batch = batch_of(entry)
            if batch.due is not None and batch.due > now:
                self._push(entry, batch.due)
                continue
            bits = batch.waiting & batch.nacked
            batch.waiting, batch.due = 0, None
            if bits:
                batch.nacked &= ~bits
                found[entry] = bits
        while self._given and self._given[0][0] <= now:
            _, entry, bits = self._given.popleft()
            if bits := bits & batch_of(entry).held:
                found[entry] = found.get(entry, 0) | bits
        return list(found.items())

    def asked(self, entry: ReceivedEntry, bits: int) -> None:
        """Notes that a broker was asked to send those messages again."""
        batch = batch_of(entry)
        batch.asked |= bits
        if entry.count > 1:
            self._shared[place_of(entry)] = batch
            if len(self._shared) > SHARED_MAX:
                del self._shared[next(iter(self._shared))]

    def is_wanted(self, entry: ReceivedEntry) -> bool:
        """Whether a redelivered entry has any new message; the other messages are removed from it."""
        place = place_of(entry)
        batch = self._shared.get(place)
        if batch is None:
            return True
        entry.want(batch.asked)
        entry.batch = batch
        batch.asked = 0
        if not batch.left & ~entry.wanted:
            del self._shared[place]
        return bool(entry.wanted)

    def forget(self, owner: object) -> None:
        """Forgets a segment: its broker redelivers everything that was not acknowledged."""
        self._shared = {place: batch for place, batch in self._shared.items() if place[0] is not owner}
