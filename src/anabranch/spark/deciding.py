"""The driver's part of a write: which attempts win, told to the brokers until all of it shows.

A write is decided once. Whoever comes second, such as a batch that Spark runs again after a crash, finds what was
decided and finishes that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from anabranch.client.connections import Connections
from anabranch.client.errors import Unsupported
from anabranch.client.security import NOBODY, Security
from anabranch.client.write_records import Claim, Contents, Record, WriteRecords
from anabranch.client.writes import ID_MAX, topic_written
from anabranch.errors import AnabranchError
from anabranch.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

# For so long a broker that was up is taken to be up.
ADDRESS_S: Final = 1.0


@dataclass
class AdminAddress:
    """Where a broker that is up answers REST; `ask` finds out, again after a while."""

    ask: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    _found: str = ""
    _found_s: float = -ADDRESS_S
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> str:
        with self._lock:
            if self.clock() - self._found_s >= ADDRESS_S:
                self._found = self.ask()
                self._found_s = self.clock()
            return self._found


def told_address(service_url: str, security: Security = NOBODY) -> str:
    """What a broker of the service says of itself. Not for an event loop's thread."""

    async def ask() -> str:
        connections = Connections(service_url, security)
        try:
            return (await connections.service()).http_url
        finally:
            await connections.close()

    found = asyncio.run(ask())
    if not found:
        raise Unsupported(
            f'the broker at {service_url} does not tell its HTTP address: .option("adminUrl", "http://…")'
        )
    return found


def records_of(options: SinkOptions, retry_s: float | None = None) -> WriteRecords:
    given = options.admin_url
    ask = partial(told_address, options.service_url, options.security)
    address: Callable[[], str] = AdminAddress(ask) if given is None else lambda: given
    wait_s = options.timeout_s if retry_s is None else retry_s
    return WriteRecords(address, options.security, options.topic or "", retry_s=wait_s)


def stream_write_id(query_id: str, topic: str | None) -> str:
    """A streaming query's write to a topic: the same after each start from one checkpoint."""
    name = f"spark/{query_id}/{topic or ''}"
    return name if len(name) <= ID_MAX else f"spark/{query_id}/{hashlib.sha256(name.encode()).hexdigest()}"


class NotThisBatch(AnabranchError):
    """The write was decided as something else than this batch: it would be committed without its rows."""


class MadeAgain(AnabranchError):
    """A topic was deleted, and made again, while the batch was written: it would be committed with some of its rows."""


@dataclass(frozen=True, slots=True)
class Job:
    """A batch as its driver knows it when all tasks are done.

    `contents` are of all rows, also if tasks have written none because they found the batch decided."""

    write: str
    batch: int
    attempts: frozenset[UUID]
    topics: frozenset[str]
    contents: Contents
    # A run of a query that may write several things under this name by mistake; None where there is one at most.
    run: str | None = None
    # Where the attempts have written, and the id of the topic then.
    written: frozenset[tuple[str, str]] = frozenset()

    def topic_ids(self) -> dict[str, str]:
        """By topic. MadeAgain if one was another when some of the attempts wrote there: theirs is gone."""
        known: dict[str, str] = {}
        for topic, topic_id in self.written:
            whole = topic_written(topic)
            if known.setdefault(whole, topic_id) != topic_id:
                raise MadeAgain(
                    f"{whole} was deleted and made again while batch {self.batch} of {self.write} was written to it: "
                    "what was written before is gone. Nothing of the batch is committed: run it again"
                )
        return dict(self.written)


def commit(records: WriteRecords, job: Job, *, fail_on_other_rows: bool = True) -> None:
    """Returns once the winners, these or those of an earlier run, show on all topics.

    NotThisBatch if the rows are in nothing that was decided, or what was decided has other rows. MadeAgain, or
    WinnersGone, if they are in a topic that was deleted."""
    write, batch, attempts, topics = job.write, job.batch, job.attempts, job.topics
    topic_ids = job.topic_ids()
    has_rows = job.contents.rows > 0
    claim = None if job.run is None else Claim(job.run, uuid4().hex)
    if has_rows and not attempts:
        # Every task has found it decided. It must not be decided by us, as a batch without rows.
        found = records.get(write, batch) if claim is None else records.claim(write, batch, claim)
        record = found or Record(None, (), frozenset())
    else:
        record = records.decide(write, batch, attempts, topics, contents=job.contents, claim=claim)
    if record.winners != attempts or (has_rows and not attempts):
        _check_not_ours(record, job, claim)
        if has_rows:
            _check_same_batch(record, write, batch, {*topics, *filter(None, [records.target])})
        if fail_on_other_rows:
            _check_same_rows(record, job)
        log.warning("batch %d of %s was written by an earlier run: nothing is written again", batch, write)
        topic_ids = {}
    records.reveal(write, batch, record.topics, have_winners=bool(record.winners), topic_ids=topic_ids)
    # This run may have written where the one that was decided has not.
    records.reveal(write, batch, {*topics} - {*record.topics}, have_winners=False)


def abort(records: WriteRecords, write: str, batch: int, topics: Collection[str]) -> None:
    """Returns once nothing of the batch will ever show: not for one that is run again."""
    record = records.decide(write, batch, [], topics)
    records.reveal(write, batch, {*record.topics, *topics}, have_winners=bool(record.winners))


def _check_not_ours(record: Record, job: Job, claim: Claim | None) -> None:
    """What this very run has written is no earlier run of this batch, but something else."""
    if claim is None or record.claim is None or record.claim.run != claim.run:
        return
    if record.claim.by != claim.by:
        raise NotThisBatch(
            f"batch {job.batch} of {job.write} was written before by this run of the query: foreachBatch writes twice "
            "to one topic, or again after an error. Nothing of the second is committed. Name the writes apart: "
            '.option("writeId", f"{query_id}/{batch_id}/a name"), with query_id = '
            'spark.sparkContext.getLocalProperty("sql.streaming.queryId")'
        )


def _check_same_rows(record: Record, job: Job) -> None:
    """Records of earlier releases do not tell."""
    if record.contents is None or record.contents == job.contents:
        return
    before, now = record.contents.rows, job.contents.rows
    told = f"{before} rows, and this run has {now}" if before != now else f"{now} other rows"
    raise NotThisBatch(
        f"batch {job.batch} of {job.write} was written before with {told}: nothing of this run is committed. Give "
        "other data another name: a write another writeId, a query a checkpoint folder of its own. For a query whose "
        'rows change when it is run again, .option("failOnOtherRows", "false") keeps those that were written first'
    )


def _check_same_batch(record: Record, write: str, batch: int, topics: Collection[str]) -> None:
    """What another run has decided can only be this batch if it has rows too, and has them in the same topics."""
    advice = f"batch {batch} of {write}: nothing of this run is committed. Give the write another name"
    if record.winners is None:
        raise NotThisBatch(f"what tasks found decided is not known any more, {advice}")
    if not record.winners:
        raise NotThisBatch(f"somebody has decided that there are no rows in {advice}")
    decided, written = ({topic_written(topic) for topic in some} for some in (record.topics, topics))
    if written and not decided & written:
        where = ", ".join(sorted(decided)) or "no topic at all"
        raise NotThisBatch(
            f"somebody has written to {where}, and not to {', '.join(sorted(written))}, {advice}"
        )
