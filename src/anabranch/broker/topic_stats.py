"""A topic's figures in the shape of Pulsar's TopicStats and PersistentTopicInternalStats JSON."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anabranch.model.position import Position
from anabranch.storage.port import LogError
from anabranch.wire.entry import publish_time

if TYPE_CHECKING:
    from anabranch.broker.producer import Producer
    from anabranch.broker.topic import Topic

_ACCESS_MODES = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")


def publisher_stats(producer: Producer) -> dict[str, Any]:
    """Pulsar's PublisherStats JSON."""
    rate, throughput = producer.rates_in
    return {
        "accessMode": _ACCESS_MODES[producer.access_mode],
        "producerId": producer.id,
        "producerName": producer.name,
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "chunkedMessageRate": 0.0,
        "address": producer.link.address,
        "connectedSince": shown_time(producer.created_ms),
        "clientVersion": producer.link.client_version,
        "metadata": producer.metadata,
    }


def shown_time(at_ms: int) -> str:
    """As Pulsar's figures have it: text, for people."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


async def full_topic_stats(topic: Topic) -> dict[str, Any]:
    """With what has to be read from the log."""
    last_ms = 0
    with contextlib.suppress(LogError):  # An entry that cannot be read says so to its readers.
        if topic.log.entries:
            _, entries = await topic.log.read(topic.log.last, 1, 1)
            last_ms = publish_time(entries[0][2]) if entries else 0
    return {**topic_stats(topic), "lastPublishTimeStamp": last_ms}


def topic_stats(topic: Topic) -> dict[str, Any]:
    publishing = topic.publishing
    subscriptions = {name: s.stats() for name, s in topic.subscriptions.items()}
    rate_in, throughput_in = topic.rates_in
    size, entries = topic.log.size_bytes, topic.log.entries
    slowest = min((s.next for s in topic.subscriptions.values()), default=topic.log.end)
    backlog_bytes = size * topic.log.count(slowest, topic.log.end) // entries if entries else 0
    for figures in subscriptions.values():
        # Entries of a topic differ in size; their mean is what is known without reading them.
        figures["backlogSize"] = size * figures["msgBacklog"] // entries if entries else 0
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum(s.get("msgRateOut", 0.0) for s in subscriptions.values()),
        "msgThroughputOut": sum(s.get("msgThroughputOut", 0.0) for s in subscriptions.values()),
        "bytesInCounter": publishing.bytes_in,
        "msgInCounter": publishing.messages_in,
        "bytesOutCounter": sum(s.get("bytesOutCounter", 0) for s in subscriptions.values()),
        "msgOutCounter": sum(s.get("msgOutCounter", 0) for s in subscriptions.values()),
        "averageMsgSize": throughput_in / rate_in if rate_in else 0.0,
        "msgChunkPublished": False,
        "storageSize": size,
        "backlogSize": backlog_bytes,
        "backlogQuotaLimitSize": topic.upkeep.quotas.limit("destination_storage"),
        "backlogQuotaLimitTime": topic.upkeep.quotas.limit("message_age"),
        "oldestBacklogMessageAgeSeconds": topic.upkeep.quotas.backlog_age_s,
        "offloadedStorageSize": 0,
        "publishers": [publisher_stats(producer) for producer in topic.producers.values()],
        "waitingPublishers": topic.attached.waiting,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if publishing.is_deduplicating else "Disabled",
        "compaction": topic.compaction.stats(),
        "topicEpoch": topic.attached.epoch,
        "nonContiguousDeletedMessagesRanges": 0,
        "topicCreationTimeStamp": topic.log.topic_record.created_ms,
        "ownerBroker": topic.broker.service_url.removeprefix("pulsar://"),
    }


def internal_stats(topic: Topic) -> dict[str, Any]:
    log, record = topic.log, topic.log.topic_record
    ledgers = []
    for ledger in record.ledgers:
        is_open = ledger.id == log.ledger
        ledgers.append(
            {
                "ledgerId": ledger.id,
                "entries": log.confirmed_end if is_open else ledger.end or 0,
                "size": ledger.bytes,
                "timestamp": ledger.created_ms,
                "offloaded": False,
                "incarnation": ledger.incarnation,
            }
        )
    return {
        "entriesAddedCounter": topic.publishing.entries_in,
        "numberOfEntries": log.entries,
        "totalSize": log.size_bytes,
        "currentLedgerEntries": log.confirmed_end,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": log.next_entry - log.confirmed_end,
        "lastConfirmedEntry": _shown(log.last),
        "state": "Terminated" if topic.is_sealed else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {
            name: {
                "markDeletePosition": _shown(s.mark_delete),
                "readPosition": _shown(s.dispatcher.read_at if s.dispatcher is not None else s.next),
                "numberOfEntriesSinceFirstNotAckedMessage": s.backlog(),
                "state": "Open",
                "properties": {},
            }
            for name, s in topic.subscriptions.items()
        },
        "schemaLedgers": [],
        # Not a field of Pulsar's: whose entries readers wait for.
        "hiddenWrites": topic.hidden.stats(),
        "compactedLedger": topic.compaction.ledger_stats(),
    }


def _shown(at: Position) -> str:
    return f"{at[0]}:{at[1]}"
