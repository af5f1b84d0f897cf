"""Tells the log at the start of a broker which ledgers the topics' records name, and finishes interrupted deletions."""

from __future__ import annotations

from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.metadata.port import MetadataStore
from anabranch.storage.core.topic_record import TopicRecord, namespace_of
from anabranch.storage.port import LiveLedger, LogStore
from anabranch.storage.topic.taking_over import finish_delete


async def tell_log_what_lives(metadata: MetadataStore, log_store: LogStore) -> dict[str, TopicRecord]:
    """The records of all topics, by path."""
    live: list[LiveLedger] = []
    records: dict[str, TopicRecord] = {}
    for path, found in await metadata.scan(MANAGED_LEDGERS):
        record = TopicRecord.decode(found.value)
        if record.is_deleting:
            await finish_delete(path, record, found.version, log_store, metadata)
            continue
        records[path] = record
        live += record.live(path, namespace_of(path))
    log_store.retain(live)
    return records
