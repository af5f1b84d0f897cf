"""The compaction of one topic: whether one is under way, how the last one went, what it left for readers.

One compaction runs at a time in a broker, so that what it takes is bounded; others wait for their turn and count as
running. The durable subscription `__compaction` keeps the log from letting go what is not compacted yet.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.compaction import run
from anabranch.broker.compaction.figures import CompactionFigures
from anabranch.broker.compaction.view import CompactedLog, load_index
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.errors import AnabranchError
from anabranch.model.position import LedgerId, Position
from anabranch.storage.port import LogError
from anabranch.storage.topic_record import CompactedLedger

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)

COMPACTION: Final = "__compaction"

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"


class AlreadyCompactingError(AnabranchError):
    """The topic is being compacted: ask again once that is done."""


class TopicCompaction:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._left: run.Left | None = None
        self._task: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self.view = CompactedLog(topic.log, lambda: self._left)
        self.status = NOT_RUN
        self.last_error = ""
        self.figures = CompactionFigures()

    # -- reading

    def check_readable(self, name: str) -> None:
        if not self._topic.name.is_classic:
            raise NotAllowedError(f"{name} is a segment of a scalable topic, which is not compacted")

    async def open_view(self) -> CompactedLog:
        """The log as compacted readers see it."""
        async with self._loading:
            while (left := self._topic.log.topic_record.compacted) is not None:
                if self._left is not None and self._left[0].id == left.id:
                    break
                await self._load(left)
        return self.view

    async def _load(self, left: CompactedLedger) -> None:
        """Reads the index of that ledger, unless a compaction has replaced it meanwhile."""
        try:
            index = await load_index(self._topic.log, left)
        except LogError:
            if self._topic.log.topic_record.compacted is left:
                raise
            return
        if self._topic.log.topic_record.compacted is left:
            self._left = left, index

    def forget_unread(self) -> None:
        """Gives back the memory of an index that nobody reads with."""
        if self._left is not None and not self._is_read:
            self._left = None

    @property
    def _is_read(self) -> bool:
        return any(one.topic_log is self.view for one in self._topic.subscriptions.values())

    # -- running

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def trigger(self) -> None:
        """Starts a compaction of everything that readers see now."""
        if not self._topic.name.is_classic:
            raise NotAllowedError(
                f"{self._topic.name} is a segment of a scalable topic, which is not compacted"
            )
        if self._topic.is_closed:
            raise NotReadyError(f"{self._topic.name} is closing")
        if self.is_running:
            raise AlreadyCompactingError("Compaction already in progress")
        self.status, self.last_error = RUNNING, ""
        # Cancelled by `stop`; it answers for its own failures.
        self._task = self._topic.broker.loop.create_task(self._run())

    async def _run(self) -> None:
        topic, broker = self._topic, self._topic.broker
        started = broker.loop.time()
        removed = 0
        try:
            async with broker.compacting:
                # Not counting the wait for its turn.
                started = broker.loop.time()
                removed = await self._compact()
        except asyncio.CancelledError:
            self.status, self.last_error = ERROR, "the topic was closed meanwhile"
            raise
        except Exception as error:  # A task boundary: the topic goes on with what it had.
            if not isinstance(error, AnabranchError):
                log.exception("%s: compaction failed", topic.name)
            else:
                log.warning("%s: compaction failed: %s", topic.name, error)
            self.status, self.last_error = ERROR, str(error) or type(error).__name__
        else:
            self.status = SUCCESS
        self.figures.ended(
            is_success=self.status == SUCCESS,
            removed=removed,
            duration_ms=int((broker.loop.time() - started) * 1000),
            now_ms=broker.now_ms(),
        )

    async def _compact(self) -> int:
        """How many messages were left out."""
        topic, broker = self._topic, self._topic.broker
        # Before anything is looked at: from here on the log keeps what is to be compacted.
        await topic.create_subscription(COMPACTION, "earliest", {})
        await self.open_view()
        upto = topic.log.end
        removed = 0
        if self._left is None or self._left[0].upto < upto:
            removed = await run.compact(
                topic.log,
                self._left,
                upto,
                LedgerId(await broker.next_ledger_id()),
                broker.now_ms(),
                self.figures,
                self._named,
                keeps_keyless=broker.config.topic_compaction_retain_null_key,
            )
        await self._move_cursor(upto)
        self.forget_unread()
        return removed

    def _named(self, left: run.Left) -> None:
        """Readers go on in what is left now."""
        self._left = left
        for subscription in list(self._topic.subscriptions.values()):
            if subscription.topic_log is self.view:
                subscription.entries_confirmed()

    async def _move_cursor(self, upto: Position) -> None:
        if (cursor := self._topic.subscriptions.get(COMPACTION)) is not None:
            await cursor.skip_below(upto)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Returns once nothing is under way any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Returns once the compaction that is under way, if any, has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    # -- running by itself

    def check(self, threshold: int) -> None:
        """Starts a compaction if more than that many bytes have come since the last one; 0 for never."""
        topic = self._topic
        self.forget_unread()
        if threshold <= 0 or self.is_running or topic.is_closed or not topic.name.is_classic:
            return
        if self.backlog_bytes > threshold:
            self.trigger()

    @property
    def backlog_bytes(self) -> int:
        """About how many bytes of the log are not compacted yet."""
        kept = self._topic.log
        cursor = self._topic.subscriptions.get(COMPACTION)
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
        """What Pulsar's internal stats say of the compacted ledger."""
        left = self._topic.log.topic_record.compacted
        if left is None:
            return {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False}
        return {"ledgerId": left.id, "entries": left.entries, "size": left.bytes, "offloaded": False}
