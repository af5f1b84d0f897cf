"""Data plane. What every dispatcher does: read entries in bursts, one read at a time, and let others run in between.

A dispatcher is woken when anything changes (permits, new entries, a socket that drained) and works until it lacks
something; the wake-up that brings it comes later. A burst is bounded in bytes and entries, and the next one waits for
its turn on the event loop, so that a long backlog does not hold up other topics. Reads that miss the cache run as a
task; whatever moves the reading place raises `_generation`, and a read that comes back with an older one is thrown
away.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from anabranch.broker.consumer import Consumer
from anabranch.broker.cursor import Cursor
from anabranch.broker.ports import EntryBatch, LogReader
from anabranch.errors import MalformedFrame
from anabranch.model.position import Position
from anabranch.storage.port import Buffer, LogDamagedError, LogError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata

_log = logging.getLogger(__name__)


NO_METADATA: Final = pb.MessageMetadata()
# More messages than a batch of 5 MB can hold: each takes six bytes at least.
BATCH_MESSAGES_MAX: Final = 1 << 20
BURST_BYTES: Final = 1 << 20


def metadata_of(entry: Buffer) -> pb.MessageMetadata:
    """Its metadata, or none if they cannot be read: whatever was stored is delivered, and the client reports it."""
    try:
        return parse_metadata(entry)
    except MalformedFrame:
        return NO_METADATA


def messages_of(entry: Buffer) -> int:
    """How many permits an entry costs whose record does not say so believably: what its client will count."""
    return min(max(1, metadata_of(entry).num_messages_in_batch), BATCH_MESSAGES_MAX)


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of one subscription. What happens at each: dispatch waits."""

    burst_bytes: int = BURST_BYTES
    burst_entries: int = 1000
    consumer_unacked_max: int = 50_000
    subscription_unacked_max: int = 200_000
    # Delayed messages remembered; beyond it nothing further is read until some are delivered.
    delayed_max: int = 1_000_000
    # Key_Shared: entries set aside because their key is held up, before reading stops.
    held_per_consumer_max: int = 2_000
    held_max: int = 20_000
    # Failover: how long to wait for the last consumer's acknowledgements when it is replaced while connected.
    failover_wait_seconds: float = 1.0
    # How long to wait after a read that failed for a reason that may pass.
    retry_seconds: float = 1.0
    # Whether messages may ask to be delivered later; if not, they are delivered at once.
    has_delays: bool = True
    # Key_Shared: whether consumers share keys by points on a ring, or by halving ranges.
    has_key_ring: bool = True


@dataclass(slots=True)
class DispatchContext:
    """What a dispatcher works on. `cursor` and `log` belong to the subscription and the topic."""

    topic: str
    subscription: str
    log: LogReader
    cursor: Cursor
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    limits: DispatchLimits = field(default_factory=DispatchLimits)
    partition: int = -1
    is_durable: bool = True
    # Batches may lack some of their messages.
    is_compacted: bool = False
    # Set where a rate limits what may be sent.
    pace: DispatchPacer | None = None
    # Told when dispatch has failed in a way that nobody foresaw. The dispatcher has stopped by then.
    failed: Callable[[Exception], None] | None = None
    # Told when everything has been sent, if anybody wants to know.
    all_sent: Callable[[], None] | None = None


class DispatchPacer(Protocol):
    def look(self, now: float) -> tuple[float, int]:
        """How long to wait before anything is sent, and how many entries a burst may have then."""


