"""A topic's figures in the shape of Pulsar's TopicStats and PersistentTopicInternalStats JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.policy.written_time import written_time
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.stamps import Stamps
from anabranch.broker.topic.topic import Topic
from anabranch.model.position import Position
from anabranch.storage.port import LogError
from anabranch.wire.extensions import WRITE, WRITE_ATTEMPT, WRITE_BATCH

# The most runs of acknowledged entries that the answer about a topic names, those of all cursors together. A consumer
# may leave a million of them.
RUNS_SHOWN_MAX: Final = 10_000
_SUBSCRIPTIONS_A_TURN: Final = 200

_ACCESS_MODES = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
# Counted by Pulsar and not here: there are no transactions, no tiers, no system topics in between.
NEVER_COUNTED = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "publishRateLimitedTimes": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "msgChunkPublished": False,
    "replication": {},
}
NEVER_COMPACTED = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}


_OF_WRITERS = frozenset({WRITE, WRITE_BATCH, WRITE_ATTEMPT})


def publisher_stats(producer: AttachedProducer) -> dict[str, Any]:
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
        "supportsPartialProducer": False,
        "connectedSince": written_time(producer.created_ms),
        "clientVersion": producer.link.client_version,
        # The caller may be a consumer, and an attempt's name is only for roles that may decide about it.
        "metadata": {key: value for key, value in producer.metadata.items() if key not in _OF_WRITERS},
    }


async def full_topic_stats(topic: Topic) -> dict[str, Any]:
    """The stats, including those that must be read from the log."""
    last_ms = 0
    with contextlib.suppress(LogError):  # An unreadable entry is reported to its readers.
        if topic.log.entries:
            last_ms = await topic.log.published_at(topic.log.last) or 0
    return {**await topic_stats(topic), "lastPublishTimeStamp": last_ms}


async def topic_stats(topic: Topic) -> dict[str, Any]:
    """In turns: a topic may have thousands of subscriptions."""
    publishing = topic.publishing
    subscriptions: dict[str, dict[str, Any]] = {}
    behind: dict[str, int] = {}
    for n, (name, one) in enumerate(list(topic.subscriptions.items()), 1):
        subscriptions[name] = subscription_stats(one)
        behind[name] = one.backlog() if subscriptions[name]["msgBacklog"] else 0
        if n % _SUBSCRIPTIONS_A_TURN == 0:
            await asyncio.sleep(0)
    rate_in, throughput_in = topic.rates_in
    size, entries = topic.log.size_bytes, topic.log.entries
    slowest = min((s.next for s in topic.subscriptions.values()), default=topic.log.end)
    backlog_bytes = size * topic.log.count(slowest, topic.log.end) // entries if entries else 0
    for name, figures in subscriptions.items():
        # Entries of a topic differ in size; only their mean is known without reading them.
        figures["backlogSize"] = size * behind[name] // entries if entries else 0
    return {
        **NEVER_COUNTED,
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum(s.get("msgRateOut", 0.0) for s in subscriptions.values()),
        "msgThroughputOut": sum(s.get("msgThroughputOut", 0.0) for s in subscriptions.values()),
        "bytesInCounter": publishing.bytes_in,
        "msgInCounter": publishing.messages_in,
        "bytesOutCounter": sum(s.get("bytesOutCounter", 0) for s in subscriptions.values()),
        "msgOutCounter": sum(s.get("msgOutCounter", 0) for s in subscriptions.values()),
        "averageMsgSize": throughput_in / rate_in if rate_in else 0.0,
        "storageSize": size,
        "backlogSize": backlog_bytes,
        "backlogQuotaLimitSize": topic.quotas.limit("destination_storage"),
        "backlogQuotaLimitTime": topic.quotas.limit("message_age"),
        "oldestBacklogMessageAgeSeconds": topic.quotas.backlog_age_s,
        "oldestBacklogMessageSubscriptionName": "",
        "earliestMsgPublishTimeInBacklogs": 0,
        "publishers": [_publisher(topic, producer) for producer in topic.producers.values()],
        "waitingPublishers": topic.attached.waiting,
        "subscriptions": subscriptions,
        "deduplicationStatus": "Enabled" if publishing.is_deduplicating else "Disabled",
        "compaction": topic.compaction.stats(),
        "topicEpoch": topic.attached.epoch,
        "nonContiguousDeletedMessagesRanges": sum(
            s["nonContiguousDeletedMessagesRanges"] for s in subscriptions.values()
        ),
        "topicCreationTimeStamp": topic.log.topic_record.created_ms,
        "ownerBroker": topic.services.http_url.partition("://")[2],
        **({} if topic.stamps is None else _bucket_stats(topic.stamps)),
    }


def _bucket_stats(stamps: Stamps) -> dict[str, Any]:
    """Ours, for a segment with several entry buckets: what consumers cannot share it for, and how full the batches of
    each bucket are."""
    fill = [
        {"entries": entries, "messages": messages, "messagesPerEntry": messages / entries if entries else 0.0}
        for entries, messages in stamps.fill
    ]
    return {"unstampedEntries": stamps.unstamped, "entryBucketFill": fill}


def _publisher(topic: Topic, producer: AttachedProducer) -> dict[str, Any]:
    stats = publisher_stats(producer)
    return stats if topic.stamps is None else stats | {"unstampedEntries": producer.unstamped}


async def add_earliest(topic: Topic, stats: dict[str, Any]) -> None:
    """Adds to the stats of a topic when the oldest message of each backlog was published, which takes reading it."""
    found: dict[str, int] = {}
    for name, figures in stats["subscriptions"].items():
        subscription = topic.subscriptions.get(name)
        if subscription is not None:
            figures["earliestMsgPublishTimeInBacklog"] = at = await subscription.earliest_publish_time()
            if at:
                found[name] = at
    if found:
        slowest = min(found, key=lambda name: found[name])
        stats["earliestMsgPublishTimeInBacklogs"] = found[slowest]
        stats["oldestBacklogMessageAgeSeconds"] = max(0, (topic.services.now_ms() - found[slowest]) // 1000)
        stats["oldestBacklogMessageSubscriptionName"] = slowest


def internal_stats(topic: Topic, *, for_producer: bool = True) -> dict[str, Any]:
    log, record = topic.log, topic.log.topic_record
    shown = _ShownRuns()
    ledgers = []
    for ledger in record.ledgers:
        is_open = ledger.id == log.ledger
        ledgers.append(
            {
                "ledgerId": ledger.id,
                "entries": log.confirmed_end if is_open else ledger.end or 0,
                "size": log.appended_bytes if is_open else ledger.bytes,
                "timestamp": ledger.created_ms,
                "offloaded": False,
                "underReplicated": False,
                "incarnation": ledger.incarnation,
            }
        )
    return {
        "entriesAddedCounter": topic.publishing.entries_in,
        "numberOfEntries": log.entries,
        "totalSize": log.size_bytes,
        "currentLedgerEntries": log.confirmed_end,
        "currentLedgerSize": log.appended_bytes,
        "lastLedgerCreatedTimestamp": written_time(record.ledgers[-1].created_ms if record.ledgers else 0),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": log.next_entry - log.confirmed_end,
        "lastConfirmedEntry": _shown(log.last),
        "state": "Terminated" if topic.is_sealed else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {name: _cursor(s, shown) for name, s in topic.subscriptions.items()},
        "schemaLedgers": [],
        # These fields are not Pulsar's: the first batches that readers wait for, and how many attempts there are.
        "hiddenWrites": topic.hidden.stats(with_names=for_producer),
        "hiddenAttempts": topic.hidden.attempts_open,
        "compactedLedger": {**topic.compaction.ledger_stats(), "underReplicated": False},
    }


def _cursor(subscription: Subscription, shown: _ShownRuns) -> dict[str, Any]:
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    read_at = subscription.next if dispatcher is None else dispatcher.read_at
    is_waiting = bool(subscription.consumers) and read_at >= subscription.topic_log.end
    return {
        "markDeletePosition": _shown(subscription.mark_delete),
        "readPosition": _shown(read_at),
        "waitingReadOp": is_waiting,
        "pendingReadOps": 0,
        "messagesConsumedCounter": subscription.messages_out,
        # Cursors are stored in the log's own commits, not in separate ledgers.
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": shown.text(cursor.acked_runs()),
        "lastLedgerSwitchTimestamp": written_time(0),
        "state": "Open",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": subscription.backlog(),
        "totalNonContiguousDeletedMessagesRange": cursor.ranges,
        "subscriptionHavePendingRead": is_waiting,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


def ledger_info(topic: Topic) -> dict[str, Any]:
    """The stored record of the topic as Pulsar's ManagedLedgerInfo JSON."""
    record = topic.log.topic_record
    created = [ledger.created_ms for ledger in record.ledgers]
    return {
        "version": 0,
        "creationDate": written_time(record.created_ms),
        "modificationDate": written_time(max(created, default=record.created_ms)),
        "ledgers": [
            {
                "ledgerId": ledger.id,
                **({} if ledger.end is None else {"entries": ledger.end, "size": ledger.bytes}),
                "timestamp": ledger.created_ms,
                "isOffloaded": False,
            }
            for ledger in record.ledgers
        ],
        "cursors": {
            name: {
                "version": 0,
                "cursorsLedgerId": -1,
                "markDelete": {"ledgerId": s.mark_delete[0], "entryId": s.mark_delete[1]},
            }
            for name, s in topic.subscriptions.items()
            if s.is_durable
        },
        **({"properties": dict(record.properties)} if record.properties else {}),
    }


class _ShownRuns:
    """The runs of acknowledged entries in one answer, as many as it may have."""

    def __init__(self) -> None:
        self._left = RUNS_SHOWN_MAX

    def text(self, runs: Iterator[tuple[int, int, int]]) -> str:
        """The runs as Pulsar writes ranges: (before the first..the last]. An ellipsis stands for more."""
        found = [
            f"({ledger}:{first - 1}..{ledger}:{end - 1}]" for ledger, first, end in islice(runs, self._left)
        ]
        self._left -= len(found)
        if next(runs, None) is not None:
            found.append("…")
        return f"[{','.join(found)}]"


def _shown(at: Position) -> str:
    return f"{at[0]}:{at[1]}"
