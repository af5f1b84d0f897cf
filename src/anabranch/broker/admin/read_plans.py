"""`/admin/v2/anabranch/read-plan`: where a topic's entries lie in files, for readers that go there themselves.

The owner of the topic answers, up to the confirmed end and no further; any other broker sends the caller there. The
log's files hold entries of every tenant, so it takes a super user to be told, and `logDirectReadsAllowed=false` to tell
nobody: readers then ask the broker for the entries as consumers do.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.exceptions import HTTPException

from anabranch.broker.admin.errors import RestError, redirect
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, RoleDep, decoded_once
from anabranch.broker.admin.partitions import single
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.broker import Broker
from anabranch.broker.owed import is_other_topic
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.port import FileRun, LogDamagedError, LogMissingError, LogStore, ReadPlan
from anabranch.storage.read_plan import (
    INDEXED,
    Run,
    TopicPlan,
    encode,
    parse_position,
    position_text,
    runs_of,
)
from anabranch.storage.topic_log import TopicLog

router = APIRouter()

# A plan is this long at most; whoever wants more asks again from where it ends.
ENTRIES_MAX: Final = 1_000_000
RUNS_MAX: Final = 20_000
BYTES_MAX: Final = 1 << 30
# So many entries of a file with an index are left for the reader to find there: it costs the broker nothing.
INDEXED_MIN: Final = 1_000
# The reader is told less than the time its files are kept: it asked before we answered, and opens them after.
MARGIN_MS: Final = 5_000


async def _named(
    request: Request,
    broker: BrokerDep,
    role: RoleDep,
    domain: Domain,
    namespace: NamespaceDep,
    topic: str,
) -> TopicName:
    """The topic asked about, which this broker owns, once it is known that the caller may ask."""
    await broker.rights.super_user(role)
    if not broker.config.log_direct_reads_allowed:
        raise NotAuthorizedError(
            "direct reads are turned off: read through the broker, or set logDirectReadsAllowed=true"
        )
    if domain not in (Domain.PERSISTENT, Domain.SEGMENT):
        raise RestError(412, f"{domain.value}:// has no log of its own: name a persistent topic or a segment")
    name = TopicName.parse(f"{domain.value}://{namespace}/{decoded_once(topic)}")
    if not broker.owners.is_mine(name):
        answer = redirect(request, broker.owners.owner(name).http_url)
        raise HTTPException(307, "Ask the topic's owner", {"Location": answer.headers["location"]})
    return name


async def _start(start: str = "") -> Position | None:
    return _position("start", start)


async def _end(end: str = "") -> Position | None:
    return _position("end", end)


def _position(name: str, text: str) -> Position | None:
    try:
        return parse_position(text) if text else None
    except ValueError as error:
        raise RestError(400, f"Invalid parameter: {name}: {error}") from None


@router.get("/read-plan/{domain}/{tenant}/{namespace}/{topic:path}")
async def read_plan(
    broker: BrokerDep,
    name: Annotated[TopicName, Depends(_named)],
    start: Annotated[Position | None, Depends(_start)],
    end: Annotated[Position | None, Depends(_end)],
    maxBytes: Annotated[int, Query(ge=1)] = BYTES_MAX,
    topicId: str = "",
) -> Response:
    """Entries from `start` (inclusive; left out: the first kept) to `end` (exclusive; left out: all confirmed).

    412 if `topicId` is the id of another topic of that name, or a position is of another log.
    """
    log = (await single(broker, name)).log
    record = log.topic_record
    if is_other_topic(record, topicId) and topicId != await broker.part_of(name, record):
        raise RestError(412, f"{name} was deleted and made again: the topic with the id {topicId} is gone")
    for at in (start, end):
        if at is not None and log.is_foreign(at):
            raise RestError(
                412,
                f"{name} never had {position_text(at)}: it is of another topic, or of one of the same name that was "
                "deleted",
            )
    plan = await plan_topic(broker, name, log, start or log.first, end or log.end, min(maxBytes, BYTES_MAX))
    return Response(encode(plan), media_type="application/json")


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    root: str
    bytes_max: int
    files: dict[str, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.size >= self.bytes_max or len(self.runs) >= RUNS_MAX

    def add(self, ledger: int, found: FileRun) -> None:
        name = os.path.relpath(found.path, self.root)
        file = self.files.setdefault(name, len(self.files))
        if found.has_index and len(found.offsets) >= INDEXED_MIN:
            count = len(found.offsets)
            size = sum(found.lengths)
            if self.size + size > self.bytes_max:
                # About what fits.
                count = max(1, count * (self.bytes_max - self.size) // size)
                size = sum(found.lengths[:count])
            self.runs.append(Run(ledger, found.first, found.first + count - 1, file, INDEXED, size))
            self.size += size
            return
        for run in runs_of(ledger, found.first, file, found.offsets, found.lengths):
            if self.is_full:
                return
            self.runs.append(run)
            self.size += run.length

    def take(self, ledger: int, runs: Iterable[FileRun]) -> None:
        """Adds consecutive entries, as far as there is room for them."""
        for one in runs:
            if self.is_full:
                return
            self.add(ledger, one)
            if self.runs[-1].last != one.first + len(one.offsets) - 1:
                return


async def plan_topic(
    broker: Broker, name: TopicName, log: TopicLog, start: Position, end: Position, bytes_max: int
) -> TopicPlan:
    log_end = log.end
    stop = min(end, log_end)
    draft = _Draft(_root(broker), bytes_max)
    expires_ms: list[int] = []
    entries_left = _entries_max(log, bytes_max)
    at = log.normalise(start)
    while at < stop and entries_left > 0 and not draft.is_full:
        span = log.span_of(at)
        span_stop = min(span.end, at[1] + entries_left, stop[1] if span.ledger == stop[0] else span.end)
        ledger, incarnation = LedgerId(span.ledger), Incarnation(span.incarnation)
        try:
            found = await _plan_before_damage(broker.log, ledger, incarnation, at[1], span_stop)
        except LogMissingError as error:
            raise RestError(409, f"{name}: {error}; ask again, or read through the broker") from None
        expires_ms.append(found.expires_at_ms)
        dropped = log.dropped_in(span.ledger)
        runs = without(found.runs, dropped) if dropped else found.runs
        # As many entries as messages, at worst: not on the event loop.
        await asyncio.to_thread(draft.take, span.ledger, runs)
        last = draft.runs[-1].last
        entries_left -= last + 1 - at[1]
        at = log.normalise((span.ledger, last + 1))
    # Between the last entry and `stop` there is nothing, unless a limit ended the plan before.
    covered = stop if at >= stop else at
    return TopicPlan(
        topic=str(name),
        start=start,
        end=max(covered, start),
        log_end=log_end,
        # Asked last: what was trimmed meanwhile may have been stepped over.
        has_lost=log.has_lost(start),
        root=draft.root,
        files=tuple(draft.files),
        runs=tuple(draft.runs),
        expires_in_ms=max(0, min(expires_ms, default=broker.now_ms()) - broker.now_ms() - MARGIN_MS),
        message_bytes_max=broker.config.max_message_size,
    )


def without(runs: Iterable[FileRun], dropped: Sequence[tuple[int, int]]) -> Iterator[FileRun]:
    """Runs of one ledger without those of their entries, which are ranges in order. `dropped` may go beyond."""
    for run in runs:
        at, end = run.first, run.first + len(run.offsets)
        for first, stop in (*dropped[bisect_right(dropped, at, key=itemgetter(1)) :], (end, end)):
            if at < min(first, end):
                piece = slice(at - run.first, min(first, end) - run.first)
                yield replace(run, first=at, offsets=run.offsets[piece], lengths=run.lengths[piece])
            at = max(at, stop)
            if at >= end:
                break


def _root(broker: Broker) -> str:
    return os.path.abspath(os.path.join(broker.config.data_dir, "log"))


def _entries_max(log: TopicLog, bytes_max: int) -> int:
    """About as many as fit, with some to spare: the places of those that do not would be looked up for nothing."""
    average = max(1, log.size_bytes // max(1, log.entries))
    return min(ENTRIES_MAX, 64 + 2 * bytes_max // average)


async def _plan_before_damage(
    store: LogStore, ledger: LedgerId, incarnation: Incarnation, first: int, end: int
) -> ReadPlan:
    """What lies before damage is planned; only a plan that would begin with it is refused."""
    try:
        return await store.plan(ledger, incarnation, first, end)
    except LogDamagedError as error:
        if error.first_bad <= first:
            raise
        return await store.plan(ledger, incarnation, first, error.first_bad)
