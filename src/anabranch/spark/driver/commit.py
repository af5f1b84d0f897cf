"""The driver's part of a write: decides which attempts win, and has the brokers reveal all of it.

A write is decided once. A later run, such as a batch that Spark runs again after a crash, finds the decision and
completes it.
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

from anabranch.client.errors import Unsupported
from anabranch.client.hidden_writes.records import Contents, KnownWrite, WriteRecordsClient
from anabranch.client.hidden_writes.write import ID_MAX, topic_written
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError
from anabranch.model.hidden_writes import Claim
from anabranch.model.names import Domain, TopicName
from anabranch.spark.options.sink import SinkOptions

log = logging.getLogger(__name__)

# How long a broker that was up is assumed to be up.
ADDRESS_S: Final = 1.0


@dataclass
class AdminAddress:
    """The REST address of a broker that is up; `ask` finds it, again after a while."""

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
    """The address that a broker of the service announces. Not for an event loop's thread."""

    async def ask() -> str:
        connections = Connections(service_url, security)
        try:
            return (await connections.service()).http_url
        finally:
            await connections.close()

    found = asyncio.run(ask())
    if not found:
        raise Unsupported(
            f'the broker at {service_url} does not announce its HTTP address: .option("adminUrl", "http://…")'
        )
    return found


def records_of(options: SinkOptions, retry_s: float | None = None) -> WriteRecordsClient:
    given = options.admin_url
    ask = partial(told_address, options.service_url, options.security)
    address: Callable[[], str] = AdminAddress(ask) if given is None else lambda: given
    wait_s = options.timeout_s if retry_s is None else retry_s
    return WriteRecordsClient(address, options.security, options.topic or "", retry_s=wait_s)


def stream_write_id(query_id: str, topic: str | None) -> str:
    """The id of a streaming query's write to a topic: the same after each start from one checkpoint.

    `persistent://…/x` and `topic://…/x` are one topic: whichever of the two a query is started with, its last batch is
    found under the same id."""
    name = f"spark/{query_id}/{_one_spelling(topic) if topic else ''}"
    return name if len(name) <= ID_MAX else f"spark/{query_id}/{hashlib.sha256(name.encode()).hexdigest()}"


def _one_spelling(topic: str) -> str:
    name = TopicName.parse(topic)
    return (
        f"{Domain.TOPIC.value}://{name.namespace}/{name.local}" if name.domain is Domain.PERSISTENT else topic
    )


class NotThisBatch(AnabranchError):
    """The decision of the write is not this batch: the batch would be committed without its rows."""


class MadeAgain(AnabranchError):
    """A topic was deleted and created again while the batch was written: only some of its rows would be committed."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch as its driver knows it when all tasks are done.

    `contents` cover all rows, even if tasks have written none because they found the batch decided."""

    write: str
    batch: int
    attempts: frozenset[UUID]
    topics: frozenset[str]
    contents: Contents
    # The run of a query that may write several things under this name by mistake; None where there is at most one.
    run: str | None = None
    # Where the attempts have written, and the id of the topic at that time.
    written: frozenset[tuple[str, str]] = frozenset()

    def topic_ids(self) -> dict[str, str]:
        """The ids by topic. Raises MadeAgain if a topic had another id when some of the attempts wrote there: their
        rows are gone."""
        known: dict[str, str] = {}
        for topic, topic_id in self.written:
            whole = topic_written(topic)
            if known.setdefault(whole, topic_id) != topic_id:
                raise MadeAgain(
                    f"{whole} was deleted and made again while batch {self.batch} of {self.write} was written to it: "
                    "what was written before is gone. Nothing of the batch is committed: run it again"
                )
        return dict(self.written)


def commit(records: WriteRecordsClient, job: FinishedBatch, *, fail_on_other_rows: bool = True) -> None:
    """Returns once the winners, of this run or an earlier one, are visible on all topics.

    Raises NotThisBatch if no decision contains the rows, or the decision has other rows. Raises MadeAgain, or
    WinnersGone, if the rows are in a topic that was deleted."""
    write, batch, attempts, topics = job.write, job.batch, job.attempts, job.topics
    topic_ids = job.topic_ids()
    has_rows = job.contents.rows > 0
    claim = None if job.run is None else Claim(job.run, uuid4().hex)
    if has_rows and not attempts:
        # Every task has found it decided. This run must not decide it as a batch without rows.
        found = records.get(write, batch) if claim is None else records.claim(write, batch, claim)
        record = found or KnownWrite(None, (), frozenset())
    else:
        record = records.decide(write, batch, attempts, topics, contents=job.contents, claim=claim)
    if record.winners != attempts or (has_rows and not attempts):
        _check_not_ours(record, job, claim)
        if has_rows:
            _check_same_batch(record, write, batch, {*topics, *filter(None, [records.target])})
        if fail_on_other_rows:
            _check_same_rows(record, job)
        log.warning("batch %d of %s was written by an earlier run, writing nothing", batch, write)
        topic_ids = {}
    records.reveal(write, batch, record.topics, have_winners=bool(record.winners), topic_ids=topic_ids)
    # This run may have written to topics that the decided one has not written to.
    records.reveal(write, batch, {*topics} - {*record.topics}, have_winners=False)


def abort(records: WriteRecordsClient, write: str, batch: int, topics: Collection[str]) -> None:
    """Returns once no row of the batch can ever become visible: not for a batch that is run again."""
    record = records.decide(write, batch, [], topics)
    records.reveal(write, batch, {*record.topics, *topics}, have_winners=bool(record.winners))


def _check_not_ours(record: KnownWrite, job: FinishedBatch, claim: Claim | None) -> None:
    """A decision by this same run is no earlier run of this batch, but another write under its name."""
    if claim is None or record.claim is None or record.claim.run != claim.run:
        return
    if record.claim.by != claim.by:
        raise NotThisBatch(
            f"batch {job.batch} of {job.write} was written before by this run of the query: foreachBatch writes twice "
            "to one topic, or again after an error. Nothing of the second is committed. Name the writes apart: "
            '.option("writeId", f"{query_id}/{batch_id}/a name"), with query_id = '
            'spark.sparkContext.getLocalProperty("sql.streaming.queryId")'
        )


def _check_same_rows(record: KnownWrite, job: FinishedBatch) -> None:
    """Compares the rows with those decided. Records of earlier releases do not have them."""
    if record.contents is None or record.contents == job.contents:
        return
    before, now = record.contents.rows, job.contents.rows
    told = f"{before} rows, and this run has {now}" if before != now else f"{now} other rows"
    raise NotThisBatch(
        f"batch {job.batch} of {job.write} was written before with {told}: nothing of this run is committed. Give "
        "other data another name: a write another writeId, a query a checkpoint folder of its own. For a query whose "
        'rows change when it is run again, .option("failOnOtherRows", "false") keeps those that were written first'
    )


def _check_same_batch(record: KnownWrite, write: str, batch: int, topics: Collection[str]) -> None:
    """A decision of another run can only be this batch if it has rows too, and has them in the same topics."""
    advice = f"batch {batch} of {write}: nothing of this run is committed. Give the write another name"
    if record.winners is None:
        raise NotThisBatch(f"the decision that tasks found is no longer stored, {advice}")
    if not record.winners:
        raise NotThisBatch(f"another writer has decided that there are no rows in {advice}")
    decided, written = ({topic_written(topic) for topic in some} for some in (record.topics, topics))
    if written and not decided & written:
        where = ", ".join(sorted(decided)) or "no topic at all"
        raise NotThisBatch(
            f"another writer has written to {where}, and not to {', '.join(sorted(written))}, {advice}"
        )
