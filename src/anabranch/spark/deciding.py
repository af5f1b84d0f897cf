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
from uuid import UUID

from anabranch.client.connections import Connections
from anabranch.client.errors import Unsupported
from anabranch.client.security import NOBODY, Security
from anabranch.client.write_records import Record, WriteRecords
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


def commit(
    records: WriteRecords,
    write: str,
    batch: int,
    attempts: Collection[UUID],
    topics: Collection[str],
    *,
    has_rows: bool,
) -> None:
    """Returns once the winners, these or those of an earlier run, show on all topics.

    `has_rows` says whether the batch has any, also if tasks have written none because they found it decided.
    NotThisBatch if those rows are in nothing that was decided."""
    if has_rows and not attempts:
        # Every task has found it decided. It must not be decided by us, as a batch without rows.
        record = records.get(write, batch) or Record(None, (), frozenset())
    else:
        record = records.decide(write, batch, attempts, topics)
    if record.winners != frozenset(attempts) or (has_rows and not attempts):
        if has_rows:
            _check_same_batch(record, write, batch, {*topics, *filter(None, [records.target])})
        log.warning("batch %d of %s was written by an earlier run: nothing is written again", batch, write)
    records.reveal(write, batch, record.topics, have_winners=bool(record.winners))
    # This run may have written where the one that was decided has not.
    records.reveal(write, batch, {*topics} - {*record.topics}, have_winners=False)


def abort(records: WriteRecords, write: str, batch: int, topics: Collection[str]) -> None:
    """Returns once nothing of the batch will ever show: not for one that is run again."""
    record = records.decide(write, batch, [], topics)
    records.reveal(write, batch, {*record.topics, *topics}, have_winners=bool(record.winners))


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
