"""Figures of the upkeep of topics, for Prometheus: backlog quotas and keyed compaction, under Pulsar's names, and how
long hidden writes have held readers.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from anabranch.broker.observe.metrics_page import Page
from anabranch.broker.policy.namespace import QuotaKind
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import NamespaceName

EVICTIONS: Final = "pulsar_storage_backlog_quota_exceeded_evictions_total"
EVICTIONS_OF_BROKER: Final = "pulsar_broker_storage_backlog_quota_exceeded_evictions_total"
READERS_HELD: Final = "anabranch_readers_held_seconds"
READERS_HELD_MAX: Final = "anabranch_broker_readers_held_max_seconds"
# Pulsar's names for them in labels.
_KINDS: Final[dict[QuotaKind, str]] = {"destination_storage": "size", "message_age": "time"}


class UpkeepLines:
    """Adds each topic's lines, or their sums by namespace where topics are not listed one by one."""

    def __init__(self, page: Page, cluster: str, *, per_topic: bool) -> None:
        self._page = page
        self._cluster = cluster
        self._per_topic = per_topic
        self._sums: dict[NamespaceName, Counter[QuotaKind]] = {}
        # The longest of each namespace: hidden writes of one topic do not affect another's.
        self._held: dict[NamespaceName, float] = {}

    def add(self, labels: str, topic: Topic) -> None:
        """Adds a topic; `labels` are the topic's."""
        evictions = topic.quotas.evictions
        self._sums.setdefault(topic.name.namespace, Counter()).update(evictions)
        if topic.hidden.has_attempts:
            held_s = topic.hidden.held_ms / 1000
            self._held[topic.name.namespace] = max(held_s, self._held.get(topic.name.namespace, 0.0))
            if self._per_topic:
                self._page.add(READERS_HELD, labels, held_s)
        if not self._per_topic:
            return
        quotas = topic.quotas
        figures = {
            "pulsar_storage_backlog_quota_limit": quotas.limit("destination_storage"),
            "pulsar_storage_backlog_quota_limit_time": quotas.limit("message_age"),
            "pulsar_storage_backlog_age_seconds": quotas.backlog_age_s,
        }
        self._page.add_all(labels, figures)
        self._add_evictions(EVICTIONS, labels, evictions)
        if not topic.compaction.figures.is_empty:
            self._page.add_all(labels, _compaction(topic))

    def finish(self) -> None:
        """Adds the sums, once every topic was added."""
        total: Counter[QuotaKind] = Counter()
        for namespace, evictions in self._sums.items():
            total.update(evictions)
            if not self._per_topic:
                self._add_evictions(EVICTIONS, f'{self._cluster},namespace="{namespace}"', evictions)
        self._add_evictions(EVICTIONS_OF_BROKER, self._cluster, total)
        if not self._per_topic:
            for namespace, held_s in self._held.items():
                self._page.add(READERS_HELD, f'{self._cluster},namespace="{namespace}"', held_s)
        self._page.add(READERS_HELD_MAX, self._cluster, max(self._held.values(), default=0.0))

    def _add_evictions(self, name: str, labels: str, evictions: Counter[QuotaKind]) -> None:
        for kind, label in _KINDS.items():
            self._page.add(name, f'{labels},quota_type="{label}"', evictions[kind])


def _compaction(topic: Topic) -> dict[str, float]:
    figures = topic.compaction.figures
    left = topic.log.topic_record.compacted
    return {
        "pulsar_compaction_removed_event_count": figures.removed,
        "pulsar_compaction_succeed_count": figures.succeeded,
        "pulsar_compaction_failed_count": figures.failed,
        "pulsar_compaction_duration_time_in_mills": figures.duration_ms,
        "pulsar_compaction_read_throughput": figures.rates[0],
        "pulsar_compaction_write_throughput": figures.rates[1],
        "pulsar_compaction_compacted_entries_count": 0 if left is None else left.entries,
        "pulsar_compaction_compacted_entries_size": 0 if left is None else left.bytes,
    }