class Dispatcher(ABC):
    """Dispatches to `consumers`. Subclasses say what is read next and who gets it."""

    kind: int

    def __init__(self, context: DispatchContext) -> None:
        self._ctx = context
        self._log = context.log
        self._cursor = context.cursor
        self.consumers: list[Consumer] = []
        # The next entry never read by this dispatcher.
        self.read_at: Position = context.cursor.settle(context.log)
        # Why reading has stopped, or None.
        self.error: str | None = None
        self.damage: LogDamagedError | None = None
        # Set for good by what nobody foresaw.
        self.has_failed = False
        self._generation = 0
        self._is_reading = False
        self._is_scheduled = False
        self._is_closed = False
        self._is_held = False
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # -- consumers

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Raises a BrokerError if the consumer cannot join the others."""

    @abstractmethod
    def ready(self, consumer: Consumer) -> None:
        """The consumer's client knows by now that it is subscribed."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None:
        """Takes a consumer out; what it had not acknowledged goes to others, or back to the cursor."""

    @abstractmethod
    def may_unsubscribe(self, consumer: Consumer) -> bool: ...

    def room_changed(self, consumer: Consumer) -> None:
        """The consumer may have room again: permits, an unblocked count or a drained socket."""
        self.wake()

    def limits_changed(self) -> None:
        """Some may have room again that had none under the old limits."""
        if self._retry is not None and self.damage is None:
            self._retry.cancel()
            self._retry = None
        self.wake_soon()

    # -- acknowledgements

    @abstractmethod
    def acked(self, consumer: Consumer, at: Position) -> None:
        """An entry is acknowledged in full."""

    @abstractmethod
    def acked_part(self, consumer: Consumer, at: Position, messages: int) -> None:
        """That many more messages of a batch are acknowledged."""

    @abstractmethod
    def acks_done(self) -> None:
        """After a round of acknowledgements, with the cursor settled."""

    @abstractmethod
    def acked_below(self, at: Position) -> None:
        """Everything below is acknowledged by other means than a consumer: skipped, expired, cleared."""

    @abstractmethod
    def redeliver_all(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: list[Position]) -> None: ...

    # -- running

    def wake(self) -> None:
        if not (self._is_reading or self._is_scheduled or self._is_closed):
            self._run()

    def wake_soon(self) -> None:
        if not (self._is_reading or self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            self._ctx.loop.call_soon(self._run_scheduled)

    def hold(self) -> None:
        """Sends nothing until `let_go`: what is handed back in several turns is sent again in its order."""
        self._is_held = True

    def let_go(self) -> None:
        self._is_held = False
        self.wake_soon()

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        if not (self._is_reading or self._is_closed):
            self._run()

    def _run(self) -> None:
        if self._is_held:
            return
        try:
            if self.damage is not None and not self._is_past_damage(self.damage):
                return
            if self._retry is None and (self._ctx.pace is None or self._is_in_time(self._ctx.pace)):
                self._pump()
                self._look_whether_all_is_sent()
        except Exception as error:  # The boundary of a subscription: whoever woke it has others to wake.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """An impossible state stops this subscription only."""
        self.error = f"dispatch failed, see the broker's log: {error!r}"
        self.has_failed = True
        self.close()
        if self._ctx.failed is not None:
            self._ctx.failed(error)

    def _is_in_time(self, pace: DispatchPacer) -> bool:
        """Whether the rate lets something through; if not, it is tried again as soon as it may."""
        wait, entries = pace.look(self._ctx.loop.time())
        if wait > 0:
            self._retry = self._ctx.loop.call_later(wait, self._try_again)
            return False
        # Batches may still go beyond; what they take too much is waited for afterwards.
        self._ctx.limits = replace(self._ctx.limits, burst_entries=entries)
        return True

    @abstractmethod
    def _pump(self) -> None:
        """Does one burst at most, and calls `wake_soon` if there may be more to do."""

    def rewind(self) -> None:
        """Starts again from the cursor: everything not acknowledged is new again."""
        self._generation += 1
        self._is_reading = False
        self.read_at = self._cursor.settle(self._log)

    def forget(self) -> None:
        """After a seek: as if nothing had ever been sent."""
        self.rewind()

    def close(self) -> None:
        self._is_closed = True
        self._generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # -- reading

    def _read(self, at: Position, entries_max: int, then: Callable[[EntryBatch], None]) -> None:
        """Reads from storage, then calls back unless something has moved the reading place meanwhile."""
        self._is_reading = True
        # The task ends by itself and never raises; it is referred to here so that it is not collected.
        self._task = self._ctx.loop.create_task(self._fetch(at, entries_max, then, self._generation))

    async def _fetch(
        self, at: Position, entries_max: int, then: Callable[[EntryBatch], None], generation: int
    ) -> None:
        try:
            batch = await self._log.read(at, entries_max, self._ctx.limits.burst_bytes)
        except LogError as error:
            if generation == self._generation:
                self._read_failed(error, then)
            return
        except Exception as error:  # A task boundary: this subscription stops, the others go on.
            _log.exception("%s, subscription %s: reading failed", self._ctx.topic, self._ctx.subscription)
            if generation == self._generation:
                self._read_failed(error, then)
            return
        if generation != self._generation:
            return
        self._is_reading = False
        self.error = None
        self.damage = None
        try:
            then(batch)
            self._look_whether_all_is_sent()
        except Exception as error:  # A task boundary.
            self._fail(error)

    def _look_whether_all_is_sent(self) -> None:
        if self._ctx.all_sent is not None and self.read_at >= self._log.end:
            self._ctx.all_sent()

    def _read_failed(self, error: Exception, then: Callable[[EntryBatch], None]) -> None:
        self._is_reading = False
        self.error = str(error)
        then((-1, []))
        if isinstance(error, LogDamagedError):
            # Only an operator can say that these entries are given up; a wake-up after that goes on.
            _log.error("%s, subscription %s stops: %s", self._ctx.topic, self._ctx.subscription, error)
            self.damage = error
            return
        _log.warning("%s, subscription %s: %s", self._ctx.topic, self._ctx.subscription, error)
        self._retry = self._ctx.loop.call_later(self._ctx.limits.retry_seconds, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    def _is_past_damage(self, damage: LogDamagedError) -> bool:
        bad = (damage.ledger, damage.first_bad)
        if self._log.normalise(bad) == bad and not self._cursor.is_acked(bad):
            return False
        self.damage = None
        self.error = None
        return True

    # -- figures

    def stats(self) -> dict[str, Any]:
        """What this kind of dispatcher adds to the subscription's figures."""
        return {}
