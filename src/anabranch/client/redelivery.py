"""Which messages of a queue are to be sent again, and when. Pure: entries and times in, entries out.

A broker sends whole entries again. Of a batch, the messages that the application still works on must not come twice: a
`Batch` knows which were acknowledged, which were handed back, and which of those are asked for again.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final

from anabranch.client.errors import BadArgument
from anabranch.client.message import Entry


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
        """The pause before the next delivery of a message that was delivered again so often."""
        # More doublings than any limit allows; beyond them the number would overflow.
        return min(self.max_s, self.first_s * self.factor ** min(redeliveries, 64))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message delivered again `redeliveries_max` times and handed back once more goes to `topic`.

    By default that is the topic's name, the subscription's and "DLQ", with dashes, as with Pulsar's clients.
    """

    redeliveries_max: int
    topic: str | None = None

    def __post_init__(self) -> None:
        if self.redeliveries_max < 0:
            raise BadArgument("redeliveries_max must not be negative")


# Batches remembered that were asked for again; they may have gone to other consumers. Of those that are forgotten,
# some messages may come twice.
SHARED_MAX: Final = 10_000


class Batch:
    """What has become of an entry's messages, by their bits. Shared by all deliveries of the entry."""

    __slots__ = ("asked", "due", "left", "nacked", "waiting")

    def __init__(self, entry: Entry) -> None:
        self.left = bits_of_entry(entry)  # Not acknowledged.
        self.nacked = 0  # Handed back, and waiting for their time.
        self.asked = 0  # To come again.
        # Of those handed back, the ones to be asked for, all at once when the last of them is due: what a broker sends
        # again is every message that is not acknowledged, so asking for each in its time would bring the others twice.
        self.waiting = 0
        self.due: float | None = None

    def acked(self, bits: int) -> int:
        """Notes messages as acknowledged; the bits of those that are not."""
        keep = ~bits
        self.left = left = self.left & keep
        self.nacked &= keep
        self.asked &= keep
        return left

    @property
    def held(self) -> int:
        """Those that the application has, or will have."""
        return self.left & ~self.nacked & ~self.asked


def batch_of(entry: Entry) -> Batch:
    batch = entry.batch
    if batch is None:
        batch = entry.batch = Batch(entry)
    return batch  # type: ignore[no-any-return]


# Of an entry in one life of its segment: in the next one a broker sends all of it again, and that is news.
Place = tuple[object, object, int, int]


def place_of(entry: Entry) -> Place:
    return (entry.owner, entry.life, entry.ledger, entry.entry)


def bit_of(index: int) -> int:
    """Of a message by its place in a batch; one outside of a batch is the first."""
    return 1 << index if index > 0 else 1


def bits_of_entry(entry: Entry) -> int:
    """Of all messages that were given out."""
    return entry.wanted if entry.wanted >= 0 else (1 << entry.count) - 1


class Redeliveries:
    """Of one consumer. `due` tells what to ask brokers for; `is_wanted` judges what they send."""

    def __init__(self, delay: NackDelay, processing_timeout_s: float | None = None) -> None:
        self._delay = delay
        self._timeout_s = processing_timeout_s
        self._count = 0  # Breaks ties: entries cannot be compared.
        self._nacked: list[tuple[float, int, Entry]] = []
        self._given: deque[tuple[float, Entry, int]] = deque()
        # Batches asked for again: what comes may have more than that in it, because the application still has it or
        # has acknowledged it since.
        self._shared: dict[Place, Batch] = {}

    def given(self, entry: Entry, bits: int, now: float) -> None:
        """The application has messages of an entry, and so long to settle them."""
        if self._timeout_s is not None:
            batch_of(entry)
            self._given.append((now + self._timeout_s, entry, bits))

    def take_back(self, entry: Entry, bits: int) -> int:
        """The application has handed messages back; those that it had."""
        batch = batch_of(entry)
        bits &= batch.held
        batch.nacked |= bits
        return bits

    def later(self, entry: Entry, bits: int, now: float) -> None:
        """Messages that were handed back are to come again, after a while."""
        batch, due = batch_of(entry), now + self._delay.after(entry.redeliveries)
        batch.waiting |= bits
        if batch.due is None:
            self._push(entry, due)
        batch.due = due if batch.due is None else max(due, batch.due)

    def _push(self, entry: Entry, due: float) -> None:
        self._count += 1
        heapq.heappush(self._nacked, (due, self._count, entry))

    def acked(self, entry: Entry, index: int) -> int:
        """A message is acknowledged; the bits of its entry's that are not."""
        return self.acked_bits(entry, bit_of(index))

    def acked_bits(self, entry: Entry, bits: int) -> int:
        """As `acked`, for several of its messages."""
        batch = batch_of(entry)
        left = batch.acked(bits)
        if self._shared and not batch.held and not batch.asked:
            # Nothing of it is under way, so what comes of it now is news, all of it.
            self._shared.pop(place_of(entry), None)
        return left

    @property
    def next_due(self) -> float | None:
        """When to look again."""
        while self._given and not batch_of(self._given[0][1]).held & self._given[0][2]:
            self._given.popleft()
        times = [times[0][0] for times in (self._nacked, self._given) if times]
        return min(times, default=None)

    def due(self, now: float) -> list[tuple[Entry, int]]:
        """Entries with the bits of messages that are to come again now."""
        found: dict[Entry, int] = {}
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

    def asked(self, entry: Entry, bits: int) -> None:
        """A broker was asked to send those messages again."""
        batch = batch_of(entry)
        batch.asked |= bits
        if entry.count > 1:
            self._shared[place_of(entry)] = batch
            if len(self._shared) > SHARED_MAX:
                del self._shared[next(iter(self._shared))]

    def is_wanted(self, entry: Entry) -> bool:
        """Whether an entry that a broker sent again has anything new; messages that are not are taken out."""
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
        """A broker sends everything of a segment again that was not acknowledged."""
        self._shared = {place: batch for place, batch in self._shared.items() if place[0] is not owner}
