"""The compaction of one topic: whether one is running, how the last one ended, its result for readers.

One compaction runs at a time in a broker, so that its resources are bounded; others wait for their turn and count as
running. The durable subscription `__compaction` keeps the log from trimming entries that are not compacted yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from anabranch.broker.compaction import run
from anabranch.broker.compaction.figures import CompactionFigures
from anabranch.broker.compaction.view import CompactedLog, Left
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.subscription.subscription import Subscription
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)

COMPACTION: Final = "__compaction"

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"


class AlreadyCompactingError(AnabranchError):
    """The topic is being compacted: ask again once that is done."""


class CompactedLife(Protocol):
    @property
    def is_closed(self) -> bool: ...


class CompactedSubscriptions(Protocol):
    """The subscriptions of a topic as its compaction sees them."""

    @property
    def all(self) -> Mapping[str, Subscription]: ...

    async def create(
        self, name: str, position: Position | str, properties: dict[str, str]
    ) -> Subscription: ...


class TopicCompaction:
    __slots__ = (
        "_config",
        "_ledger_ids",
        "_life",
        "_log",
        "_loop",
        "_name",
        "_now_ms",
        "_subscribing",
        "_task",
        "_turn",
        "figures",
        "last_error",
        "status",
        "view",
    )

    def __init__(
        self,
        name: TopicName,
        topic_log: TopicLog,
        life: CompactedLife,
        view: CompactedLog,
        subscribing: CompactedSubscriptions,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        turn: asyncio.Semaphore,
        ledger_ids: LedgerIds,
        config: Callable[[], BrokerConfig],
    ) -> None:
        """`turn` lets only one compaction of the broker run at a time."""
        self._name = name
        self._log = topic_log
        self._life = life
        self.view = view
        self._subscribing = subscribing
        self._loop = loop
        self._now_ms = now_ms
        self._turn = turn
        self._ledger_ids = ledger_ids
        self._config = config
        self._task: asyncio.Task[None] | None = None
        self.status = NOT_RUN
        self.last_error = ""
        self.figures = CompactionFigures()

    # -- reading

    def forget_unread(self) -> None:
        """Frees the memory of an index that no subscription reads with."""
        if self.view.left is not None and not self._is_read:
            self.view.left = None

    @property
    def _is_read(self) -> bool:
        return any(one.topic_log is self.view for one in self._subscribing.all.values())

    # -- running

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def trigger(self) -> None:
        """Starts a compaction of everything that readers see now."""
        if not self._name.is_classic:
            raise NotAllowedError(f"{self._name} is a segment of a scalable topic, which is not compacted")
        if self._life.is_closed:
            raise NotReadyError(f"{self._name} is closing")
        if self.is_running:
            raise AlreadyCompactingError("Compaction already in progress")
        self.status, self.last_error = RUNNING, ""
        # Cancelled by `stop`; it reports its own failures.
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that was cancelled holds its error, and with it the frames that it passed, among them its own.
        self._task = None

    async def _run(self) -> None:
        started = self._loop.time()
        removed = 0
        try:
            async with self._turn:
                # The wait for its turn does not count.
                started = self._loop.time()
                removed = await self._compact()
        except asyncio.CancelledError:
            self.status, self.last_error = ERROR, "the topic was closed meanwhile"
            raise
        except Exception as error:  # A task boundary: the topic keeps the previous result.
            if not isinstance(error, AnabranchError):
                log.exception("%s: compaction failed", self._name)
            else:
                log.warning("%s: compaction failed: %s", self._name, error)
            self.status, self.last_error = ERROR, str(error) or type(error).__name__
        else:
            self.status = SUCCESS
        self.figures.ended(
            is_success=self.status == SUCCESS,
            removed=removed,
            duration_ms=int((self._loop.time() - started) * 1000),
            now_ms=self._now_ms(),
        )

    async def _compact(self) -> int:
        """Compacts; returns the number of removed messages."""
        # Before anything is read: from here on the log keeps the entries to be compacted.
        await self._subscribing.create(COMPACTION, "earliest", {})
        await self.view.open()
        upto = self._log.end
        removed = 0
        if self.view.left is None or self.view.left[0].upto < upto:
            removed = await run.compact(
                self._log,
                self.view.left,
                upto,
                await self._ledger_ids.next(0),
                self._now_ms(),
                self.figures,
                self._named,
                keeps_keyless=self._config().topic_compaction_retain_null_key,
            )
        await self._move_cursor(upto)
        self.forget_unread()
        return removed

    def _named(self, left: Left) -> None:
        """Switches readers to the new compacted ledger."""
        self.view.left = left
        for subscription in list(self._subscribing.all.values()):
            if subscription.topic_log is self.view:
                subscription.entries_confirmed()

    async def _move_cursor(self, upto: Position) -> None:
        if (cursor := self._subscribing.all.get(COMPACTION)) is not None:
            await cursor.skip_below(upto)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Cancels the running compaction, if any, and returns once it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Returns once the running compaction, if any, has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    # -- automatic runs

    def check(self, threshold: int) -> None:
        """Starts a compaction if more than that many bytes were added since the last one; 0 for never."""
        self.forget_unread()
        if threshold <= 0 or self.is_running or self._life.is_closed or not self._name.is_classic:
            return
        if self.backlog_bytes > threshold:
            self.trigger()

    @property
    def backlog_bytes(self) -> int:
        """Approximate number of bytes of the log that are not compacted yet."""
        kept = self._log
        cursor = self._subscribing.all.get(COMPACTION)
        if cursor is None or not kept.entries:
            return kept.size_bytes
        return kept.size_bytes * cursor.backlog() // kept.entries

    # -- figures

    def stats(self) -> dict[str, Any]:
        """Pulsar's CompactionStats JSON."""
        return {
            "lastCompactionRemovedEventCount": self.figures.last_removed,
            "lastCompactionSucceedTimestamp": self.figures.last_succeeded_ms,
            "lastCompactionFailedTimestamp": self.figures.last_failed_ms,
            "lastCompactionDurationTimeInMills": self.figures.last_duration_ms,
        }

    def ledger_stats(self) -> dict[str, Any]:
        """The compacted ledger in Pulsar's internal stats."""
        left = self._log.topic_record.compacted
        if left is None:
            return {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False}
        return {"ledgerId": left.id, "entries": left.entries, "size": left.bytes, "offloaded": False}
