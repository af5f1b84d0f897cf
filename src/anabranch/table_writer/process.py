"""The process that writes tables: asks a broker which topics are tables, gives each its turn, and reports back.

Topics do not wait for each other: a step of one is a few requests and one thread at work, and a few topics are stepped
at a time. What fails is logged, reported, and tried again later and later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from anabranch.admin import rest
from anabranch.client.errors import TopicDeleted
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError
from anabranch.spark.driver.latest import Following
from anabranch.table_writer.core.due import NextCommit
from anabranch.table_writer.feed import TableFeed
from anabranch.table_writer.settings import WriterSettings
from anabranch.table_writer.topic_writer import TopicWriter
from anabranch.tables.core.merging import MergeRules
from anabranch.tables.core.place import parse_place
from anabranch.tables.store import check_creates_once, open_store
from anabranch.tables.upkeep import tend

if TYPE_CHECKING:
    from anabranch.tables.core.schema import Mode

log = logging.getLogger(__name__)

PATH: Final = "/admin/v2/anabranch/tables"
# How often the broker is asked which topics are tables, and told of them.
LISTED_EVERY_S: Final = 10.0
REPORTED_EVERY_S: Final = 15.0
SWEPT_EVERY_S: Final = 3600.0
# How many topics are stepped at a time.
STEPS_MAX: Final = 2
NICE: Final = 10


class NoTablesUrl(AnabranchError):
    """The brokers have no place for tables."""


def listing(admin_url: str, security: Any) -> dict[str, Any]:
    """Which topics are tables, and with which settings."""
    found: dict[str, Any] = rest.call(admin_url, "GET", PATH, security=security)
    if not found["tablesUrl"]:
        raise NoTablesUrl(
            "the brokers have no place for tables: set tablesUrl, as in --set tablesUrl=/var/lib/tables"
        )
    return found


def settings_from(told: Mapping[str, Any], settings: WriterSettings) -> WriterSettings:
    """The settings with what the brokers say."""
    return replace(
        settings,
        place=parse_place(told["tablesUrl"]),
        commit_s=float(told["commitSeconds"]),
        commit_bytes=int(told["commitBytes"]),
        rules=MergeRules(file_bytes=int(told["mergeBytes"])),
        retention_hours=int(told["retentionHours"]),
    )


@dataclass
class _Kept:
    """One topic that is kept as a table."""

    topic: str
    mode: Mode
    due: NextCommit
    writer: TopicWriter | None = None
    work: asyncio.Task[None] | None = None
    error: str = ""
    undecoded: int = 0
    caught_up_s: float | None = None
    tended_s: float = float("-inf")
    swept_s: float = float("-inf")
    is_wanted: bool = True


@dataclass
class TableWriterProcess:
    """Call `run`; it ends when `stop` is set."""

    settings: WriterSettings
    stop: asyncio.Event
    ends_when_caught_up: bool = False  # Once every table has had all of its topic, or has failed.
    chance: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def __post_init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._turns = asyncio.Semaphore(STEPS_MAX)
        self._connections = Connections(self.settings.service_url, self.settings.security)
        self._following = Following()

    async def run(self) -> None:
        listed_s = reported_s = float("-inf")
        await asyncio.to_thread(self._check_store)
        try:
            while not self.stop.is_set():
                now_s = self.clock()
                if now_s - listed_s >= LISTED_EVERY_S:
                    listed_s = now_s
                    await self._list()
                self._begin(now_s)
                if self.ends_when_caught_up and all(map(_is_done, self._kept.values())):
                    return
                if now_s - reported_s >= REPORTED_EVERY_S:
                    reported_s = now_s
                    await self._report()
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        self._pause_s(min(listed_s + LISTED_EVERY_S, reported_s + REPORTED_EVERY_S))
                    ):
                        await self.stop.wait()
        finally:
            await self._close()

    @property
    def failing(self) -> list[str]:
        """The topics whose last step failed."""
        return [kept.topic for kept in self._kept.values() if kept.error]

    def _check_store(self) -> None:
        place = self.settings.place
        check_creates_once(open_store(place.base, place.options))

    def _pause_s(self, next_s: float) -> float:
        due = [one.due.at_s for one in self._kept.values() if one.work is None]
        return max(0.05, min([next_s, *due]) - self.clock())

    # -- which topics

    async def _list(self) -> None:
        try:
            told = await asyncio.to_thread(listing, self.settings.admin_url, self.settings.security)
        except AnabranchError as error:
            log.warning("asking which topics are tables failed: %s", error)
            return
        wanted = {one["topic"]: one["mode"] for one in told["tables"]}
        for topic, mode in wanted.items():
            kept = self._kept.get(topic)
            if kept is None:
                log.info("%s is kept as a table, %s", topic, mode)
                # Spread over the interval, so that many topics do not commit in one moment.
                first_s = self.clock() + min(1.0, self.settings.commit_s) * self.chance.random()
                self._kept[topic] = _Kept(topic, mode, NextCommit(first_s))
            else:
                kept.is_wanted, kept.mode = True, mode
                if kept.writer is not None:
                    kept.writer.mode = mode
        for topic, kept in self._kept.items():
            kept.is_wanted = topic in wanted
        for topic in [name for name, kept in self._kept.items() if not kept.is_wanted and kept.work is None]:
            log.info("%s is not kept as a table any more", topic)
            kept = self._kept.pop(topic)
            if kept.writer is not None:
                await kept.writer.close()

    # -- their turns

    def _begin(self, now_s: float) -> None:
        for kept in self._kept.values():
            if kept.work is None and kept.is_wanted and kept.due.at_s <= now_s:
                kept.work = asyncio.create_task(self._turn(kept))  # Awaited by `_close`.

    async def _turn(self, kept: _Kept) -> None:
        try:
            async with self._turns:
                await self._work(kept)
        except TopicDeleted:
            # The list says whether there is another topic of that name.
            log.info("%s was deleted; its table stays as it is", kept.topic)
            await self._drop_writer(kept)
            kept.due = kept.due.failed(self.clock(), self.settings.commit_s)
        except Exception as error:
            kept.error = str(error) or type(error).__name__
            level = logging.WARNING if isinstance(error, AnabranchError) else logging.ERROR
            log.log(
                level,
                "%s: writing its table failed: %s",
                kept.topic,
                kept.error,
                exc_info=level == logging.ERROR,
            )
            await self._drop_writer(kept)
            kept.due = kept.due.failed(self.clock(), self.settings.commit_s)
        finally:
            kept.work = None

    async def _drop_writer(self, kept: _Kept) -> None:
        writer, kept.writer = kept.writer, None
        if writer is not None:
            with suppress(Exception):
                await writer.close()

    async def _work(self, kept: _Kept) -> None:
        every_s = self.settings.commit_s
        if kept.writer is None:
            feed = TableFeed(self.settings, self._connections, self._following, kept.topic)
            writer = TopicWriter(self.settings, feed, kept.mode)
            try:
                await writer.open()
            except BaseException:
                await writer.close()
                raise
            kept.writer = writer
        began_s = self.clock()
        done = await kept.writer.step()
        kept.error = ""
        kept.undecoded += done.undecoded
        if done.outcome == "overtaken":
            kept.due = kept.due.lost_race(began_s, every_s, self.chance.random())
            return
        if not done.has_more:
            kept.caught_up_s = began_s
        kept.due = kept.due.committed(began_s, every_s, has_more=done.has_more)
        if not done.has_more:
            await self._tend(kept)

    async def _tend(self, kept: _Kept) -> None:
        now_s = self.clock()
        assert kept.writer is not None
        assert kept.writer.table is not None
        if now_s - kept.tended_s < self.settings.merge_every_s:
            return
        sweeps = now_s - kept.swept_s >= SWEPT_EVERY_S
        kept.tended_s = now_s
        if sweeps:
            kept.swept_s = now_s
        await asyncio.to_thread(
            tend,
            kept.writer.table,
            self.settings.rules,
            self.now_ms(),
            self.settings.retention_hours,
            sweeps=sweeps,
        )

    # -- telling

    async def _report(self) -> None:
        told = [self._told(kept) for kept in self._kept.values()]
        try:
            await asyncio.to_thread(
                rest.call,
                self.settings.admin_url,
                "POST",
                f"{PATH}/reports",
                told,
                security=self.settings.security,
            )
        except AnabranchError as error:
            log.debug("reporting failed: %s", error)

    def _told(self, kept: _Kept) -> dict[str, Any]:
        table = None if kept.writer is None else kept.writer.table
        found: dict[str, Any] = {
            "topic": kept.topic,
            "mode": kept.mode,
            "undecoded": kept.undecoded,
            "lagSeconds": -1.0 if kept.caught_up_s is None else round(self.clock() - kept.caught_up_s, 3),
            "error": kept.error,
        }
        if table is not None:
            size = table.size
            found |= {
                "url": table.url,
                "version": table.version,
                "rows": size.rows,
                "bytes": size.bytes,
                "files": size.files,
            }
        return found

    async def _close(self) -> None:
        works = [kept.work for kept in self._kept.values() if kept.work is not None]
        if works:
            await asyncio.wait(works)
        for kept in self._kept.values():
            await self._drop_writer(kept)
        await self._following.close()
        await self._connections.close()


def _is_done(kept: _Kept) -> bool:
    return kept.work is None and (kept.caught_up_s is not None or bool(kept.error))


def lower_priority() -> None:
    """Publishing goes first."""
    with suppress(OSError):
        os.nice(NICE)
