"""Data plane. The common part of all dispatchers: reads entries in bursts, one read at a time, and lets others run in
between.

A dispatcher is woken when anything changes (permits, new entries, a socket that drained) and works until it lacks
something; whatever provides that wakes it again. A burst is bounded in bytes and entries, and the next one waits for
its turn on the event loop, so that a long backlog does not delay other topics. Reads that miss the cache run as a task;
every change of the reading position raises `_generation`, and the result of a read with an older one is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.ports import EntryBatch, LogReader
from anabranch.broker.state.cursor import Cursor
from anabranch.errors import MalformedFrame
from anabranch.model.position import Position
from anabranch.storage.port import Buffer, LogDamagedError, LogError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata

_log = logging.getLogger(__name__)


NO_METADATA: Final = pb.MessageMetadata()
# More messages than a batch of 5 MB can hold: each takes six bytes at least.
BATCH_MESSAGES_MAX: Final = 1 << 20


def metadata_of(entry: Buffer) -> pb.MessageMetadata:
    """An entry's metadata, empty if unreadable: every stored entry is delivered, and the client reports the fault."""
    try:
        return parse_metadata(entry)
    except MalformedFrame:
        return NO_METADATA


def messages_of(entry: Buffer) -> int:
    """The permits that an entry costs if the count in its record is not credible: the number that its client will
    count."""
    return min(max(1, metadata_of(entry).num_messages_in_batch), BATCH_MESSAGES_MAX)


@dataclass(slots=True)
class DispatchContext:
    """The surroundings of a dispatcher. `cursor` and `log` belong to the subscription and the topic."""

    topic: str
    subscription: str
    log: LogReader
    cursor: Cursor
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    limits: DispatchLimits = field(default_factory=DispatchLimits)
    partition: int = -1
    is_durable: bool = True
    # Whether batches may lack some of their messages.
    is_compacted: bool = False
    # Set where a rate limits dispatch.
    pace: DispatchPacer | None = None
    # Called when dispatch has failed unexpectedly. The dispatcher has stopped by then.
    failed: Callable[[Exception], None] | None = None
    # Called when everything has been sent.
    all_sent: Callable[[], None] | None = None


class DispatchPacer(Protocol):
    def look(self, now: float) -> tuple[float, int]:
        """How many seconds to wait before sending, and how many entries a burst may then have."""


