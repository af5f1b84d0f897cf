"""A log that stands by from the start of a run and opens every topic at its end. However many owners have written to a
topic, it must be able to read everything that the topic's record keeps."""

from __future__ import annotations

from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.model.position import Incarnation
from anabranch.simulation.cluster.cluster import Cluster
from anabranch.storage.core.topic_record import namespace_of
from anabranch.storage.port import LogError
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.stored_record import TopicGoneError
from anabranch.storage.topic.topic_log import TopicLog

_ENTRIES_MAX = 100
_BYTES_MAX = 1 << 20


class _Topic:
    """Stores the state that it found: the next owner of the topic finds the same."""

    def __init__(self, log: TopicLog) -> None:
        self._state = log.recovered

    def entries_confirmed(self, entries_end: int) -> None:
        """It writes none."""

    def log_lost(self, error: LogError) -> None:
        """Nothing waits for it."""

    def encode_state(self) -> bytes:
        return (self._state.snapshot or b"") if self._state is not None else b""


class Bystander:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._log = cluster.new_log(Incarnation("bystander"))
        # There was no record yet.
        self._log.retain([])

    async def unreadable(self) -> list[str]:
        """Takes every topic over and reads it: what went wrong. The last thing that happens in a run."""
        if self._cluster.bucket is not None:
            # It is registered nowhere, so the brokers would take its log for that of one which has ended.
            self._cluster.bucket.hide(self._log.incarnation)
        await self._log.start()
        metadata = await self._cluster.metadata.connect()
        ids, found = LedgerIds(metadata), []
        for path, _ in await metadata.scan(MANAGED_LEDGERS):
            try:
                log = await TopicLog.open(path, namespace_of(path), self._log, metadata, ids, 0)
            except TopicGoneError:
                continue
            log.start(_Topic(log))
            try:
                await _read_all(log)
            except LogError as error:
                found.append(f"what is kept of {path} cannot be read at another broker: {error}")
        await metadata.close()
        return found


async def _read_all(log: TopicLog) -> None:
    at = log.first
    while at < log.end:
        ledger, entries = await log.read(at, _ENTRIES_MAX, _BYTES_MAX)
        at = log.normalise((ledger, entries[-1][0] + 1))
