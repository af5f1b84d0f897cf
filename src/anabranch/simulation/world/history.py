"""What clients saw, and whether a correct cluster could have let them see it. Pure: events in, violations out.

Nothing here comes from a broker's own reports. The rules:

* A message with a receipt is delivered to every subscription that existed before it was sent and was not deleted.
* In a subscription that keeps order, the first deliveries of a key's messages are in the order they were sent, by each
  producer, through splits, merges, crashes and new leaders.
* With deduplication, a message is stored at one place only, however often its receipt was lost; unless the first place
  was deleted sooner than producers in doubt are promised.
* A message whose acknowledgement was answered does not come to a consumer that was opened after that.
* A subscription whose creation was confirmed to a client exists until its deletion is requested.
* A topic with entries of a hidden write that has won exists until they are shown.
* Nothing is delivered that was never sent, and nothing in other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# A run that has gone wrong goes wrong everywhere; the first violations suffice.
VIOLATIONS_MAX = 20


class Sent(NamedTuple):
    """A message, by its producer and its number there."""

    producer: str
    number: int


class HistoryPlace(NamedTuple):
    segment: int
    ledger: int
    entry: int
    index: int = -1  # type: ignore[assignment]  # In a batch; a tuple's own `index` is of no use here.


@dataclass(slots=True)
class SubscriptionLife:
    """One life of a subscription: a name that is used again after a deletion is another subscription."""

    name: str
    keeps_order: bool
    # How many messages had been handed to producers when it was known to exist; None while that is not known.
    exists_since: int | None = None
    # Its deletion was requested: from then on it may be gone at any moment.
    is_doomed: bool = False
    delivered: dict[Sent, HistoryPlace] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    # The time at which its acknowledgement was answered.
    acked: dict[Sent, int] = field(default_factory=dict)


class History:
    """Records events in the order in which they happened; call `check` at the end. Violations are noted as they
    come."""

    def __init__(
        self, *, is_deduplicated: bool = True, is_gone_early: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.violations: list[str] = []
        self._is_deduplicated = is_deduplicated
        self._is_gone_early = is_gone_early  # Called with the number of a segment.
        self._clock = 0
        self._keys: dict[Sent, str] = {}
        self._order: dict[Sent, int] = {}
        self._receipts: set[Sent] = set()
        self._lives: dict[str, SubscriptionLife] = {}
        self._past: list[SubscriptionLife] = []
        self._opened: dict[str, int] = {}

    def _fail(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)

    # -- producers

    def sent(self, producer: str, number: int, key: str) -> None:
        """Called before the message is handed to the client."""
        message = Sent(producer, number)
        self._order[message] = len(self._keys)
        self._keys[message] = key

    def receipt(self, producer: str, number: int) -> None:
        self._receipts.add(Sent(producer, number))

    def receipt_beyond(self, producer: str, named: int, last: int) -> None:
        """A receipt names an id behind the last of the entry that it is for; some clients disconnect then."""
        self._fail(f"{producer} was given a receipt up to {named} for an entry that ends at {last}")

    # -- subscriptions

    def subscribed(self, name: str, *, keeps_order: bool) -> None:
        """The subscription exists for certain: its creation was confirmed to a client."""
        life = self._life(name, keeps_order)
        if life.exists_since is None:
            life.exists_since = len(self._keys)

    def doomed(self, name: str) -> None:
        """The deletion of the subscription was requested, and may take effect now or later, or never."""
        if name in self._lives:
            self._lives[name].is_doomed = True

    def deleted(self, name: str) -> None:
        """The deletion was answered: the name belongs to another subscription from now on."""
        life = self._lives.pop(name, None)
        if life is not None:
            self._past.append(life)

    def _life(self, name: str, keeps_order: bool) -> SubscriptionLife:
        if name not in self._lives:
            self._lives[name] = SubscriptionLife(name, keeps_order)
        return self._lives[name]

    # -- topics and subscriptions that were promised

    def vanished(self, topic: str, batch: str) -> None:
        """A topic that holds a decided batch of hidden entries does not exist when they are to be shown."""
        self._fail(f"{topic} is gone, with the hidden entries of {batch}, which has won")

    def missing(self, topic: str, subscription: str) -> None:
        """At the end a topic lacks that subscription, which is a violation if its creation was confirmed to a
        client."""
        if subscription in self.subscriptions:
            self._fail(f"subscription {subscription} of {topic} was reported as made, and does not exist")

    def stays_open(self, topic: str) -> None:
        """A topic that was to be closed is still open, so that no client can use it or open it again."""
        self._fail(f"{topic} was to be closed, and is neither closed nor of use to anybody")

    # -- consumers

    def opened(self, consumer: str) -> None:
        self._clock += 1
        self._opened[consumer] = self._clock

    def received(
        self,
        subscription: str,
        consumer: str,
        message: Sent,
        key: str,
        place: HistoryPlace,
        *,
        keeps_order: bool,
        is_whole: bool = True,
    ) -> None:
        """A message was delivered. `is_whole`: every byte is as it was sent, and none is missing."""
        life = self._life(subscription, keeps_order)
        if not is_whole:
            self._fail(f"{subscription}: {message} came with other bytes than were sent")
        if self._keys.get(message) != key:
            self._fail(f"{subscription}: {message} with key {key!r} came and was never sent")
            return
        before = life.delivered.get(message)
        if before is not None and before != place and self._is_gone_early(before.segment):
            return  # Another copy, which is allowed here.
        acked = life.acked.get(message)
        if acked is not None and acked < self._opened[consumer]:
            self._fail(
                f"{subscription}: {message} came back to {consumer}, opened after its ack was answered"
            )
        if before is None:
            life.delivered[message] = place
            if keeps_order:
                self._check_order(life, message, key)
        elif before != place and self._is_single(message.producer):
            self._fail(f"{subscription}: {message} is stored twice, at {tuple(before)} and {tuple(place)}")

    def _is_single(self, producer: str) -> bool:
        """Whether none of that producer's messages may be stored twice."""
        return self._is_deduplicated

    def _check_order(self, life: SubscriptionLife, message: Sent, key: str) -> None:
        lane = (message.producer, key)
        newest = life.newest.get(lane, -1)
        if message.number < newest:
            self._fail(
                f"{life.name}: number {message.number} of {message.producer}'s key {key!r} first came after {newest}"
            )
        life.newest[lane] = max(newest, message.number)

    def acknowledged(self, subscription: str, messages: Iterable[Sent]) -> None:
        """The broker answered that it has stored the acknowledgement."""
        self._clock += 1
        life = self._lives.get(subscription)
        if life is not None:
            for message in messages:
                life.acked.setdefault(message, self._clock)

    # -- at the end

    def owed(self, name: str) -> set[Sent]:
        """Messages that must reach that subscription and have not."""
        life = self._lives.get(name)
        if life is None or life.exists_since is None or life.is_doomed:
            return set()
        since = life.exists_since
        return {m for m in self._receipts if self._order[m] >= since and m not in life.delivered}

    @property
    def receipted(self) -> set[Sent]:
        """The messages with a receipt."""
        return set(self._receipts)

    @property
    def unanswered(self) -> int:
        """The number of messages without a receipt."""
        return len(self._keys) - len(self._receipts)

    @property
    def subscriptions(self) -> list[str]:
        """The subscriptions that certainly exist."""
        return [n for n, life in self._lives.items() if life.exists_since is not None and not life.is_doomed]

    @property
    def figures(self) -> tuple[int, int, int]:
        """Sent, receipted, delivered (each message once for each subscription)."""
        lives = [*self._lives.values(), *self._past]
        return len(self._keys), len(self._receipts), sum(len(life.delivered) for life in lives)

    def check(self) -> list[str]:
        """All violations, once everything that can be delivered has been."""
        for name in self.subscriptions:
            owed = self.owed(name)
            if owed:
                self._fail(f"{name}: {min(owed)} and {len(owed) - 1} more have receipts and never came")
        return self.violations