class Dispatcher(ABC):
    """Dispatches to `consumers`. Subclasses decide what is read next and which consumer gets it."""

    kind: int

    def __init__(self, context: DispatchContext) -> None:
        self._ctx = context
        self._log = context.log
        self._cursor = context.cursor
        self.consumers: list[AttachedConsumer] = []
        # The first entry that this dispatcher has not read yet.
        self.read_at: Position = context.cursor.settle(context.log)
        # Why reading has stopped, or None.
        self.error: str | None = None
        self.damage: LogDamagedError | None = None
        # Set for good by an unexpected error.
        self.has_failed = False
        self._generation = 0
        self._is_reading = False
        # Woken while it was reading.
        self._is_woken = False
        self._is_scheduled = False
        self._is_closed = False
        self._is_held = False
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # -- consumers

    @abstractmethod
    def add(self, consumer: AttachedConsumer) -> None:
        """Adds the consumer; raises a BrokerError if it cannot join the others."""

    @abstractmethod
    def ready(self, consumer: AttachedConsumer) -> None:
        """Called once the consumer's client knows that it is subscribed."""

    @abstractmethod
    def remove(self, consumer: AttachedConsumer) -> None:
        """Removes a consumer; its unacknowledged entries go to others, or back to the cursor."""

    @abstractmethod
    def may_unsubscribe(self, consumer: AttachedConsumer) -> bool: ...

    def room_changed(self, consumer: AttachedConsumer) -> None:
        """Called when the consumer may have room again: permits, an unblocked count or a drained socket."""
        self.wake()

    @property
    def unacked_max(self) -> int:
        """How many unacknowledged messages a consumer may have; 0 for any number."""
        return self._ctx.limits.consumer_unacked_max if self._ctx.is_durable else 0

    def limits_changed(self) -> None:
        """Wakes dispatch: consumers without room under the old limits may have room again."""
        if self._retry is not None and self.damage is None:
            self._retry.cancel()
            self._retry = None
        self.wake_soon()

    # -- acknowledgements

    @abstractmethod
    def acked(self, consumer: AttachedConsumer, at: Position) -> None:
        """Called when an entry is acknowledged in full."""

    @abstractmethod
    def acked_part(self, consumer: AttachedConsumer, at: Position, messages: int) -> None:
        """Called when that many more messages of a batch are acknowledged."""

    @abstractmethod
    def acks_done(self) -> None:
        """Called after a round of acknowledgements, with the cursor settled."""

    @abstractmethod
    def acked_below(self, at: Position) -> None:
        """Called when everything below is acknowledged by other means than a consumer: skipped, expired, cleared."""

    @abstractmethod
    def redeliver_all(self, consumer: AttachedConsumer) -> None: ...

    @abstractmethod
    def redeliver(self, consumer: AttachedConsumer, positions: list[Position]) -> None: ...

    # -- running

    def wake(self) -> None:
        self._is_woken = self._is_reading
        if not (self._is_reading or self._is_scheduled or self._is_closed):
            self._run()

    def wake_soon(self) -> None:
        self._is_woken = self._is_reading
        if not (self._is_reading or self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            self._ctx.loop.call_soon(self._run_scheduled)

    def hold(self) -> None:
        """Sends nothing until `let_go`: entries handed back over several turns are sent again in their order."""
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
        except Exception as error:  # A task boundary of a subscription: the caller has others to wake.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stops dispatch after an unexpected error, in this subscription only."""
        self.error = f"dispatch failed, see the broker's log: {error!r}"
        self.has_failed = True
        self.close()
        if self._ctx.failed is not None:
            self._ctx.failed(error)

    def _is_in_time(self, pace: DispatchPacer) -> bool:
        """Whether the rate allows sending now; if not, a retry is scheduled for when it does."""
        wait, entries = pace.look(self._ctx.loop.time())
        if wait > 0:
            self._retry = self._ctx.loop.call_later(wait, self._try_again)
            return False
        # Batches may still exceed the rate; the excess is waited for afterwards.
        self._ctx.limits = replace(self._ctx.limits, burst_entries=entries)
        return True

    @abstractmethod
    def _pump(self) -> None:
        """Does at most one burst, and calls `wake_soon` if there may be more to do."""

    def rewind(self) -> None:
        """Starts again from the cursor: all unacknowledged entries count as unsent."""
        self._generation += 1
        self._is_reading = False
        self.read_at = self._cursor.settle(self._log)

    def forget(self) -> None:
        """Forgets after a seek that anything was ever sent."""
        self.rewind()

    def close(self) -> None:
        self._is_closed = True
        self._generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    @property
    def is_all_sent(self) -> bool:
        """Whether nothing is left to send: each unacknowledged entry is with a consumer."""
        return self.read_at >= self._log.end or self._log.normalise(self.read_at) >= self._log.end

    # -- reading

    def _read(self, at: Position, entries_max: int, then: Callable[[EntryBatch], None]) -> None:
        """Reads from storage, then calls `then` unless the reading position has changed meanwhile."""
        self._is_reading = True
        # The task ends by itself and never raises; this reference keeps it from being garbage-collected.
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
        except Exception as error:  # A task boundary: this subscription stops, the others continue.
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
            if self._is_woken:
                # What has changed meanwhile may allow more than to read on.
                self._is_woken = False
                self.wake_soon()
            self._look_whether_all_is_sent()
        except Exception as error:  # A task boundary.
            self._fail(error)

    def _look_whether_all_is_sent(self) -> None:
        if self._ctx.all_sent is not None and self.is_all_sent:
            self._ctx.all_sent()

    def _read_failed(self, error: Exception, then: Callable[[EntryBatch], None]) -> None:
        self._is_reading = False
        self.error = str(error)
        then((-1, []))
        if isinstance(error, LogDamagedError):
            # Only an operator can decide to skip these entries; a wake-up after that continues.
            _log.error(
                "%s, subscription %s: dispatch stops until the damage is skipped: %s",
                self._ctx.topic,
                self._ctx.subscription,
                error,
            )
            # Kept without the frames that it passed, which hold this dispatcher.
            self.damage = error.with_traceback(None)
            return
        _log.warning(
            "%s, subscription %s: reading failed, trying again: %s",
            self._ctx.topic,
            self._ctx.subscription,
            error,
        )
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
        """The figures that this kind of dispatcher adds to the subscription's."""
        return {}
