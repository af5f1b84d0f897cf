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
from anabranch.client.write_records import WriteRecords
from anabranch.client.writes import ID_MAX
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


def commit(
    records: WriteRecords, write: str, batch: int, attempts: Collection[UUID], topics: Collection[str]
) -> None:
    """Returns once the winners, these or those of an earlier run, show on all topics."""
    record = records.decide(write, batch, attempts, topics)
    if record.winners != frozenset(attempts):
        log.warning("batch %d of %s was written by an earlier run: nothing is written again", batch, write)
    # An earlier run may have told others than this one has written to, and the other way round.
    records.reveal(write, batch, {*record.topics, *topics})
