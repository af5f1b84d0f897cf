"""`/admin/v2/anabranch/read-plan`: where a topic's entries lie in files or objects, for readers that read these
themselves.

The owner of the topic answers, up to the confirmed end and no further; any other broker redirects the caller there. The
log's files and objects hold entries of every tenant, so only super users get a plan, and URLs that need no credentials;
with `logDirectReadsAllowed=false` no caller does: readers then read through the broker as consumers do.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Annotated, Final, TypeVar

import msgspec

from anabranch.broker.admin.http.answer import JSON, HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.logged import PATH, LoggedTopic, check_owned
from anabranch.broker.admin.topics.partitions import single
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.broker.subscription.reader_loss import is_other_topic
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.read_plan import (
    INDEXED,
    PlannedRun,
    TopicPlan,
    encode,
    parse_position,
    position_text,
    runs_of,
)
from anabranch.storage.port import (
    FileRun,
    LogDamagedError,
    LogMissingError,
    LogStore,
    ObjectRun,
    ReadPlan,
)
from anabranch.storage.topic.topic_log import TopicLog

routes = Routes("/admin/v2/anabranch", tag="read plans")

# The most entries of a plan; a reader that wants more asks again from where the plan ends.
ENTRIES_MAX: Final = 1_000_000
RUNS_MAX: Final = 20_000
BYTES_MAX: Final = 1 << 30
# This many entries of a file with an index are left for the reader to find there, at no cost for the broker.
INDEXED_MIN: Final = 1_000
# Subtracted from the time that the files are kept: the reader asked before we answered, and opens them after.
MARGIN_MS: Final = 5_000

Run = TypeVar("Run", bound=FileRun | ObjectRun)


def _position(name: str, text: str) -> Position | None:
    try:
        return parse_position(text) if text else None
    except ValueError as error:
        raise RestError(400, f"Invalid parameter: {name}: {error}") from None


@routes.get("/read-plan" + PATH)
async def read_plan(
    services: AdminServices,
    name: LoggedTopic,
    maxBytes: Annotated[int, msgspec.Meta(ge=1)] = BYTES_MAX,
    topicId: str = "",
    start: str = "",
    end: str = "",
    signed: bool = False,
) -> HttpAnswer:
    """Entries from `start` (inclusive; by default the first retained one) to `end` (exclusive; by default all
    confirmed). With `signed`, a plan of objects has URLs that need no credentials, where the store has such.

    412 if `topicId` is the id of another topic of that name, or a position is of another log.
    """
    if not services.config.log_direct_reads_allowed:
        raise NotAuthorizedError(
            "direct reads are turned off: read through the broker, or set logDirectReadsAllowed=true"
        )
    await check_owned(services, name)
    first, stop = _position("start", start), _position("end", end)
    log = (await single(services, name)).log
    record = log.topic_record
    if is_other_topic(record, topicId) and topicId != await services.part_of(name, record):
        raise RestError(412, f"{name} was deleted and made again: the topic with the id {topicId} is gone")
    for at in (first, stop):
        if at is not None and log.is_foreign(at):
            raise RestError(
                412,
                f"{name} never had {position_text(at)}: it is of another topic, or of one of the same name that was "
                "deleted",
            )
    plan = await plan_topic(
        services, name, log, first or log.first, stop or log.end, min(maxBytes, BYTES_MAX)
    )
    if signed and plan.in_objects and plan.files:
        # Once the plan has expired, its objects may be gone as well.
        seconds = max(1, plan.expires_in_ms // 1000)
        plan = msgspec.structs.replace(plan, urls=tuple(await services.log.signed(plan.files, seconds)))
    return HttpAnswer(encode(plan), JSON)


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    root: str
    bytes_max: int
    files: dict[str, int] = field(default_factory=dict)
    runs: list[PlannedRun] = field(default_factory=list)
    size: int = 0
    in_objects: bool = False

    @property
    def is_full(self) -> bool:
        return self.size >= self.bytes_max or len(self.runs) >= RUNS_MAX

    def add(self, ledger: int, found: FileRun | ObjectRun) -> None:
        if isinstance(found, ObjectRun):
            file = self.files.setdefault(found.key, len(self.files))
            last = self.runs[-1] if self.runs else None
            self.runs.append(PlannedRun(ledger, found.first, found.end - 1, file, found.offset, found.length))
            if last is None or (last.file, last.offset) != (file, found.offset):
                # The parts of a run without dropped entries have the same bytes, which are read once.
                self.size += found.length
            return
        name = os.path.relpath(found.path, self.root)
        file = self.files.setdefault(name, len(self.files))
        if found.has_index and len(found.offsets) >= INDEXED_MIN:
            count = len(found.offsets)
            size = sum(found.lengths)
            if self.size + size > self.bytes_max:
                # An estimate of how many fit.
                count = max(1, count * (self.bytes_max - self.size) // size)
                size = sum(found.lengths[:count])
            self.runs.append(PlannedRun(ledger, found.first, found.first + count - 1, file, INDEXED, size))
            self.size += size
            return
        for run in runs_of(ledger, found.first, file, found.offsets, found.lengths):
            if self.is_full:
                return
            self.runs.append(run)
            self.size += run.length

    def take(self, ledger: int, runs: Iterable[FileRun | ObjectRun]) -> None:
        """Adds consecutive entries, as far as there is room for them."""
        for one in runs:
            if self.is_full:
                return
            self.add(ledger, one)
            if self.runs[-1].last != end_of(one) - 1:
                return


def end_of(run: FileRun | ObjectRun) -> int:
    """One past its last entry."""
    return run.end if isinstance(run, ObjectRun) else run.first + len(run.offsets)


async def plan_topic(
    services: AdminServices, name: TopicName, log: TopicLog, start: Position, end: Position, bytes_max: int
) -> TopicPlan:
    log_end = log.end
    stop = min(end, log_end)
    draft = _Draft(_root(services), bytes_max)
    expires_ms: list[int] = []
    entries_left = _entries_max(log, bytes_max)
    at = log.normalise(start)
    while at < stop and entries_left > 0 and not draft.is_full:
        span = log.span_of(at)
        span_stop = min(span.end, at[1] + entries_left, stop[1] if span.ledger == stop[0] else span.end)
        ledger, incarnation = LedgerId(span.ledger), Incarnation(span.incarnation)
        try:
            found = await _plan_before_damage(services.log, ledger, incarnation, at[1], span_stop)
        except LogMissingError as error:
            raise RestError(409, f"{name}: {error}; ask again, or read through the broker") from None
        if draft.runs and draft.in_objects != bool(found.objects_url):
            break  # A plan is of files or of objects; the reader asks for the rest.
        expires_ms.append(found.expires_at_ms)
        if found.objects_url:
            draft.root, draft.in_objects = found.objects_url, True
        dropped = log.dropped_in(span.ledger)
        runs: Iterable[FileRun | ObjectRun] = found.objects or found.runs
        if dropped:
            runs = without(runs, dropped)
        # There may be as many entries as messages: not on the event loop.
        await asyncio.to_thread(draft.take, span.ledger, runs)
        last = draft.runs[-1].last
        entries_left -= last + 1 - at[1]
        at = log.normalise((span.ledger, last + 1))
        if found.end < span_stop:
            break  # Looking up more objects would keep the reader waiting.
    # Between the last entry and `stop` there are none, unless a limit ended the plan before.
    covered = stop if at >= stop else at
    return TopicPlan(
        topic=str(name),
        start=start,
        end=max(covered, start),
        log_end=log_end,
        # Read last: entries trimmed meanwhile may have been skipped.
        has_lost=log.has_lost(start),
        root=draft.root,
        files=tuple(draft.files),
        runs=tuple(draft.runs),
        expires_in_ms=max(0, min(expires_ms, default=services.now_ms()) - services.now_ms() - MARGIN_MS),
        message_bytes_max=services.config.max_message_size,
        in_objects=draft.in_objects,
    )


def without(runs: Iterable[Run], dropped: Sequence[tuple[int, int]]) -> Iterator[Run]:
    """Runs of one ledger without the `dropped` entries, which are sorted ranges and may reach beyond the runs."""
    for run in runs:
        at, end = run.first, end_of(run)
        for first, stop in (*dropped[bisect_right(dropped, at, key=itemgetter(1)) :], (end, end)):
            if at < min(first, end):
                yield _part(run, at, min(first, end))
            at = max(at, stop)
            if at >= end:
                break


def _part(run: Run, first: int, end: int) -> Run:
    if isinstance(run, ObjectRun):
        # The reader finds them among the others.
        return replace(run, first=first, end=end)
    assert isinstance(run, FileRun)
    piece = slice(first - run.first, end - run.first)
    return replace(run, first=first, offsets=run.offsets[piece], lengths=run.lengths[piece])


def _root(services: AdminServices) -> str:
    return os.path.abspath(os.path.join(services.config.data_dir, "log"))


def _entries_max(log: TopicLog, bytes_max: int) -> int:
    """An estimate of how many fit, with some to spare: places of further entries would be looked up for nothing."""
    average = max(1, log.size_bytes // max(1, log.entries))
    return min(ENTRIES_MAX, 64 + 2 * bytes_max // average)


async def _plan_before_damage(
    store: LogStore, ledger: LedgerId, incarnation: Incarnation, first: int, end: int
) -> ReadPlan:
    """Plans the entries before damage; only a plan that would begin with damage is refused."""
    try:
        return await store.plan(ledger, incarnation, first, end)
    except LogDamagedError as error:
        if error.first_bad <= first:
            raise
        return await store.plan(ledger, incarnation, first, error.first_bad)
